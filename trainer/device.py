"""The device that training runs on: its own, shared in time with vLLM (`--colocate sleep`), or free for as long as people are idle.

`serving.vllm.gpu_sharing` is the engine's side of the sharing and describes the protocol.

The trainer leases the GPU to make a version. At every boundary (between micro-batches, between optimizer steps) the engine may ask it to
yield: it moves what it can off the GPU, requests a new lease, and continues when that is granted.
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

from serving.vllm.gpu_sharing import LEASE_S, POLL_S
from store.errors import RecordError
from store.record import Record
from store.settings import Settings
from store.training_schedule import IDLE
from store.values import GpuLease, GpuRole, Json

_WRITE_S = 1.0
#: A trainer that has not written its row for so long stops at the next boundary, because the engine may wake once the lease has expired.
_SAFE_S = LEASE_S / 3
#: `--train-when idle`: a step that requests interrupted goes on after so many seconds without one.
QUIET_S = 10.0


class Device(Protocol):
    """The device that training runs on.

    Attributes:
        enter, leave: move tensors onto the device, and off it; a shared device calls them around each lease.
    """

    enter: Callable[[], None]
    leave: Callable[[], None]

    def lease(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Hold the device inside the block. Raises: RecordError when the record cannot be reached."""
        ...

    def boundary(self) -> None:
        """Let requests through if one waits too long. Called on the trainer's thread, between passes."""
        ...

    async def beat(self) -> None:
        """Renew the lease. Raises: RecordError."""
        ...

    def state(self) -> Json:
        """For the heartbeat: seconds waited, and how often it yielded."""
        ...


class ExclusiveDevice:
    """A device without another user, or large enough for both."""

    def __init__(self) -> None:
        self.enter: Callable[[], None] = _nothing
        self.leave: Callable[[], None] = _nothing

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[None]:
        yield

    def boundary(self) -> None:
        return

    async def beat(self) -> None:
        return

    def state(self) -> Json:
        return {}


class SharedDevice:
    """A device shared with vLLM, which sleeps during a lease.

    Attributes:
        enter, leave: move tensors onto the device, and off it; called around each lease.
    """

    def __init__(self, record: Record) -> None:
        self.enter: Callable[[], None] = _nothing
        self.leave: Callable[[], None] = _nothing
        self._record = record
        self._lease: str | None = None
        self._is_requesting = False
        self._yield_requested = threading.Event()
        self._written_at = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waited_s = 0.0
        self._yields = 0

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[None]:
        """Hold the device inside the block. Raises: RecordError when the record cannot be reached."""
        self._loop = asyncio.get_running_loop()
        watching: asyncio.Task[None] | None = None
        try:
            await self._acquire()
            await asyncio.to_thread(self.enter)
            watching = asyncio.create_task(self._watch())
            yield
        finally:
            if watching is not None:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
            await self._release()

    def boundary(self) -> None:
        if not self._yield_requested.is_set() or self._loop is None:
            return
        self.leave()
        self._yields += 1
        asyncio.run_coroutine_threadsafe(self._acquire(), self._loop).result()
        self.enter()

    async def beat(self) -> None:
        await self._write()

    def state(self) -> Json:
        return {"device_wait_s": round(self._waited_s, 3), "device_yields": self._yields}

    async def _acquire(self) -> None:
        """Request a new lease, which ends the previous one, and wait until it is granted."""
        began = time.monotonic()
        self._lease, self._is_requesting = uuid4().hex, True
        try:
            await self._write_until_stored()
            while not await self._is_granted():
                await asyncio.sleep(POLL_S)
                if time.monotonic() - self._written_at > _WRITE_S:
                    await self._write_until_stored()
        finally:
            self._yield_requested.clear()
            self._is_requesting = False
        self._waited_s += time.monotonic() - began

    async def _is_granted(self) -> bool:
        try:
            granted = await self._record.gpu_lease(GpuRole.ENGINE)
        except RecordError:
            return False  # read again: only a row that was read grants a lease
        return (
            granted is not None
            and self._lease is not None
            and granted.lease == self._lease
            and not granted.should_yield
        )

    async def _watch(self) -> None:
        """Renew the lease, and check whether the engine asks for the device."""
        while True:
            if time.monotonic() - self._written_at > _WRITE_S:
                with contextlib.suppress(RecordError):  # `_SAFE_S` bounds how long this may fail
                    await self._write()
            lease = self._lease
            is_over = not await self._may_continue() or time.monotonic() - self._written_at > _SAFE_S
            # a row read before a new request says nothing about the new lease
            if is_over and not self._is_requesting and lease == self._lease:
                self._yield_requested.set()
            await asyncio.sleep(POLL_S)

    async def _may_continue(self) -> bool:
        try:
            granted = await self._record.gpu_lease(GpuRole.ENGINE)
        except RecordError:
            return True  # unknown; the lease's expiry bounds it
        return granted is None or (granted.lease == self._lease and not granted.should_yield)

    async def _release(self) -> None:
        self._lease = None
        self._yield_requested.clear()
        # the memory first: the engine takes it once the row is written
        await asyncio.to_thread(self.leave)
        await self._write_until_stored()

    async def _write_until_stored(self) -> None:
        """Write the row, and retry until it succeeds: otherwise the engine waits until the lease expires."""
        while True:
            try:
                await self._write()
                return
            except RecordError:
                await asyncio.sleep(POLL_S)

    async def _write(self) -> None:
        await self._record.write_gpu_lease(
            GpuLease(role=GpuRole.TRAINER, pid=os.getpid(), lease=self._lease, at=time.time())
        )
        self._written_at = time.monotonic()


class IdleDevice(ExclusiveDevice):
    """A device whose steps wait at their next boundary while people send requests (`--train-when idle`).

    Args:
        record: shows the requests in flight and the newest main request.
        quiet_s: seconds without a main request after which the step goes on.
        poll_s: seconds between two looks.
    """

    def __init__(self, record: Record, *, quiet_s: float = QUIET_S, poll_s: float = 0.5) -> None:
        super().__init__()
        self._record = record
        self._quiet_s = quiet_s
        self._poll_s = poll_s
        self._is_quiet = threading.Event()
        self._is_quiet.set()
        self._leased_at = 0.0
        self._waited_s = 0.0
        self._waits = 0

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[None]:
        self._leased_at = time.time()
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            self._is_quiet.set()

    def boundary(self) -> None:
        if self._is_quiet.is_set():
            return
        self._waits += 1
        began = time.monotonic()
        self._is_quiet.wait()
        self._waited_s += time.monotonic() - began

    def state(self) -> Json:
        return {
            "is_interrupted": not self._is_quiet.is_set(),
            "interrupted_s": round(self._waited_s, 3),
            "interruptions": self._waits,
        }

    async def _watch(self) -> None:
        """Check whether people send requests. A step that a person asked for is not interrupted."""
        while True:
            with contextlib.suppress(RecordError):  # looked at again soon
                now = await self._record.activity()
                is_new = now.in_flight > 0 or now.newest_main_at > self._leased_at
                is_asked = now.asked_at > now.newest_main_at
                if is_new and not is_asked and now.quiet_s(time.time()) < self._quiet_s:
                    self._is_quiet.clear()
                else:
                    self._is_quiet.set()
            await asyncio.sleep(self._poll_s)


def _nothing() -> None:
    return


def make_device(settings: Settings, record: Record) -> Device:
    """Return how the trainer and the serving engine share the device."""
    if settings.backend == "vllm" and settings.colocate == "sleep":
        return SharedDevice(record)
    is_local = settings.backend != "tinker" and settings.train_on == "here"
    if settings.schedule.mode == IDLE and is_local:
        return IdleDevice(record)
    return ExclusiveDevice()
