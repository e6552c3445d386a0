"""What a version costs, and how much of it is done: a pure plan from measured speed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainer.cost import BUDGET_S, LEVELS, Speed, affordable, estimate, longest_text

FAST = Speed(read_s=3e-5, logits_s=1e-5, decode_s=5e-3)  # the test model on one core


def test_a_fast_model_does_all_there_is() -> None:
    effort, expected = affordable(FAST, turns=6)
    assert effort is LEVELS[0]
    assert expected.total_s < BUDGET_S
    assert expected.total_s == expected.teach_s + expected.step_s + expected.gate_s


def test_the_slower_a_model_the_less_is_done_and_never_less_than_the_least() -> None:
    chosen = []
    for factor in (1, 10, 30, 100, 300, 1_000, 100_000):
        speed = Speed(read_s=3e-5 * factor, logits_s=1e-5 * factor, decode_s=5e-3 * factor)
        effort, expected = affordable(speed, turns=6)
        chosen.append(LEVELS.index(effort))
        assert expected.total_s <= BUDGET_S or effort is LEVELS[-1]
    assert chosen == sorted(chosen)
    assert chosen[-1] == len(LEVELS) - 1
    assert len(set(chosen)) > 3


def test_each_level_costs_less_than_the_one_before() -> None:
    costs = [estimate(FAST, effort, turns=6).total_s for effort in LEVELS]
    assert costs == sorted(costs, reverse=True)
    assert len(set(costs)) == len(costs)


@pytest.mark.parametrize("name", ["read_s", "logits_s", "decode_s", "learn_factor"])
def test_whatever_is_slower_makes_a_version_longer(name: str) -> None:
    slower = replace(FAST, **{name: 2 * getattr(FAST, name)})
    assert estimate(slower, LEVELS[0], turns=6).total_s > estimate(FAST, LEVELS[0], turns=6).total_s


def test_the_longest_text_takes_a_quarter_of_the_budget() -> None:
    tokens = longest_text(FAST, budget_s=100.0)
    assert tokens * FAST.read_s * FAST.learn_factor == pytest.approx(25.0, rel=1e-3)
    assert longest_text(replace(FAST, read_s=10.0)) == 256
