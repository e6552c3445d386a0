"""One training step: claimed turns -> samples with streams -> a few optimizer steps inside a trust region.

Reads top to bottom: `prepare` decides what each turn has to teach (or why it teaches nothing), `train` moves the weights.
Blind to where turns come from and what becomes of the new weights; the worker knows both.

Rules of the room:
- A turn that cannot be trained is dropped **with its reason**. Nothing is guessed, padded or replaced by zeros.
- The teacher reads the response tokens with the hint in its context; only its numbers for these very tokens are used.
- A hint has to prove itself: it must change what the teacher says, and the teacher must still speak of the same thing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from store.errors import AlignmentError
from store.lifecycle import DropReason
from store.settings import Settings
from store.texts import content_text
from store.values import LogprobMode, ScoredTurn
from trainer.advantages import (
    Candidate,
    Method,
    at_least_one,
    build_streams,
    directive_refusal,
    directive_streams,
    is_expected,
    running_baseline,
)
from trainer.batch import Sample, SampleKind, build_batch, micro_batches, sample_of
from trainer.losses import NO_CARRY, Carry
from trainer.objective import Objective, compute_loss
from trainer.policy import POSITIONS, LocalPolicy
from trainer.protocol import Policy, Refusal, Weights
from trainer.teacher import teacher_prompt

_CONTENT = Refusal(reason=DropReason.NO_SIGNAL, detail="a batch of thanks, as most that was said of late")
#: A hint that moves the teacher by less than this (mean nats a token) has nothing to say about this completion.
MIN_SHIFT = 0.02
#: A hint that leaves the teacher fewer of the student's likely tokens than this speaks of something else.
MIN_OVERLAP = 0.5
#: Sequence-level bounds of exp(mean(o - b)): beyond them the sampler was another policy than ours.
RATIO_BOUNDS = (0.5, 2.0)
#: `Settings.teacher` -> whose weights read the hint. STUDENT is the policy before the step: its numbers are taken once.
_TEACHERS = {"base": Weights.BASE, "ema": Weights.EMA, "live": Weights.STUDENT}
#: Exponent of the decay over the optimizer steps of a batch.
_DECAY = 1.5
#: Longest new answer to a complaint or an anchor, in tokens.
MAX_ANEW = 64
#: Padded tokens of one forward and backward pass.
MICRO_TOKENS = 8_192


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """What of the settings a step reads.

    Attributes:
        carry: how much of what was learnt so far the base model carries along when it is the teacher;
            see `trainer.losses.carried_over`. No other teacher does: an EMA remembers by itself, and another model's
            opinions are not to be magnified.
        most_hints: a turn's own hint and the newest others that the teacher hears at most, together.
        blames_hinted: whether a complaint with a hint also gets its verdict on every token, beside the directive term.
        settles: whether the learning rate falls over the optimizer steps of a batch.
        answers_anew: whether complaints and anchors are answered anew before each further optimizer step.
    """

    method: Method
    objective: Objective
    teacher: Weights
    carry: Carry = NO_CARRY
    most_hints: int = 1
    w_rl: float = 0.3
    w_opd: float = 1.0
    opd_support: Literal["topk", "token"] = "topk"
    opd_clip: float = 1.0
    opd_centred: bool = False
    baseline: Literal["running", "none"] = "running"
    blames_hinted: bool = True
    steps_per_batch: int = 2
    settles: bool = False
    answers_anew: bool = False
    max_kl_step: float = 0.02
    max_staleness: int = 8
    min_shift: float = MIN_SHIFT
    min_overlap: float = MIN_OVERLAP
    micro_tokens: int = MICRO_TOKENS

    @classmethod
    def of(cls, settings: Settings) -> StepPlan:
        """Return the plan these settings ask for."""
        teacher = Weights.TEACHER if settings.teacher_model_name else _TEACHERS[settings.teacher]
        clipped = settings.loss_fn == "ppo"
        return cls(
            method=settings.method,
            objective=Objective(
                alpha=settings.resolved_alpha,
                top_k=settings.top_k,
                support_of=settings.support_of,
                support_mass=settings.support_mass,
                clip_low=0.8 if clipped else 0.0,
                clip_high=1.28 if clipped else math.inf,
                dual_clip=3.0 if clipped else None,
                kl_coef=settings.kl_loss_coef,
            ),
            teacher=teacher,
            carry=Carry(
                along=settings.teacher_carry, rest=settings.teacher_carry_rest, min_p=settings.teacher_min_p
            ),
            most_hints=settings.teacher_hints,
            w_rl=settings.w_rl,
            w_opd=settings.w_opd,
            opd_support=settings.opd_support,
            opd_clip=settings.opd_clip,
            opd_centred=settings.opd_centred,
            baseline=settings.baseline,
            blames_hinted=settings.blame_hinted,
            min_shift=MIN_SHIFT if settings.hint_gate else 0.0,
            min_overlap=MIN_OVERLAP if settings.hint_gate else 0.0,
            steps_per_batch=settings.steps_per_batch,
            settles=settings.settle,
            answers_anew=settings.answer_anew,
            max_kl_step=settings.max_kl_step,
            max_staleness=settings.max_staleness,
        )

    def rates(self) -> list[float]:
        """The learning rate of each optimizer step of a batch, as a share of the whole.

        Polynomial decay: what the first, long steps break elsewhere shows in the anchors' answers to them, and the short ones mend it.
        """
        count = self.steps_per_batch
        return [(1 - i / count) ** _DECAY if self.settles else 1.0 for i in range(count)]

    @property
    def reads_hints(self) -> bool:
        return self.method != "rl"

    @property
    def reads_verdicts(self) -> bool:
        return self.method in ("rl", "combine")

    def has_signal(self, turn: ScoredTurn) -> bool:
        """Whether a turn counts towards a batch: it has a hint, or a verdict that this method reads."""
        return bool(turn.verdict.hint) or (self.reads_verdicts and bool(turn.verdict.value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What became of the claimed turns: each is in exactly one of the two."""

    samples: tuple[Sample, ...]
    refused: Mapping[str, Refusal]

    @property
    def size(self) -> float:
        """How much of a whole step the samples ask for, their mean `Streams.size`; 0 without samples."""
        sizes = [sample.streams.size for sample in self.samples if sample.streams is not None]
        return sum(sizes) / len(sizes) if sizes else 0.0


@dataclass(slots=True)
class _Draft:
    """A turn on its way to a sample."""

    turn: ScoredTurn
    sample: Sample
    hint: str | None = None
    is_reaction: bool = True
    teacher_logprobs: list[float] | None = None
    trainer_logprobs: list[float] = field(default_factory=list)


def prepare(
    policy: Policy,
    turns: Sequence[ScoredTurn],
    plan: StepPlan,
    *,
    recent_verdicts: Sequence[int],
    version: int,
    kind: SampleKind = SampleKind.FEEDBACK,
    hints: Sequence[str] = (),
) -> Prepared:
    """Decide what each turn teaches.

    Args:
        hints: what the person said of these and other turns, oldest first; see `StepPlan.most_hints`.
        recent_verdicts: earlier verdicts of this policy, oldest first, those of ``turns`` not among them.
        version: the version the weights of ``policy`` are.
    """
    refused: dict[str, Refusal] = {}
    drafts: list[_Draft] = []
    for turn in turns:
        try:
            drafts.append(_draft(policy, turn, plan, version=version, kind=kind))
        except _RefusedTurn as exc:
            refused[turn.turn_id] = exc.refusal
    if plan.reads_hints:
        _choose_hints(drafts)
        drafts = _ask_for_prompts(policy, drafts, refused, hints, plan.most_hints)
    drafts = _read_policy(policy, drafts, plan, refused)
    irrelevant = _read_teacher(policy, drafts, plan, refused) if plan.reads_hints else {}
    drafts = [draft for draft in drafts if draft.turn.turn_id not in refused]
    baseline = running_baseline(recent_verdicts, kind=plan.baseline)
    samples: list[Sample] = []
    news = 0
    for draft in drafts:
        turn_id = draft.turn.turn_id
        streams = build_streams(
            plan.method,
            verdict=draft.turn.verdict.value,
            baseline=baseline,
            has_hint=draft.teacher_logprobs is not None,
            teacher_logprobs=draft.teacher_logprobs,
            trainer_logprobs=draft.trainer_logprobs,
            w_rl=plan.w_rl,
            w_opd=plan.w_opd,
            opd_support=plan.opd_support,
            opd_clip=plan.opd_clip,
            opd_centred=plan.opd_centred,
            completion_length=len(draft.sample.completion_ids),
            alpha=plan.objective.alpha,
            blames_hinted=plan.blames_hinted,
        )
        if streams.is_effective:
            samples.append(draft.sample.with_streams(streams))
            news += not is_expected(draft.turn.verdict.value, baseline)
        elif turn_id in irrelevant:
            refused[turn_id] = Refusal(reason=DropReason.HINT_IRRELEVANT, detail=irrelevant[turn_id])
        else:
            refused[turn_id] = Refusal(reason=DropReason.NO_SIGNAL)
    if samples and not news and kind is SampleKind.FEEDBACK:
        refused |= dict.fromkeys((sample.turn_id for sample in samples), _CONTENT)
        samples = []
    return Prepared(samples=tuple(samples), refused=refused)


class _RefusedTurn(Exception):
    def __init__(self, reason: DropReason, detail: str) -> None:
        super().__init__(detail)
        self.refusal = Refusal(reason=reason, detail=detail)


def _draft(policy: Policy, turn: ScoredTurn, plan: StepPlan, *, version: int, kind: SampleKind) -> _Draft:
    age = version - turn.adapter_version
    if kind is SampleKind.FEEDBACK and age > plan.max_staleness:
        raise _RefusedTurn(DropReason.STALE, f"sampled {age} versions ago")
    try:
        sample = sample_of(turn, kind=kind)
    except AlignmentError as exc:
        raise _RefusedTurn(DropReason.TOKEN_MISMATCH, str(exc)) from exc
    if sample.tokens > policy.max_context:
        raise _RefusedTurn(
            DropReason.TOO_LONG, f"{sample.tokens} tokens, the context holds {policy.max_context}"
        )
    highest = max(max(sample.prompt_ids), max(sample.completion_ids))
    if highest >= policy.vocabulary_size:
        raise _RefusedTurn(
            DropReason.TOKEN_MISMATCH, f"token id {highest} is not in the trainer's vocabulary"
        )
    return _Draft(turn=turn, sample=sample)


def _choose_hints(drafts: Sequence[_Draft]) -> None:
    """A turn that pleased needs no hint. A session that said nothing else teaches through its best-supported follow-up."""
    for draft in drafts:
        verdict = draft.turn.verdict
        if verdict.hint and (verdict.value or 0) <= 0:
            draft.hint, draft.is_reaction = verdict.hint, verdict.hint_is_reaction
    sessions: dict[str, list[_Draft]] = defaultdict(list)
    for draft in drafts:
        sessions[draft.turn.session_id].append(draft)
    for session in sessions.values():
        chosen = at_least_one(
            [
                Candidate(
                    turn_id=draft.turn.turn_id,
                    verdict=draft.turn.verdict.value,
                    hint=draft.turn.verdict.hint,
                    follow_up=_follow_up(draft.turn),
                    support=draft.turn.verdict.confidence,
                )
                for draft in session
            ]
        )
        if chosen is None:
            continue
        for draft in session:
            if draft.turn.turn_id == chosen.turn_id:
                draft.hint, draft.is_reaction = chosen.hint, chosen.is_reaction


def _follow_up(turn: ScoredTurn) -> str | None:
    """The words that followed a turn nobody had an opinion on; None when they were a new question, which hints at nothing."""
    detail = turn.verdict.detail
    text = detail.get("follow_up")
    return text if isinstance(text, str) and not detail.get("follow_up_is_question") else None


def _ask_for_prompts(
    policy: Policy,
    drafts: Sequence[_Draft],
    refused: dict[str, Refusal],
    hints: Sequence[str],
    most_hints: int,
) -> list[_Draft]:
    kept = []
    for draft in drafts:
        if draft.hint is not None:
            turn, sample = draft.turn, draft.sample
            try:
                ids = teacher_prompt(
                    policy.render,
                    messages=turn.messages,
                    request=turn.request,
                    hint=draft.hint,
                    is_reaction=draft.is_reaction,
                    recorded_prompt_ids=sample.prompt_ids,
                    max_tokens=policy.max_context - len(sample.completion_ids),
                    others=_others(hints, draft, most_hints - 1),
                )
            except AlignmentError as exc:
                refused[turn.turn_id] = Refusal(reason=DropReason.TEACHER_FAILED, detail=str(exc))
                continue
            draft.sample = sample_of(turn, kind=sample.kind, teacher_prompt_ids=ids)
        kept.append(draft)
    return kept


def _others(hints: Sequence[str], draft: _Draft, most: int) -> list[str]:
    """The newest hints that are neither the turn's own nor said in its very conversation."""
    assert draft.hint is not None
    heard = [content_text(m.get("content")) for m in draft.turn.messages if m.get("role") == "user"]
    new = [hint for hint in hints if hint != draft.hint.strip() and not any(hint in text for text in heard)]
    return new[-most:] if most > 0 else []


def _read_policy(
    policy: Policy, drafts: Sequence[_Draft], plan: StepPlan, refused: dict[str, Refusal]
) -> list[_Draft]:
    """Fill in o, and drop what another policy than ours seems to have said."""
    by_id = {draft.sample.turn_id: draft for draft in drafts}
    kept: list[_Draft] = []
    for part in micro_batches([draft.sample for draft in drafts], plan.micro_tokens):
        own, reported, _ = _own_logprobs(policy, part)
        for row, sample in enumerate(part):
            draft, count = by_id[sample.turn_id], len(sample.completion_ids)
            draft.trainer_logprobs = own[row, :count].tolist()
            assert sample.sampling_logprobs is not None  # only anchors have none
            gap = reported[row, :count].double().cpu() - torch.tensor(sample.sampling_logprobs).double()
            ratio = math.exp(max(-20.0, min(20.0, float(gap.mean()))))
            if sample.kind is SampleKind.FEEDBACK and not RATIO_BOUNDS[0] <= ratio <= RATIO_BOUNDS[1]:
                refused[sample.turn_id] = Refusal(
                    reason=DropReason.STALE, detail=f"geometric mean of the probability ratio is {ratio:.2f}"
                )
            else:
                kept.append(draft)
    order = {draft.sample.turn_id: i for i, draft in enumerate(drafts)}
    return sorted(kept, key=lambda draft: order[draft.sample.turn_id])


def _own_logprobs(policy: Policy, part: Sequence[Sample]) -> tuple[Tensor, Tensor, Tensor]:
    """o at the loss temperature, o' at the engine's, mask; all [B, C], no gradient."""
    prompts = [sample.prompt_ids for sample in part]
    responses = [sample.completion_ids for sample in part]
    own, mask = policy.response_logprobs(
        prompts, responses, temperature=[sample.loss_temperature for sample in part]
    )
    if all(s.kind is SampleKind.ANCHOR or s.reported_temperature == s.loss_temperature for s in part):
        return own, own, mask
    reported, _ = policy.response_logprobs(
        prompts, responses, temperature=[sample.reported_temperature for sample in part]
    )
    return own, reported, mask


def _read_teacher(
    policy: Policy, drafts: Sequence[_Draft], plan: StepPlan, refused: dict[str, Refusal]
) -> dict[str, str]:
    """Fill in q where the hint proves itself; returns why not, by turn id, where it does not.

    A teacher whose numbers are no numbers failed: its turn is refused, whatever else the turn could teach.
    """
    by_id = {draft.sample.turn_id: draft for draft in drafts if draft.sample.teacher_prompt_ids}
    top_k = plan.objective.top_k or 20
    why: dict[str, str] = {}
    for part in micro_batches([draft.sample for draft in by_id.values()], plan.micro_tokens):
        heard = policy.hear(
            [sample.prompt_ids for sample in part],
            [sample.teacher_prompt_ids or () for sample in part],
            [sample.completion_ids for sample in part],
            teacher=plan.teacher,
            carry=plan.carry,
            temperature=[sample.loss_temperature for sample in part],
            top_k=top_k,
        )
        for sample, teacher in zip(part, heard, strict=True):
            said = torch.tensor(teacher.logprobs)
            if not bool(torch.isfinite(said).all()):
                refused[sample.turn_id] = Refusal(
                    reason=DropReason.TEACHER_FAILED, detail="the teacher's log-probabilities are not finite"
                )
                continue
            draft = by_id[sample.turn_id]
            refusal = directive_refusal(
                mean_shift=float((said - torch.tensor(draft.trainer_logprobs)).abs().mean()),
                overlap=teacher.overlap,
                min_shift=plan.min_shift,
                min_overlap=plan.min_overlap,
            )
            if refusal is None:
                draft.teacher_logprobs = list(teacher.logprobs)
            else:
                why[sample.turn_id] = refusal
    return why


def train(
    policy: LocalPolicy, samples: Sequence[Sample], plan: StepPlan, *, seed: int = 0
) -> dict[str, float]:
    """Move the policy's weights by up to ``plan.steps_per_batch`` optimizer steps on these samples; returns the metrics.

    Stops before a step when the weights are already further than ``plan.max_kl_step`` from where they began.

    Args:
        seed: of the new answers.

    Raises:
        GateRejected: a gradient is not finite; the weights are those after the last good step.
    """
    given = _Batch(policy, samples, plan)
    batch = given
    metrics: dict[str, float] = {}
    steps, norm = 0, 0.0
    whole = policy.learning_rate
    try:
        for share in plan.rates():
            if steps and plan.answers_anew:
                if given.measure(policy).get("kl_step", 0.0) > plan.max_kl_step:
                    break
                batch = _Batch(policy, answered_anew(policy, samples, seed=seed + steps), plan)
            found = batch.backward(policy)
            metrics = metrics or found
            if steps and not plan.answers_anew and found.get("kl_step", 0.0) > plan.max_kl_step:
                policy.drop_gradients()
                break
            policy.learning_rate = whole * share
            norm = policy.apply_gradients()
            steps += 1
    finally:
        policy.learning_rate = whole
    after = given.measure(policy)
    return {
        **metrics,
        "gradient_norm": norm,
        "optimizer_steps": float(steps),
        "kl_step": after.get("kl_step", 0.0),
        "kl_to_base": after.get("kl_base", 0.0),
        "loss_after": after.get("loss", 0.0),
        "entropy_after": after.get("entropy", 0.0),
    }


def answered_anew(policy: LocalPolicy, samples: Sequence[Sample], *, seed: int) -> list[Sample]:
    """The samples, those that only a teacher judges with what the policy answers to their prompts now.

    A verdict is about the reply that it followed, and stays with it; and so does a reply for whose like the context has no room.
    """
    rows = [
        i
        for i, sample in enumerate(samples)
        if sample.teacher_prompt_ids is not None
        and sample.streams is not None
        and sample.streams.directive_weight > 0.0
        and not any(sample.streams.advantages)
        and max(len(sample.prompt_ids), len(sample.teacher_prompt_ids)) + MAX_ANEW <= policy.max_context
    ]
    result = list(samples)
    if not rows:
        return result
    replies = policy.sample([samples[i].prompt_ids for i in rows], max_tokens=MAX_ANEW, seed=seed)
    for i, reply in zip(rows, replies, strict=True):
        sample, streams = samples[i], samples[i].streams
        if not reply.token_ids or streams is None:
            continue
        result[i] = replace(
            sample,
            completion_ids=reply.token_ids,
            sampling_logprobs=None if sample.sampling_logprobs is None else reply.logprobs,
            logprob_mode=LogprobMode.RAW,
            temperature=1.0,
            streams=directive_streams(
                completion_length=len(reply.token_ids),
                weight=streams.directive_weight,
                alpha=streams.directive_alpha,
            ),
        )
    return result


class _Batch:
    """The samples of an optimizer step, in parts that go through the model at once."""

    def __init__(self, policy: LocalPolicy, samples: Sequence[Sample], plan: StepPlan) -> None:
        self._plan = plan
        self._parts = [_Part(policy, part, plan) for part in micro_batches(samples, plan.micro_tokens)]
        self._live = float(sum(float(part.live_samples) for part in self._parts))

    def backward(self, policy: LocalPolicy) -> dict[str, float]:
        """Accumulate the gradients; returns the metrics before the step."""
        return _merged([part.backward(policy, self._plan, self._live) for part in self._parts])

    def measure(self, policy: LocalPolicy) -> dict[str, float]:
        """The metrics at the weights as they are."""
        return _merged([part.measure(policy, self._plan, self._live) for part in self._parts])


def by_teacher(samples: Sequence[Sample], plan: StepPlan) -> Iterator[tuple[list[int], Weights, Carry]]:
    """Yield the rows that have a teacher with whose weights it is and how much of what was learnt it carries along.

    An anchor's teacher is the base model without a hint.
    """
    for is_anchor in (False, True):
        rows = [
            i
            for i, sample in enumerate(samples)
            if sample.teacher_prompt_ids is not None and (sample.kind is SampleKind.ANCHOR) is is_anchor
        ]
        if rows:
            yield rows, Weights.BASE if is_anchor else plan.teacher, NO_CARRY if is_anchor else plan.carry


class _Part:
    """A part of the batch that goes through the model at once; what does not change over the inner steps is kept."""

    def __init__(self, policy: LocalPolicy, samples: Sequence[Sample], plan: StepPlan) -> None:
        self._prompts = [sample.prompt_ids for sample in samples]
        self._responses = [sample.completion_ids for sample in samples]
        temperatures = [sample.loss_temperature for sample in samples]
        own, reported, mask = _own_logprobs(policy, samples)
        base, _ = policy.response_logprobs(
            self._prompts, self._responses, Weights.BASE, temperature=temperatures
        )
        self._batch = build_batch(
            samples,
            trainer_logprobs=own,
            reported_logprobs=reported,
            base_logprobs=base,
            teacher_logits=self._teacher_logits(policy, samples, plan, mask),
        )
        self.live_samples = self._batch.live().sum()

    @torch.no_grad()
    def _teacher_logits(
        self, policy: LocalPolicy, samples: Sequence[Sample], plan: StepPlan, mask: Tensor
    ) -> Tensor | None:
        """[B, C, V], NaN for rows without a teacher."""
        result: Tensor | None = None
        for rows, teacher, carry in by_teacher(samples, plan):
            some = [samples[i] for i in rows]
            logits = policy.hinted_logits(
                [sample.prompt_ids for sample in some],
                [sample.teacher_prompt_ids or () for sample in some],
                [sample.completion_ids for sample in some],
                teacher=teacher,
                carry=carry,
            )
            if result is None:
                result = torch.full((*mask.shape, logits.shape[-1]), math.nan, device=logits.device)
            result[rows, : logits.shape[1]] = logits
        return result

    def backward(self, policy: LocalPolicy, plan: StepPlan, live: float) -> tuple[dict[str, float], float]:
        loss, metrics = self._loss(policy, plan, live)
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not type it
        return metrics, metrics["live_tokens"]

    @torch.no_grad()
    def measure(self, policy: LocalPolicy, plan: StepPlan, live: float) -> tuple[dict[str, float], float]:
        _, metrics = self._loss(policy, plan, live)
        return metrics, metrics["live_tokens"]

    def _loss(self, policy: LocalPolicy, plan: StepPlan, live: float) -> tuple[Tensor, dict[str, float]]:
        if not policy.is_wide:
            logits, _ = policy.response_logits(self._prompts, self._responses)
            return compute_loss(plan.objective, self._batch, logits, live_samples=live)
        hidden, _ = policy.response_hidden(self._prompts, self._responses)
        return compute_loss(
            plan.objective, self._batch, hidden, live_samples=live, chunk=POSITIONS, head=policy.logits
        )


#: Metrics of the parts that add up; all others are means over live tokens.
_SUMS = frozenset(
    {"loss", "policy_loss", "directive_loss", "live_samples", "live_tokens", "effective_samples"}
)
_MAXIMA = frozenset({"ratio_max"})


def _merged(parts: Sequence[tuple[dict[str, float], float]]) -> dict[str, float]:
    """Metrics of a whole batch from those of its parts with their numbers of live tokens."""
    values: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for metrics, tokens in parts:
        for name, value in metrics.items():
            values[name].append((value, tokens))
    merged = {}
    for name, pairs in values.items():
        if name in _SUMS:
            merged[name] = sum(value for value, _ in pairs)
        elif name in _MAXIMA:
            merged[name] = max(value for value, _ in pairs)
        else:
            total = sum(tokens for _, tokens in pairs)
            merged[name] = sum(value * tokens for value, tokens in pairs) / total if total else 0.0
    return merged
