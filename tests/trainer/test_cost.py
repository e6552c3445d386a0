"""What a version costs, and how much of it is done: a pure plan from measured speed."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from trainer.cost import (
    BUDGET_S,
    LEAST,
    LEVELS,
    MOST,
    Speed,
    affordable,
    effort_at,
    estimate,
    longest_text,
)

FAST = Speed(read_s=3e-5, logits_s=1e-5, step_s=2e-3, row_s=3e-4)  # the test model on one core
#: SmolLM2-135M on two idle cores: 3.1 ms a token, .65 ms a position, 46 ms a step of one row, 115 ms of sixteen, by one core.
SMALL = Speed(read_s=1.55e-3, logits_s=3.3e-4, step_s=2.3e-2, row_s=2.3e-3, learn_factor=2.5)


def slowed(factor: float) -> Speed:
    return Speed(
        read_s=FAST.read_s * factor,
        logits_s=FAST.logits_s * factor,
        step_s=FAST.step_s * factor,
        row_s=FAST.row_s * factor,
    )


def test_a_fast_model_does_all_there_is() -> None:
    effort, expected = affordable(FAST)
    assert effort == MOST
    assert expected.total_s < BUDGET_S
    assert expected.total_s == sum(expected.by_phase.values())


def test_a_model_of_135_million_parameters_fits_the_budget_with_several_steps_and_a_gate_that_sees_something() -> (
    None
):
    effort, expected = affordable(SMALL)
    assert expected.total_s <= BUDGET_S
    assert effort.samples > LEAST.samples
    assert effort.gate >= 0.5


def test_the_slower_a_model_the_less_is_done_and_never_less_than_the_least() -> None:
    chosen = []
    for factor in (1, 35, 40, 50, 60, 70, 1_000, 100_000):
        effort, expected = affordable(slowed(factor))
        chosen.append(effort.samples)
        assert expected.total_s <= BUDGET_S or effort == LEAST
    assert chosen == sorted(chosen, reverse=True)
    assert chosen[-1] == LEAST.samples
    assert len(set(chosen)) > 3


def test_what_earlier_versions_took_changes_how_much_is_done() -> None:
    plain, _ = affordable(slowed(35))
    slower, expected = affordable(slowed(35), ratios={"step": 3.0})
    assert slower.samples < plain.samples
    raw = estimate(slowed(35), slower)
    assert expected.step_s == pytest.approx(3 * raw.step_s)
    assert expected.gate_s == raw.gate_s


def test_each_level_costs_more_than_the_one_below_and_the_ends_are_the_least_and_the_most() -> None:
    efforts = [effort_at(level / LEVELS) for level in range(LEVELS + 1)]
    assert (efforts[0], efforts[-1]) == (LEAST, MOST)
    costs = [estimate(FAST, effort).total_s for effort in efforts]
    assert costs == sorted(costs)
    assert len(set(costs)) == len(costs)
    assert all(type(value) is type(asdict(MOST)[name]) for e in efforts for name, value in asdict(e).items())


@pytest.mark.parametrize("name", ["read_s", "logits_s", "step_s", "row_s", "learn_factor"])
def test_whatever_is_slower_makes_a_version_longer(name: str) -> None:
    slower = replace(FAST, **{name: 2 * getattr(FAST, name)})
    assert estimate(slower, MOST).total_s > estimate(FAST, MOST).total_s


def test_the_longest_text_takes_a_quarter_of_the_budget() -> None:
    tokens = longest_text(FAST, budget_s=100.0)
    assert tokens * FAST.read_s * FAST.learn_factor == pytest.approx(25.0, rel=1e-3)
    assert longest_text(replace(FAST, read_s=10.0)) == 256
