"""Who has the device: the trainer's half of `--colocate sleep` (`serving.vllm.gpu_sharing` is the engine's, and describes the rows).

The trainer takes the device for an attempt at a version, and at every boundary (between micro-batches, between optimizer steps) it may be
asked to let requests through: it frees what it does not need, names a new turn, and goes on when that is granted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol
from uuid import uuid4

from serving.vllm.gpu_sharing import ENGINE_ROW, LEASE_S, POLL_S, TRAINER_ROW
from store.errors import RecordError
from store.record import Record
from store.settings import Settings
from store.values import Heartbeat, Json

_WRITE_S = 1.0
#: Without having written our row for so long we stop at the next boundary: the engine may be woken when the lease is over.
_SAFE_S = LEASE_S / 3


class Device(Protocol):
    """The device for the time of an attempt.

    Attributes:
        enter, leave: put on the device what the work needs, and take off it what does not have to stay; called by devices that
            are taken in turns.
    """

    enter: Callable[[], None]
    leave: Callable[[], None]

    def turn(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Hold the device inside the block. Raises: RecordError when the record cannot be reached."""
        ...

    def boundary(self) -> None:
        """Let requests through if one waits too long. Called on the trainer's thread, between passes."""
        ...

    async def beat(self) -> None:
        """Say that we are there, every second or so. Raises: RecordError."""
        ...

    def state(self) -> Json:
        """For the heartbeat: seconds waited, and how often we yielded."""
        ...


class OwnDevice:
    """A device without another user, or large enough for both."""

    def __init__(self) -> None:
        self.enter: Callable[[], None] = _nothing
        self.leave: Callable[[], None] = _nothing

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        yield

    def boundary(self) -> None:
        return

    async def beat(self) -> None:
        return

    def state(self) -> Json:
        return {}


class DeviceByTurns:
    """A device that vLLM sleeps on while we have it.

    Attributes:
        enter, leave: put on the device what the work needs, and take off it what does not have to stay; around each turn.
    """

    def __init__(self, record: Record) -> None:
        self.enter: Callable[[], None] = _nothing
        self.leave: Callable[[], None] = _nothing
        self._record = record
        self._turn: str | None = None
        self._is_taking = False
        self._asked = threading.Event()
        self._written_at = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waited_s = 0.0
        self._yields = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Hold the device inside the block. Raises: RecordError when the record cannot be reached."""
        self._loop = asyncio.get_running_loop()
        watching: asyncio.Task[None] | None = None
        try:
            await self._take()
            await asyncio.to_thread(self.enter)
            watching = asyncio.create_task(self._watch())
            yield
        finally:
            if watching is not None:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
            await self._give_back()

    def boundary(self) -> None:
        if not self._asked.is_set() or self._loop is None:
            return
        self.leave()
        self._yields += 1
        asyncio.run_coroutine_threadsafe(self._take(), self._loop).result()
        self.enter()

    async def beat(self) -> None:
        await self._say()

    def state(self) -> Json:
        return {"device_wait_s": round(self._waited_s, 3), "device_yields": self._yields}

    async def _take(self) -> None:
        """Name a new turn (which ends the one we had), and wait until it is granted."""
        began = time.monotonic()
        self._turn, self._is_taking = uuid4().hex, True
        try:
            await self._insist()
            while not await self._is_ours():
                await asyncio.sleep(POLL_S)
                if time.monotonic() - self._written_at > _WRITE_S:
                    await self._insist()
        finally:
            self._asked.clear()
            self._is_taking = False
        self._waited_s += time.monotonic() - began

    async def _is_ours(self) -> bool:
        try:
            beat = await self._record.beat_of(ENGINE_ROW)
        except RecordError:
            return False  # asked again: only a row that was read grants anything
        return (
            beat is not None
            and self._turn is not None
            and beat.detail.get("granted") == self._turn
            and not beat.detail.get("yield")
        )

    async def _watch(self) -> None:
        """Keep the lease, and see whether we are to yield."""
        while True:
            if time.monotonic() - self._written_at > _WRITE_S:
                with contextlib.suppress(RecordError):  # `_SAFE_S` sees to it
                    await self._say()
            turn = self._turn
            is_over = not await self._is_still_ours() or time.monotonic() - self._written_at > _SAFE_S
            # what was read before a new turn was named says nothing about that one
            if is_over and not self._is_taking and turn == self._turn:
                self._asked.set()
            await asyncio.sleep(POLL_S)

    async def _is_still_ours(self) -> bool:
        try:
            beat = await self._record.beat_of(ENGINE_ROW)
        except RecordError:
            return True  # no word from the server; the lease bounds it
        if beat is None:
            return True
        return beat.detail.get("granted") == self._turn and not beat.detail.get("yield")

    async def _give_back(self) -> None:
        self._turn = None
        self._asked.clear()
        # the memory first: once the row is written the engine takes it
        await asyncio.to_thread(self.leave)
        await self._insist()

    async def _insist(self) -> None:
        """Write our row, however long that takes: a turn that is not given back ends with its lease, but not before."""
        while True:
            try:
                await self._say()
                return
            except RecordError:
                await asyncio.sleep(POLL_S)

    async def _say(self) -> None:
        await self._record.heartbeat(
            Heartbeat(
                process=TRAINER_ROW,
                pid=os.getpid(),
                state="idle" if self._turn is None else "wanting or having the device",
                detail={"turn": self._turn},
                at=time.time(),
            )
        )
        self._written_at = time.monotonic()


def _nothing() -> None:
    return


def make_device(settings: Settings, record: Record) -> Device:
    """Return how the trainer and the serving engine share the device."""
    if settings.backend == "vllm" and settings.colocate == "sleep":
        return DeviceByTurns(record)
    return OwnDevice()
