"""The thread of an engine that batches requests between token steps: its inbox, its outbox and its life.

Other threads use `submit`, `cancel`, `stop` and `call`, which are read between steps; results leave once per step for all sequences. Everything whose
name begins with an underscore runs on the engine's thread.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

from serving.openai_server.engine import AdapterT, Job
from serving.openai_server.values import OutputChunk

log = logging.getLogger("patina.serving")

#: How long the results of a step wait for those of the step before to be read. A tiny model's steps are shorter than a round of the event loop, and
#: its streams would arrive in lumps.
_READ_WAIT_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Counts since the start, and current numbers of sequences."""

    running: int
    waiting: int
    steps: int
    prompt_tokens: int
    cached_prompt_tokens: int
    completion_tokens: int
    preemptions: int
    step_errors: int
    last_error: str | None


class BatchLoop(ABC, Generic[AdapterT]):
    """Runs `_step` while there is work. `post` passes a callable to the thread that reads the results."""

    def __init__(self, post: Callable[[Callable[[], None]], None]) -> None:
        self._post = post
        self._inbox: deque[Job[AdapterT]] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._any_cancelled = False
        self._is_read = threading.Event()
        self._is_read.set()
        self._outbox: list[tuple[Job[AdapterT], int, OutputChunk]] = []
        self._steps = self._prompt_tokens = self._cached_tokens = self._completion_tokens = 0
        self._preemptions = self._errors = 0
        self._last_error: str | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # ---- for other threads

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end after its current step; what is unfinished is delivered as aborted."""
        with self._wake:
            self._stopping = True
            self._wake.notify()

    def join(self) -> None:
        """Wait for the thread to end after `stop`."""
        self._thread.join()

    def submit(self, job: Job[AdapterT]) -> bool:
        """Queue a job; False if the engine is stopping. Its prompt must be shorter than the context."""
        with self._wake:
            if self._stopping:
                return False
            self._inbox.append(job)
            self._wake.notify()
        return True

    def cancel(self, job: Job[AdapterT]) -> None:
        """Drop a job before its next step. Nothing more is delivered for it."""
        job.cancelled = True
        self._any_cancelled = True

    def call(self, work: Callable[[], None]) -> None:
        """Run something on the thread, between two steps."""
        with self._wake:
            self._calls.append(work)
            self._wake.notify()

    def stats(self) -> EngineStats:
        """Return a snapshot, exact to a step."""
        running, waiting = self._count()
        return EngineStats(
            running=running,
            waiting=waiting + sum(job.n for job in tuple(self._inbox)),
            steps=self._steps,
            prompt_tokens=self._prompt_tokens,
            cached_prompt_tokens=self._cached_tokens,
            completion_tokens=self._completion_tokens,
            preemptions=self._preemptions,
            step_errors=self._errors,
            last_error=self._last_error,
        )

    @abstractmethod
    def _count(self) -> tuple[int, int]:
        """Return how many sequences run and wait; called from any thread."""

    # ---- the engine's thread from here on

    def _rest(self) -> None:
        """Free memory that is kept only for speed: there is no work."""

    @abstractmethod
    def _has_work(self) -> bool: ...

    @abstractmethod
    def _take_in(self, job: Job[AdapterT]) -> None:
        """Queue a new job's sequences."""

    @abstractmethod
    def _remove_cancelled(self) -> None: ...

    @abstractmethod
    def _step(self) -> None:
        """Admit what fits and compute one step for what runs."""

    @abstractmethod
    def _clear(self) -> list[tuple[Job[AdapterT], int]]:
        """Drop all sequences; returns the job and index of each, to which the end is delivered."""

    def _run(self) -> None:
        while True:
            with self._wake:
                if not (self._inbox or self._calls or self._stopping or self._has_work()):
                    self._rest()
                    self._wake.wait()
                if self._stopping:
                    break
            try:
                self._read_inbox()
                if self._any_cancelled:
                    self._any_cancelled = False
                    self._remove_cancelled()
                if self._has_work():
                    self._step()
                    self._steps += 1
            except Exception as error:
                # A failing step (out of memory, a kernel that refuses a shape) must not end the service: all requests in flight get an
                # error, the cache is cleared, and the next request finds a working engine. `stats` counts it.
                log.exception("a step failed")
                self._errors += 1
                self._last_error = f"{type(error).__name__}: {error}"
                self._end_all(
                    OutputChunk(
                        text="", token_ids=(), logprobs=(), finish_reason="error", error=self._last_error
                    )
                )
            self._flush()
        self._end_all(OutputChunk(text="", token_ids=(), logprobs=(), finish_reason="abort"))
        self._flush()

    def _read_inbox(self) -> None:
        while self._calls:
            self._calls.popleft()()
        while self._inbox:
            self._take_in(self._inbox.popleft())

    def _end_all(self, chunk: OutputChunk) -> None:
        self._read_inbox()
        self._outbox += [(job, index, chunk) for job, index in self._clear()]

    def _flush(self) -> None:
        if not self._outbox:
            return
        outbox, self._outbox = self._outbox, []
        self._is_read.wait(_READ_WAIT_S)
        self._is_read.clear()

        def deliver() -> None:
            self._is_read.set()
            for job, index, chunk in outbox:
                if not job.cancelled:
                    job.deliver(index, chunk)

        self._post(deliver)
