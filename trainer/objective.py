"""The training objective: a padded batch of streams, the student's logits -> a scalar. Blind to the method.

``loss = policy + directive + kl_coef · k2``, where each term is a mean over the live tokens of a sequence and
then over the live sequences of the batch. What a sample asks for is on the sample (`trainer.advantages`);
this file has no method to branch on. Anchors are samples like any other: a directive weight, and a teacher
that is the base model without hint.

Rules of the room:
- Dead positions are never read. They are left out before the first computation, not multiplied away after the
  last, so NaN or inf in padding can neither reach the loss nor a gradient. Padding log-probabilities should
  *be* NaN: 0.0 would mean "certain".
- Student, teacher, base and the weights before the step are compared at one temperature for each sample.
  Whole distributions arrive as raw logits and get their temperature here.
- A live position with a missing number is an error, never a default.

Shapes: B samples, C completion tokens (padded), V vocabulary, K token support. Notation as in
`trainer.losses`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self, cast

import torch
from torch.utils.checkpoint import checkpoint

from trainer.losses import (
    LOG_ZERO,
    MAX_LOG_RATIO,
    SupportMass,
    generalized_jsd,
    kl_k2,
    kl_k3,
    known_support_divergence,
    likeliest,
    log_distribution,
    masked_mean,
    ppo_surrogate,
    sdpo_token_loss,
    staleness_weight,
    support_divergence,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """Settings of the objective; none of them names a method.

    Attributes:
        alpha: divergence of samples that do not bring their own: 0 forward KL, 1 reverse KL, between:
            Jensen-Shannon.
        top_k: the student's K likeliest tokens and a tail bin; None = the whole vocabulary. A batch that
            brings a support (`Batch.support_ids`) has decided already.
        support_of: whose K likeliest tokens; only where the teacher's whole logits are there.
        support_mass: "tail", or "renormalised" to the support (other implementations' form, for comparison).
        clip_low, clip_high, dual_clip: trust region of the surrogate. 0, inf and None make it the plain
            importance-sampled policy gradient.
        kl_coef: weight of the k2 penalty to the base model. It scales nothing else.
        staleness_cap, importance_cap: bounds of the two truncated importance weights.
    """

    alpha: float = 0.5
    top_k: int | None = 20
    support_of: Literal["student", "teacher"] = "student"
    support_mass: SupportMass = "tail"
    clip_low: float = 0.8
    clip_high: float = 1.28
    dual_clip: float | None = 3.0
    kl_coef: float = 0.02
    staleness_cap: float = 2.0
    importance_cap: float = 2.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.alpha <= 1.0:
            raise ValueError(f"alpha must lie in [0, 1], not {self.alpha}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, not {self.top_k}")
        if not 0.0 <= self.clip_low <= 1.0 <= self.clip_high:
            raise ValueError(f"the clip range [{self.clip_low}, {self.clip_high}] must hold 1")
        if self.dual_clip is not None and not self.dual_clip > 1.0:
            raise ValueError(f"dual_clip must exceed 1, not {self.dual_clip}")
        if not (math.isfinite(self.kl_coef) and self.kl_coef >= 0.0):
            raise ValueError(f"kl_coef must be finite and not negative, not {self.kl_coef}")
        if not (self.staleness_cap > 0.0 and self.importance_cap > 0.0):
            raise ValueError("the caps of importance weights must be positive")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """The samples of one optimizer step (or a part of them), response-aligned and padded to [B, C].

    What stands at masked positions is never read; pad log-probabilities with NaN.

    Attributes:
        completion_ids: y [B, C] int64, the ids the sampler emitted, end-of-turn token included.
        mask: [B, C] bool, the tokens to learn from (a loss mask, not an attention mask).
        sampling_logprobs: b [B, C], as the engine reported them, at the sample's temperature.
        trainer_logprobs: o [B, C], the weights before this step, same temperature.
        base_logprobs: p [B, C], adapter disabled, same temperature; None only without a KL penalty.
        advantages: A [B, C].
        advantage_mask: [B, C] bool, where the policy term is live.
        directive_weight: [B], 0 = the teacher is not asked.
        directive_alpha: B numbers, or None for the objective's.
        teacher_logits: [B, C, V] raw logits of the teacher (or its log-probabilities at temperature 1), any
            float dtype. They get the sample's temperature here, like the student's.
        teacher_at: instead of `teacher_logits` where [B, C, V] is too much to hold: gives the raw logits [N, V] of flat positions
            [N] (row times C plus column). Asked once for each live position with a teacher.
        support_ids: [B, C, K] token ids where the teacher reports only some tokens, instead of
            `teacher_logits`.
        support_logprobs: [B, C, K] the teacher's log-probabilities of these, **at the sample's temperature**;
            -inf = unused slot.
        sample_weight: [B].
        temperature: [B], positive: the one the completion was sampled at.
    """

    completion_ids: torch.Tensor
    mask: torch.Tensor
    sampling_logprobs: torch.Tensor
    trainer_logprobs: torch.Tensor
    base_logprobs: torch.Tensor | None
    advantages: torch.Tensor
    advantage_mask: torch.Tensor
    directive_weight: torch.Tensor
    directive_alpha: tuple[float, ...] | None = None
    teacher_logits: torch.Tensor | None = None
    teacher_at: Callable[[torch.Tensor], torch.Tensor] | None = None
    support_ids: torch.Tensor | None = None
    support_logprobs: torch.Tensor | None = None
    sample_weight: torch.Tensor
    temperature: torch.Tensor

    def __post_init__(self) -> None:
        rows, columns = self.completion_ids.shape
        expected: dict[str, tuple[int | None, ...]] = {
            "mask": (rows, columns),
            "sampling_logprobs": (rows, columns),
            "trainer_logprobs": (rows, columns),
            "base_logprobs": (rows, columns),
            "advantages": (rows, columns),
            "advantage_mask": (rows, columns),
            "directive_weight": (rows,),
            "teacher_logits": (rows, columns, None),
            "support_ids": (rows, columns, None),
            "support_logprobs": (rows, columns, None),
            "sample_weight": (rows,),
            "temperature": (rows,),
        }
        for name, shape in expected.items():
            tensor: torch.Tensor | None = getattr(self, name)
            if tensor is not None and not _fits(tuple(tensor.shape), shape):
                raise ValueError(f"{name} has shape {tuple(tensor.shape)} in a batch of {rows} x {columns}")
        if self.mask.dtype != torch.bool or self.advantage_mask.dtype != torch.bool:
            raise ValueError("masks are bool tensors")
        if self.directive_alpha is not None and len(self.directive_alpha) != rows:
            raise ValueError(f"{len(self.directive_alpha)} directive_alpha for {rows} samples")
        if (self.support_ids is None) != (self.support_logprobs is None):
            raise ValueError("support_ids and support_logprobs belong together")
        if (
            self.support_ids is not None
            and self.support_logprobs is not None
            and self.support_ids.shape != self.support_logprobs.shape
        ):
            raise ValueError("support_ids and support_logprobs differ in shape")
        if sum(one is not None for one in (self.teacher_logits, self.teacher_at, self.support_ids)) > 1:
            raise ValueError(
                "a batch has one kind of teacher: logits, whole or by position, or a token support"
            )

    def to(self, device: torch.device | str) -> Self:
        """The same batch on another device."""
        moved: dict[str, Any] = {
            field.name: value.to(device)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), torch.Tensor)
        }
        return replace(self, **moved)

    def live(self) -> torch.Tensor:
        """Which samples any term reads, [B] bool: a token to learn from, and an advantage or a teacher.

        Only these count in means, and only these are held to the base model: a turn that says nothing moves
        nothing.
        """
        return self.mask.any(dim=-1) & (
            (self.directive_weight > 0) | (self.advantage_mask & self.mask).any(dim=-1)
        )


def _fits(shape: tuple[int, ...], expected: tuple[int | None, ...]) -> bool:
    return len(shape) == len(expected) and all(
        want is None or have == want for have, want in zip(shape, expected, strict=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Positions:
    """The live positions of a piece of the flattened batch: N of them, all [N] unless noted."""

    within: torch.Tensor  #: index into the piece
    flat: torch.Tensor  #: index into the flattened batch
    ids: torch.Tensor
    temperature: torch.Tensor
    divergence: torch.Tensor  #: index into the list of alphas; -1 = no teacher
    piece: int = 0  #: number of the piece


_Read = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def compute_loss(
    objective: Objective,
    batch: Batch,
    logits: torch.Tensor,
    *,
    chunk: int | None = None,
    live_samples: float | None = None,
    head: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> tuple[torch.Tensor, dict[str, float]]:
    """Loss of a batch under the student's logits, and what there is to know about it.

    Args:
        objective: the settings.
        batch: [B, C] streams, on the device of the logits; the teacher's logits may be in main memory.
        logits: [B, C, V], the student's, with gradient, any float dtype; response-aligned.
        chunk: positions to widen and normalise at a time. Their vocabulary-sized intermediates are computed
            again in the backward pass instead of kept, so that beside the logits and their gradient only
            ``chunk * V`` floats live. The result is the same.
        head: turns hidden states [N, D] into logits [N, V] float32; ``logits`` are then the student's hidden states, [B, C, D], and
            no more than ``chunk`` positions' logits exist at any time, in the backward pass neither.
        live_samples: N of the means, where this is a part of a larger batch: ``batch.live().sum()`` over all
            parts. The parts' losses then add up to the loss of the whole.

    Returns:
        The scalar to minimise (0, with gradient 0, where nothing is live), and metrics as floats:
        ``loss policy_loss directive_loss kl_base_k2 kl_base_k3 kl_base kl_step ratio_mean ratio_max clip_fraction
        staleness_mean teacher_shift live_samples effective_samples live_tokens policy_tokens
        directive_tokens reported_tokens``.
        Losses are as they enter the total; all others are unweighted means over the live tokens, in nats
        where they have a unit: ``clip_fraction`` over ``policy_tokens`` (with an advantage), ``teacher_shift`` over
        ``reported_tokens`` (where a teacher reports the token). What a batch does not measure (no base, no teacher, no advantages) is absent,
        not 0. ``kl_step`` is KL(o‖s), for the trust region; ``kl_base`` KL(s‖p). Both weigh each token by how likely it was under o
        and s instead of b, at most ``staleness_cap``: without, one token that an older version sampled and that o or s has unlearnt
        adds dozens of nats to the sum. ``teacher_shift`` is mean |q - o| over tokens the teacher reports.

    Raises:
        ValueError: shapes that differ, a live position with a number missing, a directive weight without a
            teacher, a KL penalty without a base.
    """
    if logits.shape[:2] != batch.completion_ids.shape:
        rows, columns = batch.completion_ids.shape
        raise ValueError(f"logits of shape {tuple(logits.shape)} for a batch of {rows} x {columns}")
    at = _Live(batch, torch.promote_types(logits.dtype, torch.float32))
    _require_complete(objective, batch, at)
    alphas, divergence_of = _divergences(objective, batch, at.directive_rows)
    read = _read(
        logits,
        batch,
        objective,
        alphas,
        _Positions(
            within=at.flat,
            flat=at.flat,
            ids=batch.completion_ids.reshape(-1)[at.flat],
            temperature=batch.temperature[at.row_of].to(at.dtype),
            divergence=divergence_of[at.row_of],
        ),
        chunk,
        head,
    )
    return _total(objective, batch, at, alphas, read, live_samples)


def compute_support_loss(
    objective: Objective,
    batch: Batch,
    logprobs: torch.Tensor,
    student_support: torch.Tensor | None = None,
    *,
    live_samples: float | None = None,
) -> tuple[torch.Tensor, dict[str, float]]:
    """The same loss where only log-probabilities of single tokens can be had, as from a training server.

    On the same tokens it has the value and the gradient of :func:`compute_loss` on a batch that brings a support; with the
    student's own K likeliest tokens as that support, also those of a batch with whole logits.

    Args:
        batch: with ``support_ids`` and ``support_logprobs`` where samples have a teacher.
        logprobs: s [B, C], of the completion's tokens, with gradient, at the batch's temperature.
        student_support: S [B, C, K] of the tokens ``batch.support_ids``, with gradient.
        live_samples: see :func:`compute_loss`.

    Returns:
        As :func:`compute_loss`.

    Raises:
        ValueError: as :func:`compute_loss`; a teacher without the student's numbers for its tokens.
    """
    if logprobs.shape != batch.completion_ids.shape:
        raise ValueError(f"log-probabilities of shape {tuple(logprobs.shape)} for another batch")
    if batch.teacher_logits is not None or (
        (None if student_support is None else student_support.shape)
        != (None if batch.support_ids is None else batch.support_ids.shape)
    ):
        raise ValueError("a support needs the student's and the teacher's log-probabilities of it")
    at = _Live(batch, torch.promote_types(logprobs.dtype, torch.float32))
    _require_complete(objective, batch, at)
    alphas, divergence_of = _divergences(objective, batch, at.directive_rows)
    own = at.pick(logprobs)
    divergence = torch.zeros_like(own)
    teacher_logprobs = torch.full_like(own.detach(), math.nan)
    ids = batch.completion_ids.reshape(-1)[at.flat].unsqueeze(-1)
    for code, alpha in enumerate(alphas):
        assert student_support is not None
        assert batch.support_ids is not None
        assert batch.support_logprobs is not None
        here = (divergence_of[at.row_of] == code).nonzero().squeeze(-1)
        place = at.flat[here]
        student = student_support.flatten(0, 1)[place].to(at.dtype)
        teacher = batch.support_logprobs.flatten(0, 1)[place].to(at.dtype)
        if not bool((student.isfinite() & ~teacher.isnan()).all()):
            raise ValueError("a log-probability of the support is missing: its sample has to be dropped")
        divergence = divergence.index_put(
            (here,), known_support_divergence(student, teacher, alpha=alpha, mass=objective.support_mass)
        )
        is_completion = batch.support_ids.flatten(0, 1)[place] == ids[here]
        of_completion = torch.where(is_completion, teacher, 0.0).sum(dim=-1)
        teacher_logprobs[here] = torch.where(is_completion.any(dim=-1), of_completion, math.nan)
    return _total(objective, batch, at, alphas, (own, divergence, teacher_logprobs), live_samples)


class _Live:
    """The live positions of a batch, N of them, and its streams there."""

    def __init__(self, batch: Batch, dtype: torch.dtype) -> None:
        rows, columns = batch.completion_ids.shape
        self.dtype = dtype
        self.shape = rows, columns
        self.rows = batch.live()
        self.mask = batch.mask & self.rows.unsqueeze(-1)
        self.directive_rows = self.rows & (batch.directive_weight > 0)
        self.flat = self.mask.reshape(-1).nonzero().squeeze(-1)
        self.row_of = torch.div(self.flat, columns, rounding_mode="floor")
        self.before, self.sampled = self.pick(batch.trainer_logprobs), self.pick(batch.sampling_logprobs)
        self.base = None if batch.base_logprobs is None else self.pick(batch.base_logprobs)
        self.policy_mask = batch.advantage_mask & self.mask
        # `where` first: an advantage outside its own mask is padding too.
        self.advantages = self.pick(torch.where(self.policy_mask, batch.advantages, 0.0))

    def pick(self, stream: torch.Tensor) -> torch.Tensor:
        """[B, C] -> [N]."""
        return stream.reshape(-1)[self.flat].to(self.dtype)

    def grid(self, values: torch.Tensor) -> torch.Tensor:
        """[N] -> [B, C], so that one function does every mean."""
        rows, columns = self.shape
        return values.new_zeros(rows * columns).index_put((self.flat,), values).reshape(rows, columns)


def _total(
    objective: Objective,
    batch: Batch,
    at: _Live,
    alphas: list[float],
    read: _Read,
    live_samples: float | None,
) -> tuple[torch.Tensor, dict[str, float]]:
    """Return the loss and the metrics from the student's values."""
    logprobs, divergence, teacher_logprobs = read
    before, base, advantages, live, flat = at.before, at.base, at.advantages, at.mask, at.flat
    sequences = float(at.rows.sum()) if live_samples is None else float(live_samples)
    weight = batch.sample_weight.to(at.dtype)

    def term(values: torch.Tensor, mask: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return masked_mean(at.grid(values), mask, weight=scale, sequences=sequences)

    stale = staleness_weight(before, at.sampled, cap=objective.staleness_cap)
    surrogate = ppo_surrogate(
        logprobs,
        before,
        advantages,
        clip_low=objective.clip_low,
        clip_high=objective.clip_high,
        dual_clip=objective.dual_clip,
    )
    directive = sdpo_token_loss(divergence, logprobs, before, cap=objective.importance_cap)
    directive_mask = live & at.directive_rows.unsqueeze(-1)
    policy_loss = term(surrogate * stale, at.policy_mask, weight)
    directive_loss = term(directive * stale, directive_mask, weight * batch.directive_weight.to(at.dtype))
    loss = policy_loss + directive_loss
    if base is not None and objective.kl_coef:
        loss = loss + objective.kl_coef * term(kl_k2(logprobs, base), live, weight)

    with torch.no_grad():
        metrics = {
            "loss": loss,
            "live_samples": at.rows.sum(),
            "live_tokens": live.sum(),
            "effective_samples": (
                at.directive_rows | ((batch.advantages != 0) & at.policy_mask).any(dim=-1)
            ).sum(),
        }
        ratio = (logprobs - before).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
        if flat.numel():
            metrics |= _token_metrics(at, logprobs, ratio, stale)
        in_policy = at.policy_mask.reshape(-1)[flat]
        if bool(in_policy.any()):
            metrics |= {
                "policy_loss": policy_loss,
                "policy_tokens": in_policy.sum(),
                "clip_fraction": _clip_fraction(objective, ratio, advantages, in_policy),
            }
        if alphas:
            metrics["directive_loss"] = directive_loss
            metrics |= _directive_metrics(directive_mask.reshape(-1)[flat], teacher_logprobs - before)
        values = torch.stack([value.detach().double() for value in metrics.values()]).tolist()
    return loss, dict(zip(metrics, values, strict=True))


def _token_metrics(
    at: _Live, logprobs: torch.Tensor, ratio: torch.Tensor, stale: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Means over the live tokens; all arguments [N]."""
    metrics = {
        "kl_step": (stale * kl_k3(at.before, logprobs)).mean(),
        "ratio_mean": ratio.mean(),
        "ratio_max": ratio.max(),
        "staleness_mean": stale.mean(),
    }
    if at.base is not None:
        k3 = kl_k3(logprobs, at.base)
        metrics |= {
            "kl_base_k2": kl_k2(logprobs, at.base).mean(),
            "kl_base_k3": k3.mean(),
            "kl_base": (stale * ratio * k3).mean(),
        }
    return metrics


def _clip_fraction(
    objective: Objective, ratio: torch.Tensor, advantages: torch.Tensor, in_policy: torch.Tensor
) -> torch.Tensor:
    """Share of the tokens with an advantage whose gradient the clip removes; all arguments [N]."""
    # The dual clip bounds the loss of A < 0 far above the region; between the two there is a gradient.
    highest = math.inf if objective.dual_clip is None else objective.dual_clip
    clipped = torch.where(
        advantages > 0,
        ratio > objective.clip_high,
        (ratio < objective.clip_low) | (ratio > highest),
    )
    return clipped[in_policy & (advantages != 0)].to(ratio.dtype).sum() / in_policy.sum()


def _directive_metrics(taught: torch.Tensor, difference: torch.Tensor) -> dict[str, torch.Tensor]:
    """Metrics of the tokens with a teacher.

    Args:
        taught: [N] bool, the tokens with a teacher.
        difference: [N] q - o; NaN where the teacher does not report the token.
    """
    shift = difference[taught].abs()
    known = ~shift.isnan()
    metrics = {"directive_tokens": taught.sum()}
    if bool(known.any()):
        metrics["teacher_shift"] = shift[known].mean()
        metrics["reported_tokens"] = known.sum()
    return metrics


def _require_complete(objective: Objective, batch: Batch, at: _Live) -> None:
    if at.base is None and objective.kl_coef:
        raise ValueError("a KL penalty needs the base model's log-probabilities")
    has_teacher = batch.teacher_logits is not None or batch.teacher_at is not None
    if not has_teacher and batch.support_ids is None and bool(at.directive_rows.any()):
        raise ValueError("a sample with a directive weight has no teacher: it has to be dropped")
    streams = {
        "trainer_logprobs": at.before,
        "sampling_logprobs": at.sampled,
        "advantages": at.advantages,
        "sample_weight": batch.sample_weight[at.rows],
        "directive_weight": batch.directive_weight[at.rows],
        # log is finite for a positive temperature and only then
        "temperature": batch.temperature[at.rows].log(),
    }
    if at.base is not None:
        streams["base_logprobs"] = at.base
    complete = torch.stack([stream.isfinite().all() for stream in streams.values()]).tolist()
    for name, is_complete in zip(streams, complete, strict=True):
        if not is_complete:
            raise ValueError(
                f"{name} is missing or impossible at a live position: its sample has to be dropped"
            )


def _divergences(
    objective: Objective, batch: Batch, directive_rows: torch.Tensor
) -> tuple[list[float], torch.Tensor]:
    """The different alphas in use, and for each sample which of them, [B]; -1 = none."""
    wanted = batch.directive_alpha or (objective.alpha,) * len(directive_rows)
    asked = directive_rows.tolist()
    alphas = sorted({alpha for alpha, has_teacher in zip(wanted, asked, strict=True) if has_teacher})
    codes = [
        alphas.index(alpha) if has_teacher else -1 for alpha, has_teacher in zip(wanted, asked, strict=True)
    ]
    return alphas, torch.tensor(codes, device=directive_rows.device, dtype=torch.long)


def _read(
    logits: torch.Tensor,
    batch: Batch,
    objective: Objective,
    alphas: list[float],
    positions: _Positions,
    chunk: int | None,
    head: Callable[[torch.Tensor], torch.Tensor] | None,
) -> _Read:
    """Everything that needs the vocabulary, for the live positions only, a piece at a time."""
    reader = _reader(batch, objective, alphas, head)
    flat_logits = logits.reshape(-1, logits.shape[-1])
    if chunk is None:
        return reader(flat_logits, positions)
    starts = torch.arange(0, len(flat_logits) + chunk, chunk, device=logits.device)
    bounds = torch.searchsorted(positions.flat, starts).tolist()
    parts = []
    # split, not slices: its backward writes the gradient of all pieces once.
    for number, piece in enumerate(torch.split(flat_logits, chunk)):
        low, high = bounds[number], bounds[number + 1]
        if low == high:
            continue
        here = _Positions(
            within=positions.flat[low:high] - number * chunk,
            flat=positions.flat[low:high],
            ids=positions.ids[low:high],
            temperature=positions.temperature[low:high],
            divergence=positions.divergence[low:high],
            piece=number,
        )
        parts.append(
            cast(
                _Read,
                checkpoint(reader, piece, here, use_reentrant=False, preserve_rng_state=False),
            )
        )
    if not parts:
        return reader(flat_logits, positions)
    first, second, third = (torch.cat(column) for column in zip(*parts, strict=True))
    return first, second, third


def _reader(
    batch: Batch,
    objective: Objective,
    alphas: list[float],
    head: Callable[[torch.Tensor], torch.Tensor] | None,
) -> Callable[[torch.Tensor, _Positions], _Read]:
    teacher_logits = None if batch.teacher_logits is None else batch.teacher_logits.detach().flatten(0, 1)
    # What a teacher by position gave for the support of (piece, divergence): the second pass over a piece does not ask it again.
    known: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}
    support_ids = None if batch.support_ids is None else batch.support_ids.flatten(0, 1)
    support_logprobs = None if batch.support_logprobs is None else batch.support_logprobs.flatten(0, 1)

    def read_piece(logits: torch.Tensor, at: _Positions) -> _Read:
        """Log-probabilities s, divergence from the teacher, q of the token; all [N].

        Positions without a teacher have divergence 0 (they are masked) and NaN for the teacher's
        value. What needs a gradient comes first: the second pass over a checkpointed piece ends there, and
        nothing is measured twice.
        """
        here_logits = logits[at.within]
        student = log_distribution(here_logits if head is None else head(here_logits), at.temperature)
        logprobs = student.gather(-1, at.ids.unsqueeze(-1)).squeeze(-1)
        divergence = torch.zeros_like(logprobs)
        teacher_logprobs = torch.full_like(logprobs.detach(), math.nan)

        for code, alpha in enumerate(alphas):
            here = (at.divergence == code).nonzero().squeeze(-1)
            some, ids = student[here], at.ids[here].unsqueeze(-1)
            if (found := known.get((at.piece, code))) is not None:
                values = support_divergence(some, *found, alpha=alpha, mass=objective.support_mass)
                divergence = divergence.index_put((here,), values)
                continue
            if teacher_logits is not None or batch.teacher_at is not None:
                if teacher_logits is None:
                    assert batch.teacher_at is not None
                    with torch.no_grad():
                        raw = batch.teacher_at(at.flat[here])
                else:
                    # they may be in main memory: on the device they would be the largest thing there
                    raw = teacher_logits[at.flat[here].to(teacher_logits.device)]
                teacher = log_distribution(raw.to(some.device, some.dtype), at.temperature[here])
                # A token this teacher rules out is a disagreement, not an unused slot of a support.
                teacher = teacher.clamp(min=LOG_ZERO)
                if objective.top_k is None:
                    values = generalized_jsd(some, teacher, alpha)
                else:
                    support = likeliest(
                        some if objective.support_of == "student" else teacher, objective.top_k
                    )
                    on_support = teacher.gather(-1, support)
                    if teacher_logits is None:
                        known[at.piece, code] = support, on_support
                    values = support_divergence(
                        some, support, on_support, alpha=alpha, mass=objective.support_mass
                    )
                teacher_logprobs[here] = teacher.gather(-1, ids).squeeze(-1)
            else:
                assert support_ids is not None
                assert support_logprobs is not None
                indices = support_ids[at.flat[here]]
                reported = support_logprobs[at.flat[here]].to(some.dtype)
                values = support_divergence(some, indices, reported, alpha=alpha, mass=objective.support_mass)
                used = indices.masked_fill(torch.isneginf(reported), -1)
                is_completion = used == ids
                of_completion = torch.where(is_completion, reported, 0.0).sum(dim=-1)
                teacher_logprobs[here] = torch.where(is_completion.any(dim=-1), of_completion, math.nan)
            divergence = divergence.index_put((here,), values)
        return logprobs, divergence, teacher_logprobs

    return read_piece
