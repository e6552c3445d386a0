"""Samples the next tokens of a batch from logits, with their log-probabilities. Pure tensor functions.

Shapes: B rows (one per running sequence), V vocabulary. Logits are float32, whatever the model's dtype.

Each row is sampled by inverting its cumulative distribution at one uniform number that the caller passes. The number comes from the request's own
generator, so a seeded sample does not depend on the rest of the batch.

Log-probabilities are vLLM's raw ones: of the model's logits, before temperature, penalties and truncation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from serving.openai_server.values import SamplingParams


class SamplingBatch:
    """The parameters of the running rows as tensors; built when the batch changes, not at each step."""

    __slots__ = (
        "all_greedy",
        "any_greedy",
        "any_min_p",
        "any_top",
        "greedy",
        "log_min_p",
        "most_top_logprobs",
        "temperature",
        "top_k",
        "top_p",
    )

    def __init__(self, rows: Sequence[SamplingParams], vocabulary: int, device: torch.device) -> None:
        greedy = [row.temperature == 0.0 for row in rows]
        self.all_greedy = all(greedy)
        self.any_greedy = any(greedy)
        self.any_top = any(
            (0 < row.top_k < vocabulary or row.top_p < 1.0) and row.temperature > 0.0 for row in rows
        )
        self.any_min_p = any(row.min_p > 0.0 for row in rows)
        self.most_top_logprobs = max(row.top_logprobs for row in rows)

        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device)[:, None]

        self.greedy = torch.tensor(greedy, device=device)
        self.temperature = column([row.temperature or 1.0 for row in rows])
        self.top_p = column([row.top_p if row.temperature else 1.0 for row in rows])
        self.top_k = torch.tensor(
            [row.top_k if row.temperature and row.top_k > 0 else vocabulary for row in rows], device=device
        )[:, None]
        self.log_min_p = column(
            [math.log(row.min_p) if row.min_p and row.temperature else -math.inf for row in rows]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTokens:
    """The tokens of one step. `top[i]` has row i's most likely (id, logprob) pairs, as many as the largest request in the batch."""

    ids: list[int]
    logprobs: list[float]
    top: list[list[tuple[int, float]]] | None


def edit_logits(
    logits: Tensor,
    row: int,
    params: SamplingParams,
    prompt_ids: frozenset[int],
    counts: Counter[int],
    end_ids: frozenset[int],
) -> None:
    """Apply one row's penalties, biases and minimum length, in place. `counts`: how often each id was sampled so far."""
    line = logits[row]
    if params.repetition_penalty != 1.0:
        seen = torch.tensor(sorted(prompt_ids | counts.keys()), device=logits.device)
        values = line[seen]
        line[seen] = torch.where(
            values > 0, values / params.repetition_penalty, values * params.repetition_penalty
        )
    if counts and (params.presence_penalty or params.frequency_penalty):
        sampled_ids = torch.tensor(list(counts), device=logits.device)
        sample_counts = torch.tensor(list(counts.values()), dtype=torch.float32, device=logits.device)
        line[sampled_ids] -= params.frequency_penalty * sample_counts + params.presence_penalty
    if params.logit_bias:
        biased = torch.tensor(list(params.logit_bias), device=logits.device)
        line[biased] += torch.tensor(
            list(params.logit_bias.values()), dtype=torch.float32, device=logits.device
        )
    if counts.total() < params.min_tokens and end_ids:
        line[torch.tensor(sorted(end_ids), device=logits.device)] = -math.inf


def truncate_logits(logits: Tensor, batch: SamplingBatch) -> Tensor:
    """Return logits [B, V] after min-p, top-k and top-p, in this order; removed tokens are -inf, the most likely one is never removed."""
    if batch.any_min_p:
        floor = logits.amax(-1, keepdim=True) + batch.log_min_p
        logits = logits.masked_fill(logits < floor, -math.inf)
    if batch.any_top:
        ordered, order = logits.sort(-1, descending=True)
        rank = torch.arange(logits.shape[-1], device=logits.device)
        ordered = ordered.masked_fill(rank >= batch.top_k, -math.inf)
        probability = ordered.softmax(-1)
        # A token stays while the mass before it is below top_p, so the first always stays.
        before = probability.cumsum(-1) - probability
        out = (before >= batch.top_p) & (batch.top_p < 1.0) & (rank > 0)
        ordered = ordered.masked_fill(out, -math.inf)
        logits = torch.empty_like(logits).scatter_(-1, order, ordered)
    return logits


def draw_ids(logits: Tensor, uniforms: Tensor) -> Tensor:
    """Return ids [B] sampled from softmax(logits [B, V]) by inverting the distribution function at `uniforms` [B], each in [0, 1).

    In float64: with a large vocabulary, the rounding error of a float32 sum is as large as rare tokens' probabilities.
    """
    cumulative = logits.to(torch.float64).softmax(-1).cumsum(-1)
    total = cumulative[:, -1:]
    # Below the total, also after rounding; `right=True` skips tokens of probability 0.
    target = torch.minimum(uniforms[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target, right=True).squeeze(-1)


def sample(
    raw: Tensor,
    edited: Tensor,
    batch: SamplingBatch,
    uniforms: Sequence[float],
    forced: Mapping[int, int],
) -> SampledTokens:
    """Sample one token for each row.

    `raw` [B, V] are the model's logits, `edited` the same after penalties (the same tensor if no row has any). `forced` maps rows to
    prescribed ids.
    """
    if batch.all_greedy:
        ids = edited.argmax(-1)
    else:
        truncated = truncate_logits(edited / batch.temperature, batch)
        ids = draw_ids(truncated, torch.tensor(uniforms, dtype=torch.float64, device=raw.device))
        if batch.any_greedy:
            ids = torch.where(batch.greedy, edited.argmax(-1), ids)
    if forced:
        ids[torch.tensor(list(forced), device=raw.device)] = torch.tensor(
            list(forced.values()), device=raw.device
        )
    norm = raw.logsumexp(-1, keepdim=True)
    logprobs = (raw.gather(-1, ids[:, None]) - norm).squeeze(-1)
    top: list[list[tuple[int, float]]] | None = None
    if batch.most_top_logprobs:
        values, places = raw.topk(min(batch.most_top_logprobs, raw.shape[-1]), -1)
        top = [
            list(zip(row_ids, row_values, strict=True))
            for row_ids, row_values in zip(places.tolist(), (values - norm).tolist(), strict=True)
        ]
    return SampledTokens(ids=ids.tolist(), logprobs=logprobs.tolist(), top=top)
