"""Several replicas as one backend (`serving.protocol.BackendClient`): an adapter counts as loaded when all replicas have it.

A replica that does not respond is excluded until it has every adapter that the others have. A request goes to the replica with the fewest
requests in flight, round-robin among equals. If that replica is unreachable, the next one gets the request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from serving.protocol import BackendClient, BackendReply, Capabilities, Headers, ServedModel
from serving.replies import NotifyingReply
from store.errors import AdapterError, UpstreamError, UpstreamUnreachable

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Replica:
    engine: BackendClient
    in_flight: int = 0
    last_request: int = 0
    is_ready: bool = False
    problem: str | None = None
    attested: set[str] = field(default_factory=set)  # adapters that it was found to serve since it is ready

    def exclude(self, problem: str) -> None:
        """Send it no request until it serves every adapter again: it may come back as another process."""
        self.is_ready, self.problem = False, problem
        self.attested.clear()

    def finish_request(self) -> None:
        """Note the end of a request."""
        self.in_flight -= 1


class ReplicatedBackend:
    """Replicas with the same base model.

    Args:
        engines: at least one.
    """

    def __init__(self, engines: Sequence[BackendClient]) -> None:
        self._replicas = [_Replica(engine) for engine in engines]
        self._adapters: dict[str, str] = {}
        self._request_count = 0

    @property
    def address(self) -> str:
        return " and ".join(replica.engine.address for replica in self._replicas)

    def _ready(self) -> list[_Replica]:
        return sorted(
            (replica for replica in self._replicas if replica.is_ready),
            key=lambda replica: (replica.in_flight, replica.last_request),
        )

    async def capabilities(self) -> Capabilities:
        """Query all replicas that respond, and return what all of them support."""
        found: list[Capabilities] = []
        problem: UpstreamError | None = None
        for replica in self._replicas:
            try:
                found.append(await replica.engine.capabilities())
            except UpstreamError as exc:
                problem = exc
        if not found:
            assert problem is not None
            raise problem
        first = found[0]
        slots = [item.adapter_slots for item in found if item.adapter_slots is not None]
        notes = dict.fromkeys(note for item in found for note in item.notes)
        if any(item.logprob_mode != first.logprob_mode for item in found):
            notes["the replicas report different kinds of log-probabilities"] = None
            first = replace(first, logprob_mode=type(first.logprob_mode).UNKNOWN)
        return replace(
            first,
            token_ids=all(item.token_ids for item in found),
            logprobs=all(item.logprobs for item in found),
            adapters=all(item.adapters for item in found),
            tools=None if first.tools is None else all(item.tools for item in found),
            constrained=None if first.constrained is None else all(item.constrained for item in found),
            adapter_slots=min(slots, default=None),
            notes=tuple(notes),
        )

    async def open(
        self, method: str, path: str, headers: Headers, body: bytes | AsyncIterator[bytes] | None
    ) -> BackendReply:
        """Send a request to the least busy ready replica."""
        last_error: UpstreamUnreachable | None = None
        for replica in self._ready():
            replica.in_flight += 1
            self._request_count += 1
            replica.last_request = self._request_count
            try:
                reply = await replica.engine.open(method, path, headers, body)
            except UpstreamUnreachable as exc:
                replica.finish_request()
                replica.exclude(str(exc))
                last_error = exc
                if body is not None and not isinstance(body, bytes):
                    raise  # a streamed body cannot be sent twice
                continue
            except BaseException:
                replica.finish_request()
                raise
            return NotifyingReply(reply, replica.finish_request)
        raise last_error or UpstreamUnreachable(
            f"no replica is ready at {self.address}: {self._describe_problems()}"
        )

    def _describe_problems(self) -> str:
        return (
            "; ".join(dict.fromkeys(replica.problem for replica in self._replicas if replica.problem))
            or "no response yet"
        )

    async def models(self) -> tuple[ServedModel, ...]:
        """Return the models that all ready replicas serve; a replica is ready when it responds and has every adapter."""
        listed = await asyncio.gather(*(self._refresh(replica) for replica in self._replicas))
        found = [models for models in listed if models is not None]
        if not found:
            raise UpstreamUnreachable(f"no replica is ready at {self.address}: {self._describe_problems()}")
        common = set.intersection(*({m.name for m in models} for models in found))
        return tuple(model for model in found[0] if model.name in common)

    async def _refresh(self, replica: _Replica) -> tuple[ServedModel, ...] | None:
        try:
            models = await replica.engine.models()
            names = {model.name for model in models}
            for name, path in tuple(self._adapters.items()):
                if name not in names or name not in replica.attested:
                    await replica.engine.load_adapter(name, path)
                    replica.attested.add(name)
                if name not in names:
                    models = (*models, ServedModel(name=name, parent=models[0].name if models else None))
        except (UpstreamError, AdapterError) as exc:
            if replica.is_ready or replica.problem != str(exc):
                log.warning("%s is excluded: %s", replica.engine.address, exc)
            replica.exclude(str(exc))
            return None
        if not replica.is_ready:
            log.info("%s is in", replica.engine.address)
        replica.is_ready, replica.problem = True, None
        return models

    async def load_adapter(self, name: str, path: str) -> str:
        """Load an adapter on every ready replica; the others get it when they are ready again.

        Returns:
            How it was attested, where replicas differ each of them.

        Raises:
            AdapterError: a replica refused it; the others unload it.
            UpstreamError: no replica is left.
        """
        ready = self._ready()
        results = await asyncio.gather(
            *(replica.engine.load_adapter(name, path) for replica in ready), return_exceptions=True
        )
        refusal: AdapterError | None = None
        outcomes: list[str] = []
        for replica, result in zip(ready, results, strict=True):
            if isinstance(result, AdapterError):
                refusal = result
            elif isinstance(result, UpstreamError):
                replica.exclude(str(result))
            elif isinstance(result, BaseException):
                raise result
            else:
                replica.attested.add(name)
                outcomes.append(result)
        if refusal is not None:
            await self.unload_adapter(name)
            raise refusal
        if not any(replica.is_ready for replica in self._replicas):
            raise UpstreamUnreachable(f"no replica is ready at {self.address}: {self._describe_problems()}")
        self._adapters[name] = path
        return "; ".join(dict.fromkeys(outcomes))

    async def unload_adapter(self, name: str) -> None:
        """Unload an adapter everywhere. A replica that fails is excluded until it responds again."""
        self._adapters.pop(name, None)
        ready = self._ready()
        results = await asyncio.gather(
            *(replica.engine.unload_adapter(name) for replica in ready), return_exceptions=True
        )
        for replica, result in zip(ready, results, strict=True):
            replica.attested.discard(name)
            if isinstance(result, UpstreamError):
                replica.exclude(str(result))
            elif isinstance(result, BaseException):
                raise result

    async def is_healthy(self) -> bool:
        return any(await asyncio.gather(*(replica.engine.is_healthy() for replica in self._replicas)))

    async def activity(self) -> Mapping[str, Any]:
        """Return each replica's activity by its address."""
        found: dict[str, Any] = {}
        for replica in self._replicas:
            own: dict[str, Any] = {"ready": replica.is_ready, "in_flight": replica.in_flight}
            if replica.problem:
                own["problem"] = replica.problem
            if replica.is_ready:
                try:
                    own |= await replica.engine.activity()
                except UpstreamError as exc:
                    own["problem"] = str(exc)
            found[replica.engine.address] = own
        return found

    async def close(self) -> None:
        for replica in self._replicas:
            await replica.engine.close()
