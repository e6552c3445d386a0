"""The loss family as pure functions of tensors. torch only; no model, no batch, no settings, no state.

Rules of the room:
- Everything is **response-aligned**: position ``t`` speaks about completion token ``y[t]``, and ``logits[t]``
  is the distribution that predicts it (``model(full_ids).logits[:, P-1:-1]``).
- Distributions are computed in float32 or better, whatever the dtype of the model: in bfloat16 the gradient
  of a divergence between two nearly equal distributions is mostly rounding.
- One temperature for everything that is compared. A temperature differs between two sides only by mistake,
  and then an identical model seems to disagree with itself.
- Log-probabilities are natural logs. 0.0 means "certain"; nothing here ever invents one.

Shapes: P prompt tokens, C completion tokens, B batch, V vocabulary, K size of a token support; ``...`` any
leading shape.
Notation: s student (the weights being trained), o the same weights before the update, b as sampled by the
engine, p base model, q teacher (hint in context), S and Q whole distributions, A advantage.
"""

from __future__ import annotations

import math
from typing import Literal

import torch

#: What becomes of the mass outside a token support.
SupportMass = Literal["tail", "renormalised"]
#: What two log-probabilities may differ by before a ratio of them is cut: exp(20) is far beyond every cap,
#: and finite.
MAX_LOG_RATIO = 20.0
#: Stands for log 0. exp(-1e4) is exactly 0 in float64, and 0 times its difference from any log-probability is
#: 0, not NaN.
LOG_ZERO = -1e4
#: Largest log-mass a support may claim, so that the tail bin keeps a finite log-probability (about log 1e-7).
MAX_SUPPORT_LOG_MASS = -1e-7


def widen(values: torch.Tensor) -> torch.Tensor:
    """Floating-point ``values`` in float32 or better; float64 stays float64."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def log_distribution(logits: torch.Tensor, temperature: float | torch.Tensor = 1.0) -> torch.Tensor:
    """Log-probabilities of the whole vocabulary at a temperature, ``log_softmax(logits / temperature)``.

    Normalised log-probabilities at temperature 1 are as good as logits: a constant per position cancels.

    Args:
        logits: [..., V], any float dtype.
        temperature: one number, or one for each entry of the first dimension, [B].

    Returns:
        [..., V], float32 or better.
    """
    wide = widen(logits)
    if isinstance(temperature, torch.Tensor) and temperature.ndim:
        temperature = temperature.to(wide.dtype).reshape(-1, *([1] * (wide.ndim - 1)))
    return torch.log_softmax(wide / temperature, dim=-1)


def token_logprobs(
    logits: torch.Tensor,
    ids: torch.Tensor,
    temperature: float | torch.Tensor = 1.0,
    *,
    chunk: int | None = None,
) -> torch.Tensor:
    """Log-probability of each emitted token, ``log_softmax(logits / temperature)[ids]``.

    Args:
        logits: [..., V], any float dtype.
        ids: [...], the ids the sampler emitted.
        temperature: one number, or one for each entry of the first dimension, [B].
        chunk: with [B, C, V] logits, completion positions to widen at a time. Without a gradient this bounds
            the extra memory to ``B * chunk * V`` floats; the values are the same.

    Returns:
        [...], float32 or better.
    """
    if chunk is not None and logits.ndim > 2 and logits.shape[-2] > chunk:
        pairs = zip(torch.split(logits, chunk, dim=-2), torch.split(ids, chunk, dim=-1), strict=True)
        return torch.cat([token_logprobs(piece, some, temperature) for piece, some in pairs], dim=-1)
    return log_distribution(logits, temperature).gather(-1, ids.unsqueeze(-1)).squeeze(-1)


def masked_mean(
    values: torch.Tensor,
    mask: torch.Tensor,
    *,
    weight: torch.Tensor | None = None,
    sequences: float | None = None,
) -> torch.Tensor:
    """Mean over the live tokens of a sequence, then over the live sequences.

    ``1/N · sum_i w_i · (sum_t m_it x_it / sum_t m_it)``, N the number of sequences with a live token. Long
    answers do not outvote short ones, and a weight scales its own sequence without making the others heavier.

    Args:
        values: [B, C]. What stands at dead positions is never read: it is replaced, not multiplied by 0,
            since ``NaN * 0`` is NaN.
        mask: [B, C] bool.
        weight: [B], default 1.
        sequences: N, where this is one part of a larger batch (gradient accumulation); default: counted here.

    Returns:
        Scalar; 0 where nothing is live.
    """
    live_tokens = mask.sum(dim=-1)
    means = torch.where(mask, values, 0.0).sum(dim=-1) / live_tokens.clamp(min=1)
    if weight is not None:
        means = torch.where(live_tokens > 0, means * weight, 0.0)
    count = (live_tokens > 0).sum().clamp(min=1) if sequences is None else max(sequences, 1.0)
    return means.sum() / count


def staleness_weight(
    trainer_logprobs: torch.Tensor, sampling_logprobs: torch.Tensor, *, cap: float = 2.0
) -> torch.Tensor:
    """Truncated importance weight for tokens an older version, or another engine, sampled.

    ``min(exp(clamp(o - b, ±20)), cap)``, detached. Below 1 it attenuates by the whole ratio; above 1 it stops
    at ``cap``.
    Source: Ionides 2008 (truncated importance sampling); in LLM training as "TIS".

    Args:
        trainer_logprobs: o [...], the weights about to be trained, at the sampling temperature.
        sampling_logprobs: b [...], as the engine reported them.
    """
    return _truncated_ratio(trainer_logprobs, sampling_logprobs, cap)


def importance_weight(
    logprobs: torch.Tensor, trainer_logprobs: torch.Tensor, *, cap: float = 2.0
) -> torch.Tensor:
    """Truncated importance weight of the weights in training against those at the start of the step.

    ``min(exp(clamp(s - o, ±20)), cap)``, detached: 1 in the first pass over a batch.
    """
    return _truncated_ratio(logprobs, trainer_logprobs, cap)


def _truncated_ratio(new: torch.Tensor, old: torch.Tensor, cap: float) -> torch.Tensor:
    gap = (new - old).detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return gap.exp().clamp(max=cap)


def ppo_surrogate(
    logprobs: torch.Tensor,
    trainer_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    *,
    clip_low: float = 0.8,
    clip_high: float = 1.28,
    dual_clip: float | None = 3.0,
) -> torch.Tensor:
    """Per-token clipped policy-gradient loss with an asymmetric trust region and a dual clip.

    ``rho = exp(clamp(s - o, ±20))``; ``max(-rho A, -clip(rho, low, high) A)``; where A < 0 at most ``-dual_clip · A``, so
    that one token the policy has already grown far more likely cannot take over the step. At rho = 1 the
    gradient is ``-A · grad s``.
    Sources: Schulman et al. 2017 eq. 7; Yu et al. 2025 (DAPO, "clip higher"); Ye et al. 2020 (dual clip).

    Args:
        logprobs: s [...], with gradient.
        trainer_logprobs: o [...].
        advantages: A [...]; constants, like o.

    Returns:
        [...], to be minimised.
    """
    advantages = advantages.detach()
    # Without the bound exp is infinite beyond 88 nats (float32), and where a clip or A = 0 should leave no gradient it would be 0 · inf.
    ratio = (logprobs - trainer_logprobs.detach()).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    loss = torch.maximum(-ratio * advantages, -ratio.clamp(clip_low, clip_high) * advantages)
    if dual_clip is None:
        return loss
    return torch.where(advantages < 0, torch.minimum(loss, -dual_clip * advantages), loss)


def kl_k2(logprobs: torch.Tensor, base_logprobs: torch.Tensor) -> torch.Tensor:
    """Per-token KL to the base model for use **in the loss**: ``½ (s - p)²``.

    On tokens sampled from the policy its expected gradient is exactly that of the reverse KL(S‖P). The plain
    difference (k1) has an expected gradient of 0, and k3 has that of the forward KL: as a loss neither does
    what its value says.
    Source: Schulman 2020, "Approximating KL divergence" (k1, k2, k3).
    """
    return 0.5 * (logprobs - base_logprobs.detach()).square()


def kl_k3(logprobs: torch.Tensor, base_logprobs: torch.Tensor) -> torch.Tensor:
    """Per-token KL to a reference as a **metric**: ``exp(p - s) - 1 - (p - s)``, never negative, no gradient.

    On tokens sampled from s its expectation is exactly KL(S‖P).
    """
    gap = (base_logprobs - logprobs).detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return torch.expm1(gap) - gap


def with_tail(logprobs: torch.Tensor) -> torch.Tensor:
    """Append one bin with the mass a token support leaves out: ``log(-expm1(min(logsumexp, -1e-7)))``.

    The result sums to one, so that a divergence over it sees mass move on and off the support, and is 0 with
    gradient 0 where both sides agree.

    Args:
        logprobs: [..., K], true log-probabilities of K different tokens.

    Returns:
        [..., K + 1].
    """
    captured = torch.logsumexp(logprobs, dim=-1, keepdim=True).clamp(max=MAX_SUPPORT_LOG_MASS)
    return torch.cat([logprobs, torch.log(-torch.expm1(captured))], dim=-1)


def renormalised(logprobs: torch.Tensor) -> torch.Tensor:
    """A token support scaled to sum to one, [..., K]: blind to all mass outside.

    Here for comparison with other implementations (`Objective.support_mass`); see :func:`with_tail`.
    """
    return logprobs - torch.logsumexp(logprobs, dim=-1, keepdim=True)


def generalized_jsd(student: torch.Tensor, teacher: torch.Tensor, alpha: float) -> torch.Tensor:
    """Generalised Jensen-Shannon divergence of each position.

    ``M = (1-a) S + a Q``; ``a · KL(Q‖M) + (1-a) · KL(S‖M)``. At both ends this is 0 with no gradient at all,
    so the limits that mean something take its place: a = 0 is the forward ``KL(Q‖S)``, a = 1 the reverse
    ``KL(S‖Q)``.
    Source: Agarwal et al. 2024 (GKD) eq. 1; Hübotter et al. 2026 (SDPO).

    Args:
        student: S [..., N], log-probabilities that sum to one, with gradient.
        teacher: Q [..., N], the same bins; a constant.
        alpha: a in [0, 1].

    Returns:
        [...], nats.

    Raises:
        ValueError: alpha outside [0, 1].
    """
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"alpha must lie in [0, 1], not {alpha}")
    # A token that is impossible on one side only (log 0) stays a finite, large disagreement.
    student = student.clamp(min=LOG_ZERO)
    teacher = teacher.detach().clamp(min=LOG_ZERO)
    if alpha == 0.0:
        return _kl(teacher, student)
    if alpha == 1.0:
        return _kl(student, teacher)
    mixture = torch.logaddexp(student + math.log1p(-alpha), teacher + math.log(alpha))
    return alpha * _kl(teacher, mixture) + (1.0 - alpha) * _kl(student, mixture)


def _kl(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return (left.exp() * (left - right)).sum(dim=-1)


def likeliest(logprobs: torch.Tensor, size: int) -> torch.Tensor:
    """Ids of the ``size`` likeliest tokens, [..., K], K = min(size, V): the choice has no gradient.

    As the support of a divergence, taken from the **student** at every pass: the tokens it would say are the
    ones worth judging.
    """
    return logprobs.detach().topk(min(size, logprobs.shape[-1]), dim=-1).indices


def support_divergence(
    student: torch.Tensor,
    indices: torch.Tensor,
    teacher: torch.Tensor,
    *,
    alpha: float,
    mass: SupportMass = "tail",
) -> torch.Tensor:
    """Generalised JSD on a token support and one tail bin for all other tokens.

    The support is the student's own (:func:`likeliest`), or, for teachers that report only their top-K, the
    teacher's. On all V tokens this is the divergence over the whole vocabulary.
    Source: Hübotter et al. 2026 (SDPO), top-K distillation with tail.

    Args:
        student: S [..., V], log-probabilities with gradient.
        indices: [..., K] token ids, all different within a position.
        teacher: Q [..., K], log-probabilities of just these tokens. ``-inf`` marks an unused slot (fewer than
            K were reported); its index is then ignored.
        mass: "renormalised" scales both sides to sum to one on the support instead of keeping a tail (CLaaS).

    Returns:
        [...], nats.
    """
    return known_support_divergence(student.gather(-1, indices), teacher, alpha=alpha, mass=mass)


def known_support_divergence(
    student: torch.Tensor, teacher: torch.Tensor, *, alpha: float, mass: SupportMass = "tail"
) -> torch.Tensor:
    """:func:`support_divergence` where the student's log-probabilities of the support are all that is known.

    Args:
        student: S [..., K], with gradient; teacher: Q [..., K], ``-inf`` = unused slot.
    """
    unused = torch.isneginf(teacher)
    chosen = student.masked_fill(unused, LOG_ZERO)
    whole = with_tail if mass == "tail" else renormalised
    return generalized_jsd(whole(chosen), whole(teacher.detach().masked_fill(unused, LOG_ZERO)), alpha)


def sdpo_token_loss(
    divergence: torch.Tensor,
    logprobs: torch.Tensor,
    trainer_logprobs: torch.Tensor,
    *,
    cap: float = 2.0,
) -> torch.Tensor:
    """Per-token self-distillation loss: a divergence, weighted by how likely the token still is.

    ``D · min(exp(clamp(s - o, ±20)), cap)``; the weight is a constant.
    Source: Hübotter et al. 2026 (SDPO).

    Args:
        divergence: D [...], with gradient.
        logprobs: s [...]; trainer_logprobs: o [...].
    """
    return divergence * importance_weight(logprobs, trainer_logprobs, cap=cap)
