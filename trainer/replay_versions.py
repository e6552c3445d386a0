"""Versions computed again from the record: the recorded batches in their order, with the recorded seeds, methods and settings.

Used after a person had something forgotten, from the newest clean version on (the batches' turns are claimed, each version goes live as it
is made), and by `run.py retrain` (a branch beside the live one, which goes live at its end when that is asked for). Replay draws, the playbook and the
window of the baseline are computed anew, without the turns that are left out. On one thread of the same machine the weights are the same bytes as
those of a record that never had these turns, as long as no attempt in between was rejected because of them.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from store.errors import AdapterError, ConfigError
from store.record import Record
from store.settings import Settings, read_settings, training_settings
from store.values import (
    BASE_VERSION,
    AdapterState,
    AdapterVersion,
    Json,
    LineageStep,
    RecentVerdict,
    ScoredTurn,
    StepInputs,
    StepReport,
    StepRole,
    Verdict,
)
from trainer.checkpoint import remove_version
from trainer.device import make_device
from trainer.protocol import Edit, Outcome, VersionTrainer
from trainer.step import StepPlan
from trainer.weights_thread import WeightsThread
from trainer.worker import LEASE_S, RENEW_S, make_workshop


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayJob:
    """What is to be computed again.

    Attributes:
        start, end: the version that the branch starts from, and the recorded one whose lineage it follows.
        takes_turns: the turns wait to be trained and are claimed; else they stay what they are.
        without: turns that are left out.
        changes: settings of training that replace the recorded ones.
        verdicts: by turn id, what replaces the recorded verdict: fields of `Verdict`.
        publish: each version goes live (`takes_turns`), or the last one does at the end.
    """

    policy: str
    start: int
    end: int
    takes_turns: bool = False
    without: frozenset[str] = frozenset()
    changes: Json = field(default_factory=dict)
    verdicts: Mapping[str, Json] = field(default_factory=dict)
    publish: bool = False

    @classmethod
    def from_json(cls, value: Json) -> ReplayJob:
        return cls(**{**value, "without": frozenset(value.get("without", ()))})


@dataclass(slots=True, kw_only=True)
class ReplayReport:
    """What a replay came to.

    Attributes:
        versions: (recorded version, new version) of those that passed the gate; ``rejected``: of those that did not.
        skipped: recorded versions that were not computed again, with the reason.
        live: the version that the replay made live; None: none.
    """

    policy: str
    start: int
    versions: list[tuple[int, int]] = field(default_factory=list)
    rejected: list[tuple[int, int]] = field(default_factory=list)
    skipped: dict[int, str] = field(default_factory=dict)
    live: int | None = None

    def to_json(self) -> Json:
        return {
            "policy": self.policy,
            "start": self.start,
            "versions": [list(pair) for pair in self.versions],
            "rejected": [list(pair) for pair in self.rejected],
            "skipped": {str(version): why for version, why in self.skipped.items()},
            "live": self.live,
        }


#: Makes a trainer for settings and the state of the attempt it begins with.
MakeTrainer = Callable[[Settings, Json], VersionTrainer]


class VersionReplay:
    """One replay. Make it, then `run` it.

    Args:
        make_trainer: default: the trainer of these settings, on the device that serving leaves to training.
    """

    def __init__(
        self, record: Record, settings: Settings, job: ReplayJob, *, make_trainer: MakeTrainer | None = None
    ) -> None:
        self._record = record
        self._settings = settings
        self._job = job
        self._device = make_device(settings, record)
        self._make_trainer = make_trainer or (
            lambda wanted, state: make_workshop(wanted, self._device, state if "effort" in state else None)
        )
        self._thread = WeightsThread()
        self._on_thread = self._thread.run
        self._name = f"replay-{os.getpid()}-{uuid4().hex[:8]}"
        self._trainer: VersionTrainer | None = None
        self._made_for: tuple[Any, ...] = ()
        self._tip: AdapterVersion | None = None
        self._verdict_of: dict[str, int] = {}
        self._taught: set[str] = set()
        self._report = ReplayReport(policy=job.policy, start=job.start)

    async def run(self) -> ReplayReport:
        """Compute the branch.

        Raises:
            AdapterError: the version to start from is not there.
            ConfigError: the recorded settings or the changes cannot be.
            ClaimLost, AliasMoved: more was forgotten, or another version set live, meanwhile.
        """
        job = self._job
        steps = await self._record.lineage(job.policy, job.end, job.start)
        if not steps:
            raise ConfigError(f"{job.policy} has no version {job.end} that was made from version {job.start}")
        if job.start != BASE_VERSION:
            self._tip = await self._record.adapter(job.policy, job.start)
            if self._tip is None or self._tip.state is not AdapterState.PUBLISHED:
                raise AdapterError(f"the files of version {job.start} of {job.policy} are not there")
        for step in steps:
            for role in (StepRole.BATCH, StepRole.REPLAY, StepRole.REMEMBERED):
                self._verdict_of.update(step.inputs.turns[role])
        renewal = asyncio.create_task(self._renew())
        try:
            async with self._device.lease():
                for step in steps:
                    await self._replay(step)
            if job.publish and not job.takes_turns and self._tip is not None and self._report.versions:
                await self._record.rollback(job.policy, self._tip.version, actor="retrain")
                self._report.live = self._tip.version
        finally:
            await self._thread.close(renewal, self._trainer)
        return self._report

    async def _replay(self, step: LineageStep) -> None:
        inputs = step.inputs
        if not inputs.state:
            self._report.skipped[step.version] = "what it was computed from is not recorded"
            return
        batch = [pair for pair in inputs.turns[StepRole.BATCH] if self._is_used(pair[0])]
        if self._job.takes_turns:
            held = await self._record.claim_turns(
                [turn_id for turn_id, _ in batch], worker=self._name, lease_s=LEASE_S
            )
            batch = [pair for pair in batch if pair[0] in set(held)]
        turns = await self._turns(batch)
        if not turns and inputs.turns[StepRole.BATCH]:
            self._report.skipped[step.version] = "nothing of its batch is left"
            return
        settings = self._settings_of(step)
        trainer = await self._trainer_for(settings, inputs.state)
        trainer.resume(inputs.state)
        again = await self._turns(self._numbered(trainer.draw_replay(turns)))
        remembered = await self._turns(self._numbered(trainer.remembered))
        recent = await self._recent(inputs.turns[StepRole.RECENT])
        edits = await self._edits(settings, inputs.edit_id)
        number = await self._record.next_version(self._job.policy)
        used = StepInputs(
            turns={
                StepRole.BATCH: _ids(turns),
                StepRole.REPLAY: _ids(again),
                StepRole.REMEMBERED: _ids(remembered),
                StepRole.RECENT: tuple((one.turn_id, one.verdict_id) for one in recent),
            },
            edit_id=inputs.edit_id,
            state=trainer.state(),
            settings=training_settings(settings),
        )
        started = time.time()
        values = [one.value for one in recent]
        outcome = await self._on_thread(
            lambda: trainer.attempt(turns, again, values, number, remembered, edits)
        )
        await self._settle(step, turns, outcome, number, used, started)

    def _is_used(self, turn_id: str) -> bool:
        """Whether a turn takes part: not left out, and not in an earlier version of this branch."""
        return turn_id not in self._job.without and turn_id not in self._taught

    def _numbered(self, turn_ids: Sequence[str]) -> list[tuple[str, int]]:
        wanted = [one for one in turn_ids if one not in self._job.without]
        return [(turn_id, self._verdict_of.get(turn_id, 0)) for turn_id in wanted]

    async def _turns(self, used: Sequence[tuple[str, int]]) -> list[ScoredTurn]:
        found = await self._record.turns_as_scored(used)
        changed = self._job.verdicts
        return [
            replace(turn, verdict=_changed(turn.verdict, changed[turn.turn_id]))
            if turn.turn_id in changed
            else turn
            for turn in found
        ]

    async def _recent(self, used: Sequence[tuple[str, int]]) -> list[RecentVerdict]:
        values = await self._record.verdict_values([verdict_id for _, verdict_id in used])
        return [
            RecentVerdict(turn_id=turn_id, verdict_id=verdict_id, value=values[verdict_id])
            for turn_id, verdict_id in used
            if verdict_id in values and turn_id not in self._job.without
        ]

    async def _edits(self, settings: Settings, until: int) -> tuple[Edit, ...]:
        if not StepPlan.of(settings).selects_hints:
            return ()
        found = await self._record.wish_edits(self._job.policy, until)
        return tuple(Edit(turn_id=edit.turn_id, text=edit.text) for edit in found)

    def _settings_of(self, step: LineageStep) -> Settings:
        """The settings of this process, with those that the step was trained with, and the changes."""
        recorded = {name: value for name, value in step.inputs.settings.items() if value is not None}
        learning = {**recorded.pop("learning", {}), **self._job.changes.get("learning", {})}
        changes = {name: value for name, value in self._job.changes.items() if name != "learning"}
        own = self._settings.model_dump()
        return read_settings({**own, **recorded, **changes, "learning": learning})

    async def _trainer_for(self, settings: Settings, state: Json) -> VersionTrainer:
        """The trainer at the tip of the branch; made anew where settings or effort differ from the last step's."""
        made_for = (settings, *(state.get(name) for name in ("effort", "max_context", "micro_tokens")))
        if self._trainer is not None and made_for == self._made_for:
            return self._trainer
        if self._trainer is not None:
            await self._on_thread(self._trainer.close)
        trainer = await self._on_thread(lambda: self._make_trainer(settings, state))
        self._trainer, self._made_for = trainer, made_for
        tip = self._tip
        await self._on_thread(
            lambda: trainer.load(tip) if tip is not None else trainer.reset(self._job.policy)
        )
        return trainer

    async def _settle(
        self,
        step: LineageStep,
        turns: Sequence[ScoredTurn],
        outcome: Outcome,
        number: int,
        used: StepInputs,
        started: float,
    ) -> None:
        """Write what became of a step."""
        job, trainer = self._job, self._trainer
        assert trainer is not None  # it made the outcome
        if job.takes_turns:
            for turn_id, refusal in outcome.refused.items():
                await self._record.drop([turn_id], refusal.reason, worker=self._name, detail=refusal.detail)
        if outcome.written is None:
            self._report.skipped[step.version] = "what is left of its batch teaches nothing"
            return
        trained = [turn.turn_id for turn in turns if turn.turn_id not in outcome.refused]
        now = time.time()
        reason = "; ".join(outcome.rejected) or f"version {step.version} again: {outcome.reason}"
        unused = {turn_id: refusal.reason.value for turn_id, refusal in outcome.refused.items()}
        adapter = AdapterVersion(
            policy=job.policy,
            version=number,
            path=str(outcome.written.path),
            content_hash=outcome.written.content_hash,
            manifest_hash=outcome.written.manifest_hash,
            parent_version=outcome.parent_version,
            state=AdapterState.REJECTED if outcome.rejected else AdapterState.PUBLISHED,
            reason=reason,
            method=str(used.settings["method"]),
            metrics={**outcome.metrics, "turns": len(trained), "unused_turns": unused},
            created_at=now,
        )
        report = StepReport(
            step_id=uuid4().hex,
            policy=job.policy,
            method=adapter.method,
            started_at=started,
            finished_at=now,
            version=number,
            error=f"version {number} was rejected: {reason}" if outcome.rejected else None,
            metrics=outcome.metrics,
            inputs=used,
        )
        if outcome.rejected:
            if job.takes_turns:
                await self._record.reject(adapter, report, worker=self._name, release=trained)
            else:
                await self._record.add_version(adapter, report)
            self._report.rejected.append((step.version, number))
            return
        if job.takes_turns:
            await self._record.publish(adapter, trained, report, worker=self._name, actor="replay")
            self._report.live = number
        else:
            await self._record.add_version(adapter, report)
        await self._on_thread(lambda: trainer.commit(number))
        self._taught.update(trained)
        self._tip = adapter
        self._report.versions.append((step.version, number))

    async def _renew(self) -> None:
        while self._job.takes_turns:
            await asyncio.sleep(RENEW_S)
            await self._record.renew(self._name, LEASE_S)


def _ids(turns: Sequence[ScoredTurn]) -> tuple[tuple[str, int], ...]:
    return tuple((turn.turn_id, turn.verdict_id) for turn in turns)


def _changed(verdict: Verdict, fields: Json) -> Verdict:
    return replace(verdict, **{**fields, "wishes": tuple(fields.get("wishes", verdict.wishes))})


def remove_folders(folders: Sequence[str], settings: Settings) -> list[str]:
    """Remove the files of versions, also those that a Tinker server holds; returns what could not be removed, with the reason."""
    problems: list[str] = []
    remove = _remover(settings)
    for folder in folders:
        try:
            problems += remove(Path(folder))
        except AdapterError as exc:
            problems.append(str(exc))
    return problems


def _remover(settings: Settings) -> Callable[[Path], list[str]]:
    if settings.backend == "tinker":
        from trainer.tinker.link import TinkerConnection
        from trainer.tinker.version_trainer import remove_with_checkpoints

        link = TinkerConnection(settings)
        return lambda folder: remove_with_checkpoints(link, folder)

    def remove(folder: Path) -> list[str]:
        remove_version(folder)
        return []

    return remove
