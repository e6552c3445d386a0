"""One training step: claimed turns -> samples with streams -> a few optimizer steps inside a trust region.

Reads top to bottom: `prepare` decides what each turn has to teach (or why it teaches nothing), `train` moves the weights.
Blind to where turns come from and what becomes of the new weights; the worker knows both.

Rules of the room:
- A turn that cannot be trained is dropped **with its reason**. Nothing is guessed, padded or replaced by zeros.
- The teacher reads the response tokens with the hint in its context; only its numbers for these very tokens are used.
- A hint has to prove itself: it must change what the teacher says, and the teacher must still speak of the same thing.
"""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar, cast

import torch
from torch import Tensor

from store.errors import AlignmentError
from store.lifecycle import DropReason
from store.settings import Settings
from store.texts import content_text
from store.values import Baseline, LogprobMode, Method, OpdSupport, ScoredTurn
from trainer.advantages import (
    SessionTurn,
    at_least_one,
    build_streams,
    directive_refusal,
    directive_streams,
    is_expected,
    mask_constrained,
    running_baseline,
)
from trainer.batch import Sample, SampleKind, build_batch, forced_tokens, micro_batches, sample_of
from trainer.cost import anchor_steps
from trainer.decoding_constraint import decoding_constraint
from trainer.hint_selection import HintSelection
from trainer.losses import NO_RESIDUAL, Residual, kl_k3, staleness_weight
from trainer.objective import Batch, Objective, compute_loss
from trainer.out_of_memory import DoesNotFit, attempt
from trainer.policy import LocalPolicy
from trainer.protocol import HintScore, Policy, TurnRefusal, Weights
from trainer.step_size import share_within
from trainer.teacher import teacher_prompt

R = TypeVar("R")

_CONTENT = TurnRefusal(reason=DropReason.NO_SIGNAL, detail="a batch of thanks, like most recent verdicts")
#: A hint that moves the teacher by less than this (mean nats a token) has nothing to say about this completion.
MIN_SHIFT = 0.02
#: A hint that leaves the teacher fewer of the student's likely tokens than this speaks of something else.
MIN_OVERLAP = 0.5
#: Sequence-level bounds of exp(mean(o - b)): beyond them the sampler was another policy than ours.
RATIO_BOUNDS = (0.5, 2.0)
#: `Settings.teacher` -> whose weights read the hint. STUDENT is the policy in training: its numbers are taken at the start of the
#: batch, and with `StepPlan.resample` once more before each further optimizer step.
_TEACHERS = {"base": Weights.BASE, "ema": Weights.EMA, "live": Weights.STUDENT}
#: Where combine reads hints, a complaint of a person is left to its hint: -1 on every token of a reply whose only fault is one word, or
#: its emoji, takes back what earlier complaints taught about all of them. A reward function and a failed tool call judge the reply.
BLAMING_SOURCES = ("custom:", "rule:tool_error")
#: Exponent of the decay over the optimizer steps of a batch.
_DECAY = 1.5
#: Rate of the steps on the anchors alone, which are half as many, as a share of the batch's learning rate. Without them a policy that
#: learnt Spanish can answer "Only English, please." in Spanish (.04 obeyed, with them .96); at .3 wishes in free words are learnt less
#: (lab/research/2026-11-27-steps-on-anchors.md).
_ANCHOR_RATE = 0.15
#: A new answer to a complaint or an anchor may have so many tokens, or as many as the longest recorded reply of the batch has, but no
#: more than `MOST_RESAMPLE_TOKENS` (`StepPlan.resample_tokens`: what there is time for).
MAX_RESAMPLE_TOKENS, MOST_RESAMPLE_TOKENS = 64, 512
#: Padded tokens of one forward and backward pass.
MICRO_TOKENS = 8_192


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """What of the settings a step reads.

    Attributes:
        residual: how much of what was learnt so far is added to the base model when it is the teacher;
            see `trainer.losses.with_residual`. No other teacher does: an EMA remembers by itself, and another model's
            opinions are not to be magnified.
        most_hints: a turn's own hint and the newest others in the teacher's prompt, at most.
        blames: whether combine puts every complaint on all tokens of the reply; see `BLAMING_SOURCES`.
        lr_decay: whether the learning rate falls over the optimizer steps of a batch.
        resample: whether complaints and anchors are resampled before each further optimizer step.
        resample_tokens: longest new answer; see `resample_tokens`.
        kl_target: most that a version may move: KL(weights before ‖ after) along the batch's completions, nats a token. What the
            optimizer steps did beyond it is scaled down; see `trainer.step_size`.
    """

    method: Method
    objective: Objective
    teacher: Weights
    residual: Residual
    most_hints: int
    w_rl: float
    w_opd: float
    opd_support: OpdSupport
    opd_clip: float
    opd_centred: bool
    baseline: Baseline
    blames: bool
    gates_hints: bool
    min_shift: float
    min_overlap: float
    steps_per_batch: int
    lr_decay: bool
    resample: bool
    max_kl_step: float
    kl_target: float
    max_staleness: int
    resample_tokens: int = MOST_RESAMPLE_TOKENS
    micro_tokens: int = MICRO_TOKENS

    @classmethod
    def of(cls, settings: Settings) -> StepPlan:
        """Return the plan these settings ask for."""
        learning = settings.learning
        teacher = Weights.TEACHER if settings.teacher_model_name else _TEACHERS[learning.teacher]
        clipped = settings.loss_fn == "ppo"
        return cls(
            method=settings.method,
            objective=Objective(
                alpha=settings.resolved_alpha,
                top_k=learning.top_k,
                support_of=learning.support_of,
                support_mass=learning.support_mass,
                clip_low=0.8 if clipped else 0.0,
                clip_high=1.28 if clipped else math.inf,
                dual_clip=3.0 if clipped else None,
                kl_coef=settings.kl_loss_coef,
            ),
            teacher=teacher,
            residual=Residual(
                on_hint=learning.teacher_residual,
                off_hint=learning.teacher_residual_offhint,
                min_p=learning.teacher_min_p,
            ),
            most_hints=learning.teacher_hints,
            w_rl=settings.w_rl,
            w_opd=settings.w_opd,
            opd_support=learning.opd_support,
            opd_clip=learning.opd_clip,
            opd_centred=learning.opd_centred,
            baseline=learning.baseline,
            blames=learning.blame_complaints,
            gates_hints=learning.hint_gate,
            min_shift=MIN_SHIFT if learning.hint_gate else 0.0,
            min_overlap=MIN_OVERLAP if learning.hint_gate else 0.0,
            steps_per_batch=learning.steps_per_batch,
            lr_decay=learning.lr_decay,
            resample=learning.resample,
            max_kl_step=learning.max_kl_step,
            kl_target=min(learning.max_kl_step, learning.kl_target) or math.inf,
            max_staleness=learning.max_staleness,
        )

    def rates(self) -> list[float]:
        """The learning rate of each optimizer step of a batch, as a share of the whole.

        Polynomial decay: what the first, long steps break elsewhere shows in the anchors' answers to them, and the short ones mend it.
        """
        count = self.steps_per_batch
        return [(1 - i / count) ** _DECAY if self.lr_decay else 1.0 for i in range(count)]

    @property
    def anchor_steps(self) -> int:
        """Optimizer steps on the anchors alone, after those of a batch: they mend what the first, long steps broke elsewhere."""
        return anchor_steps(self.steps_per_batch) if self.resample else 0

    @property
    def reads_hints(self) -> bool:
        return self.method != "rl"

    @property
    def selects_hints(self) -> bool:
        """Whether hints have to do something, and a playbook is kept."""
        return self.reads_hints and self.gates_hints

    @property
    def reads_verdicts(self) -> bool:
        return self.method in ("rl", "combine")

    def has_signal(self, turn: ScoredTurn) -> bool:
        """Whether a turn counts towards a batch: it has a hint, or a verdict that this method reads."""
        return bool(turn.verdict.hint) or (self.reads_verdicts and bool(turn.verdict.value))


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedBatch:
    """What became of the claimed turns: each is in exactly one of the two."""

    samples: tuple[Sample, ...]
    refused: Mapping[str, TurnRefusal]

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
    verdict: int | None = None
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
    selection: HintSelection | None = None,
) -> PreparedBatch:
    """Decide what each turn teaches.

    Args:
        selection: decides which hints teach and the other hints in the teacher's prompt; None: each hint is used alone.
        recent_verdicts: earlier verdicts of this policy, oldest first, those of ``turns`` not among them.
        version: the version the weights of ``policy`` are.
    """
    refused: dict[str, TurnRefusal] = {}
    drafts: list[_Draft] = []
    for turn in turns:
        try:
            drafts.append(_draft(policy, turn, plan, version=version, kind=kind))
        except _RefusedTurn as exc:
            refused[turn.turn_id] = exc.refusal
    unused: dict[str, str] = {}
    if plan.reads_hints:
        _choose_hints(drafts)
        if selection is not None and kind is SampleKind.FEEDBACK:
            unused = _select_hints(drafts, selection)
        drafts = _ask_for_prompts(policy, drafts, refused, selection, plan.most_hints)
    drafts = _read_policy(policy, drafts, plan, refused)
    unused |= _read_teacher(policy, drafts, plan, refused) if plan.reads_hints else {}
    drafts = [draft for draft in drafts if draft.turn.turn_id not in refused]
    baseline = running_baseline(recent_verdicts, kind=plan.baseline)
    samples: list[Sample] = []
    news = 0
    for draft in drafts:
        turn_id = draft.turn.turn_id
        streams = build_streams(
            plan.method,
            verdict=draft.verdict,
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
            blames=plan.blames or draft.turn.verdict.source.startswith(BLAMING_SOURCES),
            share=draft.turn.verdict.share,
        )
        constraint = decoding_constraint(draft.turn.request)
        if constraint:
            streams = mask_constrained(streams, forced_tokens(draft.sample))
        if streams.is_effective:
            samples.append(draft.sample.with_streams(streams))
            news += not is_expected(draft.turn.verdict.value, baseline)
        elif constraint:
            detail = f"{constraint}, and no hint that a teacher could read"
            refused[turn_id] = TurnRefusal(reason=DropReason.CONSTRAINED, detail=detail)
        elif draft.verdict != draft.turn.verdict.value:
            refused[turn_id] = TurnRefusal(reason=DropReason.NO_SIGNAL, detail=unused[turn_id])
        elif turn_id in unused:
            refused[turn_id] = TurnRefusal(reason=DropReason.HINT_IRRELEVANT, detail=unused[turn_id])
        else:
            refused[turn_id] = TurnRefusal(reason=DropReason.NO_SIGNAL)
    if samples and not news and kind is SampleKind.FEEDBACK:
        refused |= dict.fromkeys((sample.turn_id for sample in samples), _CONTENT)
        samples = []
    return PreparedBatch(samples=tuple(samples), refused=refused)


class _RefusedTurn(Exception):
    def __init__(self, reason: DropReason, detail: str) -> None:
        super().__init__(detail)
        self.refusal = TurnRefusal(reason=reason, detail=detail)


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
    return _Draft(turn=turn, sample=sample, verdict=turn.verdict.value)


def _choose_hints(drafts: Sequence[_Draft]) -> None:
    """A turn that pleased needs no hint. A session without other verdicts teaches through its best-supported follow-up."""
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
                SessionTurn(
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


def _select_hints(drafts: Sequence[_Draft], selection: HintSelection) -> dict[str, str]:
    """Take away the hints that do nothing, and thanks for replies that break a wish; returns why, by turn id."""
    why: dict[str, str] = {}
    for draft in drafts:
        if draft.hint is None:
            continue
        choice = selection.choose(draft.turn, draft.hint, is_reaction=draft.is_reaction)
        draft.hint = choice.hint
        if choice.hint is None:
            why[draft.turn.turn_id] = choice.refusal
    for draft in drafts:
        if draft.verdict == 1 and (refusal := selection.broken_wish(draft.turn)):
            draft.verdict = None
            why[draft.turn.turn_id] = refusal
    return why


def _follow_up(turn: ScoredTurn) -> str | None:
    """Return the user's text after the reply; None when it opens a new topic, which is no hint."""
    found = turn.verdict.follow_up
    return found.text if found is not None and not found.is_question else None


def _ask_for_prompts(
    policy: Policy,
    drafts: Sequence[_Draft],
    refused: dict[str, TurnRefusal],
    selection: HintSelection | None,
    most_hints: int,
) -> list[_Draft]:
    kept = []
    for draft in drafts:
        if draft.hint is not None:
            turn, sample = draft.turn, draft.sample
            *others, hint = [*_others(selection, draft, most_hints - bool(draft.hint)), draft.hint]
            if not hint and others:
                *others, hint = others
            try:
                # Where the hint withdrew the only wish, the base model as it is is the teacher.
                ids = (
                    sample.prompt_ids
                    if not hint
                    else teacher_prompt(
                        policy.render,
                        messages=turn.messages,
                        request=turn.request,
                        hint=hint,
                        is_reaction=draft.is_reaction,
                        recorded_prompt_ids=sample.prompt_ids,
                        max_tokens=policy.max_context - len(sample.completion_ids),
                        others=others,
                        window=policy.window,
                    )
                )
            except AlignmentError as exc:
                refused[turn.turn_id] = TurnRefusal(reason=DropReason.TEACHER_FAILED, detail=str(exc))
                continue
            draft.sample = sample_of(turn, kind=sample.kind, teacher_prompt_ids=ids)
        kept.append(draft)
    return kept


def _others(selection: HintSelection | None, draft: _Draft, most: int) -> list[str]:
    """Return the other hints for the teacher's prompt: wishes of the playbook that neither are the turn's own hint nor stand in its conversation."""
    if selection is None or draft.hint is None:
        return []
    texts = [content_text(m.get("content")) for m in draft.turn.messages if m.get("role") == "user"]
    return selection.others(draft.hint, texts, most)


def _read_policy(
    policy: Policy, drafts: Sequence[_Draft], plan: StepPlan, refused: dict[str, TurnRefusal]
) -> list[_Draft]:
    """Fill in o, and drop completions that another policy seems to have sampled."""
    by_id = {draft.sample.turn_id: draft for draft in drafts}
    kept: list[_Draft] = []
    parts = micro_batches([draft.sample for draft in drafts], plan.micro_tokens)
    for part, (own, reported, _) in _each_that_fits(parts, lambda some: _own_logprobs(policy, some), refused):
        for row, sample in enumerate(part):
            draft, count = by_id[sample.turn_id], len(sample.completion_ids)
            draft.trainer_logprobs = own[row, :count].tolist()
            assert sample.sampling_logprobs is not None  # only anchors have none
            gap = reported[row, :count].double().cpu() - torch.tensor(sample.sampling_logprobs).double()
            if decoding_constraint(draft.turn.request) and (forced := forced_tokens(sample)) is not None:
                gap = gap[~torch.tensor(forced)]  # a forced token's log-probability is the grammar's
                gap = gap if len(gap) else torch.zeros(1)
            ratio = math.exp(max(-20.0, min(20.0, float(gap.mean()))))
            if sample.kind is SampleKind.FEEDBACK and not RATIO_BOUNDS[0] <= ratio <= RATIO_BOUNDS[1]:
                refused[sample.turn_id] = TurnRefusal(
                    reason=DropReason.STALE, detail=f"geometric mean of the probability ratio is {ratio:.2f}"
                )
            else:
                kept.append(draft)
    order = {draft.sample.turn_id: i for i, draft in enumerate(drafts)}
    return sorted(kept, key=lambda draft: order[draft.sample.turn_id])


def unlike_policy(
    policy: Policy, turns: Sequence[ScoredTurn], plan: StepPlan, *, version: int
) -> frozenset[str]:
    """Return the ids of the turns that would be refused because another policy seems to have sampled their replies."""
    refused: dict[str, TurnRefusal] = {}
    drafts: list[_Draft] = []
    for turn in turns:
        with contextlib.suppress(_RefusedTurn):
            drafts.append(_draft(policy, turn, plan, version=version, kind=SampleKind.FEEDBACK))
    _read_policy(policy, drafts, plan, refused)
    return frozenset(name for name, refusal in refused.items() if refusal.reason is DropReason.STALE)


def _each_that_fits(
    parts: Iterable[Sequence[Sample]], read: Callable[[Sequence[Sample]], R], refused: dict[str, TurnRefusal]
) -> Iterator[tuple[Sequence[Sample], R]]:
    """Read each part; a sample that alone takes more memory than there is is refused, and its part read without it."""
    for whole in parts:
        part = list(whole)
        while part:
            try:
                found = read(part)
            except DoesNotFit as error:
                sample = part.pop(error.index)
                refused[sample.turn_id] = TurnRefusal(
                    reason=DropReason.OUT_OF_MEMORY,
                    detail=f"{sample.tokens} tokens alone do not fit the memory",
                )
                continue
            yield part, found
            break


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
    policy: Policy, drafts: Sequence[_Draft], plan: StepPlan, refused: dict[str, TurnRefusal]
) -> dict[str, str]:
    """Fill in q where the hint proves itself; returns why not, by turn id, where it does not.

    A teacher whose numbers are no numbers failed: its turn is refused, whatever else the turn could teach.
    """
    by_id = {draft.sample.turn_id: draft for draft in drafts if draft.sample.teacher_prompt_ids}
    top_k = plan.objective.top_k or 20
    why: dict[str, str] = {}

    def score_with_hint(part: Sequence[Sample]) -> list[HintScore]:
        return policy.score_with_hint(
            [sample.prompt_ids for sample in part],
            [sample.teacher_prompt_ids or () for sample in part],
            [sample.completion_ids for sample in part],
            teacher=plan.teacher,
            residual=plan.residual,
            temperature=[sample.loss_temperature for sample in part],
            top_k=top_k,
        )

    parts = micro_batches([draft.sample for draft in by_id.values()], plan.micro_tokens)
    for part, scores in _each_that_fits(parts, score_with_hint, refused):
        for sample, teacher in zip(part, scores, strict=True):
            values = torch.tensor(teacher.logprobs)
            if not bool(torch.isfinite(values).all()):
                refused[sample.turn_id] = TurnRefusal(
                    reason=DropReason.TEACHER_FAILED, detail="the teacher's log-probabilities are not finite"
                )
                continue
            draft = by_id[sample.turn_id]
            refusal = directive_refusal(
                mean_shift=float((values - torch.tensor(draft.trainer_logprobs)).abs().mean()),
                overlap=teacher.overlap,
                # What is repeated is there to keep what it taught, also where nothing is left to learn.
                min_shift=plan.min_shift if sample.kind is SampleKind.FEEDBACK else 0.0,
                min_overlap=plan.min_overlap,
            )
            if refusal is None:
                draft.teacher_logprobs = list(teacher.logprobs)
            else:
                why[sample.turn_id] = refusal
    return why


def train(
    policy: LocalPolicy,
    samples: Sequence[Sample],
    plan: StepPlan,
    *,
    seed: int = 0,
    leave_out: Callable[[str], None] = lambda turn_id: None,
) -> dict[str, float]:
    """Move the policy's weights by up to ``plan.steps_per_batch`` optimizer steps on these samples; returns the metrics.

    Stops before a step when the weights are already further than ``plan.max_kl_step`` from where they began. Then takes
    ``plan.anchor_steps`` on the anchors alone, where there are other samples too. What all steps did is scaled down to
    ``plan.kl_target`` (metric ``step_scale``). Where memory is not enough a part is split; a sample that does not fit alone is left
    out, and the step begins again without it.

    Args:
        seed: of the new answers.
        leave_out: called with the `Sample.turn_id` of each sample that did not fit.

    Raises:
        GateRejected: a gradient is not finite; the weights are those after the last good step.
        DoesNotFit: no sample fits; the weights are as before.
    """
    given = _Batch(samples, plan)
    batch = given
    metrics: dict[str, float] = {}
    steps, norm = 0, 0.0
    whole = policy.learning_rate
    start = policy.position()
    try:
        for share in plan.rates():
            if steps and plan.resample:
                if given.kl_step(policy) > plan.max_kl_step:
                    break
                renewed = resampled(policy, given.samples, seed=seed + steps, most=plan.resample_tokens)
                batch = _Batch(renewed, plan, old_logprobs=given.old_logprobs)
            found = _fitting_backward(policy, batch, given, leave_out)
            metrics = metrics or found
            if steps and not plan.resample and found.get("kl_step", 0.0) > plan.max_kl_step:
                policy.drop_gradients()
                break
            policy.learning_rate = whole * share
            norm = policy.apply_gradients()
            steps += 1
        batch = given  # frees what the last one read
        policy.learning_rate = whole * _ANCHOR_RATE
        steps += _anchor_steps(policy, given, plan, leave_out, seed=seed + len(plan.rates()))
    finally:
        policy.learning_rate = whole
    end = policy.position()

    def divergence_at(scale: float) -> float:
        policy.move_between(start, end, scale)
        return given.kl_step(policy)

    scale = 1.0
    if given.kl_step(policy) > plan.kl_target:
        scale, _ = share_within(plan.kl_target, given.kl_step(policy), divergence_at)
        policy.move_between(start, end, scale)
    after = given.measure(policy)
    return {
        **metrics,
        "gradient_norm": norm,
        "optimizer_steps": float(steps),
        "step_scale": scale,
        "kl_step": after.get("kl_step", 0.0),
        "kl_to_base": after.get("kl_base", 0.0),
        "loss_after": after.get("loss", 0.0),
        "entropy_after": after.get("entropy", 0.0),
    }


def _anchor_steps(
    policy: LocalPolicy, given: _Batch, plan: StepPlan, leave_out: Callable[[str], None], *, seed: int
) -> int:
    """Take the steps on the anchors alone, replies to small talk and of withdrawn wishes among them; returns how many.

    Adam's moments go on from the batch and into the next one: with moments of their own the same steps teach less (.33 instead of .54
    as wished after 12 interactions, .60 instead of .88; one seed each).
    """
    count = 0
    for number in range(plan.anchor_steps):
        anchors = [sample for sample in given.samples if sample.kind is SampleKind.ANCHOR]
        if not 0 < len(anchors) < len(given.samples):
            break
        batch = _Batch(resampled(policy, anchors, seed=seed + number, most=plan.resample_tokens), plan)
        try:
            _fitting_backward(policy, batch, given, leave_out)
        except DoesNotFit:  # every anchor was left out; what the batch taught stays
            break
        policy.apply_gradients()
        count += 1
    return count


def _fitting_backward(
    policy: LocalPolicy, batch: _Batch, given: _Batch, leave_out: Callable[[str], None]
) -> dict[str, float]:
    """Accumulate the gradients of what fits the memory."""
    while True:
        try:
            return batch.backward(policy)
        except DoesNotFit as error:
            policy.drop_gradients()  # of the samples before, whose means counted this one
            turn_id = batch.samples[error.index].turn_id
            leave_out(turn_id)
            batch.remove(turn_id)
            if given is not batch:
                given.remove(turn_id)
            if not batch.samples:
                raise


def resample_tokens(lengths: Iterable[int], most: int = MOST_RESAMPLE_TOKENS) -> int:
    """How long a new answer may be where recorded replies have these lengths, in tokens."""
    return min(most, max(MAX_RESAMPLE_TOKENS, max(lengths, default=0)))


def resampled(
    policy: LocalPolicy, samples: Sequence[Sample], *, seed: int, most: int = MOST_RESAMPLE_TOKENS
) -> list[Sample]:
    """The samples, those that only a teacher judges with what the policy answers to their prompts now.

    A verdict is about the reply that it followed, and stays with it; and so does a reply for whose like the context has no room.
    """
    longest = resample_tokens(
        (len(sample.completion_ids) for sample in samples if sample.kind is not SampleKind.ANCHOR), most
    )
    rows = [
        i
        for i, sample in enumerate(samples)
        if sample.teacher_prompt_ids is not None
        and sample.streams is not None
        and sample.streams.directive_weight > 0.0
        and not any(sample.streams.advantages)
        and max(len(sample.prompt_ids), len(sample.teacher_prompt_ids)) + longest <= policy.max_context
    ]
    result = list(samples)
    if not rows:
        return result
    replies = policy.sample([samples[i].prompt_ids for i in rows], max_tokens=longest, seed=seed)
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


#: Log-probabilities of a sample's completion before the first optimizer step: o and o' (see `_own_logprobs`), each [C]. By the
#: identity of the sample: a resampled one is another object, and has none.
_OldLogprobs = Mapping[int, tuple[Tensor, Tensor]]


class _Batch:
    """The samples of an optimizer step, in parts that go through the model at once.

    Args:
        old_logprobs: of samples of this batch that were in an earlier one; those of all others are computed with the weights
            as they are. Without the old ones the ratio s/o would be 1 before each step, and would never be clipped.
    """

    def __init__(
        self, samples: Sequence[Sample], plan: StepPlan, *, old_logprobs: _OldLogprobs | None = None
    ) -> None:
        self._plan = plan
        self._parts = [_Part(part, old_logprobs or {}) for part in micro_batches(samples, plan.micro_tokens)]

    @property
    def samples(self) -> list[Sample]:
        """The samples, in the order of the parts."""
        return [sample for part in self._parts for sample in part.samples]

    @property
    def old_logprobs(self) -> _OldLogprobs:
        """Those of this batch's samples; empty before the first backward pass."""
        return {id(sample): pair for part in self._parts for sample, pair in part.old_logprobs}

    def remove(self, turn_id: str) -> None:
        """Be a batch without this sample."""
        for part in list(self._parts):
            if any(sample.turn_id == turn_id for sample in part.samples):
                others = part.without(turn_id)
                place = self._parts.index(part)
                self._parts[place : place + 1] = [others] if others.samples else []

    def backward(self, policy: LocalPolicy) -> dict[str, float]:
        """Accumulate the gradients; returns the metrics before the step.

        The first call also reads teacher, base model and the weights before the step.

        Raises:
            DoesNotFit: a sample alone is too much for the memory; the gradients are those of the samples before it.
        """
        live = float(sum(part.live_samples for part in self._parts))
        return _merged(self._each(lambda part: part.backward(policy, self._plan, live)))

    def measure(self, policy: LocalPolicy) -> dict[str, float]:
        """The metrics at the weights as they are."""
        live = float(sum(part.live_samples for part in self._parts))
        return _merged(self._each(lambda part: part.measure(policy, self._plan, live)))

    def kl_step(self, policy: LocalPolicy) -> float:
        """KL(weights before the step ‖ weights as they are) along the completions, nats a token, as the metric of this name."""
        distances = torch.cat(self._each(lambda part: part.distances(policy, self._plan)))
        return float(distances.mean()) if len(distances) else 0.0

    def _each(self, work: Callable[[_Part], R]) -> list[R]:
        """The work on each part; one that does not fit the memory is split for good."""
        results: list[R] = []
        while len(results) < len(self._parts):
            at = len(results)
            part = self._parts[at]
            result, fits = attempt(partial(work, part))
            if fits:
                results.append(cast(R, result))
            elif len(part.samples) == 1:
                index = sum(len(one.samples) for one in self._parts[:at])
                raise DoesNotFit(index, f"{part.samples[0].tokens} tokens alone do not fit the memory")
            else:
                self._parts[at : at + 1] = part.halves()
        return results


def by_teacher(samples: Sequence[Sample], plan: StepPlan) -> Iterator[tuple[list[int], Weights, Residual]]:
    """Yield the rows that have a teacher with whose weights it is and its residual weight.

    An anchor's teacher is the base model without a hint.
    """
    for is_anchor in (False, True):
        rows = [
            i
            for i, sample in enumerate(samples)
            if sample.teacher_prompt_ids is not None and (sample.kind is SampleKind.ANCHOR) is is_anchor
        ]
        if rows:
            yield (
                rows,
                Weights.BASE if is_anchor else plan.teacher,
                NO_RESIDUAL if is_anchor else plan.residual,
            )


class _Part:
    """A part of the batch that goes through the model at once.

    What does not change over the inner steps is read once, at the first backward pass, from the hidden states of as few forward
    passes as there are different ones: of the student (the very pass that carries the gradient), of the base model, and of the
    teacher behind its hints.
    """

    def __init__(self, samples: Sequence[Sample], earlier: _OldLogprobs) -> None:
        self.samples = tuple(samples)
        self._earlier = earlier
        self._prompts = [sample.prompt_ids for sample in samples]
        self._responses = [sample.completion_ids for sample in samples]
        self._batch: Batch | None = None
        self.live_samples = sum(_is_live(sample) for sample in samples)
        #: o and o' of each sample, see `_OldLogprobs`; with the samples, so that their identities stay valid.
        self.old_logprobs: list[tuple[Sample, tuple[Tensor, Tensor]]] = []

    def halves(self) -> list[_Part]:
        """Two parts of this one's samples; what was read is read again, except the weights before the step."""
        middle = (len(self.samples) + 1) // 2
        return [self._part_of(self.samples[:middle]), self._part_of(self.samples[middle:])]

    def without(self, turn_id: str) -> _Part:
        """A part of the other samples."""
        return self._part_of([sample for sample in self.samples if sample.turn_id != turn_id])

    def _part_of(self, samples: Sequence[Sample]) -> _Part:
        known = {id(sample): pair for sample, pair in self.old_logprobs}
        return _Part(samples, {**self._earlier, **known})

    def backward(self, policy: LocalPolicy, plan: StepPlan, live: float) -> dict[str, float]:
        """Add to the gradients, all or nothing, and return the metrics."""
        hidden, mask = policy.response_hidden(self._prompts, self._responses)
        if self._batch is None:
            self._batch = self._read(policy, plan, hidden.detach(), mask)
        loss, metrics = self._loss(policy, plan, live, self._batch, hidden)
        policy.accumulate(loss)
        return metrics

    @torch.no_grad()
    def measure(self, policy: LocalPolicy, plan: StepPlan, live: float) -> dict[str, float]:
        hidden, mask = policy.response_hidden(self._prompts, self._responses)
        if self._batch is None:
            self._batch = self._read(policy, plan, hidden, mask)
        _, metrics = self._loss(policy, plan, live, self._batch, hidden)
        return metrics

    @torch.no_grad()
    def distances(self, policy: LocalPolicy, plan: StepPlan) -> Tensor:
        """Each live token's part of the distance from the weights before the step, [N]; empty before the first backward pass."""
        if self._batch is None:
            # A part of one that was split or lost a sample is read again: what its samples had before the step is known.
            if any(id(sample) not in self._earlier for sample in self.samples):
                return torch.zeros(0, device=policy.device)
            hidden, mask = policy.response_hidden(self._prompts, self._responses)
            self._batch = self._read(policy, plan, hidden, mask)
        now, _ = policy.response_logprobs(
            self._prompts, self._responses, temperature=[s.loss_temperature for s in self.samples]
        )
        live = self._batch.mask & self._batch.live()[:, None]
        before, sampled = self._batch.trainer_logprobs[live], self._batch.sampling_logprobs[live]
        return staleness_weight(before, sampled, cap=plan.objective.staleness_cap) * kl_k3(before, now[live])

    @torch.no_grad()
    def _read(self, policy: LocalPolicy, plan: StepPlan, own: Tensor, mask: Tensor) -> Batch:
        """The batch, with what teacher, base model and the weights before the step say; own: the student's hidden states."""
        samples, responses = self.samples, self._responses
        at_loss = [sample.loss_temperature for sample in samples]
        base, _ = policy.response_hidden(self._prompts, responses, Weights.BASE)
        trainer_logprobs = policy.logprobs_of(own, mask, responses, temperature=at_loss)
        reported_logprobs = trainer_logprobs
        if any(
            s.kind is not SampleKind.ANCHOR and s.reported_temperature != s.loss_temperature for s in samples
        ):
            reported_logprobs = policy.logprobs_of(
                own,
                mask,
                responses,
                temperature=[
                    s.loss_temperature if s.kind is SampleKind.ANCHOR else s.reported_temperature
                    for s in samples
                ],
            )
        trainer_logprobs, reported_logprobs = trainer_logprobs.clone(), reported_logprobs.clone()
        for row, sample in enumerate(samples):
            count = len(sample.completion_ids)
            if id(sample) in self._earlier:
                trainer_logprobs[row, :count], reported_logprobs[row, :count] = self._earlier[id(sample)]
            pair = trainer_logprobs[row, :count], reported_logprobs[row, :count]
            self.old_logprobs.append((sample, pair))
        teachers = [
            _Teacher.read(policy, samples, rows, weights, residual, own=own, base=base)
            for rows, weights, residual in by_teacher(samples, plan)
        ]
        logits: Tensor | None = None
        if teachers and not policy.is_wide:
            logits = own.new_full((*mask.shape, policy.vocabulary_size), math.nan, dtype=torch.float32)
            for teacher in teachers:
                logits[teacher.rows] = teacher.logits(policy, slice(None))
        batch = build_batch(
            samples,
            trainer_logprobs=trainer_logprobs,
            reported_logprobs=reported_logprobs,
            base_logprobs=policy.logprobs_of(base, mask, responses, Weights.BASE, temperature=at_loss),
            teacher_logits=logits,
        )
        if teachers and policy.is_wide:
            return replace(batch, teacher_at=partial(_logits_at, policy, teachers, mask.shape[1]))
        return batch

    def _loss(
        self, policy: LocalPolicy, plan: StepPlan, live: float, batch: Batch, hidden: Tensor
    ) -> tuple[Tensor, dict[str, float]]:
        if not policy.is_wide:
            return compute_loss(plan.objective, batch, policy.logits(hidden), live_samples=live)
        return compute_loss(
            plan.objective, batch, hidden, live_samples=live, chunk=policy.positions, head=policy.logits
        )


@dataclass(frozen=True, slots=True)
class _Teacher:
    """What a teacher reads of some rows, as hidden states [b, C, D]: its logits [b, C, V] may be too much to hold.

    Attributes:
        rows: [b] of the part.
        hinted, plain, own: of the teacher behind the hint, of base model and student without it; None where nothing is carried along.
    """

    rows: Tensor
    weights: Weights
    residual: Residual
    hinted: Tensor
    plain: Tensor | None
    own: Tensor | None

    @classmethod
    def read(
        cls,
        policy: LocalPolicy,
        samples: Sequence[Sample],
        rows: Sequence[int],
        weights: Weights,
        residual: Residual,
        *,
        own: Tensor,
        base: Tensor,
    ) -> _Teacher:
        """Read what has not been read: an anchor's teacher is the base model behind the same prompt."""
        some = [samples[i] for i in rows]
        if weights is Weights.BASE and all(s.teacher_prompt_ids == s.prompt_ids for s in some):
            hinted = base[rows]
        else:
            hinted = base.new_zeros(len(rows), *base.shape[1:])
            read, _ = policy.response_hidden(
                [sample.teacher_prompt_ids or () for sample in some],
                [sample.completion_ids for sample in some],
                weights,
            )
            hinted[:, : read.shape[1]] = read
        carries = policy.keeps_residual(weights, residual)
        return cls(
            rows=torch.tensor(rows, device=base.device),
            weights=weights,
            residual=residual,
            hinted=hinted,
            plain=base[rows] if carries else None,
            own=own[rows] if carries else None,
        )

    def logits(self, policy: LocalPolicy, at: slice | tuple[Tensor, Tensor]) -> Tensor:
        """Logits [..., V] at some of [b, C]."""
        return policy.taught(
            self.hinted[at],
            None if self.plain is None else self.plain[at],
            None if self.own is None else policy.logits(self.own[at]),
            self.weights,
            self.residual,
        )


def _logits_at(policy: LocalPolicy, teachers: Sequence[_Teacher], columns: int, flat: Tensor) -> Tensor:
    """Logits [N, V] of the teachers of flat positions [N] in a part with so many columns."""
    row, column = torch.div(flat, columns, rounding_mode="floor"), flat % columns
    result = torch.full((len(flat), policy.vocabulary_size), math.nan, device=flat.device)
    for teacher in teachers:
        taught, number = (row[:, None] == teacher.rows).nonzero(as_tuple=True)
        if len(taught):
            result[taught] = teacher.logits(policy, (number, column[taught]))
    return result


def _is_live(sample: Sample) -> bool:
    """See `Batch.live`."""
    streams = sample.streams
    return streams is not None and (streams.directive_weight > 0 or any(streams.advantage_mask))


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
_TOKENS = {
    "clip_fraction": "policy_tokens",
    "topk_overlap": "directive_tokens",
    "teacher_shift": "reported_tokens",
}


def _merged(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Metrics of a whole batch from those of its parts."""
    values: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for metrics in parts:
        for name, value in metrics.items():
            values[name].append((value, metrics[_TOKENS.get(name, "live_tokens")]))
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
