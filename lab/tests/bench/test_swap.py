"""Versions under load, small: what is counted has to be nought, what is timed is for a quiet machine."""

import argparse
from typing import Any

import pytest

from lab.bench.swap import Stream, agree, interval, percentile, ratio_of, run, shortcomings


def given(**other: Any) -> argparse.Namespace:
    return argparse.Namespace(
        **{
            "backend": "embedded",
            "vllm_python": "",
            "streams": 16,
            "versions": 10,
            "rounds": 2,
            "tokens": 16,
            "every_s": 0.5,
            "no_check": False,
            **other,
        }
    )


@pytest.mark.long_run
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_versions_come_and_go_under_streams_and_each_stream_is_of_its_version() -> None:
    found = run(given())
    assert shortcomings(found) == []
    assert found["gaps"]["calm"] > 0
    assert found["gaps"]["swaps"] > 0
    # before each round without swaps all streams are on the last version of the round before
    assert found["versions_seen"] >= 3


@pytest.mark.long_run
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_versions_come_and_go_on_a_tinker_server() -> None:
    found = run(given(backend="tinker", streams=4, versions=2, rounds=1, tokens=6, every_s=2.0))
    assert shortcomings(found) == []
    assert found["wholes"]["swaps"] > 0
    assert found["versions_seen"] >= 2


def test_versions_are_spread_evenly_over_the_rounds_or_refused() -> None:
    with pytest.raises(ValueError, match="evenly"):
        run(given(versions=10, rounds=3))


def test_streams_agree_up_to_a_tie_and_no_further() -> None:
    def made(ids: list[int], logprobs: list[float]) -> Stream:
        return Stream("?", ids=ids, logprobs=logprobs)

    one = made([1, 2, 3], [-0.1, -0.7, -0.2])
    assert agree(one, made([1, 2, 3], [-0.1, -0.7, -0.2]))
    assert agree(one, made([1, 4, 9], [-0.1, -0.7, -3.0]))  # a tie: what comes after it is another text
    assert not agree(one, made([1, 2, 3], [-0.1, -0.8, -0.2]))
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert shortcomings({"failed": 1, "held": 0, "unrecorded": 0, "not_of_their_version": None}) == [
        "1 failed"
    ]


def test_the_ratio_is_of_all_rounds_together_and_its_bounds_of_resampled_rounds() -> None:
    quick, slow = [0.01] * 99 + [0.02], [0.01] * 99 + [0.04]
    assert ratio_of({"calm": [quick, quick], "swaps": [slow, slow]}) == pytest.approx(2.0)
    assert ratio_of({"calm": [[], []], "swaps": [slow, slow]}) is None
    # where all rounds are alike, drawing them anew changes nothing
    assert interval({"calm": [quick] * 3, "swaps": [slow] * 3}) == [2.0, 2.0]
    low, high = interval({"calm": [quick] * 4, "swaps": [slow, slow, slow, quick]}) or [0.0, 0.0]
    assert low < high == 2.0
    assert interval({"calm": [quick] * 2, "swaps": [slow] * 2}) is None
    assert interval({"calm": [[]] * 3, "swaps": [[]] * 3}) is None
