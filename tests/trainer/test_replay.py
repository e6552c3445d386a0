"""The reservoir: uniform, repeatable, and with nothing in it but turn ids."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.errors import AdapterError
from trainer.replay import CAPACITY, NEWEST, Reservoir


def test_it_holds_all_until_it_is_full_and_256_after_that() -> None:
    few = Reservoir().add(f"t{i}" for i in range(10))
    assert sorted(few.turn_ids) == sorted(f"t{i}" for i in range(10))
    assert len(few.add(f"t{i}" for i in range(1000)).turn_ids) == CAPACITY == 256


@given(st.lists(st.text(max_size=4), max_size=40), st.integers(1, 10), st.integers(0, 40))
def test_order_and_repetition_change_nothing(ids: list[str], capacity: int, cut: int) -> None:
    at_once = Reservoir(capacity=capacity).add(ids)
    in_parts = Reservoir(capacity=capacity).add(reversed(ids[cut:])).add(ids[:cut]).add(ids)
    assert at_once == in_parts


def test_every_turn_ever_seen_is_as_likely_to_be_in_it() -> None:
    ids = [f"t{i}" for i in range(40)]
    counts: Counter[str] = Counter()
    for seed in range(2000):
        counts.update(Reservoir(seed=seed, capacity=10).add(ids).turn_ids)
    # 2000 draws of 10 in 40: 500 each, with a standard deviation of 19
    assert all(abs(counts[i] - 500) < 5 * 19.4 for i in ids)


def test_a_draw_repeats_for_its_step_and_differs_for_another() -> None:
    reservoir = Reservoir(seed=1).add(f"t{i}" for i in range(100))
    first = reservoir.draw(4, step=7)
    assert len(set(first)) == 4
    assert reservoir.draw(4, step=7) == first
    assert reservoir.draw(4, step=8) != first
    assert not set(reservoir.draw(100, step=7, exclude=first)) & set(first)
    assert len(reservoir.draw(500, step=0)) == 100


def test_half_of_a_draw_is_of_the_newest() -> None:
    reservoir = Reservoir(seed=1).add(f"t{i:03d}" for i in range(400))
    assert reservoir.newest == tuple(f"t{i:03d}" for i in range(400 - NEWEST, 400))
    for step in range(20):
        drawn = reservoir.draw(4, step)
        assert len(set(drawn)) == 4
        assert set(drawn[:2]) <= set(reservoir.newest)
    assert {i for step in range(40) for i in reservoir.draw(4, step)} - set(reservoir.newest)
    again = reservoir.add(["t390"])
    assert again.newest[-1] == "t390"
    assert len(again.newest) == NEWEST


def test_what_is_forgotten_is_gone() -> None:
    reservoir = Reservoir().add(["a", "b", "c"]).discard(["b", "never seen"])
    assert sorted(reservoir.turn_ids) == ["a", "c"]
    assert "b" not in json.dumps(reservoir.to_json())


def test_it_comes_back_from_json() -> None:
    reservoir = Reservoir(seed=4, capacity=3).add("abcdef")
    assert Reservoir.from_json(json.loads(json.dumps(reservoir.to_json()))) == reservoir


@pytest.mark.parametrize(
    "value",
    [{}, {"seed": 0, "capacity": 3}, {"seed": 0, "capacity": 3, "turn_ids": "abc"}, {"turn_ids": [1]}],
)
def test_a_broken_state_is_an_error(value: dict[str, object]) -> None:
    with pytest.raises(AdapterError, match="reservoir"):
        Reservoir.from_json(value)
