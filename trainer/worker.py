"""The trainer's loop: what waits -> claim -> step -> gate -> publish, one batch after the other, until it is stopped.

The event loop here talks to the record and keeps the lease and the heartbeat alive; the weights belong to one thread
(`trainer.version_trainer`). What happens to claimed turns is decided here, in one transaction each:

    published   turns trained, version live or on trial     (kill -9 before it: the lease runs out, they are trained later)
    rejected    turns go back once; the second time they are dropped (gate_rejected)
    rolled back while the step ran: turns go back, what was made of them is removed; the next step begins from what is live
    killed      the next trainer takes the turns in smaller batches, and drops one that it was killed with alone
                (out_of_memory, trainer_died)
    failed      turns go back; after `MAX_FAILURES` failures they are dropped (step_failed). A training server that is away is
                no fault of the turns: they wait for it

A version is also built without new turns: when a wish that the live one learnt is withdrawn, and when many more replies were accepted
(`trainer.due`). Attempts that do not become a version are bounded, with a pause after each.

While a version is on trial (`trainer.canary_release`), the policy's next step waits: built on the version it might be built on a bad one,
and built on the live one it would lose what that version learned.

The process has the model in memory, so it ends by itself when nothing was to do for a while; `trainer.watcher` starts it again.

One process trains all policies of the base model (`store.policies`), one batch of one policy at a time: first the policy whose oldest verdict
waits longest, counted from the policy's last batch. So many verdicts of one policy delay each of the others by one batch, not by all of them.
Nothing of one policy enters a batch of another: turns, wishes, baseline and moments are read by the policy's name.

A turn is never trained twice: the transaction that publishes insists that this worker still holds every turn. A worker that is late
undoes its step and goes on; the turns belong to the worker that claimed them again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from store.errors import (
    AdapterError,
    AdapterMismatch,
    AliasMoved,
    ClaimLost,
    MadeOfForgotten,
    PatinaError,
    RecordError,
    UpstreamError,
)
from store.integrity import refuse_version
from store.lifecycle import DropReason
from store.policies import policies_of
from store.record import Record
from store.settings import Settings, training_settings
from store.values import (
    BASE_VERSION,
    AdapterState,
    AdapterVersion,
    Heartbeat,
    Json,
    RecentVerdict,
    ReleaseStage,
    ScoredTurn,
    StepInputs,
    StepReport,
    StepRole,
    Wish,
    WishState,
)
from store.version_folders import folder_of, version_folders
from store.wish_states import learnt_rows
from trainer.checkpoint import finite, folder_size, sweep, versions_to_keep
from trainer.deaths import Deaths
from trainer.device import Device, make_device
from trainer.due import Due, DueFinder, Pause, next_passes
from trainer.plan import StepPlan
from trainer.protocol import Outcome, Preview, TurnRefusal, VersionJob, VersionTrainer
from trainer.weights_thread import WeightsThread

POLL_S = 0.5
#: Between two heartbeats.
_BEAT_S = 1.0
LEASE_S = 120.0
#: Pause between two renewals of the lease.
RENEW_S = LEASE_S / 4
#: After so many failed steps a turn is held to be the cause.
MAX_FAILURES = 3
#: Pause between two looks for a training server that is away when the trainer starts.
_SERVER_S = 5.0
#: How many verdicts the baseline may look at.
_RECENT = 64
#: Turns without a verdict or hint that a step takes along at most: a session without other verdicts may teach through one.
_BYSTANDERS = 64
#: Newest turns that a preview reads.
_PREVIEW_TURNS = 200


@dataclass(slots=True)
class _Counters:
    """What the heartbeat shows."""

    steps: int = 0
    published: int = 0
    rejected: int = 0
    failed: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    last_error: str | None = None

    @classmethod
    def from_json(cls, found: Json) -> _Counters:
        """Go on from what the heartbeat of an earlier worker showed."""
        counts = {name: int(found.get(name, 0)) for name in ("steps", "published", "rejected", "failed")}
        return cls(**counts, dropped=Counter(found.get("dropped", {})), last_error=found.get("last_error"))

    def to_json(self) -> Json:
        return {
            "steps": self.steps,
            "published": self.published,
            "rejected": self.rejected,
            "failed": self.failed,
            "dropped": dict(self.dropped),
            "last_error": self.last_error,
        }


def make_version_trainer(settings: Settings, device: Device) -> VersionTrainer:
    """The trainer where these settings have the weights. The device is ours while this runs, and for the turns to come.

    Raises:
        ConfigError: the model cannot be loaded, or what is asked for cannot be had there.
        AdapterError: there is no such version to begin from.
    """
    if settings.backend == "tinker":
        from trainer.tinker.version_trainer import TinkerVersionTrainer

        return TinkerVersionTrainer(settings)
    if settings.train_on == "modal":
        from trainer.remote.modal_connection import ModalConnection
        from trainer.remote.version_trainer import RemoteVersionTrainer

        return RemoteVersionTrainer(settings, ModalConnection(settings))
    from trainer.version_trainer import LocalVersionTrainer

    trainer = LocalVersionTrainer(settings)
    device.enter, device.leave = trainer.policy.unpark, trainer.policy.park
    trainer.policy.at_boundary = device.boundary
    return trainer


class TrainerWorker:
    """One trainer process with the weights. Make it, then `run` it.

    Args:
        earlier: detail of the last heartbeat of the worker before, whose counters go on.
        idle_s: seconds without work after which `run` returns; None: never.
    """

    def __init__(
        self,
        record: Record,
        settings: Settings,
        *,
        log: Callable[[Json], None] | None = None,
        trainer: VersionTrainer | None = None,
        earlier: Json | None = None,
        idle_s: float | None = None,
    ) -> None:
        self._record = record
        self._settings = settings
        self._plan = StepPlan.of(settings)
        self._name = f"trainer-{os.getpid()}-{uuid4().hex[:8]}"
        self._thread = WeightsThread()
        self._on_thread = self._thread.run
        self._trainer = trainer
        self._state = "loading"
        self._step_now: StepReport | None = None
        self._counters = _Counters.from_json(earlier or {})
        self._idle_s = idle_s
        self._failures: Counter[str] = Counter()
        self._rejections: Counter[str] = Counter()
        self._policy: str | None = None  # that is trained now
        self._due = DueFinder(record, settings)
        self._log = log
        self._device = make_device(settings, record)
        self._deaths = Deaths(settings.home / "trainer-deaths.json")

    async def run(self, stop: asyncio.Event) -> None:
        """Work until ``stop`` is set, or nothing was to do for `idle_s`; a step that is under way is finished first.

        Raises:
            ConfigError, AdapterError: the model or the version to start from cannot be loaded.
        """
        beat = asyncio.create_task(self._beat())
        stopping = asyncio.create_task(self._note_stop(stop))
        try:
            await self._open(stop)
            idle_since = time.monotonic()
            while not stop.is_set():
                did_something = await self._survive(self.work_once)
                if did_something or self._due.has_complaints:
                    idle_since = time.monotonic()
                if self._idle_s is not None and time.monotonic() - idle_since > self._idle_s:
                    return
                if not did_something:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(stop.wait(), POLL_S)
        finally:
            stopping.cancel()
            await self._thread.close(beat, self._trainer)

    async def _note_stop(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._deaths.stopping()

    async def _open(self, stop: asyncio.Event) -> None:
        """Make the trainer. A training server that is away is waited for: nothing here is wrong."""
        while not stop.is_set():
            try:
                async with self._device.lease():
                    self._trainer = await self._on_thread(
                        lambda: make_version_trainer(self._settings, self._device)
                    )
            except UpstreamError as exc:
                if self._counters.last_error != _sentence(exc):
                    print(f"patina: the trainer waits: {_sentence(exc)}", file=sys.stderr, flush=True)
                self._counters.last_error = _sentence(exc)
                self._state = "waiting for the training server"
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), _SERVER_S)
                continue
            self._counters.last_error = None
            await self._start()
            return

    async def _start(self) -> None:
        """Remove what a worker that died left behind."""
        top, versions = self._settings.adapters_folder, await self._record.adapters()
        named = {*(one.policy for one in versions), *(one.policy for one in version_folders(top))}
        policies = policies_of(self._settings.policy, named)
        await self._on_thread(lambda: sweep(top, versions, policies, remove=self._ready().remove))
        self._state = "waiting"

    async def _survive(self, work: Callable[[], Any]) -> bool:
        """One turn of the loop. An error must not end training for good: it is counted, shown in `status`, and waited out."""
        try:
            return bool(await work())
        except Exception as exc:  # whatever a step can raise: torch's errors share no base class  # noqa: BLE001
            self._counters.failed += 1
            self._counters.last_error = _sentence(exc)
            self._state = "waiting for the training server" if isinstance(exc, UpstreamError) else "failed"
            if not isinstance(exc, PatinaError):
                traceback.print_exc()
            print(f"patina: the trainer failed: {_sentence(exc)}", file=sys.stderr, flush=True)
            # What one policy's turns have done must not stop the others; a server that is away stops all.
            policy = None if isinstance(exc, UpstreamError) else self._policy
            self._due.pauses.setdefault(policy, Pause()).extend()
            return False
        finally:
            self._policy = None

    async def work_once(self) -> bool:
        """Train one batch if there is one to train; returns whether there was."""
        due = await self._due.find(self._counters.published)
        self._state = self._due.state
        if due is None:
            return False
        self._policy = due.policy
        await self._on_thread(self._ready().check)
        self._state = "waiting for the device"
        async with self._device.lease():
            self._due.served_at[due.policy] = time.time()
            await self._follow_alias(due.policy)
            self._state = "training"
            await self._step(due)
        self._state = "waiting"
        self._due.pauses.pop(None, None)
        self._due.pauses.pop(due.policy, None)
        return True

    async def _follow_alias(self, policy: str) -> None:
        """Train on from what is live: after a rollback that is an earlier version, and what came after it is left aside."""
        trainer = self._ready()
        live = await self._record.live_version(policy)
        if (trainer.name, trainer.version) != (policy, live):
            await self._become(policy, live)

    async def _become(self, policy: str, live: int) -> None:
        trainer = self._ready()
        if live == BASE_VERSION:
            await self._on_thread(lambda: trainer.reset(policy))
            return
        adapter = await self._record.adapter(policy, live)
        if adapter is None:
            raise AdapterError(f"the live version {policy}@{live} has no row in the record")
        try:
            await self._on_thread(lambda: trainer.load(adapter))
        except AdapterMismatch as exc:
            await refuse_version(self._record, adapter, str(exc))
            raise  # the next attempt begins from the ancestor that is live now

    async def _step(self, due: Due) -> None:
        """One attempt at a version."""
        policy = due.policy
        report = StepReport(
            step_id=uuid4().hex,
            policy=policy,
            method=self._settings.method,
            started_at=time.time(),
            finished_at=None,
            version=None,
            error=None,
            metrics={},
        )
        renewal = asyncio.create_task(self._renew())
        claimed: list[ScoredTurn] = []
        self._step_now = report
        try:
            if not await self._take(due, claimed):
                return
            trainer = self._ready()
            live = trainer.version
            number = await self._record.next_version(policy)
            recent = await self._record.recent_verdicts(policy, _RECENT)
            job = await self._job(policy, number, live, claimed, recent, due.job_id)
            served = await self._record.count_accepted(policy)
            report = replace(report, inputs=self._inputs(job, recent))
            claimed_at, waits = time.time(), self._device.state()
            held = [turn.turn_id for turn in claimed]
            self._deaths.begin(held)
            loop, noting = asyncio.get_running_loop(), list[asyncio.Task[None]]()

            def note(found: Outcome) -> None:
                # Wordings of one wish stand in the prompt side by side until they are merged: a version takes minutes.
                loop.call_soon_threadsafe(lambda: noting.append(loop.create_task(self._note_wishes(found))))

            trainer.on_review = note
            try:
                outcome = await self._on_thread(lambda: trainer.attempt(job))
                share = await self._due.releases.share_of_next(policy)
                preview = await self._preview(policy, job, outcome, live) if share else None
            finally:
                self._deaths.end(held)
                await asyncio.gather(*noting)
                times = {
                    "queue_s": max(0.0, report.started_at - due.since),
                    "claim_s": claimed_at - report.started_at,
                    "served": served,
                }
                report = replace(report, metrics={**times, "device": _changes(waits, self._device.state())})
            await self._note_wishes(outcome)
            if preview is not None:
                outcome = replace(outcome, rejected=preview.rejected)
            report = await self._with_job(due, outcome, report)
            try:
                await self._settle(claimed, outcome, report, number, live, share, preview)
            except (AliasMoved, ClaimLost) as late:
                await self._undo(outcome, late)
                raise
        except (AliasMoved, ClaimLost) as late:
            # Nothing failed: a person undid what this step built upon, or the lease ran out and another step has the turns.
            await self._give_back([turn.turn_id for turn in claimed], report, late)
        except Exception as exc:
            await self._give_back([turn.turn_id for turn in claimed], report, exc)
            if due.job_id is not None and not isinstance(exc, UpstreamError):
                await self._record.fail_tuning_job(due.job_id, _sentence(exc), is_final=False)
            raise
        finally:
            self._step_now = None
            renewal.cancel()
            await asyncio.gather(renewal, return_exceptions=True)

    async def _take(self, due: Due, claimed: list[ScoredTurn]) -> bool:
        """Take what the attempt is for; returns whether there is anything."""
        if due.job_id is not None:
            return await self._record.begin_tuning_job(due.job_id)
        if due.takes_turns:
            await self._claim(due.policy, claimed)
            await self._leave_deadly(claimed)
            return bool(claimed)
        self._due.rebuilds[due.policy].begin()
        return True

    async def _with_job(self, due: Due, outcome: Outcome, report: StepReport) -> StepReport:
        """Return the report with the fine-tuning job that its version ends; a job none of whose examples fits fails here."""
        if due.job_id is None:
            return report
        if outcome.metrics.get("trained_tokens"):
            return replace(report, metrics={**report.metrics, "tuning_job": due.job_id})
        why = "no example fits: each is too long, or the chat template has no place for its reply"
        await self._record.fail_tuning_job(due.job_id, why, is_final=True)
        return report

    async def _preview(self, policy: str, job: VersionJob, outcome: Outcome, live: int) -> Preview | None:
        """Compare a version that the gate admits with the live one on past turns, before it is tried on people."""
        if outcome.written is None or outcome.rejected:
            return None
        past = await self._record.newest_turns(policy, _PREVIEW_TURNS)
        adapter = await self._record.adapter(policy, live) if live != BASE_VERSION else None
        folder = None if adapter is None else folder_of(self._settings.adapters_folder, adapter)
        return await self._on_thread(lambda: self._ready().preview(job, past, folder))

    async def _job(
        self,
        policy: str,
        number: int,
        live: int,
        claimed: Sequence[ScoredTurn],
        recent: Sequence[RecentVerdict],
        job_id: str | None = None,
    ) -> VersionJob:
        """Gather what the version is computed from; ``job_id``: of the fine-tuning job that asks for it."""
        files = await self._record.tuning_data(policy, job_id, with_earlier=self._plan.begins_at_base)
        wishes: list[Wish] = []
        served: list[ScoredTurn] = []
        passes, rows = 1, list[Json]()
        if self._plan.reads_wishes:
            wishes = [
                one for one in await self._record.wishes(policy) if one.state is not WishState.WITHDRAWN
            ]
            served = await self._record.accepted_turns(policy, self._plan.samples)
            versions = await self._record.adapters(policy)
            passes = next_passes(wishes, versions)
            changed_at = max((one.changed_at for one in wishes if one.edited), default=0.0)
            rows = [
                row
                for one in versions
                if one.version == live and one.created_at >= changed_at
                for row in learnt_rows(one.metrics)
            ]
        return VersionJob(
            number=number,
            turns=tuple(claimed),
            served=tuple(served),
            recent=tuple(verdict.value for verdict in recent),
            wishes=tuple(wishes),
            passes=passes,
            files=tuple(files),
            live=rows,
        )

    def _inputs(self, job: VersionJob, recent: Sequence[RecentVerdict]) -> StepInputs:
        """What the attempt is computed from, as the record keeps it."""

        def ids(turns: Iterable[ScoredTurn]) -> tuple[tuple[str, int], ...]:
            return tuple((turn.turn_id, turn.verdict_id) for turn in turns)

        stated = {one.turn_id: 0 for wish in job.wishes for one in wish.statements}
        return StepInputs(
            turns={
                StepRole.BATCH: ids(job.turns),
                StepRole.SERVED: ids(job.served),
                StepRole.STATED: tuple(stated.items()),
                StepRole.RECENT: tuple((one.turn_id, one.verdict_id) for one in recent),
                StepRole.FILE: tuple(
                    (file_id, 0) for file_id in dict.fromkeys(one.file_id for one in job.files)
                ),
            },
            settings=training_settings(self._settings),
        )

    async def _note_wishes(self, outcome: Outcome) -> None:
        """Keep what the attempt found out about the wishes. One that was changed meanwhile is measured again by the next attempt."""
        try:
            for merge in outcome.merged:
                await self._record.merge_wishes(merge.into, merge.others, text=merge.text)
            for wish_id, measures in outcome.measures.items():
                await self._record.change_wish(wish_id, measures=measures)
        except RecordError as exc:
            self._counters.last_error = f"a wish changed while it was measured: {exc}"

    async def _leave_deadly(self, claimed: list[ScoredTurn]) -> None:
        """Of turns that a trainer died with, attempt fewer at a time; drop one that it died with alone."""
        choice = self._deaths.choose([turn.turn_id for turn in claimed])
        for turn_id, reason in choice.drop.items():
            is_for_memory = reason is DropReason.OUT_OF_MEMORY
            how = "the kernel killed the trainer for memory" if is_for_memory else "the trainer died"
            detail = f"{how} while it held this turn alone"
            self._counters.dropped[reason.value] += await self._record.drop(
                [turn_id], reason, worker=self._name, detail=detail
            )
        if choice.drop:
            self._deaths.end(tuple(choice.drop))
        claimed[:] = [turn for turn in claimed if turn.turn_id not in choice.drop]
        if choice.later:
            await self._record.release(list(choice.later), worker=self._name)
            claimed[:] = [turn for turn in claimed if turn.turn_id in choice.attempt]

    async def _claim(self, policy: str, claimed: list[ScoredTurn]) -> None:
        """Take turns until a batch of them has something to teach; whatever happens, ``claimed`` holds what is taken.

        Those that teach nothing come along, the newest `_BYSTANDERS` of them: neutral traffic may be a hundred to one, and all
        of it would be in memory at once. The others are dropped as they come.
        """
        while True:
            more = await self._record.claim(
                policy, self._settings.batch_size, worker=self._name, lease_s=LEASE_S
            )
            claimed += more
            idle = [turn for turn in claimed if not self._plan.has_signal(turn)]
            if len(idle) > _BYSTANDERS:
                gone = {turn.turn_id for turn in idle[:-_BYSTANDERS]}
                dropped = await self._record.drop(
                    list(gone),
                    DropReason.NO_SIGNAL,
                    worker=self._name,
                    detail=f"one of more than {_BYSTANDERS} neutral turns in a row",
                )
                self._counters.dropped[DropReason.NO_SIGNAL.value] += dropped
                claimed[:] = [turn for turn in claimed if turn.turn_id not in gone]
            if not more or len(claimed) - min(len(idle), _BYSTANDERS) >= self._settings.batch_size:
                return

    async def _settle(
        self,
        claimed: list[ScoredTurn],
        outcome: Outcome,
        report: StepReport,
        number: int,
        live: int,
        share: float,
        preview: Preview | None,
    ) -> None:
        """Write what became of the claimed turns.

        Args:
            share: of the new conversations that the version serves first; 0: it goes live at once.
        """
        policy = report.policy
        await self._drop_refused(outcome)
        trained = [turn.turn_id for turn in claimed if turn.turn_id not in outcome.refused]
        if outcome.written is None:
            await self._leave_withdrawn(policy, live, outcome)
            return  # nothing in the batch had anything to teach
        self._counters.steps += 1
        now = time.time()
        metrics = {**report.metrics, **outcome.metrics}
        adapter = AdapterVersion(
            policy=policy,
            version=number,
            path=str(outcome.written.path),
            content_hash=outcome.written.content_hash,
            manifest_hash=outcome.written.manifest_hash,
            parent_version=outcome.parent_version,
            state=AdapterState.REJECTED if outcome.rejected else AdapterState.PUBLISHED,
            reason="; ".join(outcome.rejected) or outcome.reason,
            method=self._settings.method,
            metrics={
                **metrics,
                "turns": len(trained),
                "unused_turns": _codes(outcome.refused),
                **({"preview": finite(preview.numbers)} if preview is not None else {}),
            },
            created_at=now,
        )
        done = StepReport(
            step_id=report.step_id,
            policy=policy,
            method=report.method,
            started_at=report.started_at,
            finished_at=now,
            version=number,
            error=f"version {number} was rejected: {adapter.reason}" if outcome.rejected else None,
            metrics=metrics,
            inputs=report.inputs,
        )
        if outcome.rejected:
            self._counters.rejected += 1
            self._counters.last_error = done.error
            self._rejections.update(trained)
            again = [i for i in trained if self._rejections[i] < 2]
            await self._record.reject(
                adapter,
                done,
                worker=self._name,
                release=again,
                drop=[i for i in trained if i not in again],
            )
        else:
            await self._record.publish(
                adapter, trained, done, worker=self._name, canary_share=share, live=live
            )
            self._counters.published += 1
            await self._on_thread(lambda: self._ready().commit(number))
            await self._prune(policy, number)
        if preview is not None:
            await self._record.add_preview(policy, number, preview.replies)
        if self._log is not None:
            self._log({"version": number, "rejected": bool(outcome.rejected), **outcome.metrics})

    async def _drop_refused(self, outcome: Outcome) -> None:
        alike: dict[TurnRefusal, list[str]] = {}
        for turn_id, refusal in outcome.refused.items():
            alike.setdefault(refusal, []).append(turn_id)
        for refusal, ids in alike.items():
            dropped = await self._record.drop(ids, refusal.reason, worker=self._name, detail=refusal.detail)
            self._counters.dropped[refusal.reason.value] += dropped

    async def _undo(self, outcome: Outcome, late: AliasMoved | ClaimLost) -> None:
        """Be what the policy was, after the record refused what was made of it.

        Where the lease ran out, the files stay for `sweep`: another worker's version of the same bytes may be the same folder.
        """
        await self._on_thread(self._ready().revert)
        if outcome.written is not None and isinstance(late, AliasMoved | MadeOfForgotten):
            folder = outcome.written.path
            await self._on_thread(lambda: self._ready().remove(folder))

    async def _leave_withdrawn(self, policy: str, live: int, outcome: Outcome) -> None:
        """Serve the base model again where nothing can be learnt and a wish that the live version learnt is withdrawn."""
        adapter = await self._record.adapter(policy, live) if live != BASE_VERSION else None
        learnt = {row["wish_id"] for row in learnt_rows(adapter.metrics)} if adapter is not None else set()
        known = {
            one.wish_id for one in await self._record.wishes(policy) if one.state is not WishState.WITHDRAWN
        }
        if learnt - known - {other for merge in outcome.merged for other in merge.others}:
            await self._record.rollback(policy, BASE_VERSION, actor="trainer")

    async def _prune(self, policy: str, live: int) -> None:
        adapters = await self._record.adapters(policy)
        with_files = {
            a.version: a.parent_version
            for a in adapters
            if a.state in (AdapterState.PUBLISHED, AdapterState.REJECTED, AdapterState.REFUSED)
        }
        releases = await self._record.canary_releases(policy, stages=(ReleaseStage.RUNNING,))
        tried = {version for one in releases for version in (one.version, one.baseline_version)}
        budget = int(self._settings.keep_gb * 1e9)
        folders = {a.version: folder_of(self._settings.adapters_folder, a) for a in adapters}
        sizes = {version: folder_size(folders[version]) for version in with_files if budget}
        keep = versions_to_keep(
            with_files,
            live,
            every=self._settings.save_interval,
            wanted={*await self._record.pins(policy), *tried},
            sizes=sizes,
            budget=budget,
        )
        doomed = [a for a in adapters if a.version in with_files and a.version not in keep]
        for adapter in doomed:
            # The row first: a version that is marked pruned is never loaded, one without files might be.
            await self._record.mark_pruned(policy, [adapter.version])
            await self._on_thread(lambda path=folders[adapter.version]: self._ready().remove(path))  # type: ignore[misc]

    async def _give_back(self, turn_ids: list[str], report: StepReport, exc: Exception) -> None:
        if not isinstance(exc, UpstreamError | AliasMoved | ClaimLost):
            self._failures.update(turn_ids)
        hopeless = [i for i in turn_ids if self._failures[i] >= MAX_FAILURES]
        await self._record.drop(hopeless, DropReason.STEP_FAILED, worker=self._name, detail=_sentence(exc))
        await self._record.release([i for i in turn_ids if i not in hopeless], worker=self._name)
        await self._record.write_step(
            StepReport(
                step_id=report.step_id,
                policy=report.policy,
                method=report.method,
                started_at=report.started_at,
                finished_at=time.time(),
                version=None,
                error=_sentence(exc),
                metrics={**report.metrics, "phase": self._progress().get("phase")},
            )
        )

    async def _renew(self) -> None:
        """Keep the lease."""
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                await self._record.renew(self._name, LEASE_S)
            except RecordError as exc:
                # The lease has three quarters of its time left; the next renewal may succeed, and if none does the
                # publishing transaction refuses.
                self._counters.last_error = f"the lease was not renewed: {exc}"

    async def _beat(self) -> None:
        while True:
            try:
                device = self._device.state()
                interrupted = ": interrupted by requests" if device.get("is_interrupted") else ""
                await self._record.heartbeat(
                    Heartbeat(
                        process="trainer",
                        pid=os.getpid(),
                        state=self._state + interrupted,
                        detail={
                            **self._counters.to_json(),
                            "notes": list(self._trainer.notes) if self._trainer is not None else [],
                            "policy": self._policy,
                            **self._progress(),
                        }
                        | device,
                        at=time.time(),
                    )
                )
                await self._device.beat()
            except RecordError as exc:
                # `status` shows silence for what it is; training itself notices on its own.
                self._counters.last_error = f"the heartbeat was not written: {exc}"
            await asyncio.sleep(_BEAT_S)

    def _progress(self) -> Json:
        """Return which step runs and the phase that it is in; {}: none runs."""
        step = self._step_now
        if step is None:
            return {}
        phase, since = self._ready().phase
        if since < step.started_at:  # of the attempt before
            phase, since = "claim", step.started_at
        return {
            "step_id": step.step_id,
            "step_started_at": step.started_at,
            "phase": phase,
            "phase_started_at": since,
        }

    def _ready(self) -> VersionTrainer:
        assert self._trainer is not None  # `run` loads it before any work
        return self._trainer


def _changes(before: Json, after: Json) -> Json:
    """Return by how much each count and time of the device grew."""
    return {
        name: round(value - before.get(name, 0), 3)
        for name, value in after.items()
        if not isinstance(value, bool)
    }


def _codes(refused: Mapping[str, TurnRefusal]) -> dict[str, str]:
    """Why turns of a batch did not train: codes by turn id, no words."""
    return {turn_id: refusal.reason.value for turn_id, refusal in refused.items()}


def _sentence(exc: BaseException) -> str:
    text = " ".join(str(exc).split())
    name = "" if isinstance(exc, PatinaError) and text else f"{type(exc).__name__}: "
    return (name + text)[:500]
