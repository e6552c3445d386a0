"""Versions under load on the built-in engine, small: what is counted has to be nought, what is timed is for a quiet machine."""

import argparse

import pytest

from bench.swap import Stream, agree, percentile, run, shortcomings


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_versions_come_and_go_under_streams_and_each_stream_is_of_its_version() -> None:
    found = run(
        argparse.Namespace(
            backend="embedded",
            vllm_python="",
            streams=16,
            versions=10,
            rounds=1,
            tokens=16,
            calm_s=5.0,
            no_check=False,
        )
    )
    assert shortcomings(found) == []
    assert found["gaps"]["swaps"] > 0
    assert found["versions_seen"] >= 2


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
