"""The optimizer steps of a version in this process. Reads top to bottom: `train` is the loop, `_part_backward` one forward and backward pass.

Each step takes some samples of every kind, so that wishes, verdicts and anchors always stand against each other. What a sample teaches is
on the sample (`trainer.advantages.Streams`); the method is not known here.

Left out, with the reason: no resampling between the steps (the samples are replies that were served, or that the teacher gave), no trust
region around the weights (a version begins from the base model, a few steps are taken, and the gate judges the result), no EMA.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from store.lifecycle import DropReason
from trainer.advantages import Streams, token_streams
from trainer.batch import Sample, SampleKind, build_batch, micro_batches, spread
from trainer.losses import MAX_LOG_RATIO
from trainer.objective import compute_loss
from trainer.out_of_memory import DoesNotFit, attempt
from trainer.plan import StepPlan
from trainer.policy import LocalPolicy
from trainer.protocol import TeacherScore, TurnRefusal, Weights

#: Called with the turn of a sample that is left out, and why.
LeaveOut = Callable[[str, TurnRefusal], None]
_TOO_LARGE = TurnRefusal(
    reason=DropReason.OUT_OF_MEMORY, detail="alone in a pass it took more memory than there is"
)
_NO_NUMBERS = TurnRefusal(
    reason=DropReason.TEACHER_FAILED, detail="a log-probability of the teacher is not finite"
)
#: Of one sample: log-probabilities [C] of its completion before the first step, at the loss temperature and at the engine's.
_Old = tuple[Tensor, Tensor]


def train(
    policy: LocalPolicy,
    samples: Sequence[Sample],
    plan: StepPlan,
    *,
    seed: int = 0,
    leave_out: LeaveOut = lambda turn_id, refusal: None,
) -> dict[str, float]:
    """Move the policy's weights by ``plan.passes`` over these samples; returns the metrics of the first and the last step.

    Args:
        seed: of the order of the samples.
        leave_out: called with the `Sample.turn_id` of each sample that does not fit the memory alone, or whose teacher has no numbers.

    Raises:
        GateRejected: a gradient is not finite; the weights are those after the last good step.
        DoesNotFit: no sample is left; the weights are as before.
    """
    samples = with_teacher(policy, samples, plan, leave_out)
    whole, old = policy.learning_rate, dict[int, _Old]()
    steps = [
        step
        for number in range(max([plan.passes, *(one.passes for one in samples)]))
        for step in spread(
            [one for one in samples if number < (one.passes or plan.passes)], plan.step_samples, seed + number
        )
    ]
    metrics: dict[str, float] = {}
    norm = loss = 0.0
    taken = 0
    left_out: set[int] = set()
    try:
        for step, share in zip(steps, plan.rates(len(steps)), strict=True):
            policy.learning_rate = whole * share
            part = [sample for sample in step if id(sample) not in left_out]
            found = None
            while part and found is None:
                try:
                    found = _backward(policy, weigh_preferences(policy, part), plan, old)
                except DoesNotFit as error:
                    policy.drop_gradients()  # of the samples before, whose means counted this one
                    sample = part.pop(error.index)
                    left_out.add(id(sample))
                    leave_out(sample.turn_id, _TOO_LARGE)
            if found is None:
                continue
            metrics = metrics or found
            loss = found["loss"]
            norm = policy.apply_gradients()
            taken += 1
    finally:
        policy.learning_rate = whole
    if not taken:
        raise DoesNotFit(0, "no sample fits the memory")
    return {**metrics, "gradient_norm": norm, "optimizer_steps": float(taken), "loss_after": loss}


def weigh_preferences(policy: LocalPolicy, samples: Sequence[Sample]) -> list[Sample]:
    """The samples; those of preferences with the gradient of DPO at the present weights as advantages.

    ``-log sigmoid(z)``, ``z = beta (gap - base_gap)`` of the better reply, has the gradient ``-beta sigmoid(-z) grad log p`` of the better reply
    and the opposite of the worse. The weight undoes the mean over tokens, and makes a pair count as one sample.
    Source: Rafailov et al. 2023, eq. 7.
    """
    found = []
    for sample in samples:
        pair = sample.preference
        if pair is not None:
            own, other = whole_logprobs(policy, sample.prompt_ids, (sample.completion_ids, pair.other_ids))
            z = pair.beta * pair.sign * (own - other - pair.base_gap)
            advantage = pair.sign * pair.beta / (1.0 + math.exp(min(z, MAX_LOG_RATIO)))
            count = len(sample.completion_ids)
            streams = Streams(
                advantages=(advantage,) * count, advantage_mask=(True,) * count, directive_weight=0.0
            )
            sample = replace(sample, streams=streams, weight=2.0 * count)
        found.append(sample)
    return found


def whole_logprobs(
    policy: LocalPolicy,
    prompt: Sequence[int],
    replies: Sequence[Sequence[int]],
    weights: Weights = Weights.STUDENT,
) -> list[float]:
    """The log-probability of each whole reply behind a prompt, in nats."""
    logprobs, _ = policy.response_logprobs([prompt] * len(replies), replies, weights)
    return [float(row[: len(reply)].sum()) for row, reply in zip(logprobs, replies, strict=True)]


def with_teacher(
    policy: LocalPolicy, samples: Sequence[Sample], plan: StepPlan, leave_out: LeaveOut
) -> list[Sample]:
    """The samples, with what their teacher says along their replies: read once, whatever the weights become."""
    kept = [sample for sample in samples if sample.teacher_prompt_ids is None or sample.teacher is not None]
    asked = [sample for sample in samples if sample.teacher_prompt_ids is not None and sample.teacher is None]
    for anchors in (False, True):
        some = [one for one in asked if (one.kind is SampleKind.ANCHOR) is anchors]
        for part in micro_batches(some, plan.micro_tokens):
            weights = Weights.BASE if anchors else plan.teacher
            while part:
                try:
                    scores = read_teacher(policy, part, weights, top_k=plan.objective.top_k or 1)
                except DoesNotFit as error:
                    leave_out(part.pop(error.index).turn_id, _TOO_LARGE)
                    continue
                for one, score in zip(part, scores, strict=True):
                    if score.is_complete(len(one.completion_ids)):
                        kept.append(replace(one, teacher=score))
                    else:
                        leave_out(one.turn_id, _NO_NUMBERS)
                break
    return [_on_tokens(policy, one, plan) for one in kept]


def _on_tokens(policy: LocalPolicy, sample: Sample, plan: StepPlan) -> Sample:
    """The sample with the directive term on its own tokens alone, where that is asked for and it is no anchor."""
    if plan.opd_support != "token" or sample.kind is not SampleKind.WISH or sample.teacher is None:
        return sample
    assert sample.streams is not None  # it has a teacher
    own, _ = policy.response_logprobs(
        [sample.prompt_ids], [sample.completion_ids], temperature=sample.loss_temperature
    )
    streams = token_streams(
        sample.streams, sample.teacher.logprobs.tolist(), own[0].tolist(), clip=plan.opd_clip
    )
    return replace(sample, streams=streams, teacher=None)


def read_teacher(
    policy: LocalPolicy, samples: Sequence[Sample], weights: Weights, *, top_k: int
) -> list[TeacherScore]:
    """What these weights say along the samples' replies behind their teacher's prompts."""
    return policy.teacher_scores(
        [sample.teacher_prompt_ids or () for sample in samples],
        [sample.completion_ids for sample in samples],
        weights,
        temperature=[sample.loss_temperature for sample in samples],
        top_k=top_k,
    )


def _backward(
    policy: LocalPolicy, samples: Sequence[Sample], plan: StepPlan, old: dict[int, _Old]
) -> dict[str, float]:
    """Accumulate the gradients of one step; a part that does not fit the memory is split.

    Raises:
        DoesNotFit: the sample at this index of ``samples`` alone is too much.
    """
    live = float(sum(sample.streams is not None and sample.streams.is_live for sample in samples))
    parts = list(micro_batches(samples, plan.micro_tokens))
    found: list[dict[str, float]] = []
    while len(found) < len(parts):
        part = parts[len(found)]
        result, fits = attempt(lambda part=part: _part_backward(policy, part, plan, live, old))  # type: ignore[misc]
        if fits:
            assert result is not None
            found.append(result)
        elif len(part) == 1:
            index = next(i for i, sample in enumerate(samples) if sample is part[0])
            raise DoesNotFit(index, f"{part[0].tokens} tokens alone do not fit the memory")
        else:
            middle = (len(part) + 1) // 2
            parts[len(found) : len(found) + 1] = [part[:middle], part[middle:]]
    return merged(found)


def _part_backward(
    policy: LocalPolicy, samples: Sequence[Sample], plan: StepPlan, live: float, old: dict[int, _Old]
) -> dict[str, float]:
    """Add a part's gradients, all or nothing; returns its metrics."""
    prompts, replies = [s.prompt_ids for s in samples], [s.completion_ids for s in samples]
    hidden, mask = policy.response_hidden(prompts, replies)
    if any(id(sample) not in old for sample in samples):
        before = policy.logprobs_of(hidden, mask, replies, temperature=[s.loss_temperature for s in samples])
        reported = (
            policy.logprobs_of(hidden, mask, replies, temperature=[_reported_temperature(s) for s in samples])
            if any(_reported_temperature(s) != s.loss_temperature for s in samples)
            else before
        )
        for row, sample in enumerate(samples):
            count = len(sample.completion_ids)
            old.setdefault(id(sample), (before[row, :count].clone(), reported[row, :count].clone()))
    own = [old[id(sample)] for sample in samples]
    for sample in samples:
        if sample.kind is SampleKind.EXAMPLE:
            del old[
                id(sample)
            ]  # it was not sampled: what it weighs does not depend on the weights at the start
    base = None
    if plan.objective.kl_coef:
        base, _ = policy.response_logprobs(
            prompts, replies, Weights.BASE, temperature=[s.loss_temperature for s in samples]
        )
    batch = build_batch(
        samples,
        trainer_logprobs=_grid([before for before, _ in own], mask),
        reported_logprobs=_grid([reported for _, reported in own], mask),
        base_logprobs=base,
    )
    if policy.is_wide:
        loss, metrics = compute_loss(
            plan.objective, batch, hidden, live_samples=live, chunk=policy.positions, head=policy.logits
        )
    else:
        loss, metrics = compute_loss(plan.objective, batch, policy.logits(hidden), live_samples=live)
    policy.accumulate(loss)
    return metrics


def _reported_temperature(sample: Sample) -> float:
    return sample.loss_temperature if sample.sampling_logprobs is None else sample.reported_temperature


def _grid(rows: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Rows of numbers -> [B, C], NaN in padding."""
    grid = torch.full(mask.shape, math.nan, device=mask.device)
    for number, row in enumerate(rows):
        grid[number, : len(row)] = row
    return grid


#: Metrics of the parts that add up.
_SUMS = frozenset(
    {
        "loss",
        "policy_loss",
        "directive_loss",
        "live_samples",
        "effective_samples",
        "live_tokens",
        "policy_tokens",
        "directive_tokens",
        "reported_tokens",
    }
)
_MAXIMA = frozenset({"ratio_max"})
#: All others are means over tokens: over those that this metric counts, over live tokens where it is not listed.
_TOKENS = {"clip_fraction": "policy_tokens", "teacher_shift": "reported_tokens"}


def merged(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Metrics of a whole step from those of its parts."""
    values: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for metrics in parts:
        for name, value in metrics.items():
            values[name].append((value, metrics[_TOKENS.get(name, "live_tokens")]))
    found = {}
    for name, pairs in values.items():
        if name in _SUMS:
            found[name] = sum(value for value, _ in pairs)
        elif name in _MAXIMA:
            found[name] = max(value for value, _ in pairs)
        else:
            total = sum(tokens for _, tokens in pairs)
            found[name] = sum(value * tokens for value, tokens in pairs) / total if total else 0.0
    return found
