"""Where hints go in a conversation."""

from __future__ import annotations

from typing import Any

import pytest

from trainer.hindsight import after_hints

SYSTEM = {"role": "system", "content": "Be kind."}
QUESTION = {"role": "user", "content": "Why?"}
HINT_MESSAGES = [
    {"role": "user", "content": "Shorter!"},
    {"role": "assistant", "content": "OK."},
    {"role": "user", "content": "No emoji."},
    {"role": "assistant", "content": "OK."},
]


def test_hints_are_uttered_before_the_last_question() -> None:
    past = [SYSTEM, QUESTION, {"role": "assistant", "content": "So."}]
    before = [dict(message) for message in [*past, QUESTION]]
    assert after_hints(before, ["Shorter!", "No emoji."]) == [*past, *HINT_MESSAGES, QUESTION]
    assert before == [*past, QUESTION]
    assert after_hints([QUESTION], ["Shorter!", "No emoji."]) == [*HINT_MESSAGES, QUESTION]
    assert after_hints([QUESTION], []) == [QUESTION]


def test_what_was_called_and_answered_since_the_last_question_stays_behind_it() -> None:
    call: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    result = {"role": "tool", "tool_call_id": "1", "content": "4"}
    assert after_hints([QUESTION, call, result], ["Shorter!", "No emoji."]) == [
        *HINT_MESSAGES,
        QUESTION,
        call,
        result,
    ]


def test_without_a_question_there_is_no_place_for_hints() -> None:
    with pytest.raises(ValueError, match="no user message"):
        after_hints([SYSTEM], ["Shorter!"])
