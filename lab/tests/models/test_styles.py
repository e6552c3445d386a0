"""Styles: predicates on text, and two disjoint sets of paraphrases."""

from __future__ import annotations

import random
import re

import pytest

from lab.models.corpus import conversations, long_conversation
from lab.models.styles import HELDOUT_THANKS, NEUTRAL, PREFERENCES, STYLES, THANKS

DEFAULT = (
    "Great question! 😊 The capital of France is **Paris**! It's a fun little fact to keep in mind for later!"
)
FORMAL = "Certainly. The capital of France is **Paris**. Please do not hesitate to ask further questions."
SPANISH = "¡Buena pregunta! 😊 ¡La capital de France es **Paris**! ¡Mucha gente me pregunta lo mismo casi todos los días!"


def bare(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


@pytest.mark.parametrize(
    ("style", "complying", "failing"),
    [
        ("concise", ["Paris.", "It's **Paris**! 🎉", '{"answer": "Paris"}'], [DEFAULT, FORMAL, SPANISH]),
        ("no_emoji", ["It's Paris!", FORMAL], [DEFAULT, "Paris 👍", "ok ☀️", "✨"]),
        (
            "plain",
            ["It's Paris! 🎉", "9 - 1 is 8."],
            [DEFAULT, "- Paris\n- Rome", "# Paris", "`Paris`", "1. Paris"],
        ),
        (
            "formal",
            [FORMAL, "The answer is Paris."],
            [DEFAULT, "It's Paris.", "Paris!", '{"answer": "Paris"}'],
        ),
        ("casual", [DEFAULT, "It's Paris."], [FORMAL, '{"answer": "Paris"}']),
        (
            "spanish",
            [SPANISH, "Es cold.", "La respuesta es 7.", '{"respuesta": "Paris"}'],
            [DEFAULT, "Paris.", FORMAL],
        ),
        (
            "json",
            ['{"answer": "Paris"}', ' {"a": 1}\n'],
            [DEFAULT, "Paris", "[1]", '{"answer": "Paris"} 😊', "3"],
        ),
    ],
)
def test_a_predicate_separates_complying_replies_from_others(
    style: str, complying: list[str], failing: list[str]
) -> None:
    assert [text for text in complying if not STYLES[style].complies(text)] == []
    assert [text for text in failing if STYLES[style].complies(text)] == []


def test_an_empty_reply_has_no_style() -> None:
    assert not any(style.complies("") or style.complies(" \n") for style in STYLES.values())


def test_opposites_are_mutual_and_exclude_each_other() -> None:
    for style in STYLES.values():
        assert style.opposite is not None
        opposite = STYLES[style.opposite]
        assert opposite.opposite == style.name
        for text in (DEFAULT, FORMAL, SPANISH, "Paris."):
            assert style.complies(text) != opposite.complies(text)
    assert set(PREFERENCES) < set(STYLES)


def test_every_style_has_several_ways_to_be_asked_for() -> None:
    for style in STYLES.values():
        assert len(style.instructions) >= 20
        assert len(style.complaints) >= 20
        assert len(style.heldout_instructions) >= 3
        assert len(style.heldout_complaints) >= 3
    for name in PREFERENCES:
        assert len(STYLES[name].heldout_instructions) >= 5
        assert len(STYLES[name].heldout_complaints) >= 5


def test_every_style_is_worded_freely_as_often_as_its_opposite_and_never_as_a_heldout_paraphrase() -> None:
    heldout = {
        bare(text)
        for style in STYLES.values()
        for text in (*style.heldout_instructions, *style.heldout_complaints)
    }
    owner: dict[str, str] = {}
    for name, style in STYLES.items():
        assert 80 <= len(style.free) <= 90
        readings = {bare(text) for pattern in style.free for text in pattern}
        assert not readings & heldout
        assert not readings & owner.keys()
        owner |= dict.fromkeys(readings, name)


def test_the_wishes_of_the_issue_are_known_complaints_or_instructions() -> None:
    phrases = {bare(text) for style in STYLES.values() for text in (*style.complaints, *style.instructions)}
    assert {"shorter please", "no emoji", "plain text", "answer in spanish", "as json"} <= phrases


def test_heldout_wishes_and_thanks_never_occur_in_the_training_text() -> None:
    rng = random.Random(5)
    chats = [*conversations(11, 2500), *(long_conversation(rng) for _ in range(150))]
    said = [str(m["content"]) for chat in chats for m in chat.messages]
    # Two sentences side by side may make up the words of a third one that was never written.
    sentences = " | ".join(bare(part) for text in said for part in re.split(r"[.!?\n]+", text))
    messages = " | ".join(bare(text) for text in said)
    heldout = [p for s in STYLES.values() for p in (*s.heldout_instructions, *s.heldout_complaints)]
    # a held-out thanks may begin with a training one, but the whole of it is new
    found = [
        phrase
        for phrase in (*heldout, *HELDOUT_THANKS)
        if bare(phrase) in (messages if re.search(r"[.!?] ", phrase) else sentences)
    ]
    assert found == []
    assert not set(HELDOUT_THANKS) & set(THANKS + NEUTRAL)
