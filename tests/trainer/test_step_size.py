"""How far a version may move: the share of its change at which the measured divergence is within the target."""

from __future__ import annotations

import math

import pytest

from trainer.step_size import EVALUATIONS, NEAR_ENOUGH, share_within


def test_a_change_within_the_target_is_kept_whole_and_measured_no_further() -> None:
    def never(share: float) -> float:
        raise AssertionError(share)

    assert share_within(0.1, 0.1, never) == (1.0, 0.1)


@pytest.mark.parametrize("power", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("measured", [0.12, 1.0, 40.0])
def test_a_change_beyond_it_comes_near_the_target_and_never_over(power: float, measured: float) -> None:
    asked = []

    def divergence_at(share: float) -> float:
        asked.append(share)
        return measured * float(share**power)

    share, found = share_within(0.1, measured, divergence_at, evaluations=12)
    assert 0.0 < share < 1.0
    assert found == pytest.approx(measured * share**power)
    assert NEAR_ENOUGH * 0.1 <= found <= 0.1
    if power == 2.0:
        assert len(asked) == 1  # what is expected of a small change


def test_a_change_that_is_no_number_is_halved_until_it_is_one() -> None:
    share, found = share_within(0.1, math.nan, lambda s: math.nan if s > 0.3 else s * s)
    assert 0.0 < share <= 0.3
    assert found == share * share


def test_where_nothing_is_within_nothing_moves() -> None:
    asked: list[float] = []
    assert share_within(0.1, 9.0, lambda s: asked.append(s) or 9.0) == (0.0, 0.0)  # type: ignore[func-returns-value]
    assert len(asked) == EVALUATIONS
