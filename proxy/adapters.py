"""The alias: which immutable adapter version a policy's name means right now, and seeing to it that the backend has it.

The record says what should be live; this loop loads ``policy@version`` into the backend, then moves the alias in memory, and unloads an
old version once no request runs on it. Nobody waits for any of this: requests take a lease on a version that is
loaded and keep it to their end. A backend has a number of slots for adapters: when all are taken the oldest idle version leaves, and when
none is idle the new version waits, not the requests. Only when the backend itself was restarted (its adapters are gone) do requests wait, for a bounded
time, until the live version is back. Never is a new version loaded under an old name: engines key their caches by it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from serving.protocol import Capabilities, Engine
from store.errors import AdapterError, RecordError, TheirError, UpstreamError, UpstreamUnreachable
from store.record import Record
from store.values import BASE_VERSION, Json, adapter_name

log = logging.getLogger(__name__)

#: Names that always mean the policy, whatever it is called here.
ALIASES = frozenset({"patina", "default"})

#: What is asked for beside what the client asks for.
_FIELDS = frozenset({"logprobs", "return_token_ids", "stream_options"})

_POLL_S = 0.2
_LOOK_S = 1.0
#: How often the backend is asked what it does, for `status`.
_ACTIVITY_S = 5.0
#: The live version and the next one: with less nothing could ever be swapped.
_LEAST_SLOTS = 2
_FIRST_RETRY_S, _LAST_RETRY_S = 0.5, 30.0


class UnknownModel(TheirError):
    """No model of that name is served."""


class Lease:
    """A request's hold on a version: it is not unloaded before the lease is released.

    Attributes:
        name: what the backend calls it; None: the client's own name is passed on.
    """

    __slots__ = ("_release", "name", "policy", "version")

    def __init__(self, name: str | None, policy: str, version: int, release: Callable[[], None]) -> None:
        self.name = name
        self.policy = policy
        self.version = version
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """Let go; a second call does nothing."""
        if self._release is not None:
            self._release()
            self._release = None


class Alias(Protocol):
    """How a model name in a request becomes something the backend serves."""

    @property
    def policy(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities:
        """What the backend can do, as far as is known by now."""
        ...

    @property
    def fields(self) -> frozenset[str]:
        """Fields that may be added to a request so that its tokens can be recorded."""
        ...

    @property
    def can_wait(self) -> bool:
        """Whether a backend that is away is expected back soon (somebody restarts it)."""
        ...

    async def lease(self, model: str | None, *, wait_s: float) -> Lease:
        """Raises: UnknownModel; UpstreamUnreachable when the backend does not come back in time."""
        ...

    def suspect(self) -> None:
        """A request found the backend gone or an adapter missing: look again before anything else is routed."""
        ...

    async def run(self) -> None: ...

    def state(self) -> Json:
        """For `status` and `/healthz`."""
        ...


def shown(capabilities: Capabilities) -> Json:
    """Return capabilities as `status` shows them."""
    found = asdict(capabilities)
    return {**found, "logprob_mode": capabilities.logprob_mode.value, "notes": list(capabilities.notes)}


class UpstreamAlias:
    """An endpoint of somebody else's: names pass through, there are no versions."""

    can_wait = False
    capabilities = Capabilities(token_ids=True, logprobs=True, adapters=False)
    fields = _FIELDS

    def __init__(self, engine: Engine, policy: str) -> None:
        self._engine = engine
        self.policy = policy
        self._is_healthy: bool | None = None

    async def lease(self, model: str | None, *, wait_s: float) -> Lease:
        return Lease(None, model or self.policy, BASE_VERSION, lambda: None)

    def suspect(self) -> None:
        self._is_healthy = None

    async def run(self) -> None:
        while True:
            self._is_healthy = await self._engine.is_healthy()
            await asyncio.sleep(30.0)

    def state(self) -> Json:
        return {
            "address": self._engine.address,
            "ready": self._is_healthy is not False,
            "capabilities": shown(self.capabilities),
            "healthy": self._is_healthy,
        }


class AdapterAlias:
    """The alias of one policy on a local backend."""

    can_wait = True
    fields = _FIELDS

    def __init__(
        self, engine: Engine, policy: str, record: Callable[[], Record | None], *, poll_s: float = _POLL_S
    ) -> None:
        self._engine = engine
        self.policy = policy
        self._record = record
        self._poll_s = poll_s
        self.capabilities = Capabilities(token_ids=True, logprobs=True, adapters=True)
        self._base: str | None = None
        self._live = BASE_VERSION
        self._target = BASE_VERSION
        self._loaded: set[int] = set()
        self._leases: Counter[int] = Counter()
        self._ready = asyncio.Event()
        self._wake = asyncio.Event()
        self._looked_at = 0.0
        self._retry_at: dict[int, float] = {}
        self._retry_s: dict[int, float] = {}
        self._held = 0
        self._load_errors = 0
        self._record_errors = 0
        self._last_error: str | None = None
        self._waits_for_slot = False
        self._activity: Json = {}
        self._asked_at = 0.0

    @property
    def live(self) -> int:
        return self._live

    # ---- requests

    async def lease(self, model: str | None, *, wait_s: float) -> Lease:
        if not self._ready.is_set():
            self._held += 1
            try:
                async with asyncio.timeout(wait_s):
                    await self._ready.wait()
            except TimeoutError:
                raise UpstreamUnreachable(
                    f"the backend at {self._engine.address} is not up: {self._last_error or 'no answer yet'}"
                ) from None
        version = self._resolve(model)
        self._leases[version] += 1
        name = self._base if version == BASE_VERSION else adapter_name(self.policy, version)
        return Lease(name, self.policy, version, lambda: self._let_go(version))

    def _resolve(self, model: str | None) -> int:
        if model is None or model == self.policy or model in ALIASES:
            return self._live
        head, separator, tail = model.rpartition("@")
        if separator and head == self.policy and tail.isascii() and tail.isdigit() and len(tail) <= 9:
            version = int(tail)
            if version == BASE_VERSION or version in self._loaded:
                return version
            raise UnknownModel(f"The model `{model}` is not loaded. `{self.policy}` is what is live.")
        raise UnknownModel(f"The model `{model}` does not exist. This server serves `{self.policy}`.")

    def _let_go(self, version: int) -> None:
        self._leases[version] -= 1
        if not self._leases[version]:
            del self._leases[version]
            if version != self._live:
                self._wake.set()

    def suspect(self) -> None:
        self._ready.clear()
        self._looked_at = 0.0
        self._wake.set()

    # ---- the loop

    async def run(self) -> None:
        while True:
            try:
                await self._step()
            except UpstreamError as exc:
                # The backend is away, most likely being restarted by the supervisor: requests wait, we look again.
                self._ready.clear()
                self._looked_at = 0.0
                self._last_error = str(exc)
            self._wake.clear()
            try:
                async with asyncio.timeout(self._poll_s):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _step(self) -> None:
        await self._read_target()
        if not self._ready.is_set() or time.monotonic() - self._looked_at >= _LOOK_S:
            await self._look()
        if self._target != self._live or not self._has(self._live):
            await self._bring(self._target)
        if not self._has(self._live):
            # What was live cannot be had any more (see last_error): the base model answers rather than nobody.
            log.error(
                "%s cannot be loaded again; the base model answers", adapter_name(self.policy, self._live)
            )
            self._live = BASE_VERSION
        self._ready.set()
        for version in self._idle():
            await self._unload(version)
        await self._ask_activity()

    def _idle(self) -> list[int]:
        """Versions that nobody uses or will use, oldest first."""
        return sorted(v for v in self._loaded if v not in (self._live, self._target) and not self._leases[v])

    async def _unload(self, version: int) -> None:
        # Off the list first: from here on no request can take a lease on it.
        self._loaded.discard(version)
        try:
            await self._engine.unload_adapter(adapter_name(self.policy, version))
        except UpstreamError as exc:
            # It only takes up room there; the next look puts it on the list again.
            self._last_error = str(exc)

    async def _make_room(self) -> bool:
        """Free a slot for one more version; False when all are in use."""
        slots = self.capabilities.adapter_slots
        if slots is None:
            return True
        most = max(_LEAST_SLOTS, slots)
        for version in self._idle():
            if len(self._loaded) < most:
                break
            await self._unload(version)
        return len(self._loaded) < most

    async def _ask_activity(self) -> None:
        if time.monotonic() - self._asked_at < _ACTIVITY_S:
            return
        self._asked_at = time.monotonic()
        try:
            self._activity = dict(await self._engine.activity())
        except UpstreamError:
            self._activity = {}  # whether it serves is the next look's to find out

    def _has(self, version: int) -> bool:
        return version == BASE_VERSION or version in self._loaded

    async def _read_target(self) -> None:
        record = self._record()
        if record is None:
            return
        try:
            move = (await record.aliases()).get(self.policy)
        except RecordError as exc:
            # The alias stays where it is; a record that is locked or gone must not cost a reply.
            self._record_errors += 1
            self._last_error = str(exc)
            return
        self._target = BASE_VERSION if move is None else move.version

    async def _look(self) -> None:
        """See what the backend has: after a restart its adapters are gone."""
        models = await self._engine.models()
        prefix = f"{self.policy}@"
        names = {m.name for m in models}
        bases = [m.name for m in models if m.parent is None and not m.name.startswith(prefix)]
        if self.policy in names:
            self._base = self.policy
        elif bases:
            self._base = bases[0]
        elif self._base is None:
            raise UpstreamError(f"the backend at {self._engine.address} serves no model")
        if not self._ready.is_set():  # the first time, and after a restart: it may be another one now
            self.capabilities = await self._engine.capabilities()
        self._loaded = {
            int(n[len(prefix) :]) for n in names if n.startswith(prefix) and n[len(prefix) :].isdigit()
        }
        if not self._has(self._live):
            self._ready.clear()
        self._looked_at = time.monotonic()

    async def _bring(self, version: int) -> None:
        """Make ``version`` live; when it cannot be loaded the alias stays where it is and it is tried again later."""
        if not self._has(version):
            if time.monotonic() < self._retry_at.get(version, 0.0):
                return
            if not await self._make_room():
                # The end of any request on an old version wakes us.
                self._waits_for_slot = True
                return
            try:
                await self._load(version)
            except (AdapterError, RecordError) as exc:
                self._load_errors += 1
                self._last_error = str(exc)
                wait = min(self._retry_s.get(version, _FIRST_RETRY_S / 2) * 2, _LAST_RETRY_S)
                self._retry_s[version] = wait
                self._retry_at[version] = time.monotonic() + wait
                log.error("cannot serve %s: %s", adapter_name(self.policy, version), exc)
                return
        self._waits_for_slot = False
        if self._live != version:
            log.info("%s is live now", adapter_name(self.policy, version))
        self._retry_at.pop(version, None)
        self._retry_s.pop(version, None)
        self._live = version

    async def _load(self, version: int) -> None:
        record = self._record()
        adapter = None if record is None else await record.adapter(self.policy, version)
        if adapter is None:
            raise AdapterError(f"the record knows no {adapter_name(self.policy, version)}")
        if not await asyncio.to_thread(Path(adapter.path).is_dir):
            raise AdapterError(f"the folder {adapter.path} of {adapter.name} is not there")
        await self._engine.load_adapter(adapter.name, adapter.path)
        self._loaded.add(version)

    def state(self) -> Json:
        return {
            "address": self._engine.address,
            "ready": self._ready.is_set(),
            "capabilities": shown(self.capabilities),
            "activity": self._activity,
            "live": self._live,
            "wanted": self._target,
            "loaded": sorted(self._loaded),
            "leases": {adapter_name(self.policy, v): n for v, n in sorted(self._leases.items())},
            "waits_for_slot": self._waits_for_slot,
            "held": self._held,  # requests that waited for a backend that was away; never for a version
            "load_errors": self._load_errors,
            "record_errors": self._record_errors,
            "last_error": self._last_error,
        }
