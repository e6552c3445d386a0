"""Sampling in numpy gives what the built-in engine's sampling gives for the same logits and random numbers."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy
import pytest
import torch

from serving.embedded import sampling as reference
from serving.llamacpp.sampling import choose, edit_logits, most_likely, score
from serving.openai_server.values import SamplingParams

SIZE = 2000
GRID: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.3},
    {"temperature": 1.7, "top_k": 5},
    {"top_p": 0.9},
    {"top_p": 0.999},
    {"top_p": 0.01},
    {"min_p": 0.1},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.02},
    {"top_k": SIZE + 1},
]


def logits(seed: int, spread: float) -> numpy.ndarray[Any, Any]:
    return (numpy.random.default_rng(seed).standard_normal(SIZE) * spread).astype(numpy.float32)


@pytest.mark.parametrize("given", GRID)
@pytest.mark.parametrize("spread", [0.1, 3.0])
def test_the_same_uniform_number_gives_the_same_token(given: dict[str, Any], spread: float) -> None:
    params = SamplingParams(max_tokens=1, **given)
    uniforms = random.Random(1)
    for seed in range(20):
        line, uniform = logits(seed, spread), uniforms.random()
        rows = torch.from_numpy(line)[None]
        batch = reference.SamplingBatch([params], SIZE, torch.device("cpu"))
        wanted = reference.sample(rows, rows, batch, [uniform], {})
        found = choose(line, params, uniform)
        assert found == wanted.ids[0]
        assert score(line, found) == pytest.approx(wanted.logprobs[0], abs=1e-5)


def test_the_last_uniform_number_never_gives_a_token_of_probability_zero() -> None:
    line = logits(3, 1.0)
    line[-5:] = -numpy.inf
    for given in GRID:
        found = choose(line, SamplingParams(max_tokens=1, **given), 1.0 - 2**-53)
        assert line[found] > -numpy.inf


def test_penalties_biases_and_the_least_length_are_those_of_the_built_in_engine() -> None:
    params = SamplingParams(
        max_tokens=9,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        repetition_penalty=1.3,
        logit_bias={7: 3.0, 8: -100.0},
        min_tokens=5,
    )
    line = logits(4, 2.0)
    expected = torch.from_numpy(line.copy())[None]
    counts, prompt, ends = Counter({1: 2, 3: 1}), frozenset({5, 6}), frozenset({2})
    reference.edit_logits(expected, 0, params, prompt, counts, ends)
    edit_logits(line, params, prompt, counts, ends)
    assert line.tolist() == pytest.approx(expected[0].tolist())
    assert line[2] == -numpy.inf


def test_the_most_likely_tokens_come_in_order_with_their_log_probabilities() -> None:
    line = logits(5, 2.0)
    wanted = torch.log_softmax(torch.from_numpy(line).double(), -1).topk(8)
    found = most_likely(line, 8)
    assert [one for one, _ in found] == wanted.indices.tolist()
    assert [value for _, value in found] == pytest.approx(wanted.values.tolist(), abs=1e-5)
    assert len(most_likely(line, SIZE + 5)) == SIZE
