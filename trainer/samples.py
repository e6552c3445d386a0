"""What the turns of a version teach: turns -> samples with streams, or the reason why a turn teaches nothing.

Two kinds of samples come from the record, and a turn may give both:

=========  =====================================================================================================================
wish       the reply was served with the wishes in its prompt and drew no complaint, or a person stated a wish about it.
           The student reads the prompt without the wishes, the teacher the same prompt with all wishes of today
verdict    the reply was rated: the surrogate of the policy gradient on the recorded tokens, behind the recorded prompt
=========  =====================================================================================================================

A turn that cannot be trained is dropped with its reason. Nothing is guessed, padded or replaced by zeros.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from store.errors import AlignmentError
from store.lifecycle import DropReason
from store.values import ScoredTurn
from trainer.advantages import build_streams, is_expected, mask_constrained, running_baseline, wish_streams
from trainer.batch import Sample, SampleKind, forced_tokens, micro_batches, sample_of
from trainer.decoding_constraint import decoding_constraint
from trainer.plan import StepPlan
from trainer.prompt_pair import prompt_pair
from trainer.protocol import Policy, TurnRefusal
from wire.wish_text import join_wishes

#: Bounds of exp(mean(o - b)): beyond them the sampler was another policy than ours.
RATIO_BOUNDS = (0.5, 2.0)
#: Bound of the exponent in the ratio, so that it stays a number.
_MOST_LOG_RATIO = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveWishes:
    """The wishes that a version learns.

    Attributes:
        texts: their words, as in the prompt.
        place: where the gateway puts them; see `wire.wish_text.add_wishes`.
        stated: ids of the turns that state them.
        wordings: every wording in which they were ever in a prompt.
    """

    texts: tuple[str, ...] = ()
    place: str = "behind"
    stated: frozenset[str] = frozenset()
    wordings: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        return join_wishes(self.texts)

    def cover(self, served: str) -> bool:
        """Whether everything that was in a served prompt is still wished."""
        return {*served.split("\n")} <= {*join_wishes([*self.texts, *self.wordings]).split("\n")}


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedBatch:
    """The samples, and why turns of the batch give none."""

    samples: tuple[Sample, ...]
    refused: Mapping[str, TurnRefusal]


def prepare(
    policy: Policy,
    plan: StepPlan,
    turns: Sequence[ScoredTurn],
    served: Sequence[ScoredTurn],
    wishes: ActiveWishes,
    *,
    recent_verdicts: Sequence[int],
    version: int,
) -> PreparedBatch:
    """Decide what each turn teaches.

    Args:
        turns: those of the batch; each gives a sample or a reason.
        served: accepted replies of the past, the newest first; they give wish samples where they fit.
        recent_verdicts: earlier verdicts of this policy, oldest first, those of ``turns`` not among them.
        version: of the weights that the samples are trained into.
    """
    refused: dict[str, TurnRefusal] = {}
    samples: list[Sample] = []
    for turn in turns:
        found: list[Sample] = []
        try:
            is_accepted = bool(turn.wish_text) and turn.verdict.value == 1 and wishes.cover(turn.wish_text)
            if wishes.text and (turn.turn_id in wishes.stated or is_accepted):
                found.append(wish_sample(policy, plan, turn, wishes))
        except _Refused as exc:
            refused[turn.turn_id] = exc.refusal
        if plan.reads_verdict_of(turn):
            try:
                found.append(_verdict_sample(policy, plan, turn, recent_verdicts, version))
            except _Refused as exc:
                refused[turn.turn_id] = exc.refusal
        if found:
            refused.pop(turn.turn_id, None)
            samples += found
        elif turn.turn_id not in refused:
            refused[turn.turn_id] = TurnRefusal(reason=DropReason.NO_SIGNAL)
    samples = _of_this_policy(policy, plan, samples, refused)
    baseline = running_baseline(recent_verdicts, kind=plan.baseline)
    value = {turn.turn_id: turn.verdict.value for turn in turns}
    if all(one.kind is SampleKind.VERDICT and is_expected(value[one.turn_id], baseline) for one in samples):
        expected = TurnRefusal(
            reason=DropReason.NO_SIGNAL, detail="a batch of thanks, like most recent verdicts"
        )
        refused |= dict.fromkeys((one.turn_id for one in samples), expected)
        samples = []
    known = {turn.turn_id for turn in turns}
    room = plan.samples - sum(sample.kind is SampleKind.WISH for sample in samples)
    for turn in served if wishes.text else ():
        if room <= 0:
            break
        if turn.turn_id in known or not wishes.cover(turn.wish_text):
            continue
        try:
            samples.append(wish_sample(policy, plan, turn, wishes))
        except _Refused:
            continue  # it is not of this batch: nothing happens to it
        room -= 1
    return PreparedBatch(samples=tuple(samples), refused=refused)


class _Refused(Exception):
    def __init__(self, reason: DropReason, detail: str) -> None:
        super().__init__(detail)
        self.refusal = TurnRefusal(reason=reason, detail=detail)


def wish_sample(policy: Policy, plan: StepPlan, turn: ScoredTurn, wishes: ActiveWishes) -> Sample:
    """A recorded reply behind its prompt without wishes, with the prompt that the teacher reads."""
    if not turn.completion.token_ids:
        raise _Refused(DropReason.NO_TOKENS, "the engine reported no token ids")
    try:
        pair = prompt_pair(policy.render, turn, text=wishes.text, place=wishes.place)
        sample = Sample(
            turn_id=turn.turn_id,
            kind=SampleKind.WISH,
            prompt_ids=pair.plain,
            completion_ids=turn.completion.token_ids,
            sampling_logprobs=None,
            temperature=turn.temperature,
            teacher_prompt_ids=pair.wished,
            streams=wish_streams(
                plan.method, len(turn.completion.token_ids), weight=plan.w_opd, alpha=plan.objective.alpha
            ),
            adapter_version=turn.adapter_version,
        )
    except AlignmentError as exc:
        raise _Refused(DropReason.TOKEN_MISMATCH, str(exc)) from exc
    _check_fit(policy, sample)
    return sample


def _verdict_sample(
    policy: Policy, plan: StepPlan, turn: ScoredTurn, recent_verdicts: Sequence[int], version: int
) -> Sample:
    age = version - turn.adapter_version
    if not plan.begins_at_base and age > plan.max_staleness:
        raise _Refused(DropReason.STALE, f"sampled {age} versions ago")
    try:
        sample = sample_of(turn)
    except AlignmentError as exc:
        raise _Refused(DropReason.TOKEN_MISMATCH, str(exc)) from exc
    _check_fit(policy, sample)
    streams = build_streams(
        turn.verdict.value,
        baseline=running_baseline(recent_verdicts, kind=plan.baseline),
        weight=plan.w_rl * turn.verdict.share,
        completion_length=len(sample.completion_ids),
    )
    constraint = decoding_constraint(turn.request)
    if constraint:
        streams = mask_constrained(streams, forced_tokens(sample))
        if not streams.is_effective:
            raise _Refused(DropReason.CONSTRAINED, f"{constraint}, and no wish that a teacher could read")
    return sample.with_streams(streams)


def _check_fit(policy: Policy, sample: Sample) -> None:
    if sample.tokens > policy.max_context:
        raise _Refused(DropReason.TOO_LONG, f"{sample.tokens} tokens, the context holds {policy.max_context}")
    highest = max(*sample.prompt_ids, *sample.completion_ids)
    if highest >= policy.vocabulary_size:
        raise _Refused(DropReason.TOKEN_MISMATCH, f"token id {highest} is not in the trainer's vocabulary")


def _of_this_policy(
    policy: Policy, plan: StepPlan, samples: Sequence[Sample], refused: dict[str, TurnRefusal]
) -> list[Sample]:
    """Leave out rated replies that another policy seems to have sampled, where the policy goes on from its parent."""
    rated = [
        sample
        for sample in samples
        if sample.kind is SampleKind.VERDICT and sample.sampling_logprobs is not None
    ]
    if not rated or plan.begins_at_base:
        return list(samples)
    gone: set[str] = set()
    for part in micro_batches(rated, plan.micro_tokens):
        own, _ = policy.response_logprobs(
            [sample.prompt_ids for sample in part],
            [sample.completion_ids for sample in part],
            temperature=[sample.reported_temperature for sample in part],
        )
        for row, sample in enumerate(part):
            reported = torch.tensor(sample.sampling_logprobs)
            free = torch.tensor([not forced for forced in forced_tokens(sample) or (False,) * len(reported)])
            gap = (own[row, : len(reported)].cpu() - reported)[free]
            mean = float(gap.mean()) if len(gap) else 0.0
            ratio = math.exp(max(-_MOST_LOG_RATIO, min(_MOST_LOG_RATIO, mean)))
            if not RATIO_BOUNDS[0] <= ratio <= RATIO_BOUNDS[1]:
                gone.add(sample.turn_id)
                refused[sample.turn_id] = TurnRefusal(
                    reason=DropReason.STALE, detail=f"geometric mean of the probability ratio is {ratio:.2f}"
                )
    return [
        sample for sample in samples if sample.turn_id not in gone or sample.kind is not SampleKind.VERDICT
    ]


def is_repetitive(token_ids: Sequence[int]) -> bool:
    """Whether a reply repeats itself: its commonest run of four tokens makes up more than a tenth of all its runs."""
    runs = Counter(zip(token_ids, token_ids[1:], token_ids[2:], token_ids[3:], strict=False))
    total = sum(runs.values())
    return total >= 20 and max(runs.values()) > total / 10


def weighed(samples: Sequence[Sample]) -> list[Sample]:
    """The samples, weighed so that every token counts the same, whatever the length of its reply.

    With a mean over each reply, the few tokens of a long reply that decide on its length would count less than those of a short one.
    """
    lengths = [len(sample.completion_ids) for sample in samples]
    mean = sum(lengths) / max(1, len(lengths))
    return [
        replace(sample, weight=sample.weight * count / mean)
        for sample, count in zip(samples, lengths, strict=True)
    ]
