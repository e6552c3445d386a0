"""Pooled connections to an ``http://`` backend: the fast path of chat requests.

A general HTTP client spends a good part of a request on features that a chat request never needs (redirects, cookies, decoding, timers, a task
of its own). This module supports one case: a POST whose body is in memory, and its response as it arrives. The parser is llhttp (httptools)
with aiohttp's leniency. Everything else (TLS, other methods, streamed bodies, timeouts) uses aiohttp, in `serving.http`.
"""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import httptools

from store.errors import UpstreamConnectTimeout, UpstreamError, UpstreamUnreachable

#: Largest head of a response, in bytes and in fields; also the most bytes, such as trailers, that bring no body.
_MAX_HEAD = 1 << 18
MAX_FIELDS = 256
#: Bytes of a response that are buffered before reading is paused.
_HIGH_WATER = 1 << 18


class PooledReply:
    """One response in flight (`serving.protocol.BackendReply` once its head is there). The parser calls the ``on_…`` methods."""

    def __init__(self, connection: PooledConnection) -> None:
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
        self._fields_size = 0
        self._bytes_without_body = 0
        self._has_head = False
        self._ends_at_close = False
        self._error: UpstreamError | None = None
        self._waiter: asyncio.Future[None] | None = None

    # ---- from the connection

    def feed(self, data: bytes) -> None:
        """Process bytes from the network."""
        if not self._has_head:
            self._head_size += len(data)
        self._bytes_without_body += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._set_error("switched the protocol without a request")
        except httptools.HttpParserError as exc:
            if self.is_complete:
                self.keeps_connection = False  # data after the response's end
            else:
                self._set_error(f"did not speak HTTP: {type(exc).__name__}")
        if self._head_size > _MAX_HEAD and not self._has_head:
            self._set_error("did not speak HTTP: its head does not end")
        elif self._bytes_without_body > _MAX_HEAD and not self.is_complete and self._has_head:
            self._set_error("sent too many bytes without a body")
        elif self._size > _HIGH_WATER and not self.is_complete:
            self._connection.pause()
        self._wake()

    def end(self, error: Exception | None) -> None:
        """Handle the end of the connection."""
        if self._ends_at_close and error is None:
            self.is_complete = True
        elif not self.is_complete and self._error is None:
            self._error = (
                UpstreamError(self._describe("truncated its response"))
                if self._has_head
                else UpstreamUnreachable(self._describe("closed the connection"))
            )
        self._parser = None  # breaks a reference cycle
        self._wake()

    # ---- from the parser

    def on_message_begin(self) -> None:
        if self.is_complete:
            self.keeps_connection = False  # a second response to one request

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:  # fields after a body are trailers
            self._fields_size += len(name) + len(value) + 4
            if len(self.headers) < MAX_FIELDS and self._fields_size <= _MAX_HEAD:
                self.headers.append((name, value.strip(b" \t")))
            elif self._error is None:
                self._set_error(f"sent a head larger than {_MAX_HEAD >> 10} KB or {MAX_FIELDS} fields")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._has_head or self._error is not None:
            return
        if 100 <= status < 200 and status != 101:
            # An informational response: the final one follows.
            self.headers, self._head_size, self._fields_size = [], 0, 0
            return
        self.status = status
        self._has_head = True
        self._bytes_without_body = 0
        self.keeps_connection = self._parser.should_keep_alive()
        if not self.keeps_connection:
            fields = [(name.lower(), value.lower()) for name, value in self.headers]
            self._ends_at_close = not any(
                name == b"content-length" or (name == b"transfer-encoding" and value.endswith(b"chunked"))
                for name, value in fields
            )

    def on_body(self, body: bytes) -> None:
        if not self.is_complete:
            self._bytes_without_body = 0
            self._pieces.append(body)
            self._size += len(body)

    def on_message_complete(self) -> None:
        self.is_complete = self._has_head

    # ---- to the reader

    @property
    def has_buffered_body(self) -> bool:
        """Whether a part of the body has arrived already."""
        return bool(self._pieces)

    async def head(self) -> None:
        """Wait until the head has arrived. Raises: UpstreamError."""
        while not self._has_head:
            if self._error is not None:
                raise self._error
            await self._wait()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. Raises: UpstreamError when it is truncated."""
        while True:
            if self._pieces:
                data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
                self._pieces.clear()
                self._size = 0
                self._connection.resume()
                yield data
            elif self._error is not None:
                raise self._error
            elif self.is_complete:
                return
            else:
                await self._wait()

    async def read(self) -> bytes:
        """Return the whole body. Raises: UpstreamError when it is truncated."""
        return b"".join([piece async for piece in self.chunks()])

    def close(self) -> None:
        """Abandon the rest of the response; closing the connection stops the backend."""
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

    def _set_error(self, what: str) -> None:
        self._error = UpstreamError(self._describe("truncated its response" if self._has_head else what))
        self._connection.close()

    def _describe(self, what: str) -> str:
        return f"the backend at {self._connection.address} {what}"


class PooledConnection(asyncio.Protocol):
    """One connection of a pool; its requests are sequential."""

    def __init__(self, pool: ConnectionPool) -> None:
        self.address = pool.address
        self.free_since = 0.0
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._reply: PooledReply | None = None
        self._is_paused = False
        self._socket_poll = select.poll()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def has_no_unread_data(self) -> bool:
        """Whether the socket has no unread data and no end of stream. The event loop may not have read it yet, and a request sent now
        would take it for its response."""
        return self.is_open and not self._socket_poll.poll(0)

    def send(self, request: bytes) -> PooledReply:
        """Send a request and return its pending response."""
        reply = PooledReply(self)
        if self._transport is None:
            reply.end(None)
        else:
            self._reply = reply
            self._transport.write(request)
        return reply

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._socket_poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        reply = self._reply
        if reply is None:
            self.close()  # data without a request: the next response must not begin with it
            return
        reply.feed(data)
        if reply.is_complete:
            self._reply = None
            reply.end(None)
            if reply.keeps_connection and self.is_open:
                self.resume()
                self._pool.put(self)
            else:
                self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._pool.forget(self)
        if self._reply is not None:
            self._reply.end(exc)
            self._reply = None

    def pause(self) -> None:
        """Pause reading, which slows the backend down."""
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


class ConnectionPool:
    """The connections to one backend. A pool belongs to the event loop of its first use.

    Args:
        address: of the backend, for error messages.
        prepare: sets the options of a new connection's socket.
        idle_s: longest time that a connection stays open without a request.
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
        self._all: set[PooledConnection] = set()
        self._free: deque[PooledConnection] = deque()  # most recently used last
        self._sweep_timer: asyncio.TimerHandle | None = None

    async def send(self, request: bytes) -> PooledReply:
        """Send a request and return its response once the head has arrived.

        Raises:
            UpstreamUnreachable, UpstreamTimeout: no connection, or it was closed without a response.
            UpstreamError: the response is not HTTP.
        """
        connection = self._take() or await self._connect()
        reply = connection.send(request)
        try:
            await reply.head()
        except BaseException:
            reply.close()
            raise
        return reply

    def close(self) -> None:
        """Close all connections; responses in flight are truncated."""
        self._free.clear()
        for connection in self._all:
            connection.close()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None

    def _take(self) -> PooledConnection | None:
        oldest = asyncio.get_running_loop().time() - self._idle_s
        while self._free:
            connection = self._free.pop()
            if connection.has_no_unread_data and connection.free_since > oldest:
                return connection
            connection.close()
        return None

    async def _connect(self) -> PooledConnection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                transport, connection = await loop.create_connection(
                    lambda: PooledConnection(self), self._host, self._port
                )
        except TimeoutError as exc:
            raise UpstreamConnectTimeout(f"the backend at {self.address} did not answer in time") from exc
        except OSError as exc:
            raise UpstreamUnreachable(f"cannot connect to {self.address}: {exc.strerror or exc}") from exc
        self._prepare(transport.get_extra_info("socket"))
        self._all.add(connection)
        return connection

    def forget(self, connection: PooledConnection) -> None:
        """Remove a closed connection."""
        self._all.discard(connection)

    def put(self, connection: PooledConnection) -> None:
        """Return a connection to the pool."""
        loop = asyncio.get_running_loop()
        connection.free_since = loop.time()
        self._free.append(connection)
        if self._sweep_timer is None:
            self._sweep_timer = loop.call_later(self._idle_s, self._close_idle)

    def _close_idle(self) -> None:
        """Close connections that were idle too long."""
        loop = asyncio.get_running_loop()
        oldest = loop.time() - self._idle_s
        while self._free and (not self._free[0].is_open or self._free[0].free_since <= oldest):
            self._free.popleft().close()
        self._sweep_timer = (
            loop.call_at(self._free[0].free_since + self._idle_s, self._close_idle) if self._free else None
        )
