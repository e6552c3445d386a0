"""Rules: an answered turn in, an opinion or None out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scorers.base import Opinion, Rank, compose, next_words
from scorers.reader import read_turn
from scorers.rules import (
    LOOP_SHARE,
    RULES,
    read_edit,
    read_feedback,
    read_follow_up,
    read_retry,
    read_tool_calls,
    read_wish,
)
from store.lifecycle import DropReason
from store.values import AnsweredTurn, Completion, Relation, WishReading, WishScope
from tests.making import make_answer
from tests.scorers.turns import REPLY, feedback, said, tool, turn


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


def test_a_reply_that_was_continued_is_not_unwanted_because_its_question_came_again() -> None:
    again, went_on = said("What is 2 + 2?", Relation.RETRY), said("And 3 + 3?", by="v")
    assert read_retry(turn(again)) is not None
    assert read_retry(turn(again, went_on)) is read_retry(turn(went_on, again)) is None
    assert read_retry(turn(went_on)) is None


def test_all_turns_of_a_short_loop_together_weigh_no_more_than_its_answer() -> None:
    assert 0 < LOOP_SHARE <= 1 / 3


def test_an_edit_is_weak_and_neutral() -> None:
    opinion = read_edit(turn(said("And Peru?", Relation.BRANCH)))
    assert opinion is not None
    assert (opinion.value, opinion.rank) == (0, Rank.WEAK_RULE)
    assert read_edit(turn(said("And Peru?"))) is None


TOOLS = {
    "tools": [
        {"type": "function", "function": {"name": "weather", "parameters": {
            "type": "object", "required": ["city"], "additionalProperties": False,
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "unit": {"enum": ["C", "F"]},
                           "places": {"type": "array", "items": {"$ref": "#/$defs/place"}}},
            "$defs": {"place": {"type": "object", "required": ["name"], "properties": {"name": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}},
        }}},
        {"type": "function", "function": {"name": "bash"}},
    ]
}  # fmt: skip


def calling(name: str, arguments: str, answer: Any = "Error: no such city", **changes: Any) -> AnsweredTurn:
    call = {"id": "c0", "type": "function", "function": {"name": name, "arguments": arguments}}
    return turn(tool(answer), completion=Completion(tool_calls=(call,)), request=TOOLS, **changes)


@pytest.mark.parametrize(
    ("name", "arguments", "fault"),
    [
        ("wheather", '{"city": "Rome"}', "unknown tool 'wheather'"),
        ("weather", '{"city": "Rome"', "weather: the arguments are not JSON"),
        ("weather", '["Rome"]', "weather: the arguments are not an object"),
        ("weather", "{}", "weather: arguments lacks 'city'"),
        ("weather", "", "weather: arguments lacks 'city'"),
        ("weather", '{"city": 3}', "weather: arguments.city is not of type string"),
        ("weather", '{"city": "Rome", "days": 1.5}', "weather: arguments.days is not of type integer"),
        ("weather", '{"city": "Rome", "days": true}', "weather: arguments.days is not of type integer"),
        ("weather", '{"city": "Rome", "unit": "K"}', "weather: arguments.unit is none of the allowed values"),
        ("weather", '{"city": "Rome", "town": "Rome"}', "weather: arguments has no 'town'"),
        ("weather", '{"city": "Rome", "places": [{"name": 4}]}', "weather: arguments.places[].name is not of type string"),
        ("weather", '{"city": "Rome", "places": [{}]}', "weather: arguments.places[] lacks 'name'"),
    ],
)  # fmt: skip
def test_a_malformed_call_is_a_strong_minus_without_a_hint(name: str, arguments: str, fault: str) -> None:
    opinion = read_tool_calls(calling(name, arguments, "fine"))
    assert opinion is not None
    assert (opinion.value, opinion.rank, opinion.hint, opinion.source) == (
        -1,
        Rank.STRONG_RULE,
        None,
        "rule:tool_error",
    )
    assert opinion.detail["errors"] == [fault]


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ('{"command": "ls /nowhere"}', "ls: cannot access '/nowhere': No such file or directory"),
        ('{"command": "cat /etc/shadow"}', "cat: /etc/shadow: Permission denied"),
        ('{"command": "grep -r x ."}', '{"exit_code": 1, "stdout": ""}'),
        ('{"command": "pytest"}', "Traceback (most recent call last):\nKeyError: 1"),
        ('{"command": "make"}', "Process exited with code 2"),
        ('{"command": "which foo"}', '{"isError": true, "content": "not found"}'),
        ('{"anything": [1, null]}', "bash: foo: command not found"),
    ],
)  # fmt: skip
def test_a_call_that_only_failed_is_no_opinion(arguments: str, answer: Any) -> None:
    probing = calling("bash", arguments, answer)
    assert [rule.name for rule in RULES if rule.read(probing) is not None] == []
    assert read_tool_calls(calling("weather", '{"city": "Rome", "days": 2.0, "unit": "C"}', answer)) is None


def test_calls_of_unknown_tools_are_not_checked_where_the_request_offers_none() -> None:
    assert read_tool_calls(replace(calling("nothing", "{"), request={})) is None


def test_one_malformed_call_of_two_has_half_the_confidence() -> None:
    good, bad = (calling("weather", text).completion.tool_calls[0] for text in ('{"city": "Rome"}', "{"))
    opinion = read_tool_calls(turn(completion=Completion(tool_calls=(good, bad)), request=TOOLS))
    assert opinion is not None
    assert opinion.confidence == 0.5


@pytest.mark.parametrize(("role", "value"), [("validator", -1), ("framework", None)])
def test_a_framework_retry_is_at_most_weak_evidence_and_never_a_hint(role: str, value: int | None) -> None:
    text = f"1 validation error for City [type=json_invalid, input_value='{REPLY}']. Too long, be brief!"
    opening = turn(make_answer("t", "u", text, role=role, relation=Relation.FRAMEWORK_RETRY))
    assert (
        read_turn(opening, now=1.0)[0].value is None
    )  # no person may wait for it: an extraction looks the same
    earlier = ({"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."})
    rejected = replace(opening, messages=(*earlier, *opening.messages))
    verdict, drop = read_turn(rejected, now=1.0)
    assert (verdict.value, verdict.hint, verdict.follow_up) == (value, None, None)
    assert (verdict.source, drop) == (("rule:schema", None) if value else ("none", DropReason.ABSTAINED))
    assert next_words(rejected) is None  # no judge is asked


def test_words_after_a_tool_loop_count_for_its_turns_by_a_share_and_without_their_hint() -> None:
    looped = turn(tool("12 C"), said("No, I asked for Rome. Shorter, please.", Relation.TOOL_LOOP, by="v"))
    verdict, drop = read_turn(looped, now=1.0)
    assert (verdict.value, verdict.hint, verdict.source, verdict.share) == (
        -1,
        None,
        "rule:tool_loop",
        LOOP_SHARE,
    )
    assert (verdict.follow_up, drop) == (None, None)
    praised = turn(tool("12 C"), said("Perfect, thank you!", Relation.TOOL_LOOP, by="v"))
    assert read_turn(praised, now=1.0)[0].value == 1
    neutral = turn(tool("12 C"), said("And in Peru?", Relation.TOOL_LOOP, by="v"))
    assert read_turn(neutral, now=1.0)[1] is DropReason.ABSTAINED


def test_a_malformed_call_outweighs_the_words_after_its_loop() -> None:
    wrong = calling("weather", "{")
    thanked = replace(wrong, next_states=(*wrong.next_states, said("Thanks!", Relation.TOOL_LOOP, by="v")))
    verdict, _ = read_turn(thanked, now=1.0)
    assert (verdict.value, verdict.source, verdict.share) == (-1, "rule:tool_error", 1.0)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (f"Shorter, please. You wrote: {REPLY}", "Shorter, please."),
        (REPLY, None),
        ("It lies on the river Seine and I hope this is left out. Use no emoji.", "Use no emoji."),
        ("Say Paris and nothing else.", "Say Paris and nothing else."),
    ],
)  # fmt: skip
def test_a_hint_never_contains_the_reply_that_it_is_about(given: str, kept: str | None) -> None:
    opinion = read_feedback(turn(feedback=(feedback(-1.0, given),)))
    assert opinion is not None
    assert opinion.hint == kept


def test_a_reward_functions_hint_that_repeats_the_reply_is_left_out() -> None:
    own = Opinion(value=-1, rank=Rank.CUSTOM, source="custom:x", hint=f"Better: {REPLY}")
    verdict, _ = compose(turn(), [own], now=1.0)
    assert (verdict.value, verdict.hint, verdict.detail["hint_repeats_reply"]) == (-1, None, True)


async def test_the_rules_are_scorers_in_the_order_of_their_say() -> None:
    assert [rule.name for rule in RULES] == [
        "feedback", "follow_up", "tool_error", "retry", "framework_retry", "tool_loop", "edited", "wish",
    ]  # fmt: skip
    opinions = [await rule.score(turn(said("too long"))) for rule in RULES]
    assert [o is not None for o in opinions] == [False, True, False, False, False, False, False, False]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("You can use emojis again.", "You can use emojis again."),
        ("Emojis sind wieder okay", "Emojis sind wieder okay"),
        ("You can use emojis again. What is the capital of Peru?", "You can use emojis again."),
    ],
)
def test_a_withdrawal_without_a_complaint_is_a_hint_and_no_opinion_of_the_reply(text: str, hint: str) -> None:
    reacted = turn(said(text))
    opinions = [o for rule in RULES if (o := rule.read(reacted)) is not None]
    verdict, drop = compose(reacted, opinions, now=1.0)
    assert (verdict.value, verdict.hint, drop) == (0, hint, None)
    assert verdict.wish == WishReading(text=hint, scope=WishScope.WITHDRAWAL)
    assert verdict.source == "rule:wish"


@pytest.mark.parametrize(
    "text",
    ["What does JSON mean?", "Okay.", "Write a short story about emojis.", "Thanks! You can use emojis."],
)
def test_questions_tasks_and_thanks_are_no_wish(text: str) -> None:
    assert read_wish(turn(said(text))) is None


def test_what_is_asked_for_once_is_a_wish_and_no_hint() -> None:
    opinion = read_wish(turn(said("Just this once, answer in French.")))
    assert opinion is not None
    assert opinion.wish == WishReading(text="Just this once, answer in French.", scope=WishScope.ONCE)
    assert (opinion.value, opinion.hint) == (None, None)


def test_a_complaint_keeps_its_own_hint_beside_a_wish() -> None:
    assert read_wish(turn(said("Shorter, please."))) is None
