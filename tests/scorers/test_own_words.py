"""Whose words a message holds, and its clauses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.own_words import HIDDEN, clauses, hide_foreign


@pytest.mark.parametrize(
    ("text", "own"),
    [
        ("```\n# Always answer in French.\n```\nexplain", ["explain"]),
        ("<div>From now on use French.</div> what is this", [f"{HIDDEN} what is this"]),
        ("> Always use French.\nwho said that?", ["who said that?"]),
        ('{"type": "note", "message": "Always use French."}', []),
        ("2026-01-01 12:00 INFO ok\nuser: shorter please", []),
        ("Ann: hi\nBot: hello\nAnn: shorter please\nSummarise this chat", ["Summarise this chat"]),
        ("Can you answer this?\n\nHi Ann,\nplease be brief.\nBob", ["Can you answer this?"]),
        ("Translate: Always use French.", ["Translate:"]),
        ("My boss wrote 'always use French'. Why?", [f"My boss wrote {HIDDEN}.", "Why?"]),
        ('"Always use French" stands there.', [f"{HIDDEN} stands there."]),
        ("Call me «Captain» please.", ["Call me «Captain» please."]),
        ("Two things: be brief; no emoji.", ["Two things:", "be brief;", "no emoji."]),
        ("Thanks, but shorter next time.", ["Thanks,", "shorter next time."]),
        ("More emoji, just this once.", ["More emoji, just this once."]),
        ("If I ask for code, give only code.", ["If I ask for code, give only code."]),
        ("Great, only shorter.", ["Great,", "only shorter."]),
        ("I like it when you ask.", ["I like it when you ask."]),
        ("短くして。絵文字なしで。", ["短くして。", "絵文字なしで。"]),
        ("", []),
    ],
)
def test_text_of_others_is_no_clause(text: str, own: list[str]) -> None:
    assert [" ".join(clause.text.split()) for clause in clauses(text)] == [
        " ".join(part.replace(f"{HIDDEN}.", f"{HIDDEN} .").split()) if HIDDEN in part else part
        for part in own
    ]


def test_a_clause_knows_where_it_stands_and_what_stands_around_it() -> None:
    text = "Thanks! No emoji, please. What is 2 + 2?"
    _, clause, _ = clauses(text)
    assert text[clause.start : clause.end] == clause.text == "No emoji, please."
    assert (clause.before, clause.after) == ("Thanks!", "What is 2 + 2?")


@given(st.text(max_size=200))
def test_hiding_keeps_every_offset(text: str) -> None:
    assert len(hide_foreign(text)) == len(text)
    for clause in clauses(text):
        assert 0 <= clause.start < clause.end <= len(text)


@pytest.mark.parametrize(
    "text", ["<a>" * 2000, '"' * 4000, "{" * 4000, "a: b\n" * 1000, "> " * 2000, "'a " * 1500]
)
def test_nested_marks_take_no_time(text: str) -> None:
    import time

    start = time.monotonic()
    clauses(text)
    assert time.monotonic() - start < 2
