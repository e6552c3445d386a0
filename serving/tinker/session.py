"""Sessions with the Tinker server: health checks, one session at a time, and a sampling client for each version.

Sessions end with the server, checkpoints do not. All state of one session is a `_Session`. When the server becomes unreachable or no longer knows the
session, the session ends, its waiting requests get an error, and a new session with the same versions is created as soon as the server responds.
A request whose session was lost before its client received anything is sent again in the next one.

Everything here runs on the event loop; blocking calls of the SDK run in threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from serving.tinker.service import address, base_model, close, connect, made, probe
from store.errors import ConfigError, TheirError, UpstreamError, UpstreamTimeout, UpstreamUnreachable
from store.settings import Settings

if TYPE_CHECKING:
    import tinker

log = logging.getLogger("patina.tinker")

#: Intervals of health checks: while the server is unreachable, while requests wait for it, otherwise.
_PROBE_UNREACHABLE_S, _PROBE_BUSY_S, _PROBE_IDLE_S = 0.5, 2.0, 10.0
_PROBE_TIMEOUT_S = 5.0
#: Failed checks in a row before a slow server counts as unreachable.
_MAX_FAILED_PROBES = 3
#: Sessions in which one request is tried at most.
_MAX_SESSIONS_PER_REQUEST = 3

T = TypeVar("T")


class RequestRefused(TheirError):
    """The server refuses a request because of its content."""


class _SessionLost(Exception):
    """The session ended, or turned out to have ended."""


@dataclass(eq=False)
class _Session:
    """One session: its clients by path ("" is the base model), and its end."""

    service: tinker.ServiceClient
    clients: dict[str, asyncio.Future[tinker.SamplingClient]] = field(default_factory=dict)
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class TinkerSessionManager:
    """Keeps a session with the server open (see the module's docstring).

    Args:
        probe_features: detects the server's features, once, in the first session.
        on_config_error: called when a wrong set-up is detected only after the start.
        reconnect_wait_s: longest time that a request waits for an unreachable server.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        probe_features: Callable[[], Coroutine[Any, Any, None]],
        on_config_error: Callable[[ConfigError], None],
        reconnect_wait_s: float = 10.0,
    ) -> None:
        self._settings = settings
        self._probe_features = probe_features
        self._on_config_error = on_config_error
        self._reconnect_wait_s = reconnect_wait_s
        self._session: _Session | None = None
        self._has_session = asyncio.Event()
        self._wake = asyncio.Event()
        self._unreachable_reason: str | None = "not connected yet"
        self._unreachable_since = time.monotonic()
        self._closing: set[asyncio.Task[None]] = set()
        self._watch_task: asyncio.Task[None] | None = None
        self.address = address(settings)
        self.base_model = ""
        self.context: int | None = None
        self.is_ready = False
        self.sessions_opened = 0
        self.requests_in_flight = 0

    # ---- state

    @property
    def unavailable_reason(self) -> str | None:
        """Return why nothing can be served now; None while it can, or probably will within `reconnect_wait_s`."""
        if not self.is_ready:
            return f"the Tinker server at {self.address} does not serve yet: {self._unreachable_reason}"
        if self._session is not None:
            return None
        if time.monotonic() - self._unreachable_since < self._reconnect_wait_s:
            return None
        return f"the Tinker server at {self.address} is away: {self._unreachable_reason}"

    def start(self) -> None:
        """Start the health checks."""
        self._watch_task = asyncio.create_task(self._watch_server())

    async def stop(self) -> None:
        """End the session and stop the health checks."""
        if self._watch_task is not None:
            self._watch_task.cancel()
            await asyncio.gather(self._watch_task, return_exceptions=True)
        if self._session is not None:
            self._close_session(self._session, "we stop")
        await asyncio.gather(*self._closing, return_exceptions=True)

    # ---- health checks

    async def _watch_server(self) -> None:
        failed_probes = 0
        while True:
            try:
                await asyncio.to_thread(probe, self._settings, timeout_s=_PROBE_TIMEOUT_S)
                failed_probes = 0
                if self._session is None:
                    await self._open_session()
            except ConfigError as exc:
                if not self.is_ready:
                    self._on_config_error(exc)
                    return
                self._mark_unreachable(
                    str(exc)
                )  # e.g. a revoked key; the model is known, so the checks continue
            except UpstreamUnreachable as exc:
                self._mark_unreachable(str(exc))
            except TheirError as exc:
                failed_probes += 1
                if failed_probes >= _MAX_FAILED_PROBES or self._session is None:
                    self._mark_unreachable(str(exc))
            except Exception as exc:
                # This loop is the only one that checks the server: an unexpected error must not end it.
                log.exception("the health check of the Tinker server failed")
                self._mark_unreachable(f"{type(exc).__name__}: {exc}")
            self._wake.clear()
            pause = (
                _PROBE_UNREACHABLE_S
                if self._session is None or failed_probes
                else _PROBE_BUSY_S
                if self.requests_in_flight
                else _PROBE_IDLE_S
            )
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _open_session(self) -> None:
        if not self.base_model:
            self.base_model, self.context = await asyncio.to_thread(base_model, self._settings)
        self._unreachable_reason = "its features are being detected"
        session = _Session(await asyncio.to_thread(connect, self._settings))
        self._session = session
        try:
            await self._client(session, "")
            if not self.is_ready:
                await self._probe_features()
                self.is_ready = True
        except (TheirError, _SessionLost) as exc:
            self._close_session(session, str(exc))
            raise exc if isinstance(exc, TheirError) else UpstreamError(str(exc)) from exc
        except BaseException:
            self._close_session(session, "it could not be started")
            raise
        if self.sessions_opened:
            log.info("the Tinker server at %s is reachable again", self.address)
        self.sessions_opened += 1
        self._unreachable_reason = None
        self._has_session.set()

    def _mark_unreachable(self, why: str) -> None:
        if self._session is not None:
            self._close_session(self._session, why)
        elif self._unreachable_reason != why:
            self._unreachable_reason = why

    def _close_session(self, session: _Session, why: str) -> None:
        """End a session; its waiting requests get an error."""
        if session.ended.is_set():
            return
        session.ended.set()
        if self._session is session:
            log.warning("the session with the Tinker server at %s has ended: %s", self.address, why)
            self._session = None
            self._has_session.clear()
            self._unreachable_reason, self._unreachable_since = why, time.monotonic()
            self._wake.set()
        task = asyncio.create_task(asyncio.to_thread(close, session.service))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    # ---- use

    async def sample(self, path: str, ask: Callable[[tinker.SamplingClient], Any]) -> Any:
        """Send a request to a version ("" is the base model) and return its result.

        Args:
            ask: sends the request; returns the SDK's future.

        Raises:
            RequestRefused: the server refuses it.
            UpstreamUnreachable, UpstreamError: the server is unreachable, or failed.
        """
        self.requests_in_flight += 1
        try:
            return await self._with_new_session(lambda session: self._sample_once(session, path, ask))
        finally:
            self.requests_in_flight -= 1

    async def prepare(self, path: str) -> None:
        """Create the client of a version. Raises: as `sample`; RequestRefused when there is no such checkpoint."""
        await self._with_new_session(lambda session: self._client(session, path))

    def forget(self, path: str) -> None:
        """Drop a version's client."""
        if self._session is not None:
            self._session.clients.pop(path, None)

    async def _with_new_session(self, work: Callable[[_Session], Coroutine[Any, Any, T]]) -> T:
        for number in range(_MAX_SESSIONS_PER_REQUEST):
            session = await self._wait_for_session()
            try:
                return await work(session)
            except _SessionLost as exc:
                self._close_session(session, str(exc))
                if number == _MAX_SESSIONS_PER_REQUEST - 1:
                    raise UpstreamError(f"the Tinker server at {self.address} lost a request: {exc}") from exc
        raise AssertionError("unreachable")

    async def _wait_for_session(self) -> _Session:
        if self._session is None:
            unavailable_reason = self.unavailable_reason
            left = self._reconnect_wait_s - (time.monotonic() - self._unreachable_since)
            try:
                async with asyncio.timeout(0 if unavailable_reason else left):
                    await self._has_session.wait()
            except TimeoutError:
                raise UpstreamUnreachable(
                    f"the Tinker server at {self.address} is away: {self._unreachable_reason}"
                ) from None
        assert self._session is not None
        return self._session

    async def _client(self, session: _Session, path: str) -> tinker.SamplingClient:
        found = session.clients.get(path)
        if found is None:
            found = asyncio.ensure_future(self._create_client(session, path))
            session.clients[path] = found
            found.add_done_callback(lambda done: _drop_failed(session, path, done))
        # A client that several requests wait for must survive the cancellation of one.
        return await self._wait_unless_ended(session, asyncio.shield(found))

    async def _create_client(self, session: _Session, path: str) -> tinker.SamplingClient:
        import tinker

        def create() -> tinker.SamplingClient:
            if path:
                return made(session.service.create_sampling_client(model_path=path))
            return made(session.service.create_sampling_client(base_model=self.base_model))

        try:
            return await asyncio.to_thread(create)
        except tinker.NotFoundError as exc:
            # Either the checkpoint or the session is gone: a request for the base model decides.
            if path and await self._is_session_alive(session):
                raise RequestRefused(f"the Tinker server at {self.address} has no {path}: {exc}") from exc
            raise _SessionLost(str(exc)) from exc
        except _sdk_errors() as exc:
            raise self._map_error(exc) from exc

    async def _is_session_alive(self, session: _Session) -> bool:
        import tinker

        def create() -> None:
            made(session.service.create_sampling_client(base_model=self.base_model))

        try:
            await asyncio.to_thread(create)
        except tinker.NotFoundError:
            return False
        except _sdk_errors() as exc:
            raise self._map_error(exc) from exc
        return True

    async def _sample_once(
        self, session: _Session, path: str, ask: Callable[[tinker.SamplingClient], Any]
    ) -> Any:
        client = await self._client(session, path)
        future = ask(client).future()
        try:
            return await self._wait_unless_ended(session, asyncio.wrap_future(future))
        except _sdk_errors() as exc:
            raise self._map_error(exc) from exc
        finally:
            future.cancel()  # cancels the request at the server; no effect on a finished one

    async def _wait_unless_ended(self, session: _Session, wanted: asyncio.Future[T]) -> T:
        """Wait for a result, or for the end of the session."""
        ended = asyncio.ensure_future(session.ended.wait())
        both: set[asyncio.Future[Any]] = {wanted, ended}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if wanted.done():
                return wanted.result()
            raise _SessionLost(self._unreachable_reason or "the session ended")
        finally:
            ended.cancel()
            wanted.cancel()

    def _map_error(self, exc: BaseException) -> Exception:
        """Map an error of the SDK."""
        import tinker

        where = f"the Tinker server at {self.address}"
        if isinstance(exc, tinker.RequestFailedError):
            if exc.category == "user":
                return RequestRefused(f"{where} refuses: {exc}")
            return UpstreamError(f"{where} failed: {exc}", status=500)
        if isinstance(exc, tinker.AuthenticationError | tinker.PermissionDeniedError):
            return UpstreamError(f"{where} refuses TINKER_API_KEY: {exc}", status=exc.status_code)
        if isinstance(exc, tinker.BadRequestError | tinker.UnprocessableEntityError):
            return RequestRefused(f"{where} refuses: {exc}")
        if (
            isinstance(exc, tinker.NotFoundError | tinker.ConflictError)
            or getattr(exc, "status_code", 0) == 410
        ):
            return _SessionLost(f"the server does not know the session: {exc}")
        if isinstance(exc, tinker.APITimeoutError | TimeoutError):
            return UpstreamTimeout(f"{where} did not answer in time")
        if isinstance(exc, tinker.APIStatusError):
            return UpstreamError(f"{where} failed: {exc}", status=exc.status_code)
        # Broken connections, and the SDK's plain errors for futures that the server does not know.
        return _SessionLost(f"{type(exc).__name__}: {exc}")


def _sdk_errors() -> tuple[type[Exception], ...]:
    """Return the SDK's exceptions; for lost requests it also raises plain ValueError and RuntimeError."""
    import httpx
    import tinker

    return (tinker.TinkerError, httpx.HTTPError, ValueError, RuntimeError, OSError, TimeoutError)


def _drop_failed(session: _Session, path: str, done: asyncio.Future[tinker.SamplingClient]) -> None:
    if done.cancelled() or done.exception() is not None:
        session.clients.pop(path, None)
