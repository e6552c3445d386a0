"""The sequential test against its definition, and its error rates over simulated runs."""

import random
from functools import cache
from statistics import median

import pytest

from trainer.sequential_rates import _GAP, _RATES, _WEIGHTS, Counts, evidence_of_increase

ALPHA = 0.05


@cache
def evidence(events: int, trials: int, other_events: int, other_trials: int) -> float:
    return evidence_of_increase(Counts(events, trials), Counts(other_events, other_trials))


def detection(rates: tuple[float, float], share: float, most: int, draw: random.Random) -> list[int] | None:
    """Return the trials of both arms when the test first reports an increase, or None within ``most`` trials."""
    events, trials = [0, 0], [0, 0]
    for _ in range(most):
        arm = int(draw.random() < share)
        trials[arm] += 1
        events[arm] += draw.random() < rates[arm]
        if evidence(events[0], trials[0], events[1], trials[1]) >= 1 / ALPHA:
            return trials
    return None


@pytest.mark.parametrize("counts", [(0, 1, 1, 1), (2, 20, 9, 18), (5, 9, 5, 9), (9, 18, 2, 20), (0, 7, 0, 3)])
def test_the_evidence_is_the_mixture_over_the_greatest_common_likelihood(counts: tuple[int, ...]) -> None:
    a, n, b, m = counts
    pairs = [
        (_WEIGHTS[i], _RATES[i], _RATES[j]) for i in range(len(_RATES)) for j in range(i + _GAP, len(_RATES))
    ]
    total = sum(weight for weight, _, _ in pairs)
    mixture = sum(
        weight / total * low**a * (1 - low) ** (n - a) * high**b * (1 - high) ** (m - b)
        for weight, low, high in pairs
    )
    common = (a + b) / (n + m)
    greatest = common ** (a + b) * (1 - common) ** (n + m - a - b)
    assert evidence(*counts) == pytest.approx(mixture / greatest, rel=1e-9)


def test_the_expected_evidence_after_one_trial_of_each_arm_is_at_most_one() -> None:
    for rate in (0.02, 0.1, 0.3, 0.5, 0.9):
        expected = sum(
            (rate if a else 1 - rate) * (rate if b else 1 - rate) * evidence(a, 1, b, 1)
            for a in (0, 1)
            for b in (0, 1)
        )
        assert expected <= 1.0


def test_nothing_is_known_before_both_arms_were_observed() -> None:
    assert evidence(0, 0, 5, 5) == 1.0
    assert evidence(3, 5, 0, 0) == 1.0


def test_many_trials_neither_overflow_nor_underflow() -> None:
    assert evidence(10_000, 100_000, 50_000, 100_000) > 1e100
    assert evidence(50_000, 100_000, 10_000, 100_000) < 1e-100


def test_counts_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="3 events of 2 trials"):
        Counts(3, 2)
    assert Counts(0, 0).rate is None
    assert Counts(1, 4).rate == 0.25


@pytest.mark.long_run
@pytest.mark.parametrize("rate", [0.1, 0.4])
@pytest.mark.parametrize("share", [0.5, 0.1])
def test_a_version_as_good_as_the_other_is_accused_in_at_most_one_of_twenty_runs(
    rate: float, share: float
) -> None:
    draw = random.Random(7)
    runs = 2_000
    alarms = sum(detection((rate, rate), share, 150, draw) is not None for _ in range(runs))
    assert alarms <= ALPHA * runs


def test_complaints_that_rise_from_one_in_ten_to_one_in_two_are_found_within_25_turns_of_an_arm() -> None:
    draw = random.Random(3)
    found = [detection((0.1, 0.5), 0.5, 600, draw) for _ in range(200)]
    assert all(trials is not None for trials in found)
    assert median(max(trials) for trials in found if trials is not None) <= 25
