"""The line of serving to the Tinker server: is it there, a session with it, and a sampling client for each version.

Sessions do not outlive a server, checkpoints do. So everything of one session is a `_Life`; when the server goes away, or knows nothing
of us any more, the life ends, whoever waited in it is told, and the next life is made as soon as the server answers: the same versions,
from their paths. A request that lost its life before the client heard anything is asked once more in the next.

Everything here runs on the event loop; what blocks in the SDK runs on threads.
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

#: How often the server is looked at: while it is away, while somebody waits for it, else.
_LOOK_AWAY_S, _LOOK_BUSY_S, _LOOK_IDLE_S = 0.5, 2.0, 10.0
_PROBE_S = 5.0
#: A server that is slow to answer is not gone before it was so three times.
_BAD_LOOKS = 3
#: A request is asked at most so often in a new life.
_LIVES = 3

T = TypeVar("T")


class Refused(TheirError):
    """The server does not take a request, for what is in it."""


class _Lost(Exception):
    """The life ended, or turned out to have ended."""


@dataclass(eq=False)
class _Life:
    """One session: its clients by path ("" is the base model), and the end of it."""

    service: tinker.ServiceClient
    clients: dict[str, asyncio.Future[tinker.SamplingClient]] = field(default_factory=dict)
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Connection:
    """See the head of this file.

    Args:
        look: tries what the server can do, once, when the first life has begun.
        fatal: told what is wrong with the set-up, when that turns out only after the start.
        patience_s: so long a request waits for a server that is away.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        look: Callable[[], Coroutine[Any, Any, None]],
        fatal: Callable[[ConfigError], None],
        patience_s: float = 10.0,
    ) -> None:
        self._settings = settings
        self._look = look
        self._fatal = fatal
        self._patience_s = patience_s
        self._life: _Life | None = None
        self._alive = asyncio.Event()
        self._wake = asyncio.Event()
        self._away: str | None = "it was not asked yet"
        self._away_since = time.monotonic()
        self._closing: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None
        self.address = address(settings)
        self.base_model = ""
        self.context: int | None = None
        self.is_known = False
        self.lives = 0
        self.busy = 0

    # ---- its state

    @property
    def trouble(self) -> str | None:
        """Why nothing can be served now; None while it can, or is likely to within a request's patience."""
        if not self.is_known:
            return f"the Tinker server at {self.address} does not serve yet: {self._away}"
        if self._life is not None:
            return None
        if time.monotonic() - self._away_since < self._patience_s:
            return None
        return f"the Tinker server at {self.address} is away: {self._away}"

    def start(self) -> None:
        """Begin to look after the server."""
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """End the session and stop looking."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._life is not None:
            self._end(self._life, "we stop")
        await asyncio.gather(*self._closing, return_exceptions=True)

    # ---- looking after the server

    async def _watch(self) -> None:
        bad = 0
        while True:
            try:
                await asyncio.to_thread(probe, self._settings, timeout_s=_PROBE_S)
                bad = 0
                if self._life is None:
                    await self._begin()
            except ConfigError as exc:
                if not self.is_known:
                    self._fatal(exc)
                    return
                self._gone(
                    str(exc)
                )  # a key that was taken back, say; what we serve is known, so we go on asking
            except UpstreamUnreachable as exc:
                self._gone(str(exc))
            except TheirError as exc:
                bad += 1
                if bad >= _BAD_LOOKS or self._life is None:
                    self._gone(str(exc))
            except Exception as exc:
                # Nobody else looks after the server: what nobody thought of must not end this loop.
                log.exception("looking after the Tinker server failed")
                self._gone(f"{type(exc).__name__}: {exc}")
            self._wake.clear()
            pause = _LOOK_AWAY_S if self._life is None or bad else _LOOK_BUSY_S if self.busy else _LOOK_IDLE_S
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _begin(self) -> None:
        if not self.base_model:
            self.base_model, self.context = await asyncio.to_thread(base_model, self._settings)
        self._away = "it is being asked what it can do"
        life = _Life(await asyncio.to_thread(connect, self._settings))
        self._life = life
        try:
            await self._client(life, "")
            if not self.is_known:
                await self._look()
                self.is_known = True
        except (TheirError, _Lost) as exc:
            self._end(life, str(exc))
            raise exc if isinstance(exc, TheirError) else UpstreamError(str(exc)) from exc
        except BaseException:
            self._end(life, "it could not be begun")
            raise
        if self.lives:
            log.info("the Tinker server at %s is there again", self.address)
        self.lives += 1
        self._away = None
        self._alive.set()

    def _gone(self, why: str) -> None:
        if self._life is not None:
            self._end(self._life, why)
        elif self._away != why:
            self._away = why

    def _end(self, life: _Life, why: str) -> None:
        """End a life: who waits in it is told."""
        if life.ended.is_set():
            return
        life.ended.set()
        if self._life is life:
            log.warning("the session with the Tinker server at %s has ended: %s", self.address, why)
            self._life = None
            self._alive.clear()
            self._away, self._away_since = why, time.monotonic()
            self._wake.set()
        task = asyncio.create_task(asyncio.to_thread(close, life.service))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    # ---- use

    async def sample(self, path: str, ask: Callable[[tinker.SamplingClient], Any]) -> Any:
        """Ask a version ("" is the base model) and wait for what it says.

        Args:
            ask: puts the question; returns the SDK's future.

        Raises:
            Refused: the server does not take it.
            UpstreamUnreachable, UpstreamError: the server is away, or failed at it.
        """
        self.busy += 1
        try:
            return await self._again(lambda life: self._ask(life, path, ask))
        finally:
            self.busy -= 1

    async def prepare(self, path: str) -> None:
        """Make the client of a version. Raises: as `sample`; Refused when there is no such checkpoint."""
        await self._again(lambda life: self._client(life, path))

    def forget(self, path: str) -> None:
        """A version's client is no longer needed."""
        if self._life is not None:
            self._life.clients.pop(path, None)

    async def _again(self, work: Callable[[_Life], Coroutine[Any, Any, T]]) -> T:
        for number in range(_LIVES):
            life = await self._living()
            try:
                return await work(life)
            except _Lost as exc:
                self._end(life, str(exc))
                if number == _LIVES - 1:
                    raise UpstreamError(f"the Tinker server at {self.address} lost a request: {exc}") from exc
        raise AssertionError("unreachable")

    async def _living(self) -> _Life:
        if self._life is None:
            trouble = self.trouble
            left = self._patience_s - (time.monotonic() - self._away_since)
            try:
                async with asyncio.timeout(0 if trouble else left):
                    await self._alive.wait()
            except TimeoutError:
                raise UpstreamUnreachable(
                    f"the Tinker server at {self.address} is away: {self._away}"
                ) from None
        assert self._life is not None
        return self._life

    async def _client(self, life: _Life, path: str) -> tinker.SamplingClient:
        found = life.clients.get(path)
        if found is None:
            found = asyncio.ensure_future(self._make(life, path))
            life.clients[path] = found
            found.add_done_callback(lambda done: _drop_failed(life, path, done))
        # one that is made for several must not end with the first who leaves
        return await self._unless_ended(life, asyncio.shield(found))

    async def _make(self, life: _Life, path: str) -> tinker.SamplingClient:
        import tinker

        def create() -> tinker.SamplingClient:
            if path:
                return made(life.service.create_sampling_client(model_path=path))
            return made(life.service.create_sampling_client(base_model=self.base_model))

        try:
            return await asyncio.to_thread(create)
        except tinker.NotFoundError as exc:
            # Either the checkpoint is gone or the session is: asking for what is always there tells.
            if path and await self._knows_us(life):
                raise Refused(f"the Tinker server at {self.address} has no {path}: {exc}") from exc
            raise _Lost(str(exc)) from exc
        except _foreign() as exc:
            raise self._mapped(exc) from exc

    async def _knows_us(self, life: _Life) -> bool:
        import tinker

        def create() -> None:
            made(life.service.create_sampling_client(base_model=self.base_model))

        try:
            await asyncio.to_thread(create)
        except tinker.NotFoundError:
            return False
        except _foreign() as exc:
            raise self._mapped(exc) from exc
        return True

    async def _ask(self, life: _Life, path: str, ask: Callable[[tinker.SamplingClient], Any]) -> Any:
        client = await self._client(life, path)
        future = ask(client).future()
        try:
            return await self._unless_ended(life, asyncio.wrap_future(future))
        except _foreign() as exc:
            raise self._mapped(exc) from exc
        finally:
            future.cancel()  # where nobody waits any more, the server is told so; a finished one is left as it is

    async def _unless_ended(self, life: _Life, wanted: asyncio.Future[T]) -> T:
        """Wait for a result, or for the end of the life."""
        ended = asyncio.ensure_future(life.ended.wait())
        both: set[asyncio.Future[Any]] = {wanted, ended}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if wanted.done():
                return wanted.result()
            raise _Lost(self._away or "the session ended")
        finally:
            ended.cancel()
            wanted.cancel()

    def _mapped(self, exc: BaseException) -> Exception:
        """What the SDK raises, as what it means here."""
        import tinker

        where = f"the Tinker server at {self.address}"
        if isinstance(exc, tinker.RequestFailedError):
            if exc.category == "user":
                return Refused(f"{where} refuses: {exc}")
            return UpstreamError(f"{where} failed: {exc}", status=500)
        if isinstance(exc, tinker.AuthenticationError | tinker.PermissionDeniedError):
            return UpstreamError(f"{where} refuses TINKER_API_KEY: {exc}", status=exc.status_code)
        if isinstance(exc, tinker.BadRequestError | tinker.UnprocessableEntityError):
            return Refused(f"{where} refuses: {exc}")
        if (
            isinstance(exc, tinker.NotFoundError | tinker.ConflictError)
            or getattr(exc, "status_code", 0) == 410
        ):
            return _Lost(f"it does not know (any more) what it was asked: {exc}")
        if isinstance(exc, tinker.APITimeoutError | TimeoutError):
            return UpstreamTimeout(f"{where} did not answer in time")
        if isinstance(exc, tinker.APIStatusError):
            return UpstreamError(f"{where} failed: {exc}", status=exc.status_code)
        # connections that broke, and the SDK's plain errors for futures that the server does not know (any more)
        return _Lost(f"{type(exc).__name__}: {exc}")


def _foreign() -> tuple[type[Exception], ...]:
    """What the SDK raises; it also has plain ValueError and RuntimeError, for requests that are lost."""
    import httpx
    import tinker

    return (tinker.TinkerError, httpx.HTTPError, ValueError, RuntimeError, OSError, TimeoutError)


def _drop_failed(life: _Life, path: str, done: asyncio.Future[tinker.SamplingClient]) -> None:
    if done.cancelled() or done.exception() is not None:
        life.clients.pop(path, None)
