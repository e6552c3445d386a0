"""Rules: an answered turn in, an opinion or None out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scorers.base import Rank, compose
from scorers.rules import (
    RULES,
    read_edit,
    read_feedback,
    read_follow_up,
    read_retry,
    read_tool_results,
    read_wish,
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


def test_a_complaint_without_usable_words_has_a_value_and_no_hint() -> None:
    opinion = read_follow_up(turn(said("That's wrong.")))
    assert opinion is not None
    assert (opinion.value, opinion.hint) == (-1, None)


def test_a_neutral_question_is_no_opinion() -> None:
    assert read_follow_up(turn(said("And the capital of Peru?"))) is None


def test_of_several_branches_the_newest_with_an_opinion_counts() -> None:
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


def test_a_tool_that_worked_is_no_opinion() -> None:
    assert read_tool_results(turn(tool("22 degrees"))) is None
    assert read_tool_results(turn(said("Error: I mean it"))) is None


async def test_the_rules_are_scorers_in_the_order_of_their_say() -> None:
    assert [rule.name for rule in RULES] == ["feedback", "follow_up", "tool_error", "retry", "edited", "wish"]
    opinions = [await rule.score(turn(said("too long"))) for rule in RULES]
    assert [o is not None for o in opinions] == [False, True, False, False, False, False]


@pytest.mark.parametrize(
    ("text", "hint", "wishes"),
    [
        ("You can use emojis again.", "You can use emojis again.", ("emoji",)),
        ("Emojis sind wieder okay", "Emojis sind wieder okay", ("emoji",)),
        (
            "You can use emojis again. What is the capital of Peru?",
            "You can use emojis again.",
            ("emoji",),
        ),
    ],
)
def test_a_wish_without_a_complaint_is_a_hint_and_no_opinion_of_the_reply(
    text: str, hint: str, wishes: tuple[str, ...]
) -> None:
    reacted = turn(said(text))
    opinions = [o for rule in RULES if (o := rule.read(reacted)) is not None]
    verdict, drop = compose(reacted, opinions, now=1.0)
    assert (verdict.value, verdict.hint, verdict.wishes, drop) == (0, hint, wishes, None)
    assert verdict.source == "rule:wish"


@pytest.mark.parametrize(
    "text",
    ["What does JSON mean?", "Okay.", "Write a short story about emojis.", "Thanks! You can use emojis."],
)
def test_questions_tasks_and_thanks_are_no_wish(text: str) -> None:
    assert read_wish(turn(said(text))) is None


def test_a_complaint_keeps_its_own_hint_beside_a_wish() -> None:
    assert read_wish(turn(said("Shorter, please."))) is None
