"""The bet against its definition: fair whatever the outcomes are, never above the limit, blind to nothing that it promises to see."""

import math
from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.sequential_rates import HYPOTHESES, LIMIT, Bet

#: (complaints, judged turns) of a conversation.
Outcome = tuple[int, int]
OUTCOMES = st.integers(1, 6).flatmap(lambda judged: st.tuples(st.integers(0, judged), st.just(judged)))


def money(outcomes: Sequence[Outcome], arms: Sequence[bool], share: float) -> list[float]:
    evidence, found = Bet(share), []
    for (complaints, judged), is_on_trial in zip(outcomes, arms, strict=True):
        evidence.add(is_on_trial=is_on_trial, complaints=complaints, judged=judged)
        found.append(evidence.money)
    return found


@given(outcomes=st.lists(OUTCOMES, min_size=1, max_size=7), share=st.sampled_from([0.05, 0.1, 0.5, 0.9]))
def test_whatever_the_outcomes_are_the_bet_is_fair_to_chance(outcomes: list[Outcome], share: float) -> None:
    """Over all draws of who serves, the mean stays 1: drift, correlation and dependence between conversations cannot matter."""
    mean = 0.0
    for arms in product([True, False], repeat=len(outcomes)):
        chance = math.prod(share if is_on_trial else 1 - share for is_on_trial in arms)
        mean += chance * money(outcomes, arms, share)[-1]
    assert mean == pytest.approx(1.0, rel=1e-9)


@given(
    drawn=st.lists(st.tuples(OUTCOMES, st.booleans()), max_size=60),
    share=st.sampled_from([0.1, 0.5]),
)
def test_the_money_is_never_negative_and_ends_at_the_limit(
    drawn: list[tuple[Outcome, bool]], share: float
) -> None:
    found = money([one for one, _ in drawn], [arm for _, arm in drawn], share)
    assert all(0 <= value <= LIMIT * (1 + 1e-12) for value in found)
    reached = [i for i, value in enumerate(found) if value >= LIMIT]
    assert not reached or len(set(found[reached[0] :])) == 1


def test_one_bet_is_the_mean_over_the_hypotheses_of_the_quotient_of_likelihoods() -> None:
    """A single judged turn: the beta-binomial is the rate itself."""
    share = 0.3
    expected = [worse / (share * worse + (1 - share) * rate) for rate, worse in HYPOTHESES]
    (found,) = money([(1, 1)], [True], share)
    assert found == pytest.approx(sum(expected) / len(expected))


def test_complaints_of_one_conversation_weigh_less_than_those_of_several() -> None:
    together = money([(4, 4), (0, 4)], [True, False], 0.5)[-1]
    apart = money([(1, 1), (0, 1)] * 4, [True, False] * 4, 0.5)[-1]
    assert 1 < together < apart


def test_the_bet_is_on_more_complaints_and_never_on_fewer() -> None:
    worse = money([(2, 3), (0, 3)] * 12, [True, False] * 12, 0.5)
    better = money([(2, 3), (0, 3)] * 12, [False, True] * 12, 0.5)
    alike = money([(1, 3), (1, 3)] * 12, [False, True] * 12, 0.5)
    assert worse[-1] == pytest.approx(LIMIT)
    assert better[-1] < alike[-1] < 1


def test_a_copy_bets_on_by_itself() -> None:
    first = Bet(0.5)
    first.add(is_on_trial=True, complaints=2, judged=2)
    second = first.copy()
    second.add(is_on_trial=True, complaints=2, judged=2)
    assert second.money > first.money > 1


def test_more_complaints_than_judged_turns_are_refused() -> None:
    with pytest.raises(ValueError, match="3 complaints in 2 judged turns"):
        Bet(0.5).add(is_on_trial=True, complaints=3, judged=2)
