"""The trainer at rest: looks for work in the record and starts the process with the weights (`trainer.worker`) when there is some.

That process holds the model and its optimizer, many times the memory of this one, and ends by itself when there was nothing to do for a
while. It is killed when this process dies. When it fails, this process ends the same way, and the supervisor starts it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from pathlib import Path

from serving.model_digests import digest_served_model
from store.change_notice import ChangeNotice
from store.errors import RecordError
from store.heartbeats import REST_S as BEAT_REST_S
from store.heartbeats import HeartbeatWriter
from store.processes import die_with_parent
from store.record import Record
from store.settings import Settings
from store.training_plan import read_plan, training_threads
from store.values import Json
from trainer.due import DueFinder

#: Between two looks at a worker; between two looks for work: at least, while something waits for its time, and at most.
BEAT_S, MIN_INTERVAL_S, LOOK_S, REST_S = 2.0, 2.0, 5.0, 60.0
_PROCESS = "trainer"


class Watcher:
    """One trainer process without weights. Make it, then `run` it.

    Args:
        settings_path: the file that the worker reads its settings from.
    """

    def __init__(self, record: Record, settings: Settings, settings_path: Path) -> None:
        self._record = record
        self._settings = settings
        self._path = settings_path
        self._due = DueFinder(record, settings)
        self._beats = HeartbeatWriter(_PROCESS)
        #: Detail of the last worker's last heartbeat: its counters go on.
        self._detail: Json = {}

    async def run(self, stop: asyncio.Event) -> int:
        """Work until ``stop`` is set or a worker failed; returns its exit code, negative for a signal."""
        if code := await self._measure(stop):
            return code
        changes = self._record.change_notice(poll_s=LOOK_S, min_interval_s=MIN_INTERVAL_S)
        stopping = asyncio.create_task(changes.wake_at(stop))
        try:
            return await self._watch(stop, changes)
        finally:
            stopping.cancel()
            await asyncio.gather(stopping, return_exceptions=True)
            changes.close()

    async def _watch(self, stop: asyncio.Event, changes: ChangeNotice) -> int:
        look_at = 0.0  # monotonic
        while not stop.is_set():
            due, now = None, time.monotonic()
            try:
                if now >= look_at:
                    due = await self._due.find(int(self._detail.get("published", 0)))
                    look_at = now + (LOOK_S if self._due.waits_for_time else REST_S)
                await self._beat(self._due.state)
            except RecordError as exc:
                print(f"patina: the trainer cannot read the record: {exc}", file=sys.stderr, flush=True)
                look_at = now + LOOK_S
            if due is not None:
                if due.is_rebuild:
                    self._due.rebuilds[due.policy].begin()
                if code := await self._work(stop, "--work", json.dumps(self._detail)):
                    return code
                look_at = 0.0
            has_changed = await changes.wait(min(BEAT_REST_S, look_at - time.monotonic()))
            if has_changed or not changes.is_armed:
                look_at = 0.0
        return 0

    async def _measure(self, stop: asyncio.Event) -> int:
        """Measure this model once, so that everybody knows from the start what a version costs; returns the exit code."""
        model = await asyncio.to_thread(digest_served_model, self._settings.model_path)
        plan = read_plan(self._settings.home)
        if plan is not None and plan.is_of(model.base_model, training_threads(self._settings.threads)):
            return 0
        return await self._work(stop, "--measure")

    async def _work(self, stop: asyncio.Event, *arguments: str) -> int:
        """Run a worker until it ends; returns its exit code."""
        command = [sys.executable, "-m", "trainer", "--settings", str(self._path), *arguments]
        # Killed, not asked: a worker that goes on without this process would train beside its successor.
        child = await asyncio.create_subprocess_exec(
            *command, preexec_fn=lambda: die_with_parent(signal.SIGKILL)
        )
        ended, stopped = asyncio.create_task(child.wait()), asyncio.create_task(stop.wait())
        try:
            while not ended.done():
                await self._beat_beside(child.pid)
                await asyncio.wait({ended, stopped}, timeout=BEAT_S, return_when=asyncio.FIRST_COMPLETED)
                if stopped.done() and not ended.done():
                    with contextlib.suppress(ProcessLookupError):
                        child.terminate()
                    await ended
        finally:
            stopped.cancel()
            await asyncio.gather(stopped, return_exceptions=True)
        return ended.result()

    async def _beat_beside(self, pid: int) -> None:
        """Remember what the worker's heartbeat shows; until it writes one, this process does."""
        with contextlib.suppress(RecordError):  # written again soon
            beat = await self._record.beat_of(_PROCESS)
            if beat is not None and beat.pid == pid:
                self._detail = beat.detail
            else:
                await self._beat("loading the model")

    async def _beat(self, state: str) -> None:
        plan = read_plan(self._settings.home)
        detail = {**self._detail, "notes": list(plan.sentences()) if plan is not None else []}
        await self._beats.write(self._record, state, detail)
