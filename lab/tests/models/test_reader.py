"""The recipe of the reaction classifier: the same samples every time, and training that learns."""

from __future__ import annotations

import random
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
from lab.models.reader.wishes import (
    LASTING,
    NONE,
    SCOPES,
    Message,
    hand_written,
    is_held_out,
    made,
    samples_of,
    scope_samples,
)
from scorers.classifier import Classifier
from scorers.combined import read_message

#: Of the first 500 samples of seed 7; changes with every change of a phrase, and the weights with it.
CHECKSUM = "4156f96cc0fca5dfafd61cb78c67a6e9a9630b2a6b530cc3860d563c810b1b39"


def test_the_generator_makes_the_same_samples_everywhere() -> None:
    assert checksum(list(generate(500, 7))) == CHECKSUM


def test_every_class_and_language_is_generated() -> None:
    samples = list(generate(6000, 1))
    classes = Counter(CLASSES[sample.label] for sample in samples if sample.label is not None)
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
    first = train(samples, epochs=14, networks=1, least=8, log=False)
    again = train(samples, epochs=14, networks=1, least=8, log=False)
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


def test_the_messages_written_by_hand_are_many_and_of_every_scope_and_language() -> None:
    messages = list(hand_written())
    assert len(messages) >= 600
    assert sum(m.held_out for m in messages) >= 100
    assert set(SCOPES) <= {m.scope for m in messages if m.held_out}
    assert len({m.language for m in messages}) >= 19
    assert all(m.text[slice(*m.span)].strip() for m in messages)
    trained = {m.text.casefold() for m in messages if not m.held_out}
    assert not trained & {m.text.casefold() for m in messages if m.held_out}


def test_no_held_out_kind_or_frame_is_trained_on() -> None:
    trained = {(m.language, m.kind) for m in made(2000, 1) if m.kind}
    assert not {kind for _, kind in trained if is_held_out(kind)}
    held_out = [m for m in made(300, 2, held_out=True) if m.kind and is_held_out(m.kind)]
    assert len(held_out) >= 50


def test_a_clause_is_labelled_by_the_span_that_it_stands_in() -> None:
    text = "Too long. Two lines, please."
    message = Message(text=text, scope="lasting", language="en", kind="", span=(10, len(text)))
    whole, blame, wish = samples_of(message, random.Random(0), noise=False)
    assert (whole.text, CLASSES[whole.label or 0], whole.scopes) == (text, "wish", ())
    assert (blame.text, blame.scopes, blame.after) == ("Too long.", (NONE, LASTING), "Two lines, please.")
    assert (wish.text, wish.scopes, wish.before) == ("Two lines, please.", (LASTING,), "Too long.")


def test_a_small_training_run_learns_scopes_of_unseen_kinds(tmp_path: Path) -> None:
    write_weights(
        tmp_path / "w.npz", train(list(scope_samples(6000, 3)), epochs=6, networks=1, least=12, log=False)
    )
    counts = Counter(
        (m.scope == "lasting", bool(wish and wish.scope == "lasting"))
        for m in made(200, 4, held_out=True)
        for wish in [read_message(m.text, classifier=Classifier.load(tmp_path / "w.npz")).wish]
    )
    assert counts[True, True] >= 0.6 * (counts[True, True] + counts[True, False])
    assert counts[False, True] <= 0.2 * (counts[False, True] + counts[False, False])
