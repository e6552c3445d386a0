"""One training step on a Tinker server: `trainer.step.train` where the weights are far away.

**The objective is ours, the back-propagation theirs.** The server tells the log-probabilities s of the tokens; our own loss
(`trainer.objective.compute_support_loss`, the very formulas of the local trainer) is differentiated by them here, and what is sent is the
linear loss whose gradient is g · ∇s. Clipping, dual clip, staleness, the KL penalty and all means are thus exactly the local trainer's,
whatever the server's own losses look like. It is what the SDK's `forward_backward_custom` does, with its forward pass shared between
the trust region, the metrics and the next inner step.

What carries g:

============  ==========================================================================================================
wide          `cross_entropy` with targets [T, 1 + K] (the token and its support) and weights -g of either sign
narrow        `ppo` or `importance_sampling` (--loss-fn) with advantages -g, and as sampling log-probabilities the s
              that the server has just returned: the ratio is 1, inside every clip, and the gradient is g · ∇s
============  ==========================================================================================================

Position i of a datum predicts token i + 1; a position with g = 0 is masked by it. Losses are sums; a server that divides (`TinkerCapabilities.means`)
gets its divisors multiplied in beforehand.

Pipelined: backward pass, optimizer step and the forward pass that looks at its result are all submitted before the first is awaited.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from tinker import types
from torch import Tensor

from store.errors import AlignmentError, GateRejected
from trainer.advantages import Streams, token_directive_advantages
from trainer.batch import Sample, build_batch
from trainer.objective import Batch, compute_support_loss
from trainer.policy import BETA2, MAX_GRADIENT_NORM
from trainer.protocol import Weights
from trainer.step import StepPlan, by_teacher
from trainer.tinker.policy import Pair, TeacherScore, TinkerPolicy

_EPS = 1e-8
#: AdamW's first moment. `adam_beta1` is the local trainer's alone: below this it needs a bound on updates, and a server has none.
_BETA1 = 0.9
_CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.28}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scores:
    """Output of a forward pass: s [B, C], and S [B, C, K] of the supports; NaN where nothing was asked."""

    own: Tensor
    support: Tensor | None

    def is_finite(self, batch: Batch) -> bool:
        return bool(self.own[batch.mask].isfinite().all())


def train(
    policy: TinkerPolicy,
    samples: Sequence[Sample],
    plan: StepPlan,
    *,
    carrier: str = "ppo",
    eps: float = _EPS,
) -> dict[str, float]:
    """Move the policy's weights by up to ``plan.steps_per_batch`` optimizer steps on these samples; returns the metrics.

    Stops before a step when the weights are already further than ``plan.max_kl_step`` from where they began. Nothing is resampled
    between the steps, and none are taken on the anchors alone.

    Args:
        carrier: the loss that carries narrow gradients.
        eps: Adam's; a large one makes steps proportional to gradients.

    Raises:
        GateRejected: a gradient is not finite.
        UpstreamError, TheirError: the server was lost, or fails; what the training client holds is not known any more.
    """
    ordered = list(samples)
    taught = _teachers(policy, ordered, plan)
    data = _Data(policy, ordered, taught, carrier)
    training = policy.training()
    base, _ = policy.response_logprobs(
        [sample.prompt_ids for sample in ordered],
        [sample.completion_ids for sample in ordered],
        Weights.BASE,
    )
    scores = data.read(policy.link.wait(data.forward(training)))
    if policy.support == "token":
        ordered = [
            _on_tokens(s, t, scores.own[i], plan)
            for i, (s, t) in enumerate(zip(ordered, taught, strict=True))
        ]
    batch = _batch(ordered, scores, base, taught if policy.support != "token" else [None] * len(ordered))
    metrics: dict[str, float] = {}
    steps, norm = 0, math.nan
    gap = 0.0
    for share in plan.rates():
        found, gradient = _differentiate(batch, scores, plan)
        if not metrics:
            metrics = found
        if steps and found.get("kl_step", 0.0) > plan.max_kl_step:
            break
        policy.has_moved(is_finite=True)
        adam = types.AdamParams(
            learning_rate=policy.learning_rate * share,
            beta1=_BETA1,
            beta2=BETA2,
            eps=eps,
            weight_decay=0.0,
            grad_clip_norm=MAX_GRADIENT_NORM,
        )
        backward = data.backward(training, gradient, scores)
        optimizer, forward = training.optim_step(adam), data.forward(training)
        results = policy.link.wait([*backward, optimizer, *forward])
        again = data.read(results[: len(backward)])
        gap = max(gap, float((again.own - scores.own)[batch.mask].abs().max()))
        norm = _norm(results[len(backward)], norm)
        scores = data.read(results[len(backward) + 1 :])
        steps += 1
        if not scores.is_finite(batch):
            policy.has_moved(is_finite=False)
            break
    after, _ = _differentiate(batch, scores, plan) if policy.is_finite() else ({}, None)
    return {
        **metrics,
        "gradient_norm": norm,
        "optimizer_steps": float(steps),
        "kl_step": after.get("kl_step", math.nan),
        "kl_to_base": after.get("kl_base", math.nan),
        "loss_after": after.get("loss", math.nan),
        "entropy_after": after.get("entropy", math.nan),
        # Two passes at the same weights; more than rounding means that another client trains them.
        "pass_gap": gap,
    }


def _teachers(policy: TinkerPolicy, samples: Sequence[Sample], plan: StepPlan) -> list[TeacherScore | None]:
    """Of each sample with a directive weight, what its teacher says."""
    result: list[TeacherScore | None] = [None] * len(samples)
    for with_teacher, teacher, residual in by_teacher(samples, plan):
        rows = [
            i for i in with_teacher if policy.support == "token" or _streams(samples[i]).directive_weight > 0
        ]
        if not rows:
            continue
        pairs = [
            Pair(
                prompt=samples[i].prompt_ids,
                hinted=samples[i].teacher_prompt_ids or (),
                response=samples[i].completion_ids,
            )
            for i in rows
        ]
        found = policy.taught(pairs, teacher=teacher, residual=residual)
        for row, one in zip(rows, found, strict=True):
            result[row] = one
    return result


def _streams(sample: Sample) -> Streams:
    if sample.streams is None:
        raise AlignmentError(f"sample {sample.turn_id} has no streams yet")
    return sample.streams


def _on_tokens(sample: Sample, taught: TeacherScore | None, own: Tensor, plan: StepPlan) -> Sample:
    """The directive term as advantages of the sampled tokens, ``clip(q - o)``: in expectation the gradient of the reverse KL."""
    streams = _streams(sample)
    if not streams.directive_weight:
        return sample
    if taught is None:
        raise AlignmentError(f"sample {sample.turn_id} has a directive weight and no teacher")
    count = len(sample.completion_ids)
    extra = token_directive_advantages(
        taught.logprobs[:count].tolist(), own[:count].tolist(), clip=plan.opd_clip, centred=plan.opd_centred
    )
    there = zip(streams.advantages, streams.advantage_mask, strict=True)
    known = [value if live else 0.0 for value, live in there]
    advantages = [a + streams.directive_weight * e for a, e in zip(known, extra, strict=True)]
    return sample.with_streams(
        replace(
            streams,
            advantages=tuple(advantages),
            advantage_mask=(True,) * count,
            directive_weight=0.0,
        )
    )


def _batch(
    samples: Sequence[Sample], scores: _Scores, base: Tensor, taught: Sequence[TeacherScore | None]
) -> Batch:
    own = scores.own
    batch = build_batch(
        samples, trainer_logprobs=own, reported_logprobs=own, base_logprobs=base, teacher_logits=None
    )
    if scores.support is None:
        return batch
    ids = torch.zeros(scores.support.shape, dtype=torch.long)
    theirs = torch.full(scores.support.shape, math.nan)
    for row, one in enumerate(taught):
        if one is None or one.support_ids is None or one.support_logprobs is None:
            continue
        count, size = one.support_ids.shape
        ids[row, :count, :size] = one.support_ids
        theirs[row, :count, :size] = one.support_logprobs
    return replace(batch, support_ids=ids, support_logprobs=theirs)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gradient:
    """dL/ds [B, C] and dL/dS [B, C, K]; 0 at dead positions."""

    own: Tensor
    support: Tensor | None


def _differentiate(batch: Batch, scores: _Scores, plan: StepPlan) -> tuple[dict[str, float], _Gradient]:
    own = scores.own.detach().clone().requires_grad_()
    support = None if scores.support is None else scores.support.detach().clone().requires_grad_()
    loss, metrics = compute_support_loss(plan.objective, batch, own, support)
    loss.backward()  # type: ignore[no-untyped-call]  # torch does not type it
    gradient = _Gradient(
        own=torch.zeros_like(own) if own.grad is None else own.grad,
        support=None
        if support is None
        else torch.zeros_like(support)
        if support.grad is None
        else support.grad,
    )
    parts = [gradient.own, *([] if gradient.support is None else [gradient.support])]
    if not all(bool(part.isfinite().all()) for part in parts):
        raise GateRejected("the gradient is not finite: no step was taken")
    return metrics, gradient


class _Data:
    """The samples as the server takes them: those with a support are wide, all others narrow."""

    def __init__(
        self,
        policy: TinkerPolicy,
        samples: Sequence[Sample],
        taught: Sequence[TeacherScore | None],
        carrier: str,
    ) -> None:
        self._samples = samples
        self._carrier = carrier
        self._means = policy.abilities.means
        self._supports = [None if one is None else one.support_ids for one in taught]
        self._wide = [i for i, ids in enumerate(self._supports) if ids is not None]
        self._narrow = [i for i, ids in enumerate(self._supports) if ids is None]
        self._columns = max(len(sample.completion_ids) for sample in samples)
        self._size = max((ids.shape[1] for ids in self._supports if ids is not None), default=0)

    def forward(self, training: Any) -> list[Any]:
        """Submit the forward passes: what do the weights say now?"""
        futures = []
        for rows in (self._wide, self._narrow):
            if rows:
                zeros = [np.zeros(self._targets(i).shape, dtype=np.float32) for i in rows]
                # Servers that divide by the weights' sum need one; a forward pass has no gradient to be wrong.
                ones = [np.ones_like(one) for one in zeros] if self._means else zeros
                futures.append(
                    training.forward(
                        [self._datum(i, weights=one) for i, one in zip(rows, ones, strict=True)],
                        "cross_entropy",
                    )
                )
        return futures

    def backward(self, training: Any, gradient: _Gradient, scores: _Scores) -> list[Any]:
        """Submit the backward passes of the linear loss with this gradient."""
        futures = []
        if self._wide:
            data = []
            for i in self._wide:
                start, count, size = self._place(i)
                weights = np.zeros(self._targets(i).shape, dtype=np.float32)
                weights[start:, 0] = -gradient.own[i, :count].numpy()
                assert gradient.support is not None
                weights[start:, 1:] = -gradient.support[i, :count, :size].numpy()
                data.append(self._datum(i, weights=weights))
            futures.append(training.forward_backward(data, "cross_entropy"))
        if self._narrow:
            data = []
            for i in self._narrow:
                start, count, _ = self._place(i)
                length = start + count
                advantages, logprobs = np.zeros(length, np.float32), np.zeros(length, np.float32)
                divisor = float(length * len(self._samples)) if self._means else 1.0
                advantages[start:] = -gradient.own[i, :count].numpy() * divisor
                logprobs[start:] = scores.own[i, :count].numpy()
                data.append(self._datum(i, advantages=advantages, logprobs=logprobs))
            config = _CLIP if self._carrier == "ppo" else None
            futures.append(training.forward_backward(data, self._carrier, config))
        return futures

    def read(self, outputs: Sequence[Any]) -> _Scores:
        """Return the output of forward or backward passes, in the samples' order."""
        own = torch.full((len(self._samples), self._columns), math.nan)
        support = (
            torch.full((len(self._samples), self._columns, self._size), math.nan) if self._wide else None
        )
        groups = [rows for rows in (self._wide, self._narrow) if rows]
        for rows, output in zip(groups, outputs, strict=True):
            for i, one in zip(rows, output.loss_fn_outputs, strict=True):
                start, count, size = self._place(i)
                values = torch.tensor(one["logprobs"].data, dtype=torch.float32)
                if values.numel() != self._targets(i).size:
                    raise AlignmentError(
                        f"the Tinker server returned {values.numel()} log-probabilities for {self._targets(i).size} targets"
                    )
                if self._supports[i] is None:
                    own[i, :count] = values[start:]
                    continue
                assert support is not None
                table = values.reshape(start + count, 1 + size)[start:]
                own[i, :count] = table[:, 0]
                support[i, :count, :size] = table[:, 1:]
        return _Scores(own=own, support=support)

    def _place(self, i: int) -> tuple[int, int, int]:
        """First position of the completion's predictions, their number, and the size of the support."""
        sample, ids = self._samples[i], self._supports[i]
        return len(sample.prompt_ids) - 1, len(sample.completion_ids), 0 if ids is None else ids.shape[1]

    def _targets(self, i: int) -> np.ndarray[Any, Any]:
        sample, ids = self._samples[i], self._supports[i]
        following = np.array([*sample.prompt_ids[1:], *sample.completion_ids], dtype=np.int64)
        if ids is None:
            return following
        table = np.repeat(following[:, None], 1 + ids.shape[1], axis=1)
        table[len(sample.prompt_ids) - 1 :, 1:] = ids.numpy()
        return table

    def _datum(self, i: int, **inputs: np.ndarray[Any, Any]) -> types.Datum:
        sample = self._samples[i]
        tokens = [*sample.prompt_ids, *sample.completion_ids[:-1]]
        given = {"target_tokens": self._targets(i), **inputs}
        return types.Datum(
            model_input=types.ModelInput.from_ints(tokens),
            loss_fn_inputs={name: types.TensorData.from_numpy(value) for name, value in given.items()},
        )


def _norm(response: Any, before: float) -> float:
    """The gradient's norm, where the server tells it."""
    for name, value in (getattr(response, "metrics", None) or {}).items():
        if "grad_norm" in name or "gradient_norm" in name:
            return float(value)
    return before
