"""Drawing tokens and reporting their log-probabilities."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from serving.embedded.sampling import SamplingBatch, draw_ids, edit_logits, sample, truncate_logits
from serving.openai_server.values import SamplingParams

CPU = torch.device("cpu")
# Probabilities .5, .25, .125, .0625, .0625 at temperature 1.
LOGITS = torch.tensor([[0.5, 0.25, 0.125, 0.0625, 0.0625]]).log()


def params(**options: object) -> SamplingParams:
    return SamplingParams(max_tokens=1, **options)  # type: ignore[arg-type]  # keywords of a test table


def kept(**options: object) -> list[int]:
    logits = truncate_logits(LOGITS.clone(), SamplingBatch([params(**options)], 5, CPU))
    return torch.isfinite(logits[0]).nonzero().flatten().tolist()


def test_truncation_keeps_the_tokens_derived_by_hand() -> None:
    assert kept() == [0, 1, 2, 3, 4]
    assert kept(top_k=2) == [0, 1]
    assert kept(top_p=0.5) == [0]
    assert kept(top_p=0.51) == [0, 1]
    assert kept(top_p=0.8) == [0, 1, 2]
    assert kept(top_p=1e-6) == [0]
    assert kept(min_p=0.3) == [0, 1]
    assert kept(top_k=3, top_p=0.6) == [0, 1]
    assert kept(top_k=50) == [0, 1, 2, 3, 4]


def test_a_draw_inverts_the_distribution_function() -> None:
    uniforms = torch.tensor([0.0, 0.49, 0.51, 0.74, 0.76, 0.94, 1 - 2**-53], dtype=torch.float64)
    assert draw_ids(LOGITS.expand(7, 5), uniforms).tolist() == [0, 0, 1, 1, 2, 4, 4]


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, 0.0, -math.inf]]).expand(3, 5)
    uniforms = torch.tensor([0.0, 0.5, 1 - 2**-53], dtype=torch.float64)
    assert draw_ids(logits, uniforms).tolist() == [1, 3, 3]


def test_frequencies_follow_the_distribution() -> None:
    uniforms = torch.linspace(0, 1, 16_001, dtype=torch.float64)[:-1]
    counts = torch.bincount(draw_ids(LOGITS.expand(16_000, 5), uniforms), minlength=5)
    assert (counts / 16_000).tolist() == pytest.approx([0.5, 0.25, 0.125, 0.0625, 0.0625], abs=1e-3)


def one(uniform: float, **options: object) -> list[float]:
    row = params(logprobs=True, **options)
    got = sample(LOGITS, LOGITS, SamplingBatch([row], 5, CPU), [uniform], {})
    return [got.ids[0], got.logprobs[0]]


def test_raw_logprobs_ignore_temperature_and_truncation() -> None:
    assert one(0.0, temperature=0.0) == pytest.approx([0, math.log(0.5)])
    assert one(0.99, temperature=0.5, top_k=2) == pytest.approx([1, math.log(0.25)])


def test_rows_with_different_wishes_do_not_touch_each_other() -> None:
    rows = [
        params(temperature=0.0),
        params(temperature=1.0, top_k=1),
        params(temperature=1.0),
        params(temperature=2.0, min_p=0.9),
    ]
    logits = LOGITS.expand(4, 5)
    got = sample(logits, logits, SamplingBatch(rows, 5, CPU), [0.99] * 4, {})
    assert got.ids == [0, 0, 4, 0]
    assert got.top is None


def test_top_logprobs_are_ordered_and_forced_ids_are_not_drawn() -> None:
    rows = [params(logprobs=True, top_logprobs=2), params()]
    logits = LOGITS.expand(2, 5)
    got = sample(logits, logits, SamplingBatch(rows, 5, CPU), [0.0, 0.0], {1: 3})
    assert got.ids == [0, 3]
    assert got.logprobs == pytest.approx([math.log(0.5), math.log(0.0625)])
    assert got.top is not None
    assert [token_id for token_id, _ in got.top[0]] == [0, 1]
    assert [logprob for _, logprob in got.top[0]] == pytest.approx([math.log(0.5), math.log(0.25)])


def test_penalties_follow_their_definitions() -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0, 0.0]])
    row = params(presence_penalty=0.5, frequency_penalty=0.25, logit_bias={3: 7.0})
    edit_logits(logits, 0, row, frozenset(), Counter({0: 2, 2: 1}), frozenset())
    assert logits.tolist() == [[1.0, -2.0, 0.25, 7.0]]
    logits = torch.tensor([[2.0, -2.0, 1.0, 0.0]])
    edit_logits(logits, 0, params(repetition_penalty=2.0), frozenset({1}), Counter({0: 1}), frozenset())
    assert logits.tolist() == [[1.0, -4.0, 1.0, 0.0]]


def test_the_end_of_turn_is_out_of_reach_before_min_tokens() -> None:
    logits = torch.zeros(1, 4)
    edit_logits(logits, 0, params(min_tokens=2), frozenset(), Counter({1: 1}), frozenset({3}))
    assert logits[0, 3] == -math.inf
    logits = torch.zeros(1, 4)
    edit_logits(logits, 0, params(min_tokens=2), frozenset(), Counter({1: 2}), frozenset({3}))
    assert logits[0, 3] == 0.0
