"""One device by turns (`--colocate sleep`): the engine's half. An engine around vLLM that holds requests while the trainer has the device.

`serving.vllm.hold` decides; here it is done. The other half is the trainer's (`trainer.device`). They speak by two rows of the record, each
written by one side only and read by the other every tenth of a second, so that either may die and begin again at any moment:

    trainer-turn   the turn that the trainer wants or has; None: none. A trainer that yields names a new one.
    device         whose turn it is (`granted`), whether it is to yield, and what being held has cost.

What counts is what the rows say, not that they changed. A trainer whose process is gone, or whose row is older than its lease, has
given the device back; a proxy that is started while a turn goes on takes it over; an engine that dies asleep is given the device back,
because the one that is started in its place needs it.
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

from serving.protocol import Capabilities, Engine, Headers, Reply, ServedModel
from serving.replies import WatchedReply
from serving.vllm.hold import Action, Hold, Phase
from store.errors import RecordError, UpstreamError, UpstreamTimeout
from store.processes import is_alive
from store.record import Record
from store.values import Heartbeat, Json

log = logging.getLogger(__name__)

#: Names of the two rows.
ENGINE_ROW, TRAINER_ROW = "device", "trainer-turn"
#: A trainer that has not written its row for so long has lost its turn; it stops by itself well before.
LEASE_S = 30.0
POLL_S = 0.1
_WRITE_S, _LOOK_S = 1.0, 1.0
_AGAIN_S = 0.5
#: So long the record is waited for at the start before the engine is woken without knowing whose turn it is.
_RECORD_PATIENCE_S = 5.0


class Sleeper(Engine, Protocol):
    """An engine that can give its device away for a while."""

    async def sleep(self) -> None:
        """Give the device away; what is still in flight is kept. Raises: UpstreamError."""
        ...

    async def wake_up(self) -> None:
        """Take it back; harmless when it is awake. Raises: UpstreamError."""
        ...


class EngineByTurns:
    """An engine (`serving.protocol.Engine`) that shares its device with the trainer by turns. `run` has to run beside it.

    Args:
        max_hold_s: longest wait of a request before the trainer is asked to yield.
    """

    def __init__(self, engine: Sleeper, *, max_hold_s: float) -> None:
        self._engine = engine
        self._max_hold_s = max_hold_s
        self._hold = Hold(max_hold_s)
        self._hold.phase = Phase.WAKING  # until it is known whose turn it is
        self._numbers = itertools.count(1)
        self._admitted: dict[str, asyncio.Future[None]] = {}
        self._due: asyncio.Queue[Action] = asyncio.Queue()
        self._turn: str | None = None  # what the trainer wants or has
        self._granted: str | None = None
        self._yields = 0
        self._is_to_yield = False
        self._turns = 0
        self._problem: str | None = None
        self._looked_at = 0.0
        self._written: tuple[float, Json] = (0.0, {})

    @property
    def address(self) -> str:
        return self._engine.address

    # ---- requests

    @asynccontextmanager
    async def _awake(self) -> AsyncIterator[None]:
        request = await self._arrive()
        try:
            yield
        finally:
            self._leave(request)

    async def _arrive(self) -> str:
        """Wait until the engine serves, and have it serve until `_leave`."""
        request = str(next(self._numbers))
        if not self._hold.arrived(request, time.monotonic()):
            self._admitted[request] = asyncio.get_running_loop().create_future()
            try:
                await self._admitted[request]
            except asyncio.CancelledError:
                self._leave(request)
                raise
            finally:
                self._admitted.pop(request, None)
        return request

    def _leave(self, request: str) -> None:
        self._do(self._hold.left(request, time.monotonic()))

    async def open(
        self, method: str, path: str, headers: Headers, body: bytes | AsyncIterator[bytes] | None
    ) -> Reply:
        """Send a request, once the engine is awake; it is not put to sleep before the reply is closed."""
        request = await self._arrive()
        try:
            reply = await self._engine.open(method, path, headers, body)
        except BaseException:
            self._leave(request)
            raise
        return WatchedReply(reply, lambda: self._leave(request))

    async def capabilities(self) -> Capabilities:
        async with self._awake():
            return await self._engine.capabilities()

    async def load_adapter(self, name: str, path: str) -> None:
        # into memory of the device: not while somebody else has it
        async with self._awake():
            await self._engine.load_adapter(name, path)

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
        """For `status`: whose turn it is, and what being held has cost so far (seconds)."""
        held = self._hold.held
        found: Json = {
            "turn": "trainer" if self._hold.phase is Phase.TRAINING else "engine",
            "phase": self._hold.phase.value,
            "turns": self._turns,
            "yields": self._yields,
            "max_hold_s": self._max_hold_s,
            "held_now": self._hold.waiting,
            "held_requests": held.requests,
            "held_s": round(held.seconds, 3),
            "longest_s": round(held.longest, 3),
        }
        return {**found, "problem": self._problem} if self._problem else found

    # ---- the loop

    async def run(self, record: Callable[[], Record | None]) -> None:
        """Take turns with the trainer, for as long as this process lives.

        Args:
            record: the open record; None while it is away. Then nobody's turn changes.
        """
        await self._begin(record)
        while True:
            action: Action | None = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    action = await self._due.get()
            while action is not None:
                await self._act(action, record)
                await self._write(record())
                action = None if self._due.empty() else self._due.get_nowait()
            await self._look(record())
            await self._write(record())

    async def _begin(self, record: Callable[[], Record | None]) -> None:
        """Go on with a turn that an earlier life of ours granted, or see that the engine is awake."""
        for _ in range(int(_RECORD_PATIENCE_S / POLL_S)):
            if record() is not None:
                break
            await asyncio.sleep(POLL_S)
        own = None
        if (open_record := record()) is not None:
            self._turn = await self._wish(open_record)
            with contextlib.suppress(
                RecordError
            ):  # then the engine is woken, which is never wrong for requests
                own = await open_record.beat_of(ENGINE_ROW)
        if own is not None and self._turn is not None and own.detail.get("granted") == self._turn:
            self._granted = self._turn
            self._hold.resume()
            log.info("a training step has the device")
        else:
            self._due.put_nowait(Action.WAKE)

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            if action is Action.ADMIT:
                for waiting in self._admitted.values():
                    if not waiting.done():
                        waiting.set_result(None)
            else:
                self._due.put_nowait(action)

    async def _act(self, action: Action, record: Callable[[], Record | None]) -> None:
        if action is Action.SLEEP:
            try:
                await self._engine.sleep()
            except UpstreamError as exc:
                self._problem = f"it did not fall asleep: {exc}"
                log.error("the engine did not fall asleep: %s", exc)
                self._do(self._hold.failed())
            else:
                self._problem = None
                self._do(self._hold.slept())
        elif action is Action.GRANT:
            self._turns += 1
            self._granted, self._is_to_yield = self._turn, False
        elif action is Action.YIELD:
            self._yields += 1
            self._is_to_yield = True
        elif action is Action.WAKE:
            self._granted, self._is_to_yield = None, False
            await self._wake(record)
            self._do(self._hold.woken(time.monotonic()))

    async def _wake(self, record: Callable[[], Record | None]) -> None:
        while True:
            try:
                await self._engine.wake_up()
            except UpstreamError as exc:
                # being started anew: then it is awake, once it is there
                self._problem = f"it was not woken yet: {exc}"
                await self._write(record())
                await asyncio.sleep(_AGAIN_S)
            else:
                self._problem = None
                return

    async def _look(self, record: Record | None) -> None:
        """See what the trainer wants, what time has made due, and whether the engine lives."""
        now = time.monotonic()
        if record is not None:
            self._turn = await self._wish(record)
            if self._hold.phase is Phase.TRAINING and self._turn != self._granted:
                self._do(self._hold.released())
            if self._turn is None:
                self._do(self._hold.gave_up(now))
            elif self._turn != self._granted and self._hold.phase in (Phase.SERVING, Phase.DRAINING):
                self._do(self._hold.wants())
        self._do(self._hold.tick(now))
        if self._hold.phase is Phase.TRAINING and now - self._looked_at > _LOOK_S:
            self._looked_at = now
            try:
                await self._engine.models()
            except UpstreamTimeout:
                pass  # silence is no death
            except UpstreamError as exc:
                self._problem = f"the engine died while it slept: {exc}"
                self._do(self._hold.lost())

    async def _wish(self, record: Record) -> str | None:
        try:
            beat = await record.beat_of(TRAINER_ROW)
        except RecordError as exc:
            self._problem = f"the trainer's turn could not be read: {exc}"
            return self._turn
        if beat is None or time.time() - beat.at > LEASE_S or not is_alive(beat.pid):
            return None
        turn = beat.detail.get("turn")
        return turn if isinstance(turn, str) else None

    async def _write(self, record: Record | None) -> None:
        if record is None:
            return
        detail: Json = {"granted": self._granted, "yield": self._is_to_yield, **self.state()}
        written_at, before = self._written
        if detail == before and time.monotonic() - written_at < _WRITE_S:
            return
        try:
            await record.heartbeat(
                Heartbeat(
                    process=ENGINE_ROW,
                    pid=os.getpid(),
                    state=self._hold.phase.value,
                    detail=detail,
                    at=time.time(),
                )
            )
        except RecordError as exc:
            self._problem = f"whose turn it is could not be written: {exc}"
            return
        self._written = time.monotonic(), detail
