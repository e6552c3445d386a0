"""The adapter alias: maps a model name to an immutable adapter version, and loads that version into the backend.

The record states which version of each policy should be live. A background loop loads ``policy@version`` into the backend, then moves the
alias in memory, and unloads an old version when no request uses it. Requests do not wait for this: each takes a lease on a loaded version
and keeps it to its end. A new version is never loaded under an old name, because engines key their caches by name.

All policies of the base model (`store.policies`) share the backend's adapter slots. The shared policy keeps its slot. Another one is *cold*
while its live version is not loaded: its next request waits, for a bounded time, until the version is loaded in place of the one that was
unused longest. When every slot stays in use, the version that was loaded longest ago takes no new requests until it was unloaded: its own
next requests wait too. A request that waits too long, or beside too many others, fails (503): other weights never answer unsaid, and each reply
names its version. A new version of a policy that is in use waits until a slot is idle, not its requests. A version that the backend has from another gateway, or from before a restart, is attested here before requests
are routed to it. After a restart of the backend (which loses its adapters) requests wait for the shared policy's version.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Protocol

from proxy.version_locks import VersionLocks
from serving.protocol import BackendClient, Capabilities
from store.canary_arms import is_in_canary, known_conversations
from store.change_notice import ChangeNotice
from store.errors import (
    AdapterError,
    AdapterMismatch,
    RecordError,
    TheirError,
    UpstreamError,
    UpstreamUnreachable,
)
from store.integrity import check_adapter, refuse_version
from store.policies import MAX_NAME, SHARED, group_of, parse_model, parse_version, policies_of, policy_name
from store.record import Record
from store.values import BASE_VERSION, AdapterState, CanaryRelease, Json, adapter_name

log = logging.getLogger(__name__)

#: Names that always mean the policy, whatever its name is.
ALIASES = frozenset({"patina", "default"})

#: Request fields that the proxy may add.
_FIELDS = frozenset({"logprobs", "return_token_ids", "stream_options"})

#: Shortest time between two looks, and the longest one while something is under way.
_POLL_INTERVAL_S = 0.2
_CHECK_INTERVAL_S = 1.0
#: Longest time between two looks while nothing is: a backend that restarted is also noticed by the next request.
_REST_S = 5.0
#: Interval of the activity query, for `status`.
_ACTIVITY_INTERVAL_S = 5.0
#: The live version and the next one: fewer slots would make a swap impossible.
_MIN_SLOTS = 2
#: Longest time a request waits for a version that is not loaded, and requests that wait at once.
COLD_WAIT_S, MOST_WAITING = 15.0, 256
#: A version that is waited for so long gets the slot of another that is in use all the time.
_DRAIN_AFTER_S = 0.5
_FIRST_RETRY_S, _LAST_RETRY_S = 0.5, 30.0


class UnknownModel(TheirError):
    """No model of this name is served."""


class AdapterBusy(UpstreamError):
    """Every adapter slot of the backend is in use: the same request may succeed later."""

    retry_after_s = 5


class Lease:
    """A request's claim on a version: the version stays loaded until the lease is released.

    Attributes:
        name: the backend's name of the version; None: the client's own model name is forwarded.
        is_own: the policy is the caller's own; another's must not learn from it.
        is_pinned: the caller asked for this very version.
        drawn: name of the conversation where a canary release drew which version serves it; "": none did.
    """

    __slots__ = ("_release", "drawn", "is_own", "is_pinned", "name", "policy", "version")

    def __init__(
        self,
        name: str | None,
        policy: str,
        version: int,
        release: Callable[[], None],
        *,
        is_own: bool = True,
        is_pinned: bool = False,
        drawn: str = "",
    ) -> None:
        self.name = name
        self.policy = policy
        self.version = version
        self.is_own = is_own
        self.is_pinned = is_pinned
        self.drawn = drawn
        self._release: Callable[[], None] | None = release

    @property
    def served(self) -> str | None:
        """Return ``policy@version`` of the weights that answer; None: they are not Patina's."""
        return None if self.name is None else adapter_name(self.policy, self.version)

    def release(self) -> None:
        """Release the version; a second call does nothing."""
        if self._release is not None:
            self._release()
            self._release = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """A model name as a caller sends it.

    Attributes:
        group: adapter group of the caller's key (`store.policies`).
        is_owner: the caller may use the policies of other keys.
        conversation: returns what names the conversation (`store.canary_arms`); None: it is in no canary release.
    """

    model: str | None
    group: str = SHARED
    is_owner: bool = False
    conversation: Callable[[], str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPolicy:
    """A policy as a caller sees it.

    Attributes:
        name: the model name that the caller uses.
        version: the live one.
    """

    name: str
    policy: str
    version: int


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

    async def lease(self, asked: ModelRequest, *, wait_s: float) -> Lease:
        """Return a claim on the version that a caller means.

        Raises:
            UnknownModel: there is no such model for this caller.
            UpstreamUnreachable: the backend does not come back in time.
            AdapterBusy: no slot gets free in time, or too many requests wait for one.
        """
        ...

    def served(self, *, group: str, is_owner: bool) -> list[ServedPolicy]:
        """Return the policies that a caller may use, its own first."""
        ...

    def resolve(self, model: str | None, *, group: str, is_owner: bool) -> tuple[str, int | None]:
        """Return the policy that a caller means by a model name, and the version; None: the live one. Raises: UnknownModel."""
        ...

    def is_foreign(self, model: str, *, group: str) -> bool:
        """Whether ``model`` is the backend's name of a version of another policy than the caller's."""
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

    async def lease(self, asked: ModelRequest, *, wait_s: float) -> Lease:
        # Keys with adapters of their own share no wishes either.
        model = (asked.model or self.policy)[: MAX_NAME - 1 - len(asked.group)]
        return Lease(None, policy_name(model, asked.group), BASE_VERSION, lambda: None)

    def served(self, *, group: str, is_owner: bool) -> list[ServedPolicy]:
        return [ServedPolicy(name=self.policy, policy=self.policy, version=BASE_VERSION)]

    def resolve(self, model: str | None, *, group: str, is_owner: bool) -> tuple[str, int | None]:
        return model or self.policy, None

    def is_foreign(self, model: str, *, group: str) -> bool:
        return False

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


@dataclass(slots=True)
class _Trial:
    """A canary release that runs.

    Attributes:
        before: conversations that began before it.
        is_ready: its version was loaded once.
    """

    version: int
    share: float
    started_at: float
    before: frozenset[str]
    is_ready: bool = False

    def draws(self, conversation: str) -> bool:
        return self.is_ready and conversation not in self.before


@dataclass(slots=True)
class _Pointer:
    """Where a policy points: the version that new requests get, the one that the record wants, and the one on trial."""

    live: int = BASE_VERSION
    target: int = BASE_VERSION
    trial: _Trial | None = None

    @property
    def versions(self) -> set[int]:
        return {self.live, self.target} | (set() if self.trial is None else {self.trial.version})


@dataclass(slots=True)
class _Demand:
    """Requests that wait for one version.

    Attributes:
        is_over: the version is loaded, or cannot be; the loop has counted a lease for each request that waits.
    """

    since: float
    waiting: int = 0
    is_over: asyncio.Event = field(default_factory=asyncio.Event)


class _Load(Enum):
    """What became of loading a version."""

    DONE = auto()
    LATER = auto()  #: no slot is free, or another gateway unloads it
    FAILED = auto()


class AdapterAlias:
    """The aliases of all policies of one base model, on a backend that Patina manages.

    Args:
        policy: the shared policy.
        record: returns the open record, or None while it is unavailable.
        locks: shared with the other gateways of this home.
        cold_wait_s: longest time a request waits for a version that is not loaded.
        accepts_any: whether the caller's policy now answers for model names that nothing here has.
        engine_tag: ends this home's names on the backend (`serving.http.HttpBackend`).
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
        cold_wait_s: float = COLD_WAIT_S,
        accepts_any: Callable[[], bool] = lambda: False,
        engine_tag: str = "",
    ) -> None:
        self._backend = backend
        self._engine_tag = engine_tag
        self.policy = policy
        self._record = record
        self._locks = locks or VersionLocks(None)
        self._poll_s = poll_s
        self._cold_wait_s = cold_wait_s
        self._accepts_any = accepts_any
        self.capabilities = Capabilities(token_ids=True, logprobs=True, adapters=True)
        self._base: str | None = None
        self._shared = _Pointer()
        self._pointers: dict[str, _Pointer] = {policy: self._shared}
        self._loaded: set[str] = set()  # on the backend, by whichever gateway
        self._attested: dict[str, str] = {}  # outcome by name; of those that this gateway may route to
        self._load_s: dict[str, float] = {}  # seconds of the newest load, by name
        self._leases: Counter[str] = Counter()  # by name, ``policy@0`` too
        self._used_at: dict[str, float] = {}
        self._demanded: dict[
            str, _Demand
        ] = {}  # by name of a version that requests wait for, the first to wait first
        self._draining: str | None = None  # takes no new requests, so that its slot gets free
        self._ready = asyncio.Event()
        self._changes = ChangeNotice(poll_s=poll_s)
        self._watched: Record | None = None  # the record whose changes these are
        self._checked_at = 0.0
        self._retry_at: dict[str, float] = {}
        self._retry_s: dict[str, float] = {}
        self._waited_requests = 0
        self._cold_loads = 0
        self._refused_requests = 0
        self._base_requests = 0
        self._load_errors = 0
        self._record_errors = 0
        self._problems: dict[str, str] = {}  # by version's name: why it could not be loaded or unloaded
        self._loop_error: str | None = None  # why the backend or the record cannot be reached now
        self._waits_for_slot = False
        self._activity: Json = {}
        self._activity_at = 0.0

    def served(self, *, group: str, is_owner: bool) -> list[ServedPolicy]:
        own = policy_name(self.policy, group)
        names = {own: self.policy} | {name: name for name in self._pointers if is_owner and name != own}
        return [
            ServedPolicy(name=name, policy=policy, version=self._live_of(policy))
            for policy, name in names.items()
        ]

    def is_foreign(self, model: str, *, group: str) -> bool:
        found = parse_version(self.policy, model)
        return found is not None and found[0] != policy_name(self.policy, group)

    def _live_of(self, policy: str) -> int:
        pointer = self._pointers.get(policy)
        return BASE_VERSION if pointer is None else pointer.live

    def _draw(self, policy: str, conversation: Callable[[], str] | None) -> tuple[str, int | None]:
        """Return the name of a conversation for which a canary release draws, "" where none does, and its version where that serves it."""
        pointer = self._pointers.get(policy)
        trial = None if pointer is None else pointer.trial
        if trial is None or conversation is None or not trial.draws(name := conversation()):
            return "", None
        return name, trial.version if is_in_canary(name, policy, trial.version, trial.share) else None

    # ---- requests

    async def lease(self, asked: ModelRequest, *, wait_s: float) -> Lease:
        if not self._ready.is_set():
            self._waited_requests += 1
            try:
                async with asyncio.timeout(wait_s):
                    await self._ready.wait()
            except TimeoutError:
                raise UpstreamUnreachable(
                    f"the backend at {self._backend.address} is not up: {self._loop_error or 'no answer yet'}"
                ) from None
        policy, wanted = self.resolve(asked.model, group=asked.group, is_owner=asked.is_owner)
        drawn = ""
        if wanted is None:
            drawn, trial = self._draw(policy, asked.conversation)
            if trial is not None and await self._claim(policy, trial, wait_s=0.0):
                return self._lease_of(policy, trial, asked.group, drawn=drawn)
            version = self._live_of(policy)
            is_loaded = await self._claim(policy, version, min(wait_s, self._cold_wait_s))
            if not is_loaded and version != self._live_of(policy):
                # It cannot be loaded, and what can is live by now: its ancestor, or the base model.
                version = self._live_of(policy)
                is_loaded = await self._claim(policy, version, min(wait_s, self._cold_wait_s))
        else:
            version = wanted
            if not (self._is_available(policy, version) or await self._is_published(policy, version)):
                raise self._unknown(asked.model)
            is_loaded = await self._claim(policy, version, min(wait_s, self._cold_wait_s))
            if not is_loaded and adapter_name(policy, version) in self._problems:
                raise self._unknown(asked.model)
        if not is_loaded:
            self._refused_requests += 1
            raise AdapterBusy(
                "Other policies use every adapter slot of the backend. Retry the request.", status=503
            )
        target = self._pointers[policy].target if policy in self._pointers else BASE_VERSION
        self._base_requests += wanted is None and version == BASE_VERSION != target
        return self._lease_of(policy, version, asked.group, is_pinned=wanted is not None, drawn=drawn)

    def _unknown(self, model: str | None) -> UnknownModel:
        return UnknownModel(f"The model `{model}` is not loaded. `{self.policy}` is the live version.")

    def _lease_of(
        self, policy: str, version: int, group: str, *, is_pinned: bool = False, drawn: str = ""
    ) -> Lease:
        return Lease(
            self._base if version == BASE_VERSION else adapter_name(policy, version) + self._engine_tag,
            policy,
            version,
            lambda: self._release_version(policy, version),
            is_own=group_of(self.policy, policy) == group,
            is_pinned=is_pinned,
            drawn=drawn,
        )

    def resolve(self, model: str | None, *, group: str, is_owner: bool) -> tuple[str, int | None]:
        own = policy_name(self.policy, group)
        if model is None or model in ALIASES:
            return own, None
        found = parse_model(self.policy, model)
        if found is None and model and self._accepts_any():
            return own, None  # the request, and so the record, keeps the name that was asked for
        if found is not None and found.group in (None, group):
            return own, found.version
        if found is not None and is_owner:
            others = (policy for policy in self._pointers if group_of(self.policy, policy) == found.group)
            if (policy := next(others, None)) is not None:
                return policy, found.version
        raise UnknownModel(f"The model `{model}` does not exist. This server serves `{self.policy}`.")

    async def _is_published(self, policy: str, version: int) -> bool:
        """Whether a version that is not loaded can be: a name that a client made up must cost nothing."""
        record = self._record()
        try:
            adapter = None if record is None else await record.adapter(policy, version)
        except RecordError:
            return False  # counted by the loop, which reads the record too
        return adapter is not None and adapter.state is AdapterState.PUBLISHED

    async def _claim(self, policy: str, version: int, wait_s: float) -> bool:
        """Claim a version and wait until it is loaded; returns False, without a claim, when it is not loaded in time."""
        name = adapter_name(policy, version)
        if version == BASE_VERSION or self._takes_requests(name):
            self._leases[name] += 1
        elif not await self._wait_loaded(name, wait_s):
            return False
        elif name not in self._attested:
            self._release_version(policy, version)
            return False
        self._used_at[name] = time.monotonic()
        return True

    def _takes_requests(self, name: str) -> bool:
        return name in self._attested and name != self._draining and self._locks.hold(name)

    async def _wait_loaded(self, name: str, wait_s: float) -> bool:
        """Wait until the loop loaded a version or found that it cannot; True: the loop has counted a lease for this request."""
        demand = self._demanded.setdefault(name, _Demand(time.monotonic()))
        if sum(one.waiting for one in self._demanded.values()) >= MOST_WAITING:
            return False
        demand.waiting += 1
        self._changes.wake()
        try:
            async with asyncio.timeout(wait_s):
                await demand.is_over.wait()
        except TimeoutError:
            pass  # it may be over by now
        except asyncio.CancelledError:
            if demand.is_over.is_set():
                self._release_name(name)
            else:
                demand.waiting -= 1
            raise
        if not demand.is_over.is_set():
            demand.waiting -= 1
        return demand.is_over.is_set()

    def _release_version(self, policy: str, version: int) -> None:
        if self._release_name(adapter_name(policy, version)) and version != self._live_of(policy):
            self._changes.wake()

    def _release_name(self, name: str) -> bool:
        """Release one claim; returns whether it was the last."""
        self._leases[name] -= 1
        if self._leases[name]:
            return False
        del self._leases[name]
        if self._demanded or self._waits_for_slot:
            self._changes.wake()
        return True

    def mark_unhealthy(self) -> None:
        self._ready.clear()
        self._checked_at = 0.0
        self._changes.wake()

    # ---- the loop

    async def run(self) -> None:
        try:
            await self._run()
        finally:
            self._changes.close()

    async def _run(self) -> None:
        while True:
            try:
                errors = self._record_errors
                await self._step()
                if self._record_errors == errors:
                    self._loop_error = None
            except UpstreamError as exc:
                # Most likely the supervisor restarts the backend: requests wait until the next successful check.
                self._ready.clear()
                self._checked_at = 0.0
                self._loop_error = str(exc)
            record = self._record()
            if record is not None and record is not self._watched:
                self._watched = record
                self._changes.close()
                self._changes = record.change_notice(poll_s=self._poll_s, min_interval_s=self._poll_s)
            await self._changes.wait(_REST_S if self._is_at_rest() else self._poll_s)

    def _is_at_rest(self) -> bool:
        """Whether nothing is left to do until the record changes or a request comes."""
        return (
            self._ready.is_set()
            and self._loop_error is None
            and not (self._demanded or self._waits_for_slot or self._unwanted())
            and all(
                one.live == one.target and (one.trial is None or one.trial.is_ready)
                for one in self._pointers.values()
            )
        )

    async def _step(self) -> None:
        self._waits_for_slot = False
        await self._read_targets()
        if not self._ready.is_set() or time.monotonic() - self._checked_at >= _CHECK_INTERVAL_S:
            await self._check_backend()
        await self._follow_shared()
        self._ready.set()
        await self._load_demanded()
        for policy, pointer in list(self._pointers.items()):
            if pointer is not self._shared and pointer.target != pointer.live:
                await self._follow(policy, pointer)
            await self._load_trial(policy, pointer)
        used = {adapter_name(self.policy, version) for version in self._shared.versions}
        self._locks.release_unused(used | set(self._leases))
        for name in self._unwanted():
            await self._unload(name)
        await self._refresh_activity()

    async def _follow_shared(self) -> None:
        """Make the shared policy's version live; it is always loaded."""
        shared = self._shared
        if shared.target != shared.live or not self._is_available(self.policy, shared.live):
            await self._activate(self.policy, shared)
        if not self._is_available(self.policy, shared.live):
            # The live version cannot be loaded again (see last_error). The base model serves instead of an error.
            log.error(
                "%s cannot be loaded again; serving the base model", adapter_name(self.policy, shared.live)
            )
            shared.live = BASE_VERSION

    async def _follow(self, policy: str, pointer: _Pointer) -> None:
        """Make the version live that the record wants. A cold policy's is loaded with its next request."""
        is_warm = adapter_name(policy, pointer.live) in self._loaded
        needs_no_slot = pointer.target == BASE_VERSION or adapter_name(policy, pointer.target) in self._loaded
        if is_warm or needs_no_slot or self._has_free_slot():
            await self._activate(policy, pointer)
        else:
            pointer.live = pointer.target

    async def _load_demanded(self) -> None:
        """Load the versions that requests wait for."""
        if self._draining not in self._loaded or not self._demanded.keys() - {self._draining}:
            self._draining = None
        for name, demand in list(self._demanded.items()):
            found = parse_version(self.policy, name)
            if not demand.waiting or found is None:
                del self._demanded[name]  # every request has given up
                continue
            if name == self._draining:
                continue
            policy, version = found
            outcome = await self._ensure_loaded(policy, version)
            if outcome is _Load.LATER:  # the end of another request wakes the loop
                if self._waits_for_slot and time.monotonic() - demand.since >= _DRAIN_AFTER_S:
                    self._draining = self._draining or self._version_to_drain()
                continue
            pointer = self._pointers.get(policy)
            if outcome is _Load.DONE:
                self._cold_loads += 1
            elif pointer is not None and pointer.live == version:
                # A refused version's ancestor is the target; after any other failure the base model serves.
                pointer.live = BASE_VERSION if pointer.target == version else pointer.target
                log.error("%s cannot be loaded; serving version %d", name, pointer.live)
            del self._demanded[name]
            if demand.waiting:
                self._leases[name] += demand.waiting
            demand.is_over.set()

    def _version_to_drain(self) -> str | None:
        """Return the version in use by the fewest requests, of these the one loaded first; the shared policy keeps its slot."""
        kept = {adapter_name(self.policy, version) for version in self._shared.versions}
        loaded = [name for name in self._attested if name in self._loaded and name not in kept]
        return min(loaded, key=lambda name: self._leases.get(name, 0), default=None)

    def _wanted(self) -> set[str]:
        return {adapter_name(p, v) for p, one in self._pointers.items() for v in one.versions}

    def _unwanted(self) -> list[str]:
        """Return the loaded versions that no request uses and that no policy points to, the one unused longest first."""
        wanted = self._wanted()
        return [name for name in self._idle() if name not in wanted]

    def _idle(self) -> list[str]:
        """Return the loaded versions that no request uses, but the shared policy's, the one unused longest first."""
        kept = {adapter_name(self.policy, version) for version in self._shared.versions}
        idle = [name for name in self._loaded if not self._leases[name] and name not in kept]
        return sorted(idle, key=lambda name: (self._used_at.get(name, 0.0), name))

    async def _unload(self, name: str) -> None:
        claim = None if self._leases[name] else self._locks.claim(name)
        if claim is None:
            return  # a request or another gateway uses it by now
        # Removed from the set first, so that no new request can take a lease on it.
        self._loaded.discard(name)
        self._used_at.pop(name, None)
        self._attested.pop(name, None)
        self._load_s.pop(name, None)
        try:
            await self._backend.unload_adapter(name)
        except UpstreamError as exc:
            # The adapter only takes up a slot; the next check adds it to the set again.
            self._problems[name] = str(exc)
        finally:
            self._locks.free(claim)

    def _has_free_slot(self) -> bool:
        slots = self.capabilities.adapter_slots
        return slots is None or len(self._loaded) < max(_MIN_SLOTS, slots)

    async def _free_slot(self) -> bool:
        """Free a slot for one more version; returns False when all are in use."""
        if not self._has_free_slot():
            for name in dict.fromkeys((*self._unwanted(), *self._idle())):
                await self._unload(name)
                if self._has_free_slot():
                    break
        return self._has_free_slot()

    async def _refresh_activity(self) -> None:
        if time.monotonic() - self._activity_at < _ACTIVITY_INTERVAL_S:
            return
        self._activity_at = time.monotonic()
        try:
            self._activity = dict(await self._backend.activity())
        except UpstreamError:
            self._activity = {}  # the next check finds out whether the backend is healthy

    def _is_available(self, policy: str, version: int) -> bool:
        return version == BASE_VERSION or adapter_name(policy, version) in self._attested

    async def _read_targets(self) -> None:
        record = self._record()
        if record is None:
            return
        try:
            moves, releases = await record.routes()
            trials = {one.policy: await self._trial_of(record, one) for one in releases}
        except RecordError as exc:
            # Each alias keeps its version: a locked or missing record must not fail requests.
            self._record_errors += 1
            self._loop_error = str(exc)
            return
        for policy in policies_of(self.policy, {*moves, *self._pointers}):
            move = moves.get(policy)
            target = BASE_VERSION if move is None else move.version
            pointer = self._pointers.setdefault(policy, _Pointer())
            pointer.target = target
            if (
                pointer.trial is not None
                and pointer.trial.version == target
                and self._is_available(policy, target)
            ):
                pointer.live = target  # promoted: its conversations stay with it without a gap
            pointer.trial = trials.get(policy)

    async def _trial_of(self, record: Record, release: CanaryRelease) -> _Trial:
        """Return the state of a canary release, a new one's with the conversations that began before it."""
        pointer = self._pointers.get(release.policy)
        known = None if pointer is None else pointer.trial
        if known is not None and (known.version, known.started_at) == (release.version, release.started_at):
            return known
        rows = await record.conversations_before(release.policy, release.started_at)
        return _Trial(release.version, release.share, release.started_at, known_conversations(rows))

    async def _load_trial(self, policy: str, pointer: _Pointer) -> None:
        """Load the version on trial where the policy is in use; until then the live version serves its conversations."""
        trial = pointer.trial
        if trial is None or not self._is_available(policy, pointer.live):
            return
        if await self._ensure_loaded(policy, trial.version) is _Load.DONE:
            trial.is_ready = True

    async def _check_backend(self) -> None:
        """Read which adapters the backend has; a restart loses them."""
        models = await self._backend.models()
        names = {m.name: m.parent for m in models}
        adapters = {name for name in names if parse_version(self.policy, name) is not None}
        bases = [name for name, parent in names.items() if parent is None and name not in adapters]
        if self.policy in names:
            self._base = self.policy
        elif bases:
            self._base = bases[0]
        elif self._base is None:
            raise UpstreamError(f"the backend at {self._backend.address} serves no model")
        if not self._ready.is_set():  # first check, or the backend restarted: it may be a different one
            self.capabilities = await self._backend.capabilities()
            self._attested.clear()
        self._loaded = adapters
        self._attested = {name: outcome for name, outcome in self._attested.items() if name in adapters}
        if not self._is_available(self.policy, self._shared.live):
            self._ready.clear()
        self._checked_at = time.monotonic()

    async def _activate(self, policy: str, pointer: _Pointer) -> None:
        """Make the wanted version live. If it cannot be loaded, the alias stays and the load is retried later."""
        wanted = None
        while pointer.target != wanted:  # where it is refused, its ancestor is wanted
            wanted = pointer.target
            if await self._ensure_loaded(policy, wanted) is _Load.DONE:
                if pointer.live != wanted:
                    log.info("%s is live", adapter_name(policy, wanted))
                pointer.live = wanted
                return

    async def _ensure_loaded(self, policy: str, version: int) -> _Load:
        name = adapter_name(policy, version)
        if version == BASE_VERSION:
            return _Load.DONE
        if not self._locks.hold(name):
            return _Load.LATER  # another gateway is unloading it; tried again at the next poll
        if name in self._attested:
            return _Load.DONE
        if time.monotonic() < self._retry_at.get(name, 0.0):
            return _Load.FAILED
        if name not in self._loaded and not await self._free_slot():
            # The end of a request on another version wakes the loop.
            self._waits_for_slot = True
            return _Load.LATER
        try:
            await self._load(policy, version)
        except AdapterMismatch as exc:
            await self._refuse(policy, version, str(exc))
            return _Load.FAILED
        except (AdapterError, RecordError) as exc:
            self._load_errors += 1
            self._problems[name] = str(exc)
            wait = min(self._retry_s.get(name, _FIRST_RETRY_S / 2) * 2, _LAST_RETRY_S)
            self._retry_s[name] = wait
            self._retry_at[name] = time.monotonic() + wait
            log.error("cannot load %s: %s", name, exc)
            return _Load.FAILED
        self._retry_at.pop(name, None)
        self._retry_s.pop(name, None)
        self._problems.pop(name, None)
        return _Load.DONE

    async def _load(self, policy: str, version: int) -> None:
        record = self._record()
        adapter = None if record is None else await record.adapter(policy, version)
        if adapter is None:
            raise AdapterError(f"the record has no {adapter_name(policy, version)}")
        if not await asyncio.to_thread(Path(adapter.path).is_dir):
            raise AdapterError(f"the folder {adapter.path} of {adapter.name} does not exist")
        await asyncio.to_thread(check_adapter, adapter)
        began = time.monotonic()
        self._attested[adapter.name] = await self._backend.load_adapter(adapter.name, adapter.path)
        self._load_s[adapter.name] = round(time.monotonic() - began, 3)
        self._loaded.add(adapter.name)
        self._used_at[adapter.name] = time.monotonic()

    async def _refuse(self, policy: str, version: int, reason: str) -> None:
        """Refuse a version that is not what the trainer made; its newest intact ancestor becomes the target."""
        self._load_errors += 1
        self._problems[adapter_name(policy, version)] = reason
        log.error("%s is refused: %s", adapter_name(policy, version), reason)
        try:
            record = self._record()
            adapter = None if record is None else await record.adapter(policy, version)
            if record is not None and adapter is not None:
                self._pointers[policy].target = await refuse_version(record, adapter, reason)
        except RecordError as exc:
            self._record_errors += 1
            self._problems[adapter_name(policy, version)] = f"{reason}; the record cannot note it: {exc}"

    def state(self) -> Json:
        loaded: dict[str, list[int]] = {}
        for policy, version in filter(None, (parse_version(self.policy, name) for name in self._loaded)):
            loaded.setdefault(policy, []).append(version)
        return {
            "address": self._backend.address,
            "ready": self._ready.is_set(),
            "capabilities": describe_capabilities(self.capabilities),
            "activity": self._activity,
            "live": self._shared.live,
            "wanted": self._shared.target,
            "canary": None if self._shared.trial is None else self._shared.trial.version,
            "loaded": sorted(loaded.get(self.policy, [])),
            "policies": {
                policy: {"live": one.live, "wanted": one.target, "loaded": sorted(loaded.get(policy, []))}
                for policy, one in sorted(self._pointers.items())
                if one is not self._shared
            },
            "attested": dict(sorted(self._attested.items())),
            "load_s": {name: self._load_s[name] for name in sorted(self._loaded & self._load_s.keys())},
            "leases": dict(sorted(self._leases.items())),
            "waits_for_slot": self._waits_for_slot,
            "held": self._waited_requests,  # requests that waited for an unavailable backend
            "cold_loads": self._cold_loads,  # versions that were loaded because a request asked for them
            "waiting": sum(
                one.waiting for one in self._demanded.values()
            ),  # requests that wait for a version now
            "refused": self._refused_requests,  # requests for which no slot got free in time
            "by_base": self._base_requests,  # requests that the base model answered because the live version cannot be loaded
            "load_errors": self._load_errors,
            "record_errors": self._record_errors,
            "last_error": self._loop_error or next(reversed(self._problems.values()), None),
        }
