"""The trainer's loop: what waits -> claim -> step -> gate -> publish, one batch after the other, until told to stop.

The event loop here talks to the record and keeps the lease and the heartbeat alive; the weights belong to one thread
(`trainer.workshop`). What happens to claimed turns is decided here, in one transaction each:

    published   turns trained, version live                 (kill -9 before it: the lease runs out, they are trained later)
    rejected    turns go back once; the second time they are dropped (gate_rejected)
    rolled back while the step ran: turns go back, what was made of them is removed; the next step begins from what is live
    failed      turns go back; after `MAX_FAILURES` failures they are dropped (step_failed). A training server that is away is
                no fault of the turns: they wait for it

A turn is never trained twice: the transaction that publishes insists that every turn is still claimed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from store.errors import (
    AdapterError,
    AliasMoved,
    IllegalTransition,
    PatinaError,
    RecordError,
    UpstreamError,
)
from store.lifecycle import DropReason
from store.record import Record
from store.settings import Settings
from store.values import (
    BASE_VERSION,
    AdapterState,
    AdapterVersion,
    Heartbeat,
    Json,
    ScoredTurn,
    StepReport,
)
from trainer.checkpoint import sweep, versions_to_keep
from trainer.device import Device, make_device
from trainer.protocol import Outcome, Refusal, Workshop
from trainer.step import StepPlan

POLL_S = 0.25
LEASE_S = 120.0
#: After so many failed steps a turn is held to be the cause.
MAX_FAILURES = 3
#: Pause after a step that failed, doubled up to the longest with every failure in a row.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
#: Pause between two looks for a training server that is away when the trainer starts.
_SERVER_S = 5.0
#: How many verdicts the baseline may look at.
_RECENT = 64
#: Turns without a verdict or hint that a step takes along at most: a session that said nothing else may teach through one.
_BYSTANDERS = 64

T = TypeVar("T")


@dataclass(slots=True)
class _Counters:
    """What the heartbeat shows."""

    steps: int = 0
    published: int = 0
    rejected: int = 0
    failed: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    last_error: str | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> Json:
        return {
            "steps": self.steps,
            "published": self.published,
            "rejected": self.rejected,
            "failed": self.failed,
            "dropped": dict(self.dropped),
            "last_error": self.last_error,
            "notes": list(self.notes),
        }


def make_workshop(settings: Settings, device: Device) -> Workshop:
    """The workshop where these settings have the weights. The device is ours while this runs, and for the turns to come.

    Raises:
        ConfigError: the model cannot be loaded, or what is asked for cannot be had there.
        AdapterError: there is no such version to begin from.
    """
    if settings.backend == "tinker":
        from trainer.tinker.workshop import TinkerWorkshop

        return TinkerWorkshop(settings)
    from trainer.workshop import Workshop as LocalWorkshop

    workshop = LocalWorkshop(settings)
    device.enter, device.leave = workshop.policy.unpark, workshop.policy.park
    workshop.policy.at_boundary = device.boundary
    return workshop


class Worker:
    """One trainer process. Make it, then `run` it."""

    def __init__(
        self, record: Record, settings: Settings, *, log: Callable[[Json], None] | None = None
    ) -> None:
        self._record = record
        self._settings = settings
        self._plan = StepPlan.of(settings)
        self._name = f"trainer-{os.getpid()}-{uuid4().hex[:8]}"
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="weights")
        self._workshop: Workshop | None = None
        self._state = "loading"
        self._counters = _Counters()
        self._failures: Counter[str] = Counter()
        self._rejections: Counter[str] = Counter()
        self._pause_until = 0.0
        self._pause_s = _FIRST_PAUSE_S
        self._log = log
        self._device = make_device(settings, record)

    async def run(self, stop: asyncio.Event) -> None:
        """Work until ``stop`` is set; a step that is under way is finished first.

        Raises:
            ConfigError, AdapterError: the model or the version to start from cannot be loaded.
        """
        beat = asyncio.create_task(self._beat())
        try:
            await self._open(stop)
            while not stop.is_set():
                did_something = await self._survive(self.work_once)
                if not did_something:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(stop.wait(), POLL_S)
        finally:
            beat.cancel()
            await asyncio.gather(beat, return_exceptions=True)
            if self._workshop is not None:
                await self._on_thread(self._workshop.close)
            self._thread.shutdown(wait=True)

    async def _open(self, stop: asyncio.Event) -> None:
        """Make the workshop. A training server that is away is waited for: nothing here is wrong."""
        while not stop.is_set():
            try:
                async with self._device.turn():
                    self._workshop = await self._on_thread(
                        lambda: make_workshop(self._settings, self._device)
                    )
            except UpstreamError as exc:
                if self._counters.last_error != _sentence(exc):
                    print(f"patina: the trainer waits: {_sentence(exc)}", file=sys.stderr, flush=True)
                self._counters.last_error = _sentence(exc)
                self._state = "waiting for the training server"
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), _SERVER_S)
                continue
            self._counters.notes = self._workshop.notes
            self._counters.last_error = None
            await self._start()
            return

    async def _start(self) -> None:
        """Be the live version; remove what a worker that died left behind."""
        known = [Path(a.path) for a in await self._record.adapters(self._settings.policy)]
        remove = self._ready().remove
        await self._on_thread(lambda: sweep(self._settings.adapters_folder, known, remove=remove))
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
            self._pause_until = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            return False

    async def work_once(self) -> bool:
        """Train one batch if there is one to train; returns whether there was."""
        if time.monotonic() < self._pause_until:
            return False
        await self._record.release_expired()
        if await self._record.is_paused():
            self._state = "paused"
            return False
        steps = self._settings.max_steps
        if steps and self._counters.published >= steps:
            self._state = f"done: {steps} steps"
            return False
        waiting = await self._record.waiting(self._settings.policy, hint_only=not self._plan.reads_verdicts)
        is_due = (
            waiting.oldest_since is not None
            and time.time() - waiting.oldest_since > self._settings.max_wait_s
        )
        if waiting.ready < self._settings.batch_size and not is_due:
            self._state = "waiting"
            return False
        await self._on_thread(self._ready().check)
        self._state = "waiting for the device"
        async with self._device.turn():
            await self._follow_alias()
            self._state = "training"
            await self._step()
        self._state = "waiting"
        self._pause_s = _FIRST_PAUSE_S
        return True

    async def _follow_alias(self) -> None:
        """Train on from what is live: after a rollback that is an earlier version, and what came after it is left aside."""
        workshop = self._ready()
        move = (await self._record.aliases()).get(self._settings.policy)
        live = move.version if move is not None else BASE_VERSION
        if workshop.version == live:
            return
        if live == BASE_VERSION:
            await self._on_thread(workshop.start_over)
            return
        adapter = await self._record.adapter(self._settings.policy, live)
        if adapter is None:
            raise AdapterError(f"the live version {live} has no row in the record")
        await self._on_thread(lambda: workshop.become(adapter))

    async def _step(self) -> None:
        policy = self._settings.policy
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
        try:
            await self._claim(claimed)
            if not claimed:
                return
            workshop = self._ready()
            values = await self._record.recent_verdict_values(policy, _RECENT + len(claimed))
            # The newest verdicts are those of the batch itself, which is judged against what came before.
            recent = list(reversed(values[len(claimed) :]))
            replay, remembered = await self._past(workshop, claimed)
            number = await self._record.next_version(policy)
            outcome = await self._on_thread(
                lambda: workshop.attempt(claimed, replay, recent, number, remembered)
            )
            await self._settle(claimed, outcome, report, number)
        except AliasMoved as moved:  # nothing failed: a person undid what this step built upon
            await self._give_back([turn.turn_id for turn in claimed], report, moved)
        except Exception as exc:
            await self._give_back([turn.turn_id for turn in claimed], report, exc)
            raise
        finally:
            renewal.cancel()
            await asyncio.gather(renewal, return_exceptions=True)

    async def _claim(self, claimed: list[ScoredTurn]) -> None:
        """Take turns until a batch of them has something to teach; whatever happens, ``claimed`` holds what is taken.

        Those that teach nothing come along, the newest `_BYSTANDERS` of them: neutral traffic may be a hundred to one, and all
        of it would be in memory at once. The others are dropped as they come.
        """
        while True:
            more = await self._record.claim(
                self._settings.policy, self._settings.batch_size, worker=self._name, lease_s=LEASE_S
            )
            claimed += more
            idle = [turn for turn in claimed if not self._plan.has_signal(turn)]
            if len(idle) > _BYSTANDERS:
                gone = {turn.turn_id for turn in idle[:-_BYSTANDERS]}
                await self._record.drop(
                    list(gone),
                    DropReason.NO_SIGNAL,
                    detail=f"one of more than {_BYSTANDERS} neutral turns in a row",
                )
                self._counters.dropped[DropReason.NO_SIGNAL.value] += len(gone)
                claimed[:] = [turn for turn in claimed if turn.turn_id not in gone]
            if not more or len(claimed) - min(len(idle), _BYSTANDERS) >= self._settings.batch_size:
                return

    async def _past(
        self, workshop: Workshop, claimed: Sequence[ScoredTurn]
    ) -> tuple[list[ScoredTurn], list[ScoredTurn]]:
        """Past turns to repeat, and those of which the teacher hears what was said; what was forgotten is in neither."""
        repeated, remembered = workshop.draw_replay(claimed), workshop.remembered
        wanted = tuple(dict.fromkeys((*repeated, *remembered)))
        found = {turn.turn_id: turn for turn in await self._record.scored_turns(wanted)} if wanted else {}
        return [found[i] for i in repeated if i in found], [found[i] for i in remembered if i in found]

    async def _settle(
        self, claimed: list[ScoredTurn], outcome: Outcome, report: StepReport, number: int
    ) -> None:
        """Write what became of the claimed turns."""
        policy = self._settings.policy
        alike: dict[Refusal, list[str]] = {}
        for turn_id, refusal in outcome.refused.items():
            alike.setdefault(refusal, []).append(turn_id)
        for refusal, ids in alike.items():
            await self._record.drop(ids, refusal.reason, detail=refusal.detail)
            self._counters.dropped[refusal.reason.value] += len(ids)
        trained = [turn.turn_id for turn in claimed if turn.turn_id not in outcome.refused]
        if outcome.written is None:
            return  # nothing in the batch had anything to teach
        self._counters.steps += 1
        now = time.time()
        adapter = AdapterVersion(
            policy=policy,
            version=number,
            path=str(outcome.written.path),
            content_hash=outcome.written.content_hash,
            parent_version=outcome.parent_version,
            state=AdapterState.REJECTED if outcome.rejected else AdapterState.PUBLISHED,
            reason="; ".join(outcome.rejected) or outcome.reason,
            method=self._settings.method,
            metrics={**outcome.metrics, "turns": len(trained)},
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
            metrics=outcome.metrics,
        )
        if outcome.rejected:
            self._counters.rejected += 1
            self._counters.last_error = done.error
            self._rejections.update(trained)
            again = [i for i in trained if self._rejections[i] < 2]
            await self._record.reject(
                adapter, done, release=again, drop=[i for i in trained if i not in again]
            )
        else:
            try:
                await self._record.publish(adapter, trained, done)
            except IllegalTransition:
                # Our lease ran out and somebody else has the turns: their step counts, ours is undone.
                await self._on_thread(self._ready().undo)
                raise
            except AliasMoved:
                folder = outcome.written.path
                await self._on_thread(self._ready().undo)
                await self._on_thread(lambda: self._ready().remove(folder))
                raise
            self._counters.published += 1
            await self._on_thread(lambda: self._ready().adopt(number))
            await self._prune(number)
        if self._log is not None:
            self._log({"version": number, "rejected": bool(outcome.rejected), **outcome.metrics})

    async def _prune(self, live: int) -> None:
        policy = self._settings.policy
        adapters = await self._record.adapters(policy)
        with_files = {
            a.version: a.parent_version
            for a in adapters
            if a.state in (AdapterState.PUBLISHED, AdapterState.REJECTED)
        }
        keep = versions_to_keep(with_files, live, every=self._settings.save_interval)
        doomed = [a for a in adapters if a.version in with_files and a.version not in keep]
        for adapter in doomed:
            # The row first: a version that is marked pruned is never loaded, one without files might be.
            await self._record.mark_pruned(policy, [adapter.version])
            await self._on_thread(lambda path=Path(adapter.path): self._ready().remove(path))  # type: ignore[misc]

    async def _give_back(self, turn_ids: list[str], report: StepReport, exc: Exception) -> None:
        if not isinstance(exc, UpstreamError | AliasMoved):
            self._failures.update(turn_ids)
        hopeless = [i for i in turn_ids if self._failures[i] >= MAX_FAILURES]
        await self._record.drop(hopeless, DropReason.STEP_FAILED, detail=_sentence(exc))
        await self._record.release([i for i in turn_ids if i not in hopeless])
        await self._record.write_step(
            StepReport(
                step_id=report.step_id,
                policy=report.policy,
                method=report.method,
                started_at=report.started_at,
                finished_at=time.time(),
                version=None,
                error=_sentence(exc),
                metrics={},
            )
        )

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(LEASE_S / 4)
            try:
                await self._record.renew(self._name, LEASE_S)
            except RecordError as exc:
                # The lease has three quarters of its time left; the next renewal may succeed, and if none does the
                # publishing transaction refuses.
                self._counters.last_error = f"the lease was not renewed: {exc}"

    async def _beat(self) -> None:
        while True:
            try:
                await self._record.heartbeat(
                    Heartbeat(
                        process="trainer",
                        pid=os.getpid(),
                        state=self._state,
                        detail=self._counters.to_json() | self._device.state(),
                        at=time.time(),
                    )
                )
                await self._device.beat()
            except RecordError as exc:
                # `status` shows silence for what it is; training itself notices on its own.
                self._counters.last_error = f"the heartbeat was not written: {exc}"
            await asyncio.sleep(1.0)

    def _ready(self) -> Workshop:
        assert self._workshop is not None  # `run` loads it before any work
        return self._workshop

    async def _on_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _sentence(exc: BaseException) -> str:
    text = " ".join(str(exc).split())
    name = "" if isinstance(exc, PatinaError) and text else f"{type(exc).__name__}: "
    return (name + text)[:500]
