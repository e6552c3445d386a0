"""The optimizer steps of a version on a Tinker server: `trainer.step.train` where the weights are far away.

**The objective is ours, the back-propagation theirs.** The server tells the log-probabilities s of the tokens; our own loss
(`trainer.objective.compute_support_loss`, the very formulas of the local trainer) is differentiated by them here, and what is sent is the
linear loss whose gradient is g · ∇s. Clipping, dual clip, staleness, the KL penalty and all means are thus exactly the local trainer's,
whatever the server's own losses look like. It is what the SDK's `forward_backward_custom` does, pipelined.

What carries g:

============  ==========================================================================================================
wide          `cross_entropy` with targets [T, 1 + K] (the token and its teacher's likeliest ones) and weights -g of either sign
narrow        `ppo` or `importance_sampling` (--loss-fn) with advantages -g, and as sampling log-probabilities the s
              that the server has just returned: the ratio is 1, inside every clip, and the gradient is g · ∇s
============  ==========================================================================================================

Position i of a datum predicts token i + 1; a position with g = 0 is masked by it. Losses are sums; a server that divides (`TinkerCapabilities.means`)
gets its divisors multiplied in beforehand.

Pipelined: backward pass, optimizer step and the next step's forward pass are all submitted before the first is awaited.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from tinker import types
from torch import Tensor

from store.errors import AlignmentError, GateRejected
from trainer.advantages import token_streams
from trainer.batch import Sample, SampleKind, build_batch, pad, spread
from trainer.objective import Batch, compute_support_loss
from trainer.plan import StepPlan
from trainer.policy import BETA1, BETA2, MAX_GRADIENT_NORM
from trainer.protocol import Weights
from trainer.tinker.policy import TinkerPolicy

_EPS = 1e-8
_CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.28}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Values:
    """Numbers of tokens, those that a forward pass tells or a gradient by them: of the completions' own [B, C], of the supports [B, C, K]."""

    own: Tensor
    support: Tensor | None


def train(
    policy: TinkerPolicy,
    samples: Sequence[Sample],
    plan: StepPlan,
    *,
    seed: int = 0,
    carrier: str = "ppo",
    eps: float = _EPS,
) -> dict[str, float]:
    """Move the policy's weights by ``plan.passes`` over these samples; returns the metrics as `trainer.step.train`, and ``pass_gap``.

    Args:
        seed: of the order of the samples.
        carrier: the loss that carries narrow gradients.
        eps: Adam's; a large one makes steps proportional to gradients.

    Raises:
        GateRejected: a gradient is not finite.
        UpstreamError, TheirError: the server was lost, or fails; what the training client holds is not known any more.
    """
    samples = _taught(policy, samples, plan)
    base = _base_logprobs(policy, samples) if plan.objective.kl_coef else {}
    steps = [
        _Data(policy, step, carrier)
        for number in range(plan.passes)
        for step in spread(samples, plan.step_samples, seed + number)
    ]
    training, old = policy.training(), dict[int, Tensor]()
    scores = steps[0].read(policy.link.wait(steps[0].forward(training)))
    metrics: dict[str, float] = {}
    norm, loss, gap, taken = math.nan, math.nan, 0.0, 0
    # The last forward pass is only looked at: are there still numbers?
    for data, following, share in zip(steps, [*steps[1:], steps[-1]], plan.rates(len(steps)), strict=True):
        batch = data.batch(scores, old, base)
        found, gradient = _differentiate(batch, scores, plan)
        metrics, loss = metrics or found, found["loss"]
        policy.has_moved(is_finite=True)
        adam = types.AdamParams(
            learning_rate=policy.learning_rate * share,
            beta1=BETA1,
            beta2=BETA2,
            eps=eps,
            weight_decay=0.0,
            grad_clip_norm=MAX_GRADIENT_NORM,
        )
        backward = data.backward(training, gradient, scores)
        optimizer, forward = training.optim_step(adam), following.forward(training)
        results = policy.link.wait([*backward, optimizer, *forward])
        again = data.read(results[: len(backward)])
        gap = max(gap, float((again.own - scores.own)[batch.mask].abs().max()))
        norm = _norm(results[len(backward)], norm)
        scores = following.read(results[len(backward) + 1 :])
        taken += 1
        if not bool(scores.own[following.mask].isfinite().all()):
            policy.has_moved(is_finite=False)
            break
    return {
        **metrics,
        "gradient_norm": norm,
        "optimizer_steps": float(taken),
        "loss_after": loss,
        # Two passes at the same weights; more than rounding means that another client trains them.
        "pass_gap": gap,
    }


def _taught(policy: TinkerPolicy, samples: Sequence[Sample], plan: StepPlan) -> list[Sample]:
    """The samples, with what their teacher says along their replies: read once, whatever the weights become.

    Where the teacher tells no other tokens, or no others are to be compared, the directive term is on the reply's own.
    """
    result = list(samples)
    for weights in dict.fromkeys((plan.teacher, Weights.BASE)):
        rows = [
            row
            for row, one in enumerate(result)
            if one.teacher_prompt_ids is not None
            and one.teacher is None
            and (Weights.BASE if one.kind is SampleKind.ANCHOR else plan.teacher) is weights
        ]
        if rows:
            scores = policy.teacher_scores(
                [result[row].teacher_prompt_ids or () for row in rows],
                [result[row].completion_ids for row in rows],
                weights,
                temperature=[result[row].loss_temperature for row in rows],
                top_k=plan.objective.top_k or 1,
            )
            for row, score in zip(rows, scores, strict=True):
                result[row] = replace(result[row], teacher=score)
    narrow = [
        row
        for row, one in enumerate(result)
        if one.teacher is not None
        and (one.teacher.support_ids is None or (plan.opd_support == "token" and one.kind is SampleKind.WISH))
    ]
    if narrow:
        own, _ = policy.response_logprobs(
            [result[row].prompt_ids for row in narrow], [result[row].completion_ids for row in narrow]
        )
        for values, row in zip(own, narrow, strict=True):
            result[row] = _on_tokens(result[row], values, plan)
    return result


def _on_tokens(sample: Sample, own: Tensor, plan: StepPlan) -> Sample:
    assert sample.streams is not None  # it has a teacher
    assert sample.teacher is not None
    streams = token_streams(
        sample.streams,
        sample.teacher.logprobs.tolist(),
        own[: len(sample.completion_ids)].tolist(),
        clip=plan.opd_clip,
    )
    return replace(sample, streams=streams, teacher=None)


def _base_logprobs(policy: TinkerPolicy, samples: Sequence[Sample]) -> dict[int, Tensor]:
    """Of each sample, the base model's log-probabilities [C]."""
    values, _ = policy.response_logprobs(
        [one.prompt_ids for one in samples], [one.completion_ids for one in samples], Weights.BASE
    )
    return {id(one): row[: len(one.completion_ids)] for one, row in zip(samples, values, strict=True)}


def _differentiate(batch: Batch, scores: _Values, plan: StepPlan) -> tuple[dict[str, float], _Values]:
    """The metrics, and the loss's gradient by the log-probabilities; 0 at dead positions."""
    given = [one for one in (scores.own, scores.support) if one is not None]
    leaves = [one.detach().clone().requires_grad_() for one in given]
    loss, metrics = compute_support_loss(plan.objective, batch, *leaves)
    own, *support = torch.autograd.grad(loss, leaves, materialize_grads=True)
    if not all(bool(part.isfinite().all()) for part in (own, *support)):
        raise GateRejected("the gradient is not finite: no step was taken")
    return metrics, _Values(own=own, support=support[0] if support else None)


class _Data:
    """The samples of a step as the server takes them: those with a support are wide, all others narrow."""

    def __init__(self, policy: TinkerPolicy, samples: Sequence[Sample], carrier: str) -> None:
        self._samples = samples
        self._carrier = carrier
        self._means = policy.abilities.means
        self._supports = [None if one.teacher is None else one.teacher.support_ids for one in samples]
        self._wide = [i for i, ids in enumerate(self._supports) if ids is not None]
        self._narrow = [i for i, ids in enumerate(self._supports) if ids is None]
        lengths = torch.tensor([len(sample.completion_ids) for sample in samples])
        self.mask = torch.arange(int(lengths.max())) < lengths[:, None]
        self._size = max((ids.shape[1] for ids in self._supports if ids is not None), default=0)

    def batch(self, scores: _Values, old: dict[int, Tensor], base: Mapping[int, Tensor]) -> Batch:
        """The step's tensors.

        Args:
            old, base: of each sample by its `id`, log-probabilities [C] when a step first had it (kept here), and the base model's.
        """
        for one, row in zip(self._samples, scores.own, strict=True):
            old.setdefault(id(one), row[: len(one.completion_ids)])
        columns = self.mask.shape[1]
        before = pad([old[id(one)] for one in self._samples], columns)
        return build_batch(
            self._samples,
            trainer_logprobs=before,
            reported_logprobs=before,
            base_logprobs=pad([base[id(one)] for one in self._samples], columns) if base else None,
        )

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

    def backward(self, training: Any, gradient: _Values, scores: _Values) -> list[Any]:
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

    def read(self, outputs: Sequence[Any]) -> _Values:
        """Return the output of forward or backward passes, in the samples' order."""
        own = torch.full(self.mask.shape, math.nan)
        support = torch.full((*self.mask.shape, self._size), math.nan) if self._wide else None
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
        return _Values(own=own, support=support)

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
