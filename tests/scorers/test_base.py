"""Many opinions, one verdict."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from scorers.base import (
    MAX_FOLLOW_UP,
    Opinion,
    Rank,
    compose,
    decided,
    next_words,
    person_follow_up,
    sign,
)
from store.lifecycle import DropReason
from store.values import FollowUp, Relation, WishReading, WishScope
from tests.scorers.turns import feedback, said, tool, turn


def opinion(value: int | None, rank: Rank, hint: str | None = None, **changes: object) -> Opinion:
    return Opinion(value=value, rank=rank, source=rank.name.lower(), hint=hint, **changes)  # type: ignore[arg-type]  # by name


ASKED = turn(said("And the capital of Peru?"))


@pytest.mark.parametrize(("upper", "lower"), list(itertools.combinations(Rank, 2)))
@pytest.mark.parametrize("value", [-1, 0, 1])
def test_the_higher_rank_decides_whatever_the_order(upper: Rank, lower: Rank, value: int) -> None:
    other = -1 if value == 1 else 1
    for opinions in itertools.permutations([opinion(value, upper), opinion(other, lower)]):
        verdict, _ = compose(ASKED, opinions, now=5.0)
        assert (verdict.value, verdict.source) == (value, upper.name.lower())


def test_within_a_rank_the_earlier_opinion_counts() -> None:
    opinions = [opinion(1, Rank.STRONG_RULE), opinion(-1, Rank.STRONG_RULE)]
    assert compose(ASKED, opinions, now=5.0)[0].value == 1


def test_the_hint_may_come_from_a_lower_rank_when_the_deciding_one_has_none() -> None:
    opinions = [opinion(-1, Rank.FEEDBACK), opinion(-1, Rank.STRONG_RULE, "shorter please")]
    verdict, drop = compose(ASKED, opinions, now=5.0)
    assert (verdict.value, verdict.hint, verdict.source, drop) == (-1, "shorter please", "feedback", None)


def test_praise_that_outranks_a_complaint_outranks_its_hint() -> None:
    opinions = [opinion(1, Rank.FEEDBACK), opinion(-1, Rank.STRONG_RULE, "shorter please")]
    verdict, _ = compose(ASKED, opinions, now=5.0)
    assert (verdict.value, verdict.hint) == (1, None)


def test_a_hint_of_an_approving_scorer_is_not_lent_to_a_complaint() -> None:
    opinions = [opinion(-1, Rank.FEEDBACK), opinion(1, Rank.JUDGE, "keep this style")]
    assert compose(ASKED, opinions, now=5.0)[0].hint is None


def test_a_hint_without_a_value_makes_a_neutral_verdict_with_that_hint() -> None:
    verdict, drop = compose(
        turn(), [opinion(None, Rank.JUDGE, "Keep answers short.", hint_is_reaction=False)], now=5.0
    )
    assert (verdict.value, verdict.hint, verdict.hint_is_reaction, drop) == (
        0,
        "Keep answers short.",
        False,
        None,
    )


def test_an_undecided_turn_keeps_the_users_words_for_the_guarantee() -> None:
    verdict, drop = compose(ASKED, [], now=5.0, follow_up_is_question=True)
    assert (verdict.value, verdict.hint, drop) == (0, None, None)
    assert verdict.follow_up == FollowUp(text="And the capital of Peru?", is_question=True)


def test_without_opinion_and_without_words_it_is_abstained() -> None:
    verdict, drop = compose(turn(tool("22 degrees")), [], now=5.0)
    assert (verdict.value, drop) == (None, DropReason.ABSTAINED)


def test_a_neutral_opinion_without_words_has_nothing_to_teach() -> None:
    verdict, drop = compose(turn(), [opinion(0, Rank.FEEDBACK)], now=5.0)
    assert (verdict.value, drop) == (0, DropReason.NO_SIGNAL)


def test_the_detail_names_everyone_who_spoke_and_what_went_wrong() -> None:
    verdict, _ = compose(
        ASKED, [opinion(0, Rank.JUDGE), opinion(-1, Rank.STRONG_RULE)], now=5.0, notes={"judge_error": "x"}
    )
    assert [row["source"] for row in verdict.detail["opinions"]] == ["strong_rule", "judge"]
    assert verdict.detail["judge_error"] == "x"
    assert verdict.created_at == 5.0


def test_a_judge_is_outranked_by_rules_and_above_but_not_by_weak_ones() -> None:
    assert decided([opinion(0, Rank.WEAK_RULE), opinion(1, Rank.JUDGE)]) is None
    assert decided([opinion(None, Rank.FEEDBACK, "x")]) is None
    head = decided([opinion(0, Rank.WEAK_RULE), opinion(0, Rank.CUSTOM)])
    assert head is not None
    assert head.rank is Rank.CUSTOM


def test_the_reaction_to_a_reply_is_the_newest_that_is_no_retry() -> None:
    states = turn(
        said("first", by="a"), said("second", Relation.BRANCH, by="b"), said("again", Relation.RETRY, by="c")
    )
    assert next_words(states) == ("user", "second")
    assert person_follow_up(states) == "second"
    assert next_words(turn(tool("22"))) == ("tool", "22")
    assert person_follow_up(turn(tool("22"))) == ""
    assert next_words(turn(feedback=(feedback(-1.0, "too long"),))) == ("user", "too long")
    assert next_words(turn()) is None


def test_a_long_follow_up_is_kept_in_part() -> None:
    assert len(person_follow_up(turn(said("x" * 10_000)))) == MAX_FOLLOW_UP


def test_small_scores_are_neutral() -> None:
    assert [sign(x) for x in (-1, -0.11, -0.1, 0, 0.1, 0.11, 7)] == [-1, -1, 0, 0, 0, 1, 1]


def test_a_value_outside_of_three_is_refused() -> None:
    with pytest.raises(ValueError, match="-1, 0"):
        opinion(2, Rank.JUDGE)


def test_a_verdict_has_the_wish_of_the_first_opinion_that_found_one() -> None:
    words = WishReading(text="no emojis, please", scope=WishScope.LASTING)
    judged = WishReading(text="please", scope=WishScope.ONCE)
    likely = replace(opinion(-1, Rank.LIKELY, "Too much, no emojis, please"), wish=words)
    judge = replace(opinion(0, Rank.JUDGE), wish=judged)
    verdict, _ = compose(ASKED, [likely, judge], now=5.0)
    assert (verdict.value, verdict.wish) == (0, judged)
    assert verdict.detail["opinions"][1]["wish"] == "no emojis, please"
    assert verdict.detail["opinions"][1]["wish_scope"] == "lasting"
    verdict, _ = compose(ASKED, [likely, opinion(1, Rank.JUDGE)], now=5.0)
    assert (verdict.value, verdict.wish) == (1, words)
    assert compose(ASKED, [opinion(-1, Rank.STRONG_RULE, "No, it is Lyon.")], now=5.0)[0].wish is None
