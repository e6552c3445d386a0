"""Where hints go in a conversation, and which there are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.trainer.turns import sampled_turn
from trainer.hindsight import after_hints, distinct_hints
from trainer.policy import LocalPolicy

SYSTEM = {"role": "system", "content": "Be kind."}
QUESTION = {"role": "user", "content": "Why?"}
TOLD = [
    {"role": "user", "content": "Shorter!"},
    {"role": "assistant", "content": "OK."},
    {"role": "user", "content": "No emoji."},
    {"role": "assistant", "content": "OK."},
]


def test_hints_are_uttered_before_the_last_question() -> None:
    past = [SYSTEM, QUESTION, {"role": "assistant", "content": "So."}]
    before = [dict(message) for message in [*past, QUESTION]]
    assert after_hints(before, ["Shorter!", "No emoji."]) == [*past, *TOLD, QUESTION]
    assert before == [*past, QUESTION]
    assert after_hints([QUESTION], ["Shorter!", "No emoji."]) == [*TOLD, QUESTION]
    assert after_hints([QUESTION], []) == [QUESTION]


def test_what_was_called_and_answered_since_the_last_question_stays_behind_it() -> None:
    call: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    result = {"role": "tool", "tool_call_id": "1", "content": "4"}
    assert after_hints([QUESTION, call, result], ["Shorter!", "No emoji."]) == [*TOLD, QUESTION, call, result]


def test_without_a_question_there_is_no_place_for_hints() -> None:
    with pytest.raises(ValueError, match="no user message"):
        after_hints([SYSTEM], ["Shorter!"])


def test_each_wording_counts_once_where_it_was_said_last_and_thanks_hint_at_nothing(
    policy: LocalPolicy,
) -> None:
    said = [(-1, "Shorter!"), (0, " No emoji. "), (1, "Great."), (-1, None), (-1, "Shorter! "), (None, "  ")]
    turns = [
        sampled_turn(policy, f"t{i}", "Why?", verdict={"value": value, "hint": hint})
        for i, (value, hint) in enumerate(said)
    ]
    assert distinct_hints(turns) == ("No emoji.", "Shorter!")
    liked = replace(turns[0], verdict=replace(turns[0].verdict, value=1))
    assert distinct_hints([liked]) == ()
