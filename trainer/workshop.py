"""The weights' side of the trainer: one policy, what it has learnt so far, and how an attempt at a new version goes.

`SharedWorkshop` is all of it but the weights; `Workshop` has them in this process, `trainer.tinker.workshop` on a Tinker server.

Everything here runs on the worker's one thread and knows nothing of the record. An attempt either leaves the policy at the new
weights (the caller publishes and calls `adopt`, or fails to and calls `undo`) or exactly where it was.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from store.settings import Settings, to_json
from store.values import (
    BASE_VERSION,
    AdapterVersion,
    Completion,
    Json,
    LogprobMode,
    ScoredTurn,
    adapter_name,
)
from trainer.anchors import Anchors
from trainer.batch import Sample, SampleKind
from trainer.checkpoint import finite, read_state, remove_version, verify_version, write_version
from trainer.gate import Gate
from trainer.hindsight import distinct_hints
from trainer.policy import LocalPolicy
from trainer.protocol import Outcome as Outcome
from trainer.protocol import Policy
from trainer.replay import Reservoir
from trainer.step import MAX_ANEW, StepPlan, prepare, train

#: After a rejection the learning rate is halved, down to this share of what was asked for; every published version wins
#: back a quarter.
_RATE_FLOOR, _RATE_CUT, _RATE_GAIN = 1 / 64, 0.5, 1.25
#: After so many rejections in a row the live version itself stands at a bound, and whatever is learnt from there crosses it: each
#: further attempt begins from weights that are a tenth nearer to the base model than the last one did, at a rate that can take a
#: step and not undo it. Not below seven tenths: what a person taught is worth more than getting on (half was seen to lose all of it).
_PATIENCE, _WEAKER, _WEAKEST, _WEAKENED_RATE = 4, 0.9, 0.7, 1 / 4

P = TypeVar("P", bound=Policy)


class SharedWorkshop(ABC, Generic[P]):
    """The policy between steps, wherever its weights are.

    Raises:
        AdapterError: ``--resume-from-ckpt`` names no version of this model.
    """

    def __init__(self, settings: Settings, plan: StepPlan, policy: P) -> None:
        self._settings = settings
        self._plan = plan
        self._policy = policy
        self._gate = Gate(policy, settings.model_path)
        self._anchors = Anchors(
            policy,
            settings.model_path,
            seed=settings.seed,
            choice=settings.anchor_choice,
            bound=settings.anchor_bound,
            most_weight=settings.anchor_weight,
            excuse=1.0 / (1.0 - settings.teacher_carry),
        )
        self.version = BASE_VERSION
        self._steps = 0
        self._rate = settings.resolved_learning_rate
        self._reservoir = Reservoir(seed=settings.seed)
        self._before: Mapping[str, Any] | None = None
        self._trained: tuple[str, ...] = ()
        self._rejected_in_a_row = 0
        if settings.resume_from_ckpt:
            folder = Path(settings.resume_from_ckpt).expanduser()
            verify_version(folder)
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

    def _told(self) -> Json:
        """What else belongs into a version's metrics, once its files are made."""
        return {}

    def check(self) -> None:
        """Raise UpstreamError when an attempt would fail whatever the turns are; here nothing is far away."""

    def remove(self, folder: Path) -> None:
        """Remove a version's files for good. Raises: AdapterError."""
        remove_version(folder)

    def close(self) -> None:
        """Let go of what is held elsewhere; here nothing is."""

    def become(self, adapter: AdapterVersion) -> None:
        """Be a published version: weights, moments, learning rate, reservoir.

        Raises:
            AdapterError: its folder is missing, torn, or not what was published.
        """
        folder = Path(adapter.path)
        verify_version(folder, adapter.content_hash)
        self._load(folder)
        self.version = adapter.version

    def start_over(self) -> None:
        """Be the bare base model again, with nothing learnt."""
        self._policy.reset(self._settings.seed)
        self._take_state({})
        self.version = BASE_VERSION

    def _load(self, folder: Path) -> None:
        self._policy.load_version(folder)
        self._take_state(read_state(folder))

    def _take_state(self, state: Mapping[str, Any]) -> None:
        self._steps = int(state.get("steps", 0))
        self._set_rate(float(state.get("learning_rate", self._settings.resolved_learning_rate)))
        saved = state.get("reservoir")
        self._reservoir = Reservoir.from_json(saved) if saved else Reservoir(seed=self._settings.seed)
        self._before = None
        self._rejected_in_a_row = 0

    def _step_back(self) -> float:
        """Where nothing got past the gate for long, begin from less; returns how much of what was learnt is left, 1.0: all."""
        if self._rejected_in_a_row < _PATIENCE:
            return 1.0
        share = max(_WEAKEST, _WEAKER ** (self._rejected_in_a_row - _PATIENCE + 1))
        if not self._weaken(share):
            return 1.0
        self._set_rate(max(self._rate, self._settings.resolved_learning_rate * _WEAKENED_RATE))
        return share

    def _set_rate(self, rate: float) -> None:
        asked = self._settings.resolved_learning_rate
        self._rate = min(asked, max(asked * _RATE_FLOOR, rate))
        self._policy.learning_rate = self._rate

    def draw_replay(self, turns: Sequence[ScoredTurn]) -> tuple[str, ...]:
        """Ids of past turns to repeat beside these: as many as these lack to the number of teaching ones a step is to have.

        Where hints are read, a batch of thanks teaches nothing against its anchors, and what was learnt wears away until the
        person complains anew. A batch that is full of complaints needs no others, and is only slowed down by them.
        """
        teaching = sum(bool(turn.verdict.hint) or not self._plan.reads_hints for turn in turns)
        missing = self._settings.replay - teaching
        if missing <= 0:
            return ()
        return self._reservoir.draw(missing, self._steps, exclude={turn.turn_id for turn in turns})

    @property
    def remembered(self) -> tuple[str, ...]:
        """Ids of past turns of which the teacher hears what was said, oldest first."""
        return self._reservoir.newest if self._plan.reads_hints and self._plan.most_hints > 1 else ()

    def attempt(
        self,
        turns: Sequence[ScoredTurn],
        replay: Sequence[ScoredTurn],
        recent: Sequence[int],
        number: int,
        remembered: Sequence[ScoredTurn] = (),
    ) -> Outcome:
        """Make version ``number`` from these turns, and let the gate look at it.

        Args:
            recent: earlier verdicts, oldest first.
            remembered: the past turns of `remembered`, those that are still in the record.

        Raises:
            AdapterError: the version cannot be written; the policy is as before.
        """
        started = time.monotonic()
        policy, plan = self._policy, self._plan
        hints = distinct_hints([*remembered, *turns])
        prepared = prepare(policy, turns, plan, recent_verdicts=recent, version=self.version, hints=hints)
        if not prepared.samples:
            return Outcome(refused=prepared.refused, parent_version=self.version)
        if plan.reads_hints:
            replay = ask_again(policy, replay, seed=self._settings.seed + self._steps, version=self.version)
        repeated = prepare(
            policy,
            replay,
            plan,
            recent_verdicts=recent,
            version=self.version,
            kind=SampleKind.REPLAY,
            hints=hints,
        )
        anchors = self._anchors.draw(self._settings.anchors, self._steps, turns=turns, replayed=replay)
        self._before = policy.snapshot()
        try:
            kept = self._step_back()
            rate = self._rate * (prepared.size if self._settings.rate_by_signal else 1.0)
            policy.learning_rate = rate
            numbers = self._train([*prepared.samples, *repeated.samples, *anchors], number)
            trained_s = time.monotonic() - started
            verdict = self._gate.examine(policy, self._before)
            files = policy.version_files(adapter_name(self._settings.policy, number))
            metrics: Json = finite(
                {
                    **numbers,
                    **self._told(),
                    "turns": len(prepared.samples),
                    "replayed": len(repeated.samples),
                    "anchors": len(anchors),
                    "learning_rate": rate,
                    "kept": kept,
                    "train_s": trained_s,
                    "gate_s": time.monotonic() - started - trained_s,
                    "gate": verdict.measures,
                    "settings": to_json(self._settings),
                }
            )
            written = write_version(
                self._settings.adapters_folder,
                self._settings.policy,
                number,
                files,
                state={
                    "steps": self._steps + 1,
                    "learning_rate": min(self._settings.resolved_learning_rate, self._rate * _RATE_GAIN),
                    "reservoir": self._reservoir.add(self._to_keep(prepared.samples)).to_json(),
                },
                metrics=metrics,
            )
        except BaseException:
            self.undo()
            raise
        self._trained = self._to_keep(prepared.samples)
        if verdict.rejected:
            self.undo()
            self._set_rate(self._rate * _RATE_CUT)
        reason = _reason(turns, prepared.samples)
        if kept < 1.0:
            reason += f"; {self._rejected_in_a_row} versions in a row were rejected: {kept:.0%} is left of what was learnt before"
        self._rejected_in_a_row += bool(verdict.rejected)
        return Outcome(
            refused=prepared.refused,
            parent_version=self.version,
            written=written,
            rejected=verdict.rejected,
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

    def adopt(self, number: int) -> None:
        """The attempt was published as this version."""
        self.version = number
        self._steps += 1
        self._rejected_in_a_row = 0
        self._reservoir = self._reservoir.add(self._trained)
        self._set_rate(self._rate * _RATE_GAIN)
        self._before = None

    def undo(self) -> None:
        """Be what the policy was before the attempt, to the bit."""
        if self._before is not None:
            self._policy.restore(self._before)
            self._before = None


class Workshop(SharedWorkshop[LocalPolicy]):
    """The policy in this process.

    Raises:
        ConfigError: the model cannot be loaded.
        AdapterError: ``--resume-from-ckpt`` names no adapter of this model.
    """

    def __init__(self, settings: Settings) -> None:
        policy = LocalPolicy(
            settings.model_path,
            rank=settings.lora_rank,
            learning_rate=settings.resolved_learning_rate,
            beta1=settings.adam_beta1,
            update_clip=settings.update_clip,
            seed=settings.seed,
            teacher=settings.teacher_model_name,
            quantize=settings.quantize == "4bit",
        )
        super().__init__(settings, StepPlan.of(settings), policy)

    def _train(self, samples: Sequence[Sample], number: int) -> dict[str, float]:
        return train(self._policy, samples, self._plan, seed=self._settings.seed + 1_000 * (self._steps + 1))

    def _weaken(self, share: float) -> bool:
        self._policy.weaken(share)
        return True


def _reason(turns: Sequence[ScoredTurn], samples: Sequence[Any]) -> str:
    """What a person would call the cause: how many of their turns, and the commonest of their complaints."""
    ids = {sample.turn_id for sample in samples}
    used = [turn for turn in turns if turn.turn_id in ids]
    hints = [turn.verdict.hint for turn in used if turn.verdict.hint]
    praised = sum(1 for turn in used if turn.verdict.value == 1)
    blamed = sum(1 for turn in used if turn.verdict.value == -1)
    text = f"{len(used)} turns: {blamed} complaints, {praised} thanks"
    if hints:
        newest = " ".join(hints[-1].split())
        text += f'; "{newest if len(newest) <= 60 else newest[:59] + "…"}"'
    return text


def ask_again(policy: Policy, turns: Sequence[ScoredTurn], *, seed: int, version: int) -> list[ScoredTurn]:
    """Past complaints with what the policy answers to their prompts today; a turn without a hint or an answer is left out.

    The hint still says what the person wants there, and the teacher who reads it can judge any answer. The verdict was about
    the old answer and does not come along.
    """
    asked = [turn for turn in turns if turn.verdict.hint and turn.prompt_token_ids]
    if not asked:
        return []
    replies = policy.sample([turn.prompt_token_ids for turn in asked], max_tokens=MAX_ANEW, seed=seed)
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
