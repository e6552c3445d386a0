"""Connections to an ``http://`` backend, kept open between requests: the hot route's way to it.

A general client spends a good part of a turn on what this one request never needs (redirects, cookies, decoding, timers, a task of its
own). Here is one thing only: a POST whose body is in memory, and its answer as it comes. The parser is llhttp (httptools), set as
aiohttp sets its own. Everything else (TLS, other methods, streamed bodies, time limits) is aiohttp's, in `serving.http`.
"""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import httptools

from store.errors import UpstreamConnectTimeout, UpstreamError, UpstreamUnreachable

#: Most bytes of an answer's head.
_MAX_HEAD = 1 << 18
#: So much of an answer waits here before the backend is held back.
_HIGH_WATER = 1 << 18


class Answer:
    """One answer on its way (`serving.protocol.Reply` once its head is there). The methods in ``on_…`` are called by its parser."""

    def __init__(self, connection: Connection) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.is_complete = False
        self.keeps_connection = False
        self._connection = connection
        self._parser: Any = httptools.HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        self._pieces: list[bytes] = []
        self._size = 0
        self._head_size = 0
        self._has_head = False
        self._is_until_end = False
        self._fault: UpstreamError | None = None
        self._waiter: asyncio.Future[None] | None = None

    # ---- from the connection

    def feed(self, data: bytes) -> None:
        """Take bytes off the wire."""
        if not self._has_head:
            self._head_size += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail("changed the protocol unasked")
        except httptools.HttpParserError as exc:
            if self.is_complete:
                self.keeps_connection = False  # bytes behind the answer's end
            else:
                self._fail(f"did not speak HTTP: {type(exc).__name__}")
        if self._head_size > _MAX_HEAD and not self._has_head:
            self._fail("did not speak HTTP: its head has no end")
        elif self._size > _HIGH_WATER and not self.is_complete:
            self._connection.pause()
        self._wake()

    def end(self, error: Exception | None) -> None:
        """The connection is closed."""
        if self._is_until_end and error is None:
            self.is_complete = True
        elif not self.is_complete and self._fault is None:
            self._fault = (
                UpstreamError(self._said("broke off its answer"))
                if self._has_head
                else UpstreamUnreachable(self._said("closed the connection"))
            )
        self._parser = None  # it holds this object, and this object it
        self._wake()

    # ---- from the parser

    def on_message_begin(self) -> None:
        if self.is_complete:
            self.keeps_connection = False  # a second answer to one question

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:  # what comes behind a body are trailers
            self.headers.append((name, value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._has_head:
            return
        if 100 <= status < 200 and status != 101:
            self.headers, self._head_size = [], 0  # there is more to come
            return
        self.status = status
        self._has_head = True
        self.keeps_connection = self._parser.should_keep_alive()
        if not self.keeps_connection:
            fields = [(name.lower(), value.lower()) for name, value in self.headers]
            self._is_until_end = not any(
                name == b"content-length" or (name == b"transfer-encoding" and value.endswith(b"chunked"))
                for name, value in fields
            )

    def on_body(self, body: bytes) -> None:
        if not self.is_complete:
            self._pieces.append(body)
            self._size += len(body)

    def on_message_complete(self) -> None:
        self.is_complete = self._has_head

    # ---- to the reader

    @property
    def is_ahead(self) -> bool:
        """Whether some of the body is here already."""
        return bool(self._pieces)

    async def head(self) -> None:
        """Wait until the head is there. Raises: UpstreamError."""
        while not self._has_head:
            if self._fault is not None:
                raise self._fault
            await self._wait()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. Raises: UpstreamError when it is cut short."""
        while True:
            if self._pieces:
                data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
                self._pieces.clear()
                self._size = 0
                self._connection.resume()
                yield data
            elif self._fault is not None:
                raise self._fault
            elif self.is_complete:
                return
            else:
                await self._wait()

    async def read(self) -> bytes:
        """Return the whole body. Raises: UpstreamError when it is cut short."""
        return b"".join([piece async for piece in self.chunks()])

    def close(self) -> None:
        """Give up what has not come yet, which is how a backend learns that nobody listens any more."""
        if not self.is_complete:
            self._connection.close()

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, what: str) -> None:
        self._fault = UpstreamError(self._said("broke off its answer" if self._has_head else what))
        self._connection.close()

    def _said(self, what: str) -> str:
        return f"the backend at {self._connection.address} {what}"


class Connection(asyncio.Protocol):
    """One connection of a pool; its requests come one after the other."""

    def __init__(self, pool: Pool) -> None:
        self.address = pool.address
        self.free_since = 0.0
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._answer: Answer | None = None
        self._is_paused = False
        self._unread = select.poll()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_quiet(self) -> bool:
        """Whether nothing lies unread on the wire, an end neither: the loop may not have come to it yet, and a question asked now
        would take it for its answer."""
        return self.is_open and not self._unread.poll(0)

    def ask(self, request: bytes) -> Answer:
        """Send a request; its answer is on its way."""
        answer = Answer(self)
        if self._transport is None:
            answer.end(None)
        else:
            self._answer = answer
            self._transport.write(request)
        return answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._unread.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None:
            self.close()  # nobody asked: the next answer must not begin with it
            return
        answer.feed(data)
        if answer.is_complete:
            self._answer = None
            answer.end(None)
            if answer.keeps_connection and self.is_open:
                self.resume()
                self._pool.put(self)
            else:
                self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._pool.forget(self)
        if self._answer is not None:
            self._answer.end(exc)
            self._answer = None

    def pause(self) -> None:
        """Hold the backend back."""
        if self._transport is not None and not self._is_paused:
            self._transport.pause_reading()
            self._is_paused = True

    def resume(self) -> None:
        if self._is_paused and self._transport is not None:
            self._transport.resume_reading()
            self._is_paused = False

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class Pool:
    """The connections to one backend. It belongs to the loop that it is first used in.

    Args:
        address: of the backend, for errors.
        prepare: sets the options of a new connection's socket.
        idle_s: a connection waits no longer than this for its next request.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        address: str,
        prepare: Callable[[Any], None],
        idle_s: float,
        connect_timeout_s: float,
    ) -> None:
        self.address = address
        self._host, self._port = host, port
        self._prepare = prepare
        self._idle_s = idle_s
        self._connect_timeout_s = connect_timeout_s
        self._all: set[Connection] = set()
        self._free: deque[Connection] = deque()  # the one that was used last comes last
        self._sweeping: asyncio.TimerHandle | None = None

    async def ask(self, request: bytes) -> Answer:
        """Send a request and return its answer once its head is there.

        Raises:
            UpstreamUnreachable, UpstreamTimeout: no connection, or it was closed without a word.
            UpstreamError: what came is no HTTP.
        """
        connection = self._take() or await self._connect()
        answer = connection.ask(request)
        try:
            await answer.head()
        except BaseException:
            answer.close()
            raise
        return answer

    def close(self) -> None:
        """Close all connections; what is still on its way is cut."""
        self._free.clear()
        for connection in self._all:
            connection.close()
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None

    def _take(self) -> Connection | None:
        oldest = asyncio.get_running_loop().time() - self._idle_s
        while self._free:
            connection = self._free.pop()
            if connection.is_quiet and connection.free_since > oldest:
                return connection
            connection.close()
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                transport, connection = await loop.create_connection(
                    lambda: Connection(self), self._host, self._port
                )
        except TimeoutError as exc:
            raise UpstreamConnectTimeout(f"the backend at {self.address} did not answer in time") from exc
        except OSError as exc:
            raise UpstreamUnreachable(f"nobody answers at {self.address}: {exc.strerror or exc}") from exc
        self._prepare(transport.get_extra_info("socket"))
        self._all.add(connection)
        return connection

    def forget(self, connection: Connection) -> None:
        """It is closed."""
        self._all.discard(connection)

    def put(self, connection: Connection) -> None:
        """It may take the next request."""
        loop = asyncio.get_running_loop()
        connection.free_since = loop.time()
        self._free.append(connection)
        if self._sweeping is None:
            self._sweeping = loop.call_later(self._idle_s, self._sweep)

    def _sweep(self) -> None:
        """Close what nobody has used for so long."""
        loop = asyncio.get_running_loop()
        oldest = loop.time() - self._idle_s
        while self._free and (not self._free[0].is_open or self._free[0].free_since <= oldest):
            self._free.popleft().close()
        self._sweeping = (
            loop.call_at(self._free[0].free_since + self._idle_s, self._sweep) if self._free else None
        )
