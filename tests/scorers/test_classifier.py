"""The network by hand-made weights, and its file."""

from __future__ import annotations

import numpy as np

from scorers.classifier import CLASSES, SCOPES, WEIGHTS, Classifier, default_classifier, slots
from scorers.features import features


def hand_made(word: str, size: int = 1 << 12) -> Classifier:
    """A classifier that calls every message with ``word`` praise and a wish for once, and knows nothing else."""
    fingerprints = np.zeros(size, dtype=np.uint8)
    table = np.zeros((size, 2), dtype=np.int8)
    shared = set(features("другие"))  # shape and context, which say nothing of the word
    for value in set(features(word)) - shared:
        buckets, prints = slots(np.array([value], dtype=np.uint32), size)
        fingerprints[buckets] = prints
        table[buckets] = 10
    return Classifier(
        fingerprints=fingerprints,
        table=table,
        scale=np.full(2, 0.1, dtype=np.float32),
        hidden=np.eye(2, dtype=np.float32),
        hidden_bias=np.zeros(2, dtype=np.float32),
        out=np.array([[0, 5, 0, 0, 0, 0, 0, 4, 0, 0], [0] * 10], dtype=np.float32),
        out_bias=np.zeros(10, dtype=np.float32),
    )


def test_probabilities_sum_to_one_and_a_known_word_counts() -> None:
    reading = hand_made("zorbo").read("zorbo")
    assert abs(reading.neither + reading.praise + reading.complaint - 1) < 1e-5
    assert abs(sum(reading.scopes.values()) - 1) < 1e-5
    assert reading.praise > 0.9
    assert reading.scopes["once"] > 0.9
    assert reading.known > 0.5


def test_features_that_no_training_sample_had_count_for_nothing() -> None:
    reading = hand_made("zorbo").read("Быстрее, ещё раз")
    assert reading.known < 0.2
    assert reading.praise < 0.5


def test_a_message_without_letters_is_read_too() -> None:
    reading = default_classifier().read("")
    assert reading.neither > 0.5


def test_the_weights_are_small_and_have_the_classes_of_the_recipe() -> None:
    from lab.models.reader.generate import CLASSES as RECIPE_CLASSES
    from lab.models.reader.wishes import SCOPES as RECIPE_SCOPES

    assert CLASSES == RECIPE_CLASSES
    assert SCOPES == RECIPE_SCOPES
    assert WEIGHTS.stat().st_size < 7_000_000
    with np.load(WEIGHTS) as arrays:
        assert arrays["table"].dtype == np.int8
        assert arrays["out"].shape[1] == len(CLASSES) + len(SCOPES)
