"""The weights' side of the trainer: one policy, what it has learnt so far, and how an attempt at a new version goes.

`BaseVersionTrainer` is all of it but the weights; `LocalVersionTrainer` has them in this process, `trainer.tinker.version_trainer` on a Tinker server.

Everything here runs on the worker's one thread and knows nothing of the record. An attempt either leaves the policy at the new
weights (the caller publishes and calls `commit`, or fails to and calls `revert`) or exactly where it was.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from serving.model_digests import digest_served_model
from store.errors import AlignmentError
from store.lifecycle import DropReason
from store.manifest import ModelDigests
from store.settings import Settings, to_json
from store.texts import counted
from store.training_plan import TrainingPlan, read_plan, write_plan
from store.values import (
    BASE_VERSION,
    EXPLICIT_SOURCE,
    AdapterVersion,
    Completion,
    Json,
    LogprobMode,
    ScoredTurn,
    adapter_name,
)
from trainer.anchors import Anchors
from trainer.attestation import FixedText
from trainer.batch import Sample, SampleKind
from trainer.checkpoint import (
    finite,
    read_state,
    remove_version,
    verify_version,
    write_version,
)
from trainer.cost import (
    BUDGET_S,
    LEAST,
    MOST,
    Effort,
    Speed,
    affordable,
    estimate,
    gate_prompts,
    longest_text,
)
from trainer.gate import Gate
from trainer.hint_selection import HintSelection
from trainer.playbook import Playbook
from trainer.policy import LocalPolicy
from trainer.policy_progress import RATE_CUT, RATE_GAIN, PolicyProgress
from trainer.protocol import Edit, Policy, TurnRefusal, WrittenVersion
from trainer.protocol import Outcome as Outcome
from trainer.step import (
    MAX_RESAMPLE_TOKENS,
    PreparedBatch,
    StepPlan,
    prepare,
    resample_tokens,
    train,
    unlike_policy,
)
from trainer.wish_training import Shares, WishTraining, lost_wishes, wish_rows

#: After so many rejections in a row the live version itself stands at a bound, and whatever is learnt from there crosses it: each
#: further attempt begins from weights that are a tenth nearer to the base model than the last one did, at a rate that can take a
#: step and not undo it. Not below seven tenths: what a person taught is worth more than getting on (half was seen to lose all of it).
_PATIENCE, _WEAKER, _WEAKEST, _WEAKENED_RATE = 4, 0.9, 0.7, 1 / 4

#: A wish was followed well once, and is not followed well now: shares of the replies.
_ONCE_FOLLOWED, _WELL_FOLLOWED = 0.9, 0.95
#: A batch that asks for less of a whole step (`_VersionBatch.size`) is mostly thanks.
_LEAST_TEACHING = 0.75

P = TypeVar("P", bound=Policy)


@dataclass(frozen=True, slots=True, kw_only=True)
class _VersionBatch:
    """Everything that one version is trained on.

    Attributes:
        contexts: ids of those of `repeated` that are questions below other system prompts.
        size: how much of a whole step the batch asks for, in [0, 1].
        started: `time.monotonic` at the beginning of the attempt.
        prepare_s: seconds for the samples of turns and replay, without anchors.
    """

    prepared: PreparedBatch
    repeated: Sequence[Sample]
    unlearning: Sequence[Sample]
    anchors: Sequence[Sample]
    small_talk: Sequence[Sample]
    contexts: AbstractSet[str]
    size: float
    playbook: Playbook
    wishes_before: Shares
    started: float
    prepare_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _TrainedBatch:
    """A batch after the optimizer steps.

    Attributes:
        prepared: as in ``batch``, less the samples for which there was no memory.
        kept: share of the earlier training that is left; see `BaseVersionTrainer._step_back`.
        rate: learning rate of these steps.
        numbers: metrics of `trainer.step.train`.
        finished: `time.monotonic` after the last step.
    """

    batch: _VersionBatch
    prepared: PreparedBatch
    kept: float
    rate: float
    numbers: Mapping[str, float]
    finished: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """The gate's decision; ``rejected`` holds its objections, and none means the version may be published."""

    rejected: tuple[str, ...]
    gate_measures: Json
    wishes: list[Json]
    playbook_state: Json
    is_intact: bool


class BaseVersionTrainer(PolicyProgress, ABC, Generic[P]):
    """One policy between steps, wherever its weights are. `load` and `reset` change to another.

    Everything that a policy has learned is in its newest version's folder, from where `load` takes it.

    Raises:
        AdapterError: ``--resume-from-ckpt`` names no version of this model.
    """

    #: Share of the questions that wishes are measured by, beside what the effort leaves of them.
    wish_questions: float = 1.0
    _wishes: WishTraining

    def __init__(self, settings: Settings, plan: StepPlan, policy: P, effort: Effort = MOST) -> None:
        super().__init__(
            settings,
            plan,
            WishTraining(
                policy,
                settings.model_path,
                seed=settings.seed,
                share=effort.canaries * self.wish_questions,
                max_tokens=effort.anchor_tokens,
                contexts=effort.contexts,
            ),
        )
        self._policy = policy
        self._most_anchors = min(settings.learning.anchors, effort.anchors)
        self._gate = Gate(policy, settings.model_path, max_tokens=effort.gate_tokens, share=effort.canaries)
        self._anchors = Anchors(
            policy,
            settings.model_path,
            seed=settings.seed,
            max_tokens=effort.anchor_tokens,
            most_candidates=None if effort == MOST else 2 * effort.anchors,
        )
        self._fixed_text = FixedText(policy)
        self._new_wishes: Json = {}
        self._newly_intact = False
        self._before: Mapping[str, Any] | None = None
        self._trained: tuple[str, ...] = ()
        self._left_out: list[str] = []
        if settings.resume_from_ckpt:
            folder = Path(settings.resume_from_ckpt).expanduser()
            verify_version(folder, model=self._model_digests())
            self._load(folder)

    @property
    def policy(self) -> P:
        """The weights, to read and to sample from (`evals`); only an attempt moves them."""
        return self._policy

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know about how this trains, in sentences."""
        return ()

    @abstractmethod
    def _train(self, samples: Sequence[Sample], number: int) -> dict[str, float]:
        """Move the weights towards version ``number``; returns the metrics of `trainer.step.train`."""

    def _weaken(self, share: float) -> bool:
        """Bring the weights nearer to the base model's; returns whether that can be done where they are."""
        return False

    def _backend_metrics(self) -> Json:
        """Return further metrics of a version; called after `Policy.version_files`."""
        return {}

    def check(self) -> None:
        """Raise UpstreamError when an attempt would fail whatever the turns are; here nothing is far away."""

    def remove(self, folder: Path) -> None:
        """Remove a version's files for good. Raises: AdapterError."""
        remove_version(folder)

    def close(self) -> None:
        """Let go of what is held elsewhere; here nothing is."""

    def load(self, adapter: AdapterVersion) -> None:
        """Be a published version: weights, moments, learning rate, reservoir.

        Raises:
            AdapterError: its folder is missing, torn, or not what was published.
        """
        folder = Path(adapter.path)
        verify_version(
            folder,
            adapter.content_hash,
            manifest_hash=adapter.manifest_hash,
            model=self._model_digests(),
        )
        self._keep_progress()
        self._load(folder)
        self._resume(adapter.policy, adapter.version)

    def reset(self, name: str) -> None:
        """Be the base model, with nothing learnt, as version 0 of the policy ``name``."""
        self._keep_progress()
        self._policy.reset(self._settings.seed)
        self._take_state({})
        if self.name != name == self._settings.policy and self._settings.resume_from_ckpt:
            self._load(Path(self._settings.resume_from_ckpt).expanduser())
        self._resume(name, BASE_VERSION)

    def _model_digests(self) -> ModelDigests:
        return digest_served_model(self._settings.model_path)

    def _set_rate(self, rate: float) -> None:
        super()._set_rate(rate)
        self._policy.learning_rate = self._rate

    def _take_state(self, state: Mapping[str, Any]) -> None:
        super()._take_state(state)
        self._before = None

    def _load(self, folder: Path) -> None:
        self._policy.load_version(folder)
        self._take_state(read_state(folder))

    def _step_back(self) -> float:
        """Where nothing got past the gate for long, begin from less; returns how much of what was learnt is left, 1.0: all."""
        if self._rejected_in_a_row < _PATIENCE:
            return 1.0
        share = max(_WEAKEST, _WEAKER ** (self._rejected_in_a_row - _PATIENCE + 1))
        if not self._weaken(share):
            return 1.0
        self._set_rate(max(self._rate, self._settings.resolved_learning_rate * _WEAKENED_RATE))
        return share

    def attempt(
        self,
        turns: Sequence[ScoredTurn],
        replay: Sequence[ScoredTurn],
        recent: Sequence[int],
        number: int,
        remembered: Sequence[ScoredTurn] = (),
        edits: Sequence[Edit] = (),
    ) -> Outcome:
        """Make version ``number`` from these turns, and let the gate look at it.

        Args:
            recent: earlier verdicts, oldest first.
            remembered: the past turns of `remembered`, those that are still in the record.
            edits: what the owner changed in the playbook.

        Raises:
            AdapterError: the version cannot be written; the policy is as before.
        """
        started = time.monotonic()
        self._enter("teacher")
        turns = self._answer_anew(turns)
        selection = None
        if self._plan.selects_hints:
            selection = self._wishes.begin(remembered, version=number, edits=edits)
        prepared = prepare(
            self._policy,
            turns,
            self._plan,
            recent_verdicts=recent,
            version=self._counted_version,
            selection=selection,
        )
        playbook = selection.playbook if selection is not None else Playbook()
        unlearning = self._wishes.unlearning(playbook, [*remembered, *turns], number=self._seed_number)
        if not prepared.samples and not unlearning:
            return Outcome(refused=prepared.refused, parent_version=self.version)
        wishes_before = self._wishes.measure(playbook)
        if selection is not None:
            replay = self._wishes.rehearsal(
                playbook,
                wishes_before,
                taught={one.turn_id for one in prepared.samples if one.teacher_prompt_ids is not None},
                past=remembered,
                idle=[turn for turn in turns if turn.turn_id in prepared.refused],
                least=self._settings.learning.replay,
                step=self._steps,
            )
        size = 1.0 if unlearning else prepared.size
        elsewhere = self._wishes.other_contexts(playbook, [*remembered, *turns], step=self._steps)
        repeated = self._prepare_replay([*replay, *elsewhere], recent, selection)
        prepare_s = time.monotonic() - started
        batch = _VersionBatch(
            prepared=prepared,
            repeated=repeated.samples,
            unlearning=unlearning,
            anchors=self._draw_anchors(turns, size, playbook, wishes_before),
            small_talk=self._wishes.small_talk(playbook, number=self._seed_number)
            if self._plan.selects_hints
            else [],
            contexts={one.turn_id for one in elsewhere},
            size=size,
            playbook=playbook,
            wishes_before=wishes_before,
            started=started,
            prepare_s=prepare_s,
        )
        self._before = self._policy.snapshot()
        self._left_out.clear()
        try:
            trained = self._train_batch(batch, number)
            judged = self._judge(trained)
            written, metrics = self._write(trained, judged, number)
        except BaseException:
            self.revert()
            raise
        return self._finish(turns, trained, judged, written, metrics)

    def _answer_anew(self, turns: Sequence[ScoredTurn]) -> Sequence[ScoredTurn]:
        """Turns whose recorded reply cannot be trained on, with what the policy answers today and their hint; the others as they are.

        They are imported turns, which have no ids and get a rendered prompt, and turns that explicit feedback was given on late: after a
        batch had them, or after too many versions, or where today's policy would hardly have sampled the reply.
        """
        if not self._plan.reads_hints:
            return turns
        asked = {}
        young = []
        for turn in turns:
            if not turn.verdict.hint:
                continue
            age = self._counted_version - turn.adapter_version
            if not turn.prompt_token_ids and not turn.completion.token_ids:
                try:
                    ids = tuple(self._policy.render(turn.messages, turn.request.get("tools")))
                except (AlignmentError, ValueError):
                    continue  # refused as a turn whose prompt was not recorded
                if len(ids) < self._policy.max_context:
                    asked[turn.turn_id] = replace(turn, prompt_token_ids=ids)
            elif turn.is_late or (turn.verdict.source == EXPLICIT_SOURCE and age > self._plan.max_staleness):
                asked[turn.turn_id] = turn
            elif turn.verdict.source == EXPLICIT_SOURCE and age:
                young.append(turn)
        unlike = unlike_policy(self._policy, young, self._plan, version=self._counted_version)
        asked |= {turn.turn_id: turn for turn in young if turn.turn_id in unlike}
        answered = resample_replies(
            self._policy,
            list(asked.values()),
            seed=self._settings.seed + self._seed_number,
            version=self._counted_version,
            most=self._plan.resample_tokens,
        )
        return [{one.turn_id: one for one in answered}.get(turn.turn_id, turn) for turn in turns]

    def _prepare_replay(
        self, replay: Sequence[ScoredTurn], recent: Sequence[int], selection: HintSelection | None
    ) -> PreparedBatch:
        """Prepare past turns; where hints are read, with replies that the policy gives now."""
        if self._plan.reads_hints:
            replay = resample_replies(
                self._policy,
                replay,
                seed=self._settings.seed + self._steps,
                version=self._counted_version,
                most=self._plan.resample_tokens,
            )
        return prepare(
            self._policy,
            replay,
            self._plan,
            recent_verdicts=recent,
            version=self._counted_version,
            kind=SampleKind.REPLAY,
            selection=selection,
        )

    def _train_batch(self, batch: _VersionBatch, number: int) -> _TrainedBatch:
        """Move the weights; samples for which there was no memory are refused afterwards."""
        self._enter("training")
        kept = self._step_back()
        if kept < 1.0:
            # The wishes are measured again: what was taken off is no loss by the steps, and beside the live version nothing could ever pass.
            playbook = batch.playbook.without_best()
            batch = replace(batch, playbook=playbook, wishes_before=self._wishes.measure(playbook))
        rate = self._rate * (batch.size if self._settings.learning.rate_by_signal else 1.0)
        self._policy.learning_rate = rate
        samples = [
            *batch.prepared.samples,
            *batch.repeated,
            *batch.unlearning,
            *batch.small_talk,
            *batch.anchors,
        ]
        numbers = self._train(samples, number)
        return _TrainedBatch(
            batch=batch,
            prepared=_without(batch.prepared, self._left_out),
            kept=kept,
            rate=rate,
            numbers=numbers,
            finished=time.monotonic(),
        )

    def _draw_anchors(
        self, turns: Sequence[ScoredTurn], size: float, playbook: Playbook, shares: Shares
    ) -> list[Sample]:
        """The anchors of a step: half as many where they would only take back a wish.

        That is in a step of mostly thanks, while a wish that was followed well is not, and the live version has lost nothing that the gate
        counts. With all of them "no bold type" went back from .96 to .65 of the replies (lab/research/2026-11-27-anchors-of-thanks.md). After
        a rejection all of them hold again.

        Args:
            size: see `_VersionBatch`.
        """
        slips = any(
            wish.best >= _ONCE_FOLLOWED and shares.now.get(wish.text, 1.0) < _WELL_FOLLOWED
            for wish in playbook.active
        )
        has_fewer = slips and size < _LEAST_TEACHING and self._is_intact and not self._rejected_in_a_row
        return self._anchors.draw(
            (self._most_anchors + 1) // 2 if has_fewer else self._most_anchors,
            self._steps,
            turns=turns,
            labels=frozenset[str]().union(*(wish.labels for wish in playbook.active)),
        )

    def _judge(self, trained: _TrainedBatch) -> _Judged:
        """Run the gate on the trained weights and measure the wishes."""
        self._enter("gate")
        playbook, before = trained.batch.playbook, trained.batch.wishes_before
        verdict = self._gate.examine(self._policy, self._before)
        now = self._wishes.measure(playbook)
        state = self._wishes.to_json(self._wishes.after(playbook, now), taught=bool(trained.prepared.samples))
        return _Judged(
            rejected=(*verdict.rejected, *lost_wishes(playbook, before, now)),
            gate_measures=verdict.measures,
            wishes=wish_rows(playbook, before, now),
            playbook_state=state,
            is_intact=verdict.is_intact,
        )

    def _write(self, trained: _TrainedBatch, judged: _Judged, number: int) -> tuple[WrittenVersion, Json]:
        """Write the version's folder; returns it with its metrics."""
        self._enter("write")
        batch = trained.batch
        contexts = sum(one.turn_id in batch.contexts for one in batch.repeated)
        began = time.monotonic()
        files = self._policy.version_files(adapter_name(self.name, number))
        metrics: Json = finite(
            {
                **trained.numbers,
                **self._backend_metrics(),
                "turns": len(trained.prepared.samples),
                "replayed": len(batch.repeated) - contexts,
                "contexts": contexts,
                "anchors": len(batch.anchors),
                "learning_rate": trained.rate,
                "kept": trained.kept,
                "teach_s": batch.prepare_s,
                "train_s": trained.finished - batch.started,
                "gate_s": began - trained.finished,
                "gate": judged.gate_measures,
                "wishes": judged.wishes,
                "unlearning": len(batch.unlearning),
                "settings": to_json(self._settings),
            }
        )
        written = write_version(
            self._settings.adapters_folder_of(self.name),
            self.name,
            number,
            files,
            state={
                "steps": self._steps + 1,
                "learning_rate": min(self._settings.resolved_learning_rate, self._rate * RATE_GAIN),
                "reservoir": self._reservoir.add(self._to_keep(trained.prepared.samples)).to_json(),
                "playbook": judged.playbook_state,
                "intact": judged.is_intact,
            },
            metrics=metrics,
            model=self._model_digests(),
            attestation=self._fixed_text.attest(self._before, adapter_name(self.name, self.version)),
        )
        return written, {**metrics, "write_s": time.monotonic() - began}

    def _finish(
        self,
        turns: Sequence[ScoredTurn],
        trained: _TrainedBatch,
        judged: _Judged,
        written: WrittenVersion,
        metrics: Json,
    ) -> Outcome:
        """Keep what `commit` needs, restore the weights of a rejected version and return the outcome."""
        self._trained = self._to_keep(trained.prepared.samples)
        self._new_wishes, self._newly_intact = judged.playbook_state, judged.is_intact
        if judged.rejected:
            self.revert()
            self._set_rate(self._rate * RATE_CUT)
        reason = _reason(turns, trained.prepared.samples)
        if trained.kept < 1.0:
            reason += (
                f"; after {counted(self._rejected_in_a_row, 'rejected version')} in a row, "
                f"{trained.kept:.0%} is left of what was learnt before"
            )
        self._rejected_in_a_row += bool(judged.rejected)
        return Outcome(
            refused=trained.prepared.refused,
            parent_version=self.version,
            written=written,
            rejected=judged.rejected,
            reason=reason,
            metrics=metrics,
        )

    def _to_keep(self, samples: Sequence[Sample]) -> tuple[str, ...]:
        """Of what was trained, what is worth repeating: where hints are read, the turns that had one."""
        return tuple(
            sample.turn_id
            for sample in samples
            if sample.teacher_prompt_ids is not None or not self._plan.reads_hints
        )

    def commit(self, number: int) -> None:
        """The attempt was published as this version."""
        self.version = number
        self._steps += 1
        self._rejected_in_a_row = 0
        self._reservoir = self._reservoir.add(self._trained)
        self._wishes.load(self._new_wishes)
        self._is_intact = self._newly_intact
        self._set_rate(self._rate * RATE_GAIN)
        self._before = None

    def revert(self) -> None:
        """Be what the policy was before the attempt, to the bit."""
        if self._before is not None:
            self._policy.restore(self._before)
            self._before = None


def _without(prepared: PreparedBatch, left_out: Sequence[str]) -> PreparedBatch:
    """What was prepared, the samples that took more memory than there is refused."""
    gone = {sample.turn_id for sample in prepared.samples} & set(left_out)
    refusal = TurnRefusal(
        reason=DropReason.OUT_OF_MEMORY, detail="alone in a pass it took more memory than there is"
    )
    return PreparedBatch(
        samples=tuple(sample for sample in prepared.samples if sample.turn_id not in gone),
        refused={**prepared.refused, **dict.fromkeys(gone, refusal)},
    )


class LocalVersionTrainer(BaseVersionTrainer[LocalPolicy]):
    """The policy in this process.

    Args:
        budget_s: seconds that a version may take by the estimate.
        pinned: `state` of the attempt to replay: its effort, whatever this machine's speed is now.
        plan_home: where the plan is kept (`store.training_plan`); None: this model is measured, and nothing is kept.

    Raises:
        ConfigError: the model cannot be loaded.
        AdapterError: ``--resume-from-ckpt`` names no adapter of this model.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        budget_s: float = BUDGET_S,
        pinned: Json | None = None,
        plan_home: Path | None = None,
    ) -> None:
        policy = LocalPolicy(
            settings.model_path,
            rank=settings.lora_rank,
            learning_rate=settings.resolved_learning_rate,
            beta1=settings.learning.adam_beta1,
            update_clip=settings.learning.update_clip,
            seed=settings.seed,
            teacher=settings.teacher_model_name,
            quantize=settings.quantize == "4bit",
        )
        model, threads = digest_served_model(settings.model_path).base_model, torch.get_num_threads()
        known = read_plan(plan_home) if plan_home is not None else None
        if known is None or not known.is_of(model, threads):
            known = TrainingPlan(model=model, threads=threads, speed=asdict(policy.measure_speed()))
        self._entered: dict[str, float] = {}  # `LocalPolicy.clock` at the beginning of each phase
        self._speed, self._is_replay = Speed(**known.speed), pinned is not None
        effort, expected = affordable(
            self._speed,
            # past turns fill a small batch up to so many
            turns=max(settings.batch_size, settings.learning.replay),
            budget_s=budget_s,
            ratios=known.ratios,
        )
        longest = min(policy.max_context, longest_text(self._speed, budget_s=budget_s))
        #: Longest turn that is trained on, by time; `LocalPolicy.memory` says it by memory.
        policy.max_context = longest
        micro_tokens = policy.memory.micro_tokens
        if pinned is not None:
            effort, policy.max_context = Effort(**pinned["effort"]), int(pinned["max_context"])
            micro_tokens = int(pinned["micro_tokens"])
        plan = StepPlan.of(settings)
        plan = replace(
            plan,
            steps_per_batch=min(plan.steps_per_batch, effort.steps),
            resample_tokens=effort.resample_tokens,
            micro_tokens=min(plan.micro_tokens, micro_tokens),
        )
        self._effort = effort
        self.cost = replace(
            known,
            seconds=expected.by_phase,
            budget_s=budget_s,
            is_least=effort == LEAST,
            steps=plan.steps_per_batch + plan.anchor_steps,
            anchors=min(effort.anchors, settings.learning.anchors),
            probes=gate_prompts(effort),
            longest_text=longest if longest < policy.model_context else None,
        )
        self._plan_home = plan_home
        if plan_home is not None and pinned is None:
            write_plan(plan_home, self.cost)
        super().__init__(settings, plan, policy, effort)

    @property
    def notes(self) -> tuple[str, ...]:
        return self.cost.sentences()

    def state(self) -> Json:
        return {
            **super().state(),
            "effort": asdict(self._effort),
            "max_context": self._policy.max_context,
            "micro_tokens": self._plan.micro_tokens,
        }

    def attempt(
        self,
        turns: Sequence[ScoredTurn],
        replay: Sequence[ScoredTurn],
        recent: Sequence[int],
        number: int,
        remembered: Sequence[ScoredTurn] = (),
        edits: Sequence[Edit] = (),
    ) -> Outcome:
        """See `BaseVersionTrainer.attempt`; what it took corrects the next plan."""
        outcome = super().attempt(turns, replay, recent, number, remembered, edits)
        if outcome.written is not None and not self._is_replay:
            expected = estimate(
                self._speed, self._effort, turns=max(len(turns), self._settings.learning.replay)
            )
            self.cost = self.cost.with_measured(expected.by_phase, outcome.metrics["busy_s"])
            if self._plan_home is not None:
                write_plan(self._plan_home, self.cost)
        return outcome

    def _backend_metrics(self) -> Json:
        at = self._entered
        busy = {
            "teach": at["training"] - at["teacher"],
            "step": at["gate"] - at["training"],
            "gate": at["write"] - at["gate"],
        }
        return {"estimate_s": self.cost.total_s, "busy_s": busy}

    def _enter(self, phase: str) -> None:
        super()._enter(phase)
        self._entered[phase] = self._policy.clock()

    def _train(self, samples: Sequence[Sample], number: int) -> dict[str, float]:
        return train(
            self._policy,
            samples,
            self._plan,
            seed=self._settings.seed + 1_000 * (self._steps + 1),
            leave_out=self._left_out.append,
        )

    def _weaken(self, share: float) -> bool:
        self._policy.weaken(share)
        return True


def _reason(turns: Sequence[ScoredTurn], samples: Sequence[Any]) -> str:
    """What a person would call the cause: how many of their turns, and the commonest of their complaints."""
    ids = {sample.turn_id for sample in samples}
    used = [turn for turn in turns if turn.turn_id in ids]
    if not used:
        return "unlearns a withdrawn wish"
    hints = [turn.verdict.hint for turn in used if turn.verdict.hint]
    praised = sum(1 for turn in used if turn.verdict.value == 1)
    blamed = sum(1 for turn in used if turn.verdict.value == -1)
    parts = [counted(blamed, "complaint")] * bool(blamed) + [f"{praised} thanks"] * bool(praised)
    text = counted(len(used), "turn") + (f": {', '.join(parts)}" if parts else "")
    if hints:
        newest = " ".join(hints[-1].split())
        text += f'; "{newest if len(newest) <= 60 else newest[:59] + "…"}"'
    return text


def resample_replies(
    policy: Policy, turns: Sequence[ScoredTurn], *, seed: int, version: int, most: int = MAX_RESAMPLE_TOKENS
) -> list[ScoredTurn]:
    """Past complaints with what the policy answers to their prompts today; a turn without a hint or an answer is left out.

    The hint still says what the person wants there, and the teacher who reads it can judge any answer. The verdict was about
    the old answer and does not come along.
    """
    asked = [turn for turn in turns if turn.verdict.hint and turn.prompt_token_ids]
    if not asked:
        return []
    longest = resample_tokens((len(turn.completion.token_ids or ()) for turn in asked), most)
    replies = policy.sample([turn.prompt_token_ids for turn in asked], max_tokens=longest, seed=seed)
    return [
        replace(
            turn,
            completion=Completion(
                text="",
                token_ids=reply.token_ids,
                sampling_logprobs=reply.logprobs,
                finish_reason="stop" if reply.finished else "length",
            ),
            temperature=1.0,
            logprob_mode=LogprobMode.RAW,
            adapter_version=version,
            verdict=replace(turn.verdict, value=0),
        )
        for turn, reply in zip(asked, replies, strict=True)
        if reply.token_ids
    ]
