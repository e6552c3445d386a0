"""A version, from what waits in the record to a folder on disk. Reads top to bottom: `BaseVersionTrainer.attempt` is the recipe.

1. Review the wishes: merge those that do the same to the model, leave out those that it does not follow when asked.
2. Prepare the samples: accepted replies that were served with the wishes, complaints, rated replies; where they are few, the teacher
   answers past questions of the person and public ones. Anchors hold the version to the base model where a prompt states an instruction.
3. Begin at the base model (`rl`: at the live version) and take the optimizer steps.
4. Gate: facts, tool calls, explicit requests; and how many replies follow each wish without it in the prompt.
5. Write the version.

`LocalVersionTrainer` has the weights in this process, `trainer.tinker.version_trainer` on a Tinker server. Everything here runs on the worker's
one thread and knows nothing of the record. A version that begins at the base model is a function of the base model, the job and the seed
alone: the same job without a turn gives the version that never saw it.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from serving.model_digests import digest_served_model
from store.calibration import Calibration, read_calibration, write_calibration
from store.manifest import ModelDigests
from store.settings import Settings, to_json
from store.texts import counted
from store.training_plan import TrainingPlan, read_plan, write_plan
from store.values import BASE_VERSION, AdapterVersion, Json, ScoredTurn, adapter_name
from store.wish_states import MAX_WISHES, by_age, in_prompt
from trainer.advantages import wish_streams
from trainer.attestation import FixedText
from trainer.batch import Sample, SampleKind
from trainer.calibrate import calibrate
from trainer.canaries import load_canaries
from trainer.checkpoint import finite, read_rank, remove_version, verify_version, write_version
from trainer.cost import (
    BUDGET_S,
    LEAST,
    Effort,
    Speed,
    affordable,
    estimate,
    gate_prompts,
    longest_text,
)
from trainer.file_samples import FileSamples, read_files
from trainer.gate import Gate, GateMeasures
from trainer.plan import StepPlan
from trainer.policy import LocalPolicy
from trainer.preview import Previewer
from trainer.protocol import AttemptPhase, Outcome, Policy, Preview, TurnRefusal, VersionJob
from trainer.samples import ActiveWishes, PreparedBatch, is_repetitive, prepare, weighed
from trainer.step import train
from trainer.wish_meter import PROBES, Followed, WishMeter
from trainer.wish_review import Reviewed, WishReview, falls_behind, wish_rows
from wire.wish_text import join_wishes

P = TypeVar("P", bound=Policy)

#: Longest reply that the teacher gives for a sample, in tokens.
TEACHER_TOKENS = 96
#: An anchor weighs so much as a reply with the wish: a request that is not obeyed any more costs a person more than a wish half learnt.
#: Measured: lab/research/2026-12-01-small-steps.md.
ANCHOR_WEIGHT = 2.0
#: Where the gate objects, the version is brought nearer to the base model: so much of its way is left. Between a fine-tuned model and the one
#: that it came from lie models that have most of what was learnt and more of what was known (Wortsman et al. 2022).
SHARES = (1.0, 0.75, 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trained:
    """A job after the optimizer steps; times are of `time.monotonic`."""

    prepared: PreparedBatch
    reviewed: Reviewed
    samples: Sequence[Sample]
    numbers: Mapping[str, float]
    started: float
    prepared_at: float
    finished: float


class BaseVersionTrainer(ABC, Generic[P]):
    """One policy between versions, wherever its weights are. `load` and `reset` change to another.

    Attributes:
        name, version: of the live version that the weights are, where the method begins there.
        phase: what the attempt under way does now; read from another thread.
        on_review: see `trainer.protocol.VersionTrainer`.
        calibration: of the base model.

    Raises:
        AdapterError: ``--resume-from-ckpt`` names no version of this model.
    """

    def __init__(self, settings: Settings, plan: StepPlan, policy: P, effort: Effort) -> None:
        self._settings, self._plan, self._policy, self._effort = settings, plan, policy, effort
        self.name, self.version = settings.policy, BASE_VERSION
        self.phase = AttemptPhase()
        self.on_review: Callable[[Outcome], None] = lambda found: None
        self._before: Mapping[str, Any] | None = None
        self._left_out: dict[str, TurnRefusal] = {}
        self._canaries = load_canaries(settings.model_path)
        self.calibration = self._calibrated()
        self._gate = Gate(
            policy,
            settings.model_path,
            share=effort.gate,
            base=GateMeasures(**self.calibration.gate),
        )
        self._meter = WishMeter(policy, self._canaries.plain_questions(), self.calibration.placement)
        self._review = WishReview(policy, self._meter, self.calibration)
        self._fixed_text = FixedText(policy)
        self._resume()

    def _calibrated(self) -> Calibration:
        """What is known of the base model; measured where nothing is."""
        model = self._model_key()
        known = read_calibration(self._settings.home, model)
        if known is None:
            self._enter("calibration")
            gate = Gate(self._policy, self._settings.model_path)
            known = calibrate(
                self._policy,
                model,
                self._canaries,
                gate,
                anchors=self._plan.anchors,
                seed=self._settings.seed,
            )
            write_calibration(self._settings.home, known)
        return known

    @property
    def policy(self) -> P:
        """The weights, to read and to sample from; only an attempt moves them."""
        return self._policy

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know about how this trains, in sentences."""
        return ()

    @abstractmethod
    def _train(self, samples: Sequence[Sample], number: int, plan: StepPlan) -> dict[str, float]:
        """Move the weights towards version ``number``; returns metrics."""

    def _scale(self, share: float) -> bool:
        """Multiply the way from the base model by ``share``; returns whether that can be done where the weights are."""
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
        """Be a published version. Its weights are only read where the method goes on from them.

        Raises:
            AdapterError: its folder is missing, torn, or not what was published.
        """
        folder = Path(adapter.path)
        verify_version(
            folder, adapter.content_hash, manifest_hash=adapter.manifest_hash, model=self._model_digests()
        )
        if not self._plan.begins_at_base:
            self._policy.load_version(folder)
        self._before = None
        self.name, self.version = adapter.policy, adapter.version

    def reset(self, name: str) -> None:
        """Be the base model, with nothing learnt, as version 0 of the policy ``name``."""
        self._policy.reset(self._settings.seed)
        self._before = None
        if self.name != name == self._settings.policy:
            self._resume()
        self.name, self.version = name, BASE_VERSION

    def _resume(self) -> None:
        """Be the checkpoint of ``--resume-from-ckpt`` where one is given. Raises: AdapterError: it is none of this model."""
        if self._settings.resume_from_ckpt:
            folder = Path(self._settings.resume_from_ckpt).expanduser()
            verify_version(folder, model=self._model_digests())
            self._policy.load_version(folder)

    def _model_digests(self) -> ModelDigests:
        return digest_served_model(self._settings.model_path)

    def _model_key(self) -> str:
        """By which the calibration of a base model is known: its digest and that of the canaries it was measured with."""
        return f"{self._model_digests().base_model} {self._canaries.digest}"

    def _enter(self, phase: str) -> None:
        self.phase = AttemptPhase(phase, time.time())

    def attempt(self, job: VersionJob) -> Outcome:
        """Make a version, and let the gate look at it.

        Returns:
            An outcome without a version where nothing in the job has anything to teach.

        Raises:
            AdapterError: the version cannot be written; the policy is as before.
        """
        started = time.monotonic()
        self._enter("teacher")
        reviewed = self._review.review(job.wishes) if self._plan.reads_wishes else Reviewed()
        self.on_review(Outcome(refused={}, parent_version=self._parent, merged=reviewed.merged))
        wishes = ActiveWishes(
            texts=reviewed.texts,
            place=self.calibration.placement,
            stated=reviewed.stated,
            wordings=reviewed.wordings,
        )
        prepared = prepare(
            self._policy,
            self._plan,
            job.turns,
            job.served,
            wishes,
            recent_verdicts=job.recent,
            version=self.version,
        )
        own = list(prepared.samples)
        if wishes.text:
            own += self._teacher_samples(job, wishes, self._plan.samples - len(own))
        examples = self._examples(job)
        if not own and not examples.samples:
            return Outcome(
                refused=prepared.refused,
                parent_version=self._parent,
                merged=reviewed.merged,
                measures=reviewed.measures or {},
            )
        anchors = self._anchors(len(own)) if wishes.text else []
        own += examples.samples
        samples = weighed([*own, *anchors]) if wishes.text or examples.samples else own
        prepared_at = time.monotonic()
        self._before = self._policy.snapshot()
        self._left_out.clear()
        try:
            if self._plan.begins_at_base:
                self._policy.reset(self._settings.seed)
                self._resume()
            self._enter("training")
            trained = _Trained(
                prepared=prepared,
                reviewed=reviewed,
                samples=samples,
                numbers={
                    **self._train(
                        samples, job.number, replace(self._plan, passes=job.passes * self._plan.passes)
                    ),
                    **examples.numbers,
                },
                started=started,
                prepared_at=prepared_at,
                finished=time.monotonic(),
            )
            return self._judge_and_write(job, trained)
        except BaseException:
            self.revert()
            raise

    @property
    def _parent(self) -> int:
        return BASE_VERSION if self._plan.begins_at_base else self.version

    def _anchors(self, count: int) -> list[Sample]:
        """Replies of the base model to messages with an instruction: at most as many as samples, and as the plan has."""
        return [
            Sample(
                turn_id=f"anchor-{number}",
                kind=SampleKind.ANCHOR,
                prompt_ids=(prompt := self._meter.prompt(message)),
                completion_ids=tuple(reply),
                sampling_logprobs=None,
                teacher_prompt_ids=prompt,
                streams=wish_streams(self._plan.method, len(reply), alpha=self._plan.objective.alpha),
                weight=ANCHOR_WEIGHT,
            )
            for number, (message, reply) in enumerate(
                self.calibration.anchors[: min(count, self._plan.anchors)]
            )
        ]

    def _teacher_samples(self, job: VersionJob, wishes: ActiveWishes, count: int) -> list[Sample]:
        """Replies of the teacher, who reads the wishes: to past questions of the person first, then to public ones."""
        room = self._policy.max_context - TEACHER_TOKENS
        own = [turn.messages[-1]["content"] for turn in (*job.turns, *job.served) if _is_question(turn)]
        own = [question for question in own if len(self._meter.prompt(question, wishes.text)) <= room]
        questions = [*dict.fromkeys(own), *self._canaries.plain_questions()[PROBES:]]
        questions = questions or list(self._canaries.plain_questions())
        if count <= 0:
            return []
        asked = [questions[i % len(questions)] for i in range(count)]
        pairs = [
            (self._meter.prompt(question), self._meter.prompt(question, wishes.text)) for question in asked
        ]
        replies = self._policy.sample(
            [wished for _, wished in pairs],
            max_tokens=TEACHER_TOKENS,
            temperature=self._policy.sampling_temperature,
            seed=self._settings.seed,
            weights=self._plan.teacher,
        )
        return [
            Sample(
                turn_id=f"teacher-{number}",
                kind=SampleKind.WISH,
                prompt_ids=plain,
                completion_ids=reply.token_ids,
                sampling_logprobs=None,
                teacher_prompt_ids=wished,
                streams=wish_streams(
                    self._plan.method,
                    len(reply.token_ids),
                    weight=self._plan.w_opd,
                    alpha=self._plan.objective.alpha,
                ),
            )
            for number, ((plain, wished), reply) in enumerate(zip(pairs, replies, strict=True))
            if reply.token_ids and not is_repetitive(reply.token_ids)
        ]

    def _examples(self, job: VersionJob) -> FileSamples:
        """The samples of uploaded files. Only weights in this process learn them."""
        return FileSamples()

    def _facts_told(self, reviewed: Reviewed) -> float:
        return self._gate.probe.facts_with(join_wishes(reviewed.texts), self.calibration.placement)

    def _judge_and_write(self, job: VersionJob, trained: _Trained) -> Outcome:
        self._enter("gate")
        told = cache(lambda: self._facts_told(trained.reviewed)) if trained.reviewed.texts else None
        verdict, kept = self._gate.examine(told), 1.0
        for share in SHARES[1:] if self._plan.begins_at_base else ():
            if not verdict.rejected or not self._scale(share / kept):
                break
            verdict, kept = self._gate.examine(told), share
        followed = self._review.followed(trained.reviewed)
        rows = wish_rows(followed)
        rejected = verdict.rejected or (() if job.files else falls_behind(rows, job.live))
        judged_at = time.monotonic()
        self._enter("write")
        kinds = {kind: sum(one.kind is kind for one in trained.samples) for kind in SampleKind}
        metrics: Json = finite(
            {
                **trained.numbers,
                "turns": len({one.turn_id for one in trained.prepared.samples}),
                "samples": {kind.value: count for kind, count in kinds.items()},
                "learning_rate": self._policy.learning_rate,
                "kept": kept,
                "passes": job.passes,
                "teach_s": trained.prepared_at - trained.started,
                "train_s": trained.finished - trained.prepared_at,
                "gate_s": judged_at - trained.finished,
                "gate": verdict.measures,
                "wishes": rows,
                "settings": to_json(self._settings),
            }
        )
        files = self._policy.version_files(adapter_name(self.name, job.number))
        metrics |= finite(self._backend_metrics())
        written = write_version(
            self._settings.adapters_folder_of(self.name),
            self.name,
            job.number,
            files,
            metrics=metrics,
            model=self._model_digests(),
            attestation=self._fixed_text.attest(
                None if self._plan.begins_at_base else self._before, adapter_name(self.name, self._parent)
            ),
            home=self._settings.home,
        )
        gone = self._left_out
        refused = {
            **trained.prepared.refused,
            **{turn.turn_id: gone[turn.turn_id] for turn in job.turns if turn.turn_id in gone},
        }
        if rejected:
            self.revert()
        return Outcome(
            refused=refused,
            used=tuple({one.turn_id: None for one in trained.prepared.samples if one.turn_id not in gone}),
            parent_version=self._parent,
            written=written,
            rejected=rejected,
            reason=_reason(job, trained),
            metrics={**metrics, "write_s": time.monotonic() - judged_at},
            merged=trained.reviewed.merged,
            measures={
                number: {**measure, **_weights(job, number, None if rejected else followed.get(number))}
                for number, measure in (trained.reviewed.measures or {}).items()
            },
        )

    def preview(self, job: VersionJob, past: Sequence[ScoredTurn], live: Path | None) -> Preview | None:
        """See `trainer.protocol.VersionTrainer.preview`; here the weights are elsewhere."""
        return None

    def commit(self, number: int) -> None:
        """The attempt was published as this version."""
        self.version = number
        self._before = None

    def revert(self) -> None:
        """Be what the policy was before the attempt, to the bit."""
        if self._before is not None:
            self._policy.restore(self._before)
            self._before = None


def _is_question(turn: ScoredTurn) -> bool:
    """Whether a turn is one question in plain words, which can be asked again."""
    return len(turn.messages) == 1 and isinstance(turn.messages[-1].get("content"), str)


def _weights(job: VersionJob, number: int, followed: Followed | None) -> Json:
    """How far the weights of this version follow a wish; None: what is known of the version that stays live."""
    if followed is not None:
        return {"weights": followed.weights, "version": job.number}
    known = next((wish.measures for wish in job.wishes if wish.wish_id == number), {})
    return {name: known[name] for name in ("weights", "version") if name in known}


def _reason(job: VersionJob, trained: _Trained) -> str:
    """What a person would call the cause: the wishes that are learnt, and how many of their turns."""
    turns = len({one.turn_id for one in trained.prepared.samples})
    wishes = trained.reviewed.texts
    examples = sum(one.kind is SampleKind.EXAMPLE for one in trained.samples)
    if examples and not wishes:
        files = counted(len({one.file_id for one in job.files}), "uploaded file")
        return f"{counted(examples, 'example')} of {files}"
    if not wishes:
        return counted(turns, "rated turn")
    newest = " ".join(wishes[-1].split())
    quoted = f'"{newest if len(newest) <= 60 else newest[:59] + "…"}"'
    others = f" and {counted(len(wishes) - 1, 'other wish', 'other wishes')}" if len(wishes) > 1 else ""
    return f"{quoted}{others}, from {counted(turns, 'turn')}"


class LocalVersionTrainer(BaseVersionTrainer[LocalPolicy]):
    """The policy in this process.

    Args:
        budget_s: seconds that a version may take by the estimate.

    Raises:
        ConfigError: the model cannot be loaded.
        AdapterError: ``--resume-from-ckpt`` names no adapter of this model.
    """

    def __init__(self, settings: Settings, *, budget_s: float = BUDGET_S) -> None:
        policy = LocalPolicy(
            settings.model_path,
            rank=settings.lora_rank,
            learning_rate=settings.resolved_learning_rate,
            seed=settings.seed,
            teacher=settings.teacher_model_name,
            quantize=settings.quantize == "4bit",
        )
        model, threads = digest_served_model(settings.model_path).base_model, torch.get_num_threads()
        known = read_plan(settings.home)
        if known is None or not known.is_of(model, threads):
            known = TrainingPlan(model=model, threads=threads, speed=asdict(policy.measure_speed()))
        self._entered: dict[str, float] = {}  # `LocalPolicy.clock` at the beginning of each phase
        self._speed = Speed(**known.speed)
        plan = StepPlan.of(settings)
        effort, expected = affordable(self._speed, passes=plan.passes, budget_s=budget_s, ratios=known.ratios)
        longest = min(policy.max_context, longest_text(self._speed, budget_s=budget_s))
        #: Longest turn that is trained on, by time; `LocalPolicy.memory` says it by memory.
        policy.max_context = longest
        plan = replace(
            plan,
            samples=min(plan.samples, effort.samples),
            anchors=min(plan.anchors, effort.anchors),
            micro_tokens=min(plan.micro_tokens, policy.memory.micro_tokens),
        )
        steps = plan.passes * max(1, round((plan.samples + plan.anchors) / plan.step_samples))
        self.cost = replace(
            known,
            seconds=expected.by_phase,
            budget_s=budget_s,
            is_least=effort == LEAST,
            steps=steps,
            anchors=plan.anchors,
            probes=gate_prompts(effort),
            longest_text=longest if longest < policy.model_context else None,
        )
        write_plan(settings.home, self.cost)
        super().__init__(settings, plan, policy, effort)

    @property
    def notes(self) -> tuple[str, ...]:
        return self.cost.sentences()

    def attempt(self, job: VersionJob) -> Outcome:
        """See `BaseVersionTrainer.attempt`; what it took corrects the next plan."""
        outcome = super().attempt(job)
        if outcome.written is not None and not job.files:
            # In processor time: on a machine that is busy with replies a version takes longer, and is no smaller for it.
            expected = estimate(self._speed, self._effort, passes=job.passes * self._plan.passes).by_phase
            self.cost = self.cost.with_measured(expected, outcome.metrics["busy_s"])
            write_plan(self._settings.home, self.cost)
        return outcome

    def preview(self, job: VersionJob, past: Sequence[ScoredTurn], live: Path | None) -> Preview | None:
        """See `trainer.protocol.VersionTrainer.preview`; a version that is rejected is undone."""
        if live is not None and read_rank(live) != self._settings.lora_rank:
            return None  # it cannot be loaded beside the new one
        self._enter("preview")
        previewer = Previewer(
            self._policy,
            served=join_wishes(wish.text for wish in in_prompt(job.wishes)),
            taught=join_wishes(wish.text for wish in by_age(job.wishes)[-MAX_WISHES:]),
            place=self.calibration.placement,
        )
        found = previewer.preview(
            past, lambda: self._as_live(live), rejects=not self._settings.custom_rm_path
        )
        if found is not None and found.rejected:
            self.revert()
        return found

    @contextmanager
    def _as_live(self, folder: Path | None) -> Iterator[None]:
        """Be the live version inside."""
        now = self._policy.snapshot()
        try:
            if folder is None:
                self._policy.reset(self._settings.seed)
            else:
                self._policy.load_version(folder)
            yield
        finally:
            self._policy.restore(now)

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

    def _examples(self, job: VersionJob) -> FileSamples:
        return read_files(self._policy, job.files)

    def _scale(self, share: float) -> bool:
        self._policy.scale(share)
        return True

    def _train(self, samples: Sequence[Sample], number: int, plan: StepPlan) -> dict[str, float]:
        return train(
            self._policy, samples, plan, seed=self._settings.seed, leave_out=self._left_out.__setitem__
        )
