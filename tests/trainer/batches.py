"""Batches for the tests of the objective: random, float64, one thread, nothing shared between calls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from trainer.losses import log_distribution, token_logprobs
from trainer.objective import Batch, Objective, compute_loss

torch.set_num_threads(1)


def make_batch(
    *,
    lengths: Sequence[int] = (5, 3, 4),
    vocabulary: int = 11,
    seed: int = 0,
    temperature: Sequence[float] | None = None,
    dtype: torch.dtype = torch.float64,
    **overrides: Any,
) -> tuple[torch.Tensor, Batch]:
    """The student's logits [B, C, V] and a batch in which every term is live; padding is NaN.

    The weights before the step, the sampler and the base model are near the student, the teacher is further
    off.
    """
    generator = torch.Generator().manual_seed(seed)
    rows, columns = len(lengths), max(lengths)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    mask = torch.arange(columns) < torch.tensor(lengths).unsqueeze(-1)
    logits = 2.0 * random(rows, columns, vocabulary)
    ids = torch.randint(vocabulary, (rows, columns), generator=generator).masked_fill(~mask, 0)
    tau = torch.tensor(temperature or [1.0] * rows, dtype=torch.float64)

    def near(size: float) -> torch.Tensor:
        other = logits + size * random(rows, columns, vocabulary)
        return token_logprobs(other, ids, tau).masked_fill(~mask, math.nan).to(dtype)

    streams: dict[str, Any] = {
        "completion_ids": ids,
        "mask": mask,
        "trainer_logprobs": near(0.05),
        "sampling_logprobs": near(0.2),
        "base_logprobs": near(0.3),
        "advantages": random(rows, columns).masked_fill(~mask, math.nan).to(dtype),
        "advantage_mask": mask.clone(),
        "directive_weight": torch.ones(rows, dtype=dtype),
        "teacher_logits": (logits + random(rows, columns, vocabulary))
        .masked_fill(~mask.unsqueeze(-1), math.nan)
        .to(dtype),
        "sample_weight": torch.ones(rows, dtype=dtype),
        "temperature": tau.to(dtype),
    }
    return logits.to(dtype), Batch(**(streams | overrides))


def teacher_support(batch: Batch, size: int) -> Batch:
    """The same batch with a teacher that reports only its own ``size`` likeliest tokens."""
    assert batch.teacher_logits is not None
    teacher = log_distribution(batch.teacher_logits, batch.temperature)
    teacher = teacher.masked_fill(~batch.mask.unsqueeze(-1), 0.0)
    top = teacher.topk(size, dim=-1)
    missing = ~batch.mask.unsqueeze(-1)
    return replace(
        batch,
        teacher_logits=None,
        support_ids=top.indices.masked_fill(missing, 0),
        support_logprobs=top.values.masked_fill(missing, math.nan),
    )


def run(
    objective: Objective, batch: Batch, logits: torch.Tensor, **keywords: Any
) -> tuple[float, torch.Tensor, dict[str, float]]:
    """Loss, gradient with respect to the logits, metrics."""
    leaf = logits.detach().clone().requires_grad_()
    loss, metrics = compute_loss(objective, batch, leaf, **keywords)
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
    assert leaf.grad is not None
    return loss.item(), leaf.grad, metrics


def largest(values: torch.Tensor) -> float:
    """The largest absolute value; 0 of nothing."""
    return float(values.abs().max()) if values.numel() else 0.0
