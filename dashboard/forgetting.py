"""Runs `run.py forget` for the web page: a process of its own, because training again takes minutes."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import orjson

from store.settings import child_environment
from store.values import Json

_KEPT = 50


@dataclass(slots=True)
class Job:
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
        self.jobs: list[Job] = []

    def start(self, turn_id: str, key_name: str) -> None:
        """Forget a turn in the background; nothing when that is under way."""
        if any(job.turn_id == turn_id and job.state == "running" for job in self.jobs):
            return
        job = Job(turn_id, key_name, time.time())
        self.jobs = [job, *self.jobs][:_KEPT]
        task = asyncio.create_task(self._run(job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, job: Job) -> None:
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
