"""Samples -> padded tensors, exactly. Knows tokens, not turns; the model is asked elsewhere.

Rules of the room:
- Every stream of a sample has one number for each completion token. A different length is an error; nothing is cut or filled.
- Padding log-probabilities are NaN, so that reading one shows.
- **One temperature for what is compared.** Student, teacher, base and the weights before the step are all read at the
  temperature the completion was sampled at. What the engine reported may be of another one: engines that report *raw*
  log-probabilities leave the temperature out. Those are compared with the trainer's own log-probabilities at temperature 1, and
  the difference (how far the sampler was from the trainer) is carried over: ``b := o - (o' - b')``, where the primed ones are at
  the temperature the engine reports. An identical model then gets a staleness weight of exactly 1, at any temperature.
- A greedy completion (temperature 0) is no sample of any distribution; it is trained at temperature 1, which is what
  engines report for it. So is one sampled below `NEARLY_GREEDY`: divided by such a temperature the loss would grow by 1/T, and engines may
  have raised it. Processed log-probabilities of such a completion say nothing about its staleness and are not read.

Shapes: P prompt tokens, C completion tokens (padded to the longest), B batch, V vocabulary.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import torch
from torch import Tensor

from store.errors import AlignmentError
from store.values import LogprobMode, ScoredTurn
from trainer.advantages import Streams
from trainer.objective import Batch
from trainer.protocol import TeacherScore

#: Below this a temperature means greedy decoding.
GREEDY_BELOW = 1e-5
#: Below this a completion is trained as a greedy one. vLLM raises temperatures below 0.01 to 0.01 without a word.
NEARLY_GREEDY = 0.1
#: A log-probability this close to 0 is of a token without alternative.
_CERTAIN = 1e-6
_NAN = math.nan
#: What one more forward and backward pass costs, in padded tokens (2 M test model, one thread: 40 ms).
#: Measured on the 2 M test model; issue "Say it once" replaces it.
_PART_TOKENS = 128


class SampleKind(StrEnum):
    WISH = "wish"  #: the teacher reads the wishes in its prompt, the student does not
    VERDICT = "verdict"  #: a turn whose reply was rated
    EXAMPLE = "example"  #: of an uploaded file: the reply itself is the teacher
    ANCHOR = "anchor"  #: no person spoke: the base model is the teacher, behind the same prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyPreference:
    """What a reply of a preference is compared with (DPO).

    Attributes:
        sign: +1: this reply is the better one; -1: the worse.
        other_ids: [C'] the other reply.
        beta: how far a preference may lead from the base model: the smaller, the farther.
        base_gap: log p(this reply) - log p(the other) under the base model, nats of whole replies.
    """

    sign: int
    other_ids: tuple[int, ...]
    beta: float
    base_gap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One completion to learn from.

    Attributes:
        turn_id: of an anchor, a name that says what it is.
        prompt_ids: [P] as the policy was given them.
        completion_ids: [C] as the sampler emitted them, end-of-turn token included.
        sampling_logprobs: [C] as the engine reported them; None where the prompt is not the one that the reply was sampled behind
            (wishes, anchors), or where they tell nothing (`NEARLY_GREEDY`): there is no staleness.
        logprob_mode: what those are of.
        temperature: the completion was sampled at; 0 is greedy.
        teacher_prompt_ids: [P'] the prompt with the wishes; of an anchor, the prompt itself. None: no teacher.
        teacher: what it says along the reply; None until it was asked.
        streams: what it teaches; None until the teacher has been asked.
        weight: of this sample's terms.
        adapter_version: that sampled it.
        passes: how often it is used; 0: as often as the plan says.
        preference: the other reply to the same prompt; None: it is no preference.
    """

    turn_id: str
    kind: SampleKind = SampleKind.VERDICT
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    sampling_logprobs: tuple[float, ...] | None
    logprob_mode: LogprobMode = LogprobMode.RAW
    temperature: float = 1.0
    teacher_prompt_ids: tuple[int, ...] | None = None
    teacher: TeacherScore | None = field(default=None, compare=False, repr=False)
    streams: Streams | None = None
    weight: float = 1.0
    adapter_version: int = 0
    passes: int = 0
    preference: ReplyPreference | None = None

    def __post_init__(self) -> None:
        if not self.prompt_ids or not self.completion_ids:
            raise AlignmentError(f"sample {self.turn_id} has no prompt or no completion")
        count = len(self.completion_ids)
        if self.sampling_logprobs is not None and len(self.sampling_logprobs) != count:
            raise AlignmentError(
                f"sample {self.turn_id}: {len(self.sampling_logprobs)} sampling logprobs for {count} tokens"
            )
        if self.streams is not None and len(self.streams.advantages) != count:
            raise AlignmentError(
                f"sample {self.turn_id}: {len(self.streams.advantages)} advantages for {count} tokens"
            )
        if not (math.isfinite(self.temperature) and self.temperature >= 0.0):
            raise AlignmentError(f"sample {self.turn_id}: {self.temperature} is no temperature")

    @property
    def loss_temperature(self) -> float:
        """At which student, teacher and base are compared; positive."""
        return 1.0 if self.temperature < NEARLY_GREEDY else self.temperature

    @property
    def reported_temperature(self) -> float:
        """At which the engine's log-probabilities are.

        Raises:
            AlignmentError: the engine did not say, and it makes a difference.
        """
        if self.logprob_mode is LogprobMode.RAW:
            return 1.0
        if self.logprob_mode is LogprobMode.UNKNOWN and self.loss_temperature != 1.0:
            raise AlignmentError(
                f"sample {self.turn_id}: sampled at temperature {self.temperature:g}, and the engine does not say whether its "
                "logprobs are raw or processed"
            )
        return self.loss_temperature

    @property
    def tokens(self) -> int:
        """Longest sequence a model sees of it."""
        return max(len(self.prompt_ids), len(self.teacher_prompt_ids or ())) + len(self.completion_ids)

    def with_streams(self, streams: Streams) -> Sample:
        """The sample with what it teaches."""
        return replace(self, streams=streams)


def sample_of(turn: ScoredTurn) -> Sample:
    """A rated turn as a sample: the recorded ids, untouched.

    Raises:
        AlignmentError: ids and logprobs differ in length, a logprob is none, the prompt was not recorded, or the engine
            did not say what its logprobs are of.
    """
    turn.completion.require_aligned()
    is_raw = turn.logprob_mode is LogprobMode.RAW
    tells = is_raw or not GREEDY_BELOW <= turn.temperature < NEARLY_GREEDY
    sample = Sample(
        turn_id=turn.turn_id,
        prompt_ids=turn.prompt_token_ids,
        completion_ids=turn.completion.token_ids,
        sampling_logprobs=turn.completion.sampling_logprobs if tells else None,
        logprob_mode=turn.logprob_mode,
        temperature=turn.temperature,
        adapter_version=turn.adapter_version,
    )
    _ = sample.reported_temperature
    return sample


def forced_tokens(sample: Sample) -> tuple[bool, ...] | None:
    """Return [C] which tokens of a constrained completion had no alternative; None where the engine does not tell.

    Processed log-probabilities are of the distribution that the token was drawn from: a token that the grammar forces has exactly 0 there. Raw
    ones are the model's own and say nothing about the grammar.
    """
    if sample.logprob_mode is not LogprobMode.PROCESSED or sample.sampling_logprobs is None:
        return None
    return tuple(value >= -_CERTAIN for value in sample.sampling_logprobs)


def pad(rows: Sequence[Sequence[float] | Tensor], columns: int, fill: float = _NAN) -> Tensor:
    """Rows of numbers -> [B, columns] float32, padded behind.

    Raises:
        AlignmentError: a row is longer.
    """
    grid = torch.full((len(rows), columns), fill)
    for i, row in enumerate(rows):
        if len(row) > columns:
            raise AlignmentError(f"a stream of {len(row)} numbers for {columns} tokens")
        grid[i, : len(row)] = torch.as_tensor(row, dtype=torch.float32)
    return grid


def behaviour_logprobs(
    samples: Sequence[Sample], trainer_logprobs: Tensor, reported_logprobs: Tensor, mask: Tensor
) -> Tensor:
    """What the sampler would have reported at each sample's own temperature: ``o - (o' - b')``, [B, C].

    Args:
        trainer_logprobs: o [B, C], the weights before the step, at `Sample.loss_temperature`.
        reported_logprobs: o' [B, C], the same weights at `Sample.reported_temperature`.
        mask: [B, C] bool.

    Returns:
        NaN in padding; o itself where there is no sampler to be stale against. The staleness weight reads nothing but ``o - b``.
    """
    columns = mask.shape[1]
    rows = []
    for sample, reported in zip(samples, reported_logprobs, strict=True):
        own = sample.sampling_logprobs
        rows.append(reported[: len(sample.completion_ids)] if own is None else own)
    sampled = pad([torch.as_tensor(row).cpu() for row in rows], columns).to(trainer_logprobs.device)
    gap = reported_logprobs - sampled
    return torch.where(mask, trainer_logprobs - gap, _NAN)


def build_batch(
    samples: Sequence[Sample],
    *,
    trainer_logprobs: Tensor,
    reported_logprobs: Tensor,
    base_logprobs: Tensor | None,
) -> Batch:
    """Samples with streams -> the tensors of `trainer.objective`, on the device of ``trainer_logprobs``.

    Args:
        trainer_logprobs, reported_logprobs: see :func:`behaviour_logprobs`.
        base_logprobs: p [B, C], adapter off, at `Sample.loss_temperature`.

    Raises:
        AlignmentError: a sample without streams, or tensors of another shape than the samples.
    """
    if not samples:
        raise AlignmentError("a batch needs a sample")
    lengths = [len(sample.completion_ids) for sample in samples]
    columns = max(lengths)
    device = trainer_logprobs.device
    for name, tensor in {
        "trainer_logprobs": trainer_logprobs,
        "reported_logprobs": reported_logprobs,
        "base_logprobs": base_logprobs,
    }.items():
        if tensor is not None and tuple(tensor.shape[:2]) != (len(samples), columns):
            raise AlignmentError(
                f"{name} has shape {tuple(tensor.shape)} for {len(samples)} samples of at most {columns} tokens"
            )
    streams = []
    for sample in samples:
        if sample.streams is None:
            raise AlignmentError(f"sample {sample.turn_id} has no streams yet")
        streams.append(sample.streams)
    mask = torch.arange(columns)[None] < torch.tensor(lengths)[:, None]
    ids = torch.zeros(len(samples), columns, dtype=torch.long)
    advantage_mask = torch.zeros(len(samples), columns, dtype=torch.bool)
    for i, (sample, stream) in enumerate(zip(samples, streams, strict=True)):
        ids[i, : lengths[i]] = torch.tensor(sample.completion_ids)
        advantage_mask[i, : lengths[i]] = torch.tensor(stream.advantage_mask)
    mask = mask.to(device)
    support_ids, support_logprobs = _supports(samples, columns, device)
    return Batch(
        completion_ids=ids.to(device),
        mask=mask,
        sampling_logprobs=behaviour_logprobs(samples, trainer_logprobs, reported_logprobs, mask),
        trainer_logprobs=trainer_logprobs,
        base_logprobs=base_logprobs,
        advantages=pad([stream.advantages for stream in streams], columns).to(device),
        advantage_mask=advantage_mask.to(device),
        directive_weight=torch.tensor([stream.directive_weight for stream in streams], device=device),
        directive_alpha=tuple(stream.directive_alpha for stream in streams),
        support_ids=support_ids,
        support_logprobs=support_logprobs,
        sample_weight=torch.tensor([sample.weight for sample in samples], device=device),
        temperature=torch.tensor([sample.loss_temperature for sample in samples], device=device),
    )


def _supports(
    samples: Sequence[Sample], columns: int, device: torch.device
) -> tuple[Tensor | None, Tensor | None]:
    """Ids and log-probabilities [B, C, K] of the teachers' likeliest tokens; None where no sample has a teacher that tells them."""
    taught = [
        (row, sample.teacher)
        for row, sample in enumerate(samples)
        if sample.teacher is not None and sample.teacher.support_ids is not None
    ]
    if not taught:
        return None, None
    width = max(one.support_ids.shape[1] for _, one in taught if one.support_ids is not None)
    ids = torch.zeros(len(samples), columns, width, dtype=torch.long, device=device)
    logprobs = torch.full((len(samples), columns, width), -math.inf, device=device)
    for row, one in taught:
        assert one.support_ids is not None
        assert one.support_logprobs is not None
        count, own = one.support_ids.shape
        ids[row, :count, :own] = one.support_ids.to(device)
        logprobs[row, :count, :own] = one.support_logprobs.to(device)
    return ids, logprobs


def spread(samples: Sequence[Sample], size: int, seed: int) -> list[list[Sample]]:
    """Return the steps of a pass: about ``size`` samples in each, every kind spread evenly, in an order that the seed gives."""
    count = max(1, round(len(samples) / size))
    kinds: dict[SampleKind, list[Sample]] = defaultdict(list)
    for sample in samples:
        kinds[sample.kind].append(sample)
    steps: list[list[Sample]] = [[] for _ in range(count)]
    place = 0
    for kind in sorted(kinds):
        some = sorted(kinds[kind], key=lambda sample: sample.turn_id)
        random.Random(seed).shuffle(some)
        for sample in some:
            steps[place % count].append(sample)
            place += 1
    return [step for step in steps if step]


def micro_batches(samples: Iterable[Sample], max_tokens: int) -> Iterator[list[Sample]]:
    """Split samples, longest first, so that no padded part exceeds ``max_tokens`` (rows times longest), one sample at least."""
    ordered = sorted(samples, key=lambda s: (-s.tokens, s.turn_id))
    for part in cheapest_parts([s.tokens for s in ordered], cost=_PART_TOKENS, max_tokens=max_tokens):
        yield ordered[part]


def cheapest_parts(
    lengths: Sequence[int], *, cost: int, max_tokens: int | None = None, max_rows: int | None = None
) -> list[slice]:
    """Return the split of rows into padded parts that costs least: one request with tools would pad all others to its length.

    Args:
        lengths: of the rows, longest first.
        cost: of one more part, in padded tokens.
        max_tokens: rows times longest, of a part of more than one row.
    """
    # best[i]: cost of the rows from i on, and where their first part ends
    best: list[tuple[int, int]] = [(0, 0)] * (len(lengths) + 1)
    for start in range(len(lengths) - 1, -1, -1):
        most = min(len(lengths) - start, max_rows or len(lengths))
        if max_tokens is not None:
            most = min(most, max(1, max_tokens // max(1, lengths[start])))
        best[start] = min(
            (rows * lengths[start] + cost + best[start + rows][0], start + rows)
            for rows in range(1, most + 1)
        )
    parts: list[slice] = []
    while (begin := parts[-1].stop if parts else 0) < len(lengths):
        parts.append(slice(begin, best[begin][1]))
    return parts
