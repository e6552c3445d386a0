"""Several copies of one engine as one (`serving.protocol.Engine`): an adapter is on all of them before it counts as loaded.

A copy that does not answer is left out, and comes back once it has every adapter that the others have. A request goes to the copy with
the fewest requests in flight, by turns; one that cannot be reached is tried on the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from serving.protocol import Capabilities, Engine, Headers, Reply, ServedModel
from serving.replies import WatchedReply
from store.errors import AdapterError, UpstreamError, UpstreamUnreachable

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Copy:
    engine: Engine
    in_flight: int = 0
    last_asked: int = 0
    is_ready: bool = False
    problem: str | None = None

    def leave(self) -> None:
        """A request that was under way there is done with."""
        self.in_flight -= 1


class ReplicaEngine:
    """Copies of one engine, each with the same base model.

    Args:
        engines: at least one.
    """

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._copies = [_Copy(engine) for engine in engines]
        self._adapters: dict[str, str] = {}
        self._asked = 0

    @property
    def address(self) -> str:
        return " and ".join(copy.engine.address for copy in self._copies)

    def _ready(self) -> list[_Copy]:
        return sorted(
            (copy for copy in self._copies if copy.is_ready),
            key=lambda copy: (copy.in_flight, copy.last_asked),
        )

    async def capabilities(self) -> Capabilities:
        """Ask all that answer; what one of them cannot do, they cannot do."""
        found: list[Capabilities] = []
        problem: UpstreamError | None = None
        for copy in self._copies:
            try:
                found.append(await copy.engine.capabilities())
            except UpstreamError as exc:
                problem = exc
        if not found:
            assert problem is not None
            raise problem
        first = found[0]
        slots = [one.adapter_slots for one in found if one.adapter_slots is not None]
        notes = dict.fromkeys(note for one in found for note in one.notes)
        if any(one.logprob_mode != first.logprob_mode for one in found):
            notes["the copies report different kinds of log-probabilities"] = None
            first = replace(first, logprob_mode=type(first.logprob_mode).UNKNOWN)
        return replace(
            first,
            token_ids=all(one.token_ids for one in found),
            logprobs=all(one.logprobs for one in found),
            adapters=all(one.adapters for one in found),
            tools=None if first.tools is None else all(one.tools for one in found),
            constrained=None if first.constrained is None else all(one.constrained for one in found),
            adapter_slots=min(slots, default=None),
            notes=tuple(notes),
        )

    async def open(
        self, method: str, path: str, headers: Headers, body: bytes | AsyncIterator[bytes] | None
    ) -> Reply:
        """Send a request to the least busy copy that is ready."""
        tried: UpstreamUnreachable | None = None
        for copy in self._ready():
            copy.in_flight += 1
            self._asked += 1
            copy.last_asked = self._asked
            try:
                reply = await copy.engine.open(method, path, headers, body)
            except UpstreamUnreachable as exc:
                copy.leave()
                copy.is_ready, copy.problem = False, str(exc)
                tried = exc
                if body is not None and not isinstance(body, bytes):
                    raise  # a streamed body is spent
                continue
            except BaseException:
                copy.leave()
                raise
            return WatchedReply(reply, copy.leave)
        raise tried or UpstreamUnreachable(f"no copy is ready at {self.address}: {self._problems()}")

    def _problems(self) -> str:
        return (
            "; ".join(dict.fromkeys(copy.problem for copy in self._copies if copy.problem)) or "no answer yet"
        )

    async def models(self) -> tuple[ServedModel, ...]:
        """Return what all copies that are ready serve; a copy is ready when it answers and has every adapter."""
        listed = await asyncio.gather(*(self._look(copy) for copy in self._copies))
        found = [models for models in listed if models is not None]
        if not found:
            raise UpstreamUnreachable(f"no copy is ready at {self.address}: {self._problems()}")
        common = set.intersection(*({m.name for m in models} for models in found))
        return tuple(model for model in found[0] if model.name in common)

    async def _look(self, copy: _Copy) -> tuple[ServedModel, ...] | None:
        try:
            models = await copy.engine.models()
            names = {model.name for model in models}
            for name, path in tuple(self._adapters.items()):
                if name not in names:
                    await copy.engine.load_adapter(name, path)
                    models = (*models, ServedModel(name=name, parent=models[0].name if models else None))
        except (UpstreamError, AdapterError) as exc:
            if copy.is_ready or copy.problem != str(exc):
                log.warning("%s is left out: %s", copy.engine.address, exc)
            copy.is_ready, copy.problem = False, str(exc)
            return None
        if not copy.is_ready:
            log.info("%s is in", copy.engine.address)
        copy.is_ready, copy.problem = True, None
        return models

    async def load_adapter(self, name: str, path: str) -> None:
        """Load it on every copy that is ready; the others get it when they come back.

        Raises:
            AdapterError: one would not; it is unloaded where it was.
            UpstreamError: no copy is left.
        """
        ready = self._ready()
        results = await asyncio.gather(
            *(copy.engine.load_adapter(name, path) for copy in ready), return_exceptions=True
        )
        refusal: AdapterError | None = None
        for copy, result in zip(ready, results, strict=True):
            if isinstance(result, AdapterError):
                refusal = result
            elif isinstance(result, UpstreamError):
                copy.is_ready, copy.problem = False, str(result)
            elif isinstance(result, BaseException):
                raise result
        if refusal is not None:
            await self.unload_adapter(name)
            raise refusal
        if not any(copy.is_ready for copy in self._copies):
            raise UpstreamUnreachable(f"no copy is ready at {self.address}: {self._problems()}")
        self._adapters[name] = path

    async def unload_adapter(self, name: str) -> None:
        """Unload it everywhere. A copy that fails at it is left out until it answers again."""
        self._adapters.pop(name, None)
        ready = self._ready()
        results = await asyncio.gather(
            *(copy.engine.unload_adapter(name) for copy in ready), return_exceptions=True
        )
        for copy, result in zip(ready, results, strict=True):
            if isinstance(result, UpstreamError):
                copy.is_ready, copy.problem = False, str(result)
            elif isinstance(result, BaseException):
                raise result

    async def is_healthy(self) -> bool:
        return any(await asyncio.gather(*(copy.engine.is_healthy() for copy in self._copies)))

    async def activity(self) -> Mapping[str, Any]:
        """What each copy does, by its address."""
        found: dict[str, Any] = {}
        for copy in self._copies:
            own: dict[str, Any] = {"ready": copy.is_ready, "in_flight": copy.in_flight}
            if copy.problem:
                own["problem"] = copy.problem
            if copy.is_ready:
                try:
                    own |= await copy.engine.activity()
                except UpstreamError as exc:
                    own["problem"] = str(exc)
            found[copy.engine.address] = own
        return found

    async def close(self) -> None:
        for copy in self._copies:
            await copy.engine.close()
