"""Runs `run.py forget` for the web page and for clients that delete a completion: a process of its own, because training again takes
minutes."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import orjson

from store.change_notice import ChangeNotice
from store.errors import RecordError
from store.record_handle import RecordHandle
from store.settings import child_environment
from store.values import Json

log = logging.getLogger(__name__)

_KEPT = 50
#: Deleted completions are looked for when the record changed, at most and, where that is not noticed, at least so often.
_LOOK_S = 2.0
_REST_S = 30.0


@dataclass(slots=True)
class ForgetJob:
    """One turn that is or was forgotten.

    Attributes:
        key_name: of the key that asked.
        receipt: None while it runs, and when it failed.
        error: what went wrong; "": nothing.
    """

    turn_id: str
    key_name: str
    started_at: float
    receipt: Json | None = None
    error: str = ""

    @property
    def state(self) -> str:
        if self.error:
            return "failed"
        if self.receipt is None:
            return "running"
        return "forgotten" if self.receipt["complete"] else "incomplete"


class Forgetting:
    """The jobs of this process, newest first; one runs at a time."""

    def __init__(self, settings_file: Path) -> None:
        self._settings_file = settings_file
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self.jobs: list[ForgetJob] = []

    def start(self, turn_id: str, key_name: str) -> asyncio.Task[None] | None:
        """Forget a turn in the background; None when that is under way."""
        if any(job.turn_id == turn_id and job.state == "running" for job in self.jobs):
            return None
        job = ForgetJob(turn_id, key_name, time.time())
        self.jobs = [job, *self.jobs][:_KEPT]
        task = asyncio.create_task(self._run(job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def state(self) -> Json:
        """Return the number of jobs by state and the newest error, for `status`."""
        states = [job.state for job in self.jobs]
        error = next((job.error for job in self.jobs if job.error), None)
        return {**{name: states.count(name) for name in sorted(set(states))}, "last_error": error}

    async def run(self, record: RecordHandle) -> None:
        """Forget, one after the other, the turns of completions that their clients deleted; a failure is not tried again before a restart."""
        tried: set[str] = set()
        changes: ChangeNotice | None = None
        while True:
            try:
                opened = await record.get()
                changes = changes or opened.change_notice(poll_s=_LOOK_S, min_interval_s=_LOOK_S)
                waiting = await opened.turns_to_forget()
            except RecordError as exc:
                log.warning("deleted completions wait to be forgotten: %s", exc)
                waiting = []
            for turn_id, key_name in waiting:
                if turn_id not in tried:
                    tried.add(turn_id)
                    task = self.start(turn_id, key_name)
                    job = self.jobs[0]
                    if task is not None:
                        await task
                    if job.error:
                        log.error("%s was deleted and cannot be forgotten: %s", turn_id, job.error)
            await (asyncio.sleep(_LOOK_S) if changes is None else changes.wait(_REST_S))

    async def _run(self, job: ForgetJob) -> None:
        command = [
            sys.executable,
            "-m",
            "cli.forget",
            "--settings",
            str(self._settings_file),
            "--turn",
            job.turn_id,
        ]
        async with self._lock:
            try:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    env=child_environment(),
                )
                output, errors = await process.communicate()
                if process.returncode in (0, 1):  # 1: something is left, which the receipt names
                    job.receipt = orjson.loads(output)
                else:
                    lines = errors.decode("utf-8", "replace").split("\n")
                    job.error = next((line for line in reversed(lines) if line.strip()), "it failed")
            except (OSError, ValueError) as exc:
                job.error = str(exc)
