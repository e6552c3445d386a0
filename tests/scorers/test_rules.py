"""Rules: an answered turn in, an opinion or None out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scorers.base import Rank
from scorers.rules import (
    RULES,
    read_edit,
    read_feedback,
    read_follow_up,
    read_retry,
    read_tool_results,
    tool_error,
)
from store.values import Relation
from tests.scorers.turns import feedback, said, tool, turn


@pytest.mark.parametrize(
    ("score", "value"), [(1.0, 1), (-1.0, -1), (0.0, 0), (0.05, 0), (0.4, 1), (-0.2, -1)]
)
def test_explicit_feedback_counts_by_its_sign(score: float, value: int) -> None:
    opinion = read_feedback(turn(feedback=(feedback(score),)))
    assert opinion is not None
    assert (opinion.value, opinion.rank, opinion.source) == (value, Rank.FEEDBACK, "feedback")
    assert opinion.hint is None


def test_the_newest_score_and_the_newest_words_count() -> None:
    given = (
        feedback(1.0, number=1),
        feedback(-1.0, "shorter please", number=2),
        feedback(None, "", number=3),
    )
    opinion = read_feedback(turn(feedback=given))
    assert opinion is not None
    assert (opinion.value, opinion.hint) == (-1, "shorter please")


def test_words_given_as_feedback_are_a_hint_even_where_they_do_not_sound_like_a_complaint() -> None:
    opinion = read_feedback(turn(feedback=(feedback(None, "The population would interest me as well"),)))
    assert opinion is not None
    assert (opinion.value, opinion.hint) == (None, "The population would interest me as well")


def test_feedback_in_words_alone_is_read_like_a_reaction() -> None:
    thanks = read_feedback(turn(feedback=(feedback(None, "Perfect, thanks!"),)))
    complaint = read_feedback(turn(feedback=(feedback(None, "too long"),)))
    assert thanks is not None
    assert complaint is not None
    assert (thanks.value, thanks.hint) == (1, None)
    assert (complaint.value, complaint.hint) == (-1, "too long")


def test_no_feedback_is_no_opinion() -> None:
    assert read_feedback(turn(said("too long"))) is None


def test_a_complaint_is_strong_and_its_words_are_the_hint() -> None:
    opinion = read_follow_up(turn(said("Too long, and no emoji please.")))
    assert opinion is not None
    assert (opinion.value, opinion.rank, opinion.source) == (-1, Rank.STRONG_RULE, "rule:complaint")
    assert (opinion.hint, opinion.hint_is_reaction) == ("Too long, and no emoji please.", True)


def test_a_complaint_that_says_nothing_usable_has_a_value_and_a_refused_hint() -> None:
    opinion = read_follow_up(turn(said("That's wrong.")))
    assert opinion is not None
    assert (opinion.value, opinion.hint) == (-1, None)
    assert opinion.detail["rejected_hints"][0]["reason"].startswith("trivial")


def test_a_neutral_question_is_no_opinion() -> None:
    assert read_follow_up(turn(said("And the capital of Peru?"))) is None


def test_of_several_branches_the_newest_that_says_something_counts() -> None:
    branches = turn(
        said("thanks", by="a"), said("shorter please", Relation.BRANCH, by="b"), said("ok", by="c")
    )
    opinion = read_follow_up(branches)
    assert opinion is not None
    assert opinion.value == -1


def test_a_retrys_words_are_the_old_prompt_and_not_a_reaction() -> None:
    asked_again = turn(said("shorter please", Relation.RETRY))
    assert read_follow_up(asked_again) is None
    opinion = read_retry(asked_again)
    assert opinion is not None
    assert (opinion.value, opinion.hint, opinion.source) == (-1, None, "rule:retry")


def test_an_edit_is_weak_and_neutral() -> None:
    opinion = read_edit(turn(said("And Peru?", Relation.BRANCH)))
    assert opinion is not None
    assert (opinion.value, opinion.rank) == (0, Rank.WEAK_RULE)
    assert read_edit(turn(said("And Peru?"))) is None


BAD: list[Any] = [
    "Error: file not found",
    "error: unknown option --foo",
    "ERROR 404 Not Found",
    "Tool error: bad arguments",
    "Error executing tool search: timeout",
    "Exception: boom",
    "ValueError: invalid literal for int()",
    'Traceback (most recent call last):\n  File "a.py", line 1\nKeyError: 1',
    "out\nTraceback (most recent call last):\n  File x\nZeroDivisionError: division by zero",
    "Exit code: 1\nwrong",
    "stdout\n\nexit_code: 127",
    "Process exited with code 2\nOutput:\nx",
    "bash: foo: command not found",
    '{"error": "no such city"}',
    '{"error": {"message": "x"}}',
    '{"ok": false}',
    '{"success": false, "data": null}',
    '{"isError": true, "content": "x"}',
    '{"output": "x", "metadata": {"exit_code": 1, "duration_seconds": 0.1}}',
    '{"returncode": 2, "stdout": ""}',
    '{"status": "error"}',
    '"Error: quoted"',
    [{"type": "text", "text": "Error: in parts"}],
]
FINE: list[Any] = [
    "22 degrees and sunny",
    "",
    None,
    "0 errors, 3 warnings",
    "exit code: 0",
    '{"exit_code": 0, "stdout": "error: old log line"}',
    '{"error": null, "result": 3}',
    '{"errors": [], "ok": true}',
    '{"results": [{"title": "Error handling in Go"}]}',
    "docs/errors.md: how to read an error message\nsrc/error.py",
    "The exception proves the rule.",
    "Errors and residuals are two related measures in statistics.",
    "[1, 2, 3]",
    "Terror: a history",
    '{"output": "done", "metadata": {"exit_code": 0}}',
    "def f():\n    raise ValueError('x')",
    "[" * 5000,
]


@pytest.mark.parametrize("content", BAD, ids=lambda c: str(c)[:40])
def test_a_failed_tool_is_seen_by_its_structure(content: Any) -> None:
    assert tool_error(content)


@pytest.mark.parametrize("content", FINE, ids=lambda c: str(c)[:40])
def test_a_result_that_merely_mentions_errors_is_fine(content: Any) -> None:
    assert tool_error(content) is None


def test_a_failed_call_is_a_strong_minus_without_a_hint() -> None:
    opinion = read_tool_results(turn(tool("22 degrees", json.dumps({"error": "no such city"}))))
    assert opinion is not None
    assert (opinion.value, opinion.rank, opinion.hint) == (-1, Rank.STRONG_RULE, None)
    assert opinion.confidence == 0.5
    assert opinion.detail["errors"] == ["error: no such city"]


def test_a_tool_that_worked_says_nothing() -> None:
    assert read_tool_results(turn(tool("22 degrees"))) is None
    assert read_tool_results(turn(said("Error: I mean it"))) is None


async def test_the_rules_are_scorers_in_the_order_of_their_say() -> None:
    assert [rule.name for rule in RULES] == ["feedback", "follow_up", "tool_error", "retry", "edited"]
    opinions = [await rule.score(turn(said("too long"))) for rule in RULES]
    assert [o is not None for o in opinions] == [False, True, False, False, False]
