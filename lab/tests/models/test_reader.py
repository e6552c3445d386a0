"""The recipe of the reaction classifier: the same samples every time, and training that learns."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from lab.models.reader.generate import (
    CLASSES,
    FAMILIES,
    NEITHER,
    PRAISE,
    SMALL,
    Grammar,
    checksum,
    generate,
    load_grammars,
)
from lab.models.reader.labelled import labelled_samples, read_all_rows
from lab.models.reader.train import report, train, write_weights
from scorers.classifier import Classifier

#: Of the first 500 samples of seed 7; changes with every change of a phrase, and the weights with it.
CHECKSUM = "4156f96cc0fca5dfafd61cb78c67a6e9a9630b2a6b530cc3860d563c810b1b39"


def test_the_generator_makes_the_same_samples_everywhere() -> None:
    assert checksum(list(generate(500, 7))) == CHECKSUM


def test_every_class_and_language_is_generated() -> None:
    samples = list(generate(6000, 1))
    classes = Counter(CLASSES[sample.label] for sample in samples)
    languages = Counter(sample.language for sample in samples)
    assert set(classes) == set(CLASSES)
    assert len(languages) >= 12
    assert classes["neither"] >= 0.3 * len(samples)


def test_every_section_of_every_grammar_expands() -> None:
    import random

    rng = random.Random(1)
    for language, grammar in load_grammars().items():
        for section in ("PLAIN_NEITHER", "PLAIN_PRAISE", "PLAIN_WISH", "HARM", "PLEASED", "PLAN", "ironic"):
            for _ in range(50):
                assert not set("{}") & set(grammar.expand(section, rng)), (language, section)
        if language in SMALL:
            continue
        for section in (
            "WISH",
            "CORRECTION",
            "FAULT",
            "BAD",
            "PRAISE",
            "ACK",
            "ASK",
            "TASK",
            "STATE",
            "ANSWER",
        ):
            for _ in range(200):
                text = grammar.expand(section, rng)
                assert "{" not in text, (language, section, text)
                assert "|" not in text.replace("||", ""), (language, section, text)


def test_only_a_small_grammar_lacks_a_family() -> None:
    import random

    for language, grammar in load_grammars().items():
        if language not in SMALL:
            for seed in range(10):
                for _, _, make in FAMILIES:
                    assert make(grammar, random.Random(seed))[0].strip()


def test_a_grammar_has_choices_slots_and_escapes() -> None:
    import random

    grammar = Grammar("A:\n(x|y) {b}\\nend \\(z\nb:\nslot\n")
    texts = {grammar.expand("A", random.Random(seed)) for seed in range(20)}
    assert texts == {"x slot\nend (z", "y slot\nend (z"}
    with pytest.raises(ValueError, match="no section 'C'"):
        grammar.expand("C", random.Random(0))


def test_labelled_rows_become_samples_as_they_are_and_with_typing_noise() -> None:
    rows = read_all_rows()
    assert len(rows) >= 23_000
    assert all((row["verdict"] == -1) == ("class" in row) and row["verdict"] in (-1, 0, 1) for row in rows)
    samples = list(labelled_samples(3 * len(rows) + 5, 1))
    assert len(samples) == 3 * len(rows)
    for row, *copies in zip(rows, *(samples[start::3] for start in range(3)), strict=True):
        assert copies[0].text == row["text"]
        name = {0: "neither", 1: "praise"}.get(row["verdict"]) or row["class"]
        assert {CLASSES[copy.label] for copy in copies} == {name}
        assert {(copy.reply, copy.prompt) for copy in copies} == {
            (row.get("reply", ""), row.get("prompt", ""))
        }
    assert (
        sum(sample.text != row["text"] for row, sample in zip(rows, samples[2::3], strict=True))
        > len(rows) / 2
    )
    assert samples == list(labelled_samples(3 * len(rows) + 5, 1))


def test_a_small_training_run_learns_and_repeats_to_the_bit(tmp_path: Path) -> None:
    samples = list(generate(3000, 3))
    first = train(samples, epochs=8, networks=1, log=False)
    again = train(samples, epochs=8, networks=1, log=False)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    write_weights(tmp_path / "a.npz", first)
    write_weights(tmp_path / "b.npz", again)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    classifier = Classifier.load(tmp_path / "a.npz")
    unseen = [sample for sample in generate(400, 4) if sample.label in (NEITHER, PRAISE)]
    right = sum(
        (classifier.read(s.text).praise > classifier.read(s.text).neither) == (s.label == PRAISE)
        for s in unseen
    )
    assert right >= 0.7 * len(unseen)
    assert "en " in report(classifier, unseen)


def test_networks_side_by_side_answer_with_the_mean_of_their_logits(tmp_path: Path) -> None:
    samples = list(generate(300, 5))
    paths = [tmp_path / f"{name}.npz" for name in ("first", "second", "both")]
    for path, seed, networks in zip(paths, (1, 2, 1), (1, 1, 2), strict=True):
        write_weights(path, train(samples, seed=seed, epochs=1, networks=networks, log=False))
    logits = []
    for path in paths:
        reading = Classifier.load(path).read("That is wrong, make it shorter.")
        shares = np.array([reading.neither, reading.praise, reading.wish, reading.fault, reading.blame])
        logits.append(np.log(shares) - np.log(shares).mean())
    assert np.abs(logits[0] - logits[1]).max() > 0.01
    assert np.allclose(logits[2], (logits[0] + logits[1]) / 2, atol=0.02)
