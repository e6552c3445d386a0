"""The adapter alias: maps a policy name to an immutable adapter version, and loads that version into the backend.

The record states which version should be live. A background loop loads ``policy@version`` into the backend, then moves the alias in memory,
and unloads an old version when no request uses it. Requests do not wait for this: each takes a lease on a loaded version and keeps it to
its end. A backend has a limited number of adapter slots. When all are taken, the oldest idle version is unloaded; when none is idle, the new
version waits, not the requests. Requests wait only after a restart of the backend (which loses its adapters), and only for a bounded time.
A new version is never loaded under an old name, because engines key their caches by name.
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

from proxy.version_locks import VersionLocks
from serving.protocol import BackendClient, Capabilities
from store.errors import (
    AdapterError,
    AdapterMismatch,
    RecordError,
    TheirError,
    UpstreamError,
    UpstreamUnreachable,
)
from store.integrity import check_adapter, refuse_version
from store.record import Record
from store.values import BASE_VERSION, Json, adapter_name

log = logging.getLogger(__name__)

#: Names that always mean the policy, whatever its name is.
ALIASES = frozenset({"patina", "default"})

#: Request fields that the proxy may add.
_FIELDS = frozenset({"logprobs", "return_token_ids", "stream_options"})

_POLL_INTERVAL_S = 0.2
_CHECK_INTERVAL_S = 1.0
#: Interval of the activity query, for `status`.
_ACTIVITY_INTERVAL_S = 5.0
#: The live version and the next one: fewer slots would make a swap impossible.
_MIN_SLOTS = 2
_FIRST_RETRY_S, _LAST_RETRY_S = 0.5, 30.0


class UnknownModel(TheirError):
    """No model of this name is served."""


class Lease:
    """A request's claim on a version: the version stays loaded until the lease is released.

    Attributes:
        name: the backend's name of the version; None: the client's own model name is forwarded.
    """

    __slots__ = ("_release", "name", "policy", "version")

    def __init__(self, name: str | None, policy: str, version: int, release: Callable[[], None]) -> None:
        self.name = name
        self.policy = policy
        self.version = version
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """Release the version; a second call does nothing."""
        if self._release is not None:
            self._release()
            self._release = None


class Alias(Protocol):
    """Maps the model name of a request to a model that the backend serves."""

    @property
    def policy(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities:
        """Return what the backend can do, as far as it is known yet."""
        ...

    @property
    def fields(self) -> frozenset[str]:
        """Return the request fields that may be added in order to record tokens."""
        ...

    @property
    def can_wait(self) -> bool:
        """Whether an unavailable backend is expected back soon (a supervisor restarts it)."""
        ...

    async def lease(self, model: str | None, *, wait_s: float) -> Lease:
        """Raises: UnknownModel; UpstreamUnreachable when the backend does not come back in time."""
        ...

    def mark_unhealthy(self) -> None:
        """Check the backend before the next request: a request found it unreachable, or an adapter missing."""
        ...

    async def run(self) -> None: ...

    def state(self) -> Json:
        """Return the state for `status` and `/healthz`."""
        ...


def describe_capabilities(capabilities: Capabilities) -> Json:
    """Return capabilities as JSON, for `status`."""
    found = asdict(capabilities)
    return {**found, "logprob_mode": capabilities.logprob_mode.value, "notes": list(capabilities.notes)}


class UpstreamAlias:
    """A remote endpoint that Patina does not manage: model names are forwarded, there are no versions."""

    can_wait = False
    capabilities = Capabilities(token_ids=True, logprobs=True, adapters=False)
    fields = _FIELDS

    def __init__(self, backend: BackendClient, policy: str) -> None:
        self._backend = backend
        self.policy = policy
        self._is_healthy: bool | None = None

    async def lease(self, model: str | None, *, wait_s: float) -> Lease:
        return Lease(None, model or self.policy, BASE_VERSION, lambda: None)

    def mark_unhealthy(self) -> None:
        self._is_healthy = None

    async def run(self) -> None:
        while True:
            self._is_healthy = await self._backend.is_healthy()
            await asyncio.sleep(30.0)

    def state(self) -> Json:
        return {
            "address": self._backend.address,
            "ready": self._is_healthy is not False,
            "capabilities": describe_capabilities(self.capabilities),
            "healthy": self._is_healthy,
        }


class AdapterAlias:
    """The alias of one policy on a backend that Patina manages.

    Args:
        record: returns the open record, or None while it is unavailable.
        locks: shared with the other gateways of this home.
    """

    can_wait = True
    fields = _FIELDS

    def __init__(
        self,
        backend: BackendClient,
        policy: str,
        record: Callable[[], Record | None],
        *,
        poll_s: float = _POLL_INTERVAL_S,
        locks: VersionLocks | None = None,
    ) -> None:
        self._backend = backend
        self.policy = policy
        self._record = record
        self._locks = locks or VersionLocks(None)
        self._poll_s = poll_s
        self.capabilities = Capabilities(token_ids=True, logprobs=True, adapters=True)
        self._base: str | None = None
        self._live = BASE_VERSION
        self._target = BASE_VERSION
        self._loaded: set[int] = set()
        self._leases: Counter[int] = Counter()
        self._ready = asyncio.Event()
        self._wake = asyncio.Event()
        self._checked_at = 0.0
        self._retry_at: dict[int, float] = {}
        self._retry_s: dict[int, float] = {}
        self._waited_requests = 0
        self._load_errors = 0
        self._record_errors = 0
        self._last_error: str | None = None
        self._waits_for_slot = False
        self._activity: Json = {}
        self._activity_at = 0.0

    @property
    def live(self) -> int:
        return self._live

    # ---- requests

    async def lease(self, model: str | None, *, wait_s: float) -> Lease:
        if not self._ready.is_set():
            self._waited_requests += 1
            try:
                async with asyncio.timeout(wait_s):
                    await self._ready.wait()
            except TimeoutError:
                raise UpstreamUnreachable(
                    f"the backend at {self._backend.address} is not up: {self._last_error or 'no answer yet'}"
                ) from None
        version = self._resolve(model)
        self._leases[version] += 1
        name = self._base if version == BASE_VERSION else adapter_name(self.policy, version)
        return Lease(name, self.policy, version, lambda: self._release_version(version))

    def _resolve(self, model: str | None) -> int:
        if model is None or model == self.policy or model in ALIASES:
            return self._live
        head, separator, tail = model.rpartition("@")
        if separator and head == self.policy and tail.isascii() and tail.isdigit() and len(tail) <= 9:
            version = int(tail)
            if version == BASE_VERSION or (version in self._loaded and self._locks.hold(version)):
                return version
            raise UnknownModel(f"The model `{model}` is not loaded. `{self.policy}` is the live version.")
        raise UnknownModel(f"The model `{model}` does not exist. This server serves `{self.policy}`.")

    def _release_version(self, version: int) -> None:
        self._leases[version] -= 1
        if not self._leases[version]:
            del self._leases[version]
            if version != self._live:
                self._wake.set()

    def mark_unhealthy(self) -> None:
        self._ready.clear()
        self._checked_at = 0.0
        self._wake.set()

    # ---- the loop

    async def run(self) -> None:
        while True:
            try:
                await self._step()
            except UpstreamError as exc:
                # Most likely the supervisor restarts the backend: requests wait until the next successful check.
                self._ready.clear()
                self._checked_at = 0.0
                self._last_error = str(exc)
            self._wake.clear()
            try:
                async with asyncio.timeout(self._poll_s):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _step(self) -> None:
        await self._read_target()
        if not self._ready.is_set() or time.monotonic() - self._checked_at >= _CHECK_INTERVAL_S:
            await self._check_backend()
        wanted = None
        while self._target != wanted and (self._target != self._live or not self._is_available(self._live)):
            wanted = self._target
            await self._activate(wanted)  # where it is refused, the target is its ancestor then
        if not self._is_available(self._live):
            # The live version cannot be loaded again (see last_error). The base model serves instead of an error.
            log.error(
                "%s cannot be loaded again; serving the base model", adapter_name(self.policy, self._live)
            )
            self._live = BASE_VERSION
        self._ready.set()
        self._locks.release_unused({self._live, self._target, *self._leases})
        for version in self._idle_versions():
            await self._unload(version)
        await self._refresh_activity()

    def _idle_versions(self) -> list[int]:
        """Return the versions that no request uses and that are not wanted, oldest first."""
        return sorted(v for v in self._loaded if v not in (self._live, self._target) and not self._leases[v])

    async def _unload(self, version: int) -> None:
        claim = None if self._leases[version] else self._locks.claim(version)
        if claim is None:
            return  # a request or another gateway uses it by now
        # Removed from the set first, so that no new request can take a lease on it.
        self._loaded.discard(version)
        try:
            await self._backend.unload_adapter(adapter_name(self.policy, version))
        except UpstreamError as exc:
            # The adapter only takes up a slot; the next check adds it to the set again.
            self._last_error = str(exc)
        finally:
            self._locks.free(claim)

    async def _free_slot(self) -> bool:
        """Free a slot for one more version; returns False when all are in use."""
        slots = self.capabilities.adapter_slots
        if slots is None:
            return True
        most = max(_MIN_SLOTS, slots)
        for version in self._idle_versions():
            if len(self._loaded) < most:
                break
            await self._unload(version)
        return len(self._loaded) < most

    async def _refresh_activity(self) -> None:
        if time.monotonic() - self._activity_at < _ACTIVITY_INTERVAL_S:
            return
        self._activity_at = time.monotonic()
        try:
            self._activity = dict(await self._backend.activity())
        except UpstreamError:
            self._activity = {}  # the next check finds out whether the backend is healthy

    def _is_available(self, version: int) -> bool:
        return version == BASE_VERSION or version in self._loaded

    async def _read_target(self) -> None:
        record = self._record()
        if record is None:
            return
        try:
            move = (await record.aliases()).get(self.policy)
        except RecordError as exc:
            # The alias keeps its version: a locked or missing record must not fail requests.
            self._record_errors += 1
            self._last_error = str(exc)
            return
        self._target = BASE_VERSION if move is None else move.version

    async def _check_backend(self) -> None:
        """Read which adapters the backend has; a restart loses them."""
        models = await self._backend.models()
        prefix = f"{self.policy}@"
        names = {m.name for m in models}
        bases = [m.name for m in models if m.parent is None and not m.name.startswith(prefix)]
        if self.policy in names:
            self._base = self.policy
        elif bases:
            self._base = bases[0]
        elif self._base is None:
            raise UpstreamError(f"the backend at {self._backend.address} serves no model")
        if not self._ready.is_set():  # first check, or the backend restarted: it may be a different one
            self.capabilities = await self._backend.capabilities()
        self._loaded = {
            int(n[len(prefix) :]) for n in names if n.startswith(prefix) and n[len(prefix) :].isdigit()
        }
        if not self._is_available(self._live):
            self._ready.clear()
        self._checked_at = time.monotonic()

    async def _activate(self, version: int) -> None:
        """Make ``version`` live. If it cannot be loaded, the alias stays and the load is retried later."""
        if version != BASE_VERSION and not self._locks.hold(version):
            return  # another gateway is unloading it; tried again at the next poll
        if not self._is_available(version):
            if time.monotonic() < self._retry_at.get(version, 0.0):
                return
            if not await self._free_slot():
                # The end of a request on an old version sets the wake event.
                self._waits_for_slot = True
                return
            try:
                await self._load(version)
            except AdapterMismatch as exc:
                await self._refuse(version, str(exc))
                return
            except (AdapterError, RecordError) as exc:
                self._load_errors += 1
                self._last_error = str(exc)
                wait = min(self._retry_s.get(version, _FIRST_RETRY_S / 2) * 2, _LAST_RETRY_S)
                self._retry_s[version] = wait
                self._retry_at[version] = time.monotonic() + wait
                log.error("cannot load %s: %s", adapter_name(self.policy, version), exc)
                return
        self._waits_for_slot = False
        if self._live != version:
            log.info("%s is live", adapter_name(self.policy, version))
        self._retry_at.pop(version, None)
        self._retry_s.pop(version, None)
        self._live = version

    async def _load(self, version: int) -> None:
        record = self._record()
        adapter = None if record is None else await record.adapter(self.policy, version)
        if adapter is None:
            raise AdapterError(f"the record has no {adapter_name(self.policy, version)}")
        if not await asyncio.to_thread(Path(adapter.path).is_dir):
            raise AdapterError(f"the folder {adapter.path} of {adapter.name} does not exist")
        await asyncio.to_thread(check_adapter, adapter)
        await self._backend.load_adapter(adapter.name, adapter.path)
        self._loaded.add(version)

    async def _refuse(self, version: int, reason: str) -> None:
        """Refuse a version that is not what the trainer made; its newest intact ancestor becomes the target."""
        self._load_errors += 1
        self._last_error = reason
        log.error("%s is refused: %s", adapter_name(self.policy, version), reason)
        try:
            record = self._record()
            adapter = None if record is None else await record.adapter(self.policy, version)
            if record is not None and adapter is not None:
                self._target = await refuse_version(record, adapter, reason)
        except RecordError as exc:
            self._record_errors += 1
            self._last_error = f"{reason}; the record cannot note it: {exc}"

    def state(self) -> Json:
        return {
            "address": self._backend.address,
            "ready": self._ready.is_set(),
            "capabilities": describe_capabilities(self.capabilities),
            "activity": self._activity,
            "live": self._live,
            "wanted": self._target,
            "loaded": sorted(self._loaded),
            "leases": {adapter_name(self.policy, v): n for v, n in sorted(self._leases.items())},
            "waits_for_slot": self._waits_for_slot,
            "held": self._waited_requests,  # requests that waited for an unavailable backend
            "load_errors": self._load_errors,
            "record_errors": self._record_errors,
            "last_error": self._last_error,
        }
