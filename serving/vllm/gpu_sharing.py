"""One GPU shared in time (`--colocate sleep`), the serving side: a backend around vLLM that holds requests while the trainer has the GPU.

`serving.vllm.gpu_arbiter` decides; this module performs the actions. The trainer's side is `trainer.device`. Both communicate through the table
`gpu_leases`. Each row is written by one side and read by the other every tenth of a second, so that either process may restart at any time:

    trainer   the lease that the trainer requests or holds; None: none. A trainer that yields requests a new one.
    engine    the lease that is granted, and whether the trainer should yield.

Only the content of the rows counts. The cost of waiting is in the heartbeat `device`, for `status`. A trainer whose process is gone, or whose row is older than its lease, has released the GPU. A proxy that starts
during a training step continues it. When the engine dies asleep, the trainer is asked to release the GPU for the engine's restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

from serving.protocol import BackendClient, BackendReply, Capabilities, Headers, ServedModel
from serving.replies import NotifyingReply
from serving.vllm.gpu_arbiter import Action, GpuArbiter, GpuPhase
from store.errors import RecordError, UpstreamError, UpstreamTimeout
from store.processes import is_alive
from store.record import Record
from store.values import GpuLease, GpuRole, Heartbeat, Json

log = logging.getLogger(__name__)

#: The heartbeat of the shared GPU.
DEVICE_PROCESS = "device"
#: A trainer that has not updated its row for this long has lost its lease; it stops by itself well before.
LEASE_S = 30.0
POLL_S = 0.1
_HEARTBEAT_INTERVAL_S, _ENGINE_CHECK_S = 1.0, 1.0
_WAKE_RETRY_S = 0.5
#: Longest wait for the record at the start; after that the engine is woken without knowing who holds the GPU.
_RECORD_WAIT_S = 5.0


class SleepableBackend(BackendClient, Protocol):
    """A backend that can release its GPU for a while."""

    async def sleep(self) -> None:
        """Release the GPU; requests in flight are kept. Raises: UpstreamError."""
        ...

    async def wake_up(self) -> None:
        """Take the GPU back; no effect when awake. Raises: UpstreamError."""
        ...


class GpuSharingBackend:
    """A backend (`serving.protocol.BackendClient`) that shares its GPU with the trainer. `run` must run beside it.

    Args:
        max_hold_s: longest wait of a request before the trainer is asked to yield.
    """

    def __init__(self, engine: SleepableBackend, *, max_hold_s: float) -> None:
        self._engine = engine
        self._max_hold_s = max_hold_s
        self._arbiter = GpuArbiter(max_hold_s)
        self._arbiter.phase = GpuPhase.WAKING  # until it is known who holds the GPU
        self._numbers = itertools.count(1)
        self._admitted: dict[str, asyncio.Future[None]] = {}
        self._actions: asyncio.Queue[Action] = asyncio.Queue()
        self._wanted_lease: str | None = None  # that the trainer wants or holds
        self._granted_lease: str | None = None
        self._yields = 0
        self._is_to_yield = False
        self._lease_count = 0
        self._problem: str | None = None
        self._engine_checked_at = 0.0
        self._written: tuple[float, object] = (0.0, None)

    @property
    def address(self) -> str:
        return self._engine.address

    # ---- requests

    @asynccontextmanager
    async def _awake(self) -> AsyncIterator[None]:
        request = await self._begin_request()
        try:
            yield
        finally:
            self._end_request(request)

    async def _begin_request(self) -> str:
        """Wait until the engine serves; it stays awake until `_end_request`."""
        request = str(next(self._numbers))
        if not self._arbiter.request_arrived(request, time.monotonic()):
            self._admitted[request] = asyncio.get_running_loop().create_future()
            try:
                await self._admitted[request]
            except asyncio.CancelledError:
                self._end_request(request)
                raise
            finally:
                self._admitted.pop(request, None)
        return request

    def _end_request(self, request: str) -> None:
        self._apply(self._arbiter.request_ended(request, time.monotonic()))

    async def open(
        self, method: str, path: str, headers: Headers, body: bytes | AsyncIterator[bytes] | None
    ) -> BackendReply:
        """Send a request once the engine is awake; it stays awake until the reply is closed."""
        request = await self._begin_request()
        try:
            reply = await self._engine.open(method, path, headers, body)
        except BaseException:
            self._end_request(request)
            raise
        return NotifyingReply(reply, lambda: self._end_request(request))

    async def capabilities(self) -> Capabilities:
        async with self._awake():
            return await self._engine.capabilities()

    async def load_adapter(self, name: str, path: str) -> str:
        # Adapters are loaded into GPU memory: not while the trainer has it.
        async with self._awake():
            return await self._engine.load_adapter(name, path)

    async def unload_adapter(self, name: str) -> None:
        async with self._awake():
            await self._engine.unload_adapter(name)

    async def models(self) -> tuple[ServedModel, ...]:
        return await self._engine.models()

    async def is_healthy(self) -> bool:
        return await self._engine.is_healthy()

    async def activity(self) -> Mapping[str, Any]:
        return {**await self._engine.activity(), "device": self.state()}

    async def close(self) -> None:
        await self._engine.close()

    def state(self) -> Json:
        """Return the state for `status`: who holds the GPU, and the cost of waiting so far (seconds)."""
        wait_statistics = self._arbiter.wait_statistics
        found: Json = {
            "holder": "trainer" if self._arbiter.phase is GpuPhase.TRAINING else "engine",
            "phase": self._arbiter.phase.value,
            "leases": self._lease_count,
            "yields": self._yields,
            "max_hold_s": self._max_hold_s,
            "held_now": self._arbiter.waiting,
            "held_requests": wait_statistics.requests,
            "held_s": round(wait_statistics.seconds, 3),
            "longest_s": round(wait_statistics.longest, 3),
        }
        return {**found, "problem": self._problem} if self._problem else found

    # ---- the loop

    async def run(self, record: Callable[[], Record | None]) -> None:
        """Share the GPU with the trainer as long as this process runs.

        Args:
            record: the open record; None while it is unavailable. Then no lease changes.
        """
        await self._resume_or_wake(record)
        while True:
            action: Action | None = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    action = await self._actions.get()
            while action is not None:
                await self._perform(action, record)
                await self._write(record())
                action = None if self._actions.empty() else self._actions.get_nowait()
            await self._poll(record())
            await self._write(record())

    async def _resume_or_wake(self, record: Callable[[], Record | None]) -> None:
        """Continue a lease that an earlier process granted, or make sure that the engine is awake."""
        for _ in range(int(_RECORD_WAIT_S / POLL_S)):
            if record() is not None:
                break
            await asyncio.sleep(POLL_S)
        own = None
        if (open_record := record()) is not None:
            self._wanted_lease = await self._read_trainer_request(open_record)
            with contextlib.suppress(
                RecordError
            ):  # then the engine is woken, which is always safe for requests
                own = await open_record.gpu_lease(GpuRole.ENGINE)
        if own is not None and self._wanted_lease is not None and own.lease == self._wanted_lease:
            self._granted_lease = self._wanted_lease
            self._arbiter.resume_training()
            log.info("a training step holds the GPU")
        else:
            self._actions.put_nowait(Action.WAKE)

    def _apply(self, actions: list[Action]) -> None:
        for action in actions:
            if action is Action.ADMIT:
                for waiting in self._admitted.values():
                    if not waiting.done():
                        waiting.set_result(None)
            else:
                self._actions.put_nowait(action)

    async def _perform(self, action: Action, record: Callable[[], Record | None]) -> None:
        if action is Action.SLEEP:
            try:
                await self._engine.sleep()
            except UpstreamError as exc:
                self._problem = f"it did not fall asleep: {exc}"
                log.error("the engine did not fall asleep: %s", exc)
                self._apply(self._arbiter.engine_sleep_failed())
            else:
                self._problem = None
                self._apply(self._arbiter.engine_slept())
        elif action is Action.GRANT:
            self._lease_count += 1
            self._granted_lease, self._is_to_yield = self._wanted_lease, False
        elif action is Action.YIELD:
            self._yields += 1
            self._is_to_yield = True
        elif action is Action.WAKE:
            self._granted_lease, self._is_to_yield = None, False
            await self._wake(record)
            self._apply(self._arbiter.engine_woken(time.monotonic()))

    async def _wake(self, record: Callable[[], Record | None]) -> None:
        while True:
            try:
                await self._engine.wake_up()
            except UpstreamError as exc:
                # The engine is restarting; once it is up, it is awake.
                self._problem = f"it was not woken yet: {exc}"
                await self._write(record())
                await asyncio.sleep(_WAKE_RETRY_S)
            else:
                self._problem = None
                return

    async def _poll(self, record: Record | None) -> None:
        """Check the trainer's request, elapsed time, and the engine's health."""
        now = time.monotonic()
        if record is not None:
            self._wanted_lease = await self._read_trainer_request(record)
            if self._arbiter.phase is GpuPhase.TRAINING and self._wanted_lease != self._granted_lease:
                self._apply(self._arbiter.trainer_released())
            if self._wanted_lease is None:
                self._apply(self._arbiter.trainer_withdrew(now))
            elif self._wanted_lease != self._granted_lease and self._arbiter.phase in (
                GpuPhase.SERVING,
                GpuPhase.DRAINING,
            ):
                self._apply(self._arbiter.trainer_requested())
        self._apply(self._arbiter.tick(now))
        if self._arbiter.phase is GpuPhase.TRAINING and now - self._engine_checked_at > _ENGINE_CHECK_S:
            self._engine_checked_at = now
            try:
                await self._engine.models()
            except UpstreamTimeout:
                pass  # a timeout is not a death
            except UpstreamError as exc:
                self._problem = f"the engine died while it slept: {exc}"
                self._apply(self._arbiter.engine_lost())

    async def _read_trainer_request(self, record: Record) -> str | None:
        try:
            wanted = await record.gpu_lease(GpuRole.TRAINER)
        except RecordError as exc:
            self._problem = f"the trainer's request could not be read: {exc}"
            return self._wanted_lease
        if wanted is None or time.time() - wanted.at > LEASE_S or not is_alive(wanted.pid):
            return None
        return wanted.lease

    async def _write(self, record: Record | None) -> None:
        if record is None:
            return
        state, now = self.state(), time.time()
        written_at, before = self._written
        if (
            content := (self._granted_lease, self._is_to_yield, state)
        ) == before and time.monotonic() - written_at < _HEARTBEAT_INTERVAL_S:
            return
        lease = GpuLease(
            role=GpuRole.ENGINE,
            pid=os.getpid(),
            lease=self._granted_lease,
            should_yield=self._is_to_yield,
            at=now,
        )
        try:
            await record.write_gpu_lease(lease)
            await record.heartbeat(
                Heartbeat(
                    process=DEVICE_PROCESS,
                    pid=os.getpid(),
                    state=self._arbiter.phase.value,
                    detail=state,
                    at=now,
                )
            )
        except RecordError as exc:
            self._problem = f"the state of the GPU could not be written: {exc}"
            return
        self._written = time.monotonic(), content
