"""The product's canary test in simulated trials: how often it accuses a good version, and how soon it finds a bad one."""

from dataclasses import replace
from statistics import median

import pytest

from lab.bench.canary import TrialScenario, found_within, play, scenarios
from trainer.canary_release import FOUND, Decision

GOOD = TrialScenario(live=0.2, tried=0.2, correlation=0.5)


def found(scenario: TrialScenario, runs: int) -> list[int]:
    """Conversations of the version on trial in the trials that roll it back."""
    played = play(scenario, runs, seed=5)
    return [one.conversations[1] for one in played if one.decision is Decision.ROLL_BACK]


@pytest.mark.parametrize(
    "scenario",
    [
        GOOD,
        replace(GOOD, drift="worse times"),
        replace(GOOD, drift="waves"),
        replace(GOOD, keys=3, share=0.1, most=12),
    ],
    ids=TrialScenario.name,
)
def test_a_good_version_is_rarely_accused_whatever_the_turns_and_the_times_are_like(
    scenario: TrialScenario,
) -> None:
    runs = 400
    assert len(found(scenario, runs)) <= 0.05 * runs + 3 * (0.05 * 0.95 * runs) ** 0.5


def test_a_version_with_five_times_the_complaints_is_found_within_12_conversations() -> None:
    conversations = found(replace(GOOD, live=0.1, tried=0.5), 200)
    assert len(conversations) > 190
    assert median(conversations) <= 12


def test_what_a_release_says_that_it_finds_is_what_it_finds() -> None:
    for turns, counts in found_within(300, seed=7).items():
        for count, shares in counts.items():
            for share, documented in zip(shares, FOUND[turns][count], strict=True):
                assert share == pytest.approx(documented, abs=0.1), (turns, count)


def test_each_row_has_a_name_of_its_own() -> None:
    names = [scenario.name() for scenario in scenarios()]
    assert len(set(names)) >= len(names) - 1  # one differs by its length alone
