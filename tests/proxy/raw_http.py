"""HTTP by hand: a backend that writes exactly the scripted bytes, and a client that notes every byte, piece and end it sees.

The differential tests use both: one request straight to the backend, the same through the proxy, and everything is compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import h11
import orjson

#: Hop-by-hop fields, and what may differ between two hops by nature.
#: Fields that are for the next hop alone; the gateway passes no cookies either.
COOKIES = {"cookie", "set-cookie"}
HOP = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "host"} | COOKIES


@dataclass(frozen=True)
class Cut:
    """The backend breaks the connection here."""


@dataclass(frozen=True)
class Until:
    """The backend waits until the test sets this event: nothing may be held back that stands before it."""

    name: str


Step = bytes | Cut | Until


@dataclass
class Request:
    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)


Script = Callable[[Request], Sequence[Step]]


def answer(
    status: int,
    headers: Sequence[tuple[str, str]],
    pieces: Sequence[bytes | Cut | Until],
    *,
    framing: str = "length",
) -> list[Step]:
    """Return the steps of a reply: ``framing`` is "length", "chunked", or "close" (the end is the end of the connection)."""
    response_fields = list(headers)
    if framing == "length":
        response_fields.append(("Content-Length", str(sum(len(p) for p in pieces if isinstance(p, bytes)))))
    elif framing == "chunked":
        response_fields.append(("Transfer-Encoding", "chunked"))
    else:
        response_fields.append(("Connection", "close"))
    head = f"HTTP/1.1 {status} Whatever\r\n" + "".join(f"{k}: {v}\r\n" for k, v in response_fields) + "\r\n"
    steps: list[Step] = [head.encode("latin-1")]
    for piece in pieces:
        if isinstance(piece, bytes) and framing == "chunked":
            if piece:
                steps.append(b"%x\r\n%b\r\n" % (len(piece), piece))
        else:
            steps.append(piece)
    if not any(isinstance(p, Cut) for p in pieces):
        steps += [b"0\r\n\r\n"] if framing == "chunked" else [Cut()] if framing == "close" else []
    return steps


@dataclass
class WireUpstream:
    """The backend. ``script`` says what a request is answered with."""

    script: Script = lambda request: answer(200, [], [b""])
    requests: list[Request] = field(default_factory=list)
    events: dict[str, threading.Event] = field(default_factory=dict)
    open_connections: int = 0
    aborted: int = 0
    url: str = ""

    @contextmanager
    def running(self) -> Iterator[str]:
        """Serve in a thread of its own; yields the base URL."""
        started = threading.Event()
        loop = asyncio.new_event_loop()
        ended = asyncio.Event()

        async def serve() -> None:
            server = await asyncio.start_server(self._connection, "127.0.0.1", 0, limit=1 << 26)
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            started.set()
            await ended.wait()
            server.close()
            tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        def run() -> None:
            asyncio.set_event_loop(loop)
            loop.run_until_complete(serve())
            loop.close()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        assert started.wait(60)
        try:
            yield self.url
        finally:
            loop.call_soon_threadsafe(ended.set)
            thread.join(timeout=60)
            assert not thread.is_alive()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open_connections += 1
        try:
            while (request := await self._read(reader, writer)) is not None:
                if request.target == "/health":
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                    continue
                self.requests.append(request)
                for step in self.script(request):
                    if isinstance(step, Cut):
                        return
                    if isinstance(step, Until):
                        await self._until(step.name, reader)
                    else:
                        writer.write(step)
                        await writer.drain()
                        await asyncio.sleep(0)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.aborted += 1
        finally:
            self.open_connections -= 1
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _until(self, name: str, reader: asyncio.StreamReader) -> None:
        """Wait for the event; a peer that goes away meanwhile ends it."""
        gone = asyncio.create_task(reader.read(1))
        while not self.events[name].is_set():
            done, _ = await asyncio.wait({gone}, timeout=0.01)
            if done and not gone.result():
                raise ConnectionResetError
        gone.cancel()

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
        parser = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
        request: h11.Request | None = None
        body: list[bytes] = []
        while True:
            event = parser.next_event()
            if event is h11.NEED_DATA:
                if request is not None and parser.they_are_waiting_for_100_continue:
                    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                data = await reader.read(1 << 16)
                if not data and request is None:
                    return None
                parser.receive_data(data)
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                body.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                assert request is not None
                headers = [(k.decode().lower(), v.decode("latin-1")) for k, v in request.headers]
                return Request(request.method.decode(), request.target.decode(), headers, b"".join(body))
            else:
                raise ConnectionResetError


@dataclass
class Seen:
    """All that a client saw of one reply."""

    status: int = 0
    headers: list[tuple[str, str]] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)
    is_whole: bool = False
    has_head: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)

    def comparable(self) -> tuple[Any, ...]:
        """Everything but hop-by-hop fields and the additions."""
        headers = sorted((k, v) for k, v in self.headers if k not in HOP and not is_addition(k, v))
        return self.status, headers, self.body, self.is_whole


def is_addition(name: str, value: str) -> bool:
    """Whether a response header is Patina's own: the turn's id, and a request id where the backend sent none."""
    return name == "x-patina-turn" or (name == "x-request-id" and value.startswith(("turn_", "req_")))


async def exchange(
    url: str,
    method: str,
    target: str,
    headers: Sequence[tuple[str, str]] = (),
    body: bytes | Sequence[bytes] | None = None,
    *,
    on_piece: Callable[[bytes], Awaitable[None] | None] | None = None,
    stop_after: int | None = None,
) -> Seen:
    """Send one request and note what comes back. A sequence as ``body`` is sent in chunks; ``stop_after`` pieces the client leaves."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    seen = Seen()
    try:
        lines = [f"{method} {target} HTTP/1.1", f"Host: {address.netloc}", *(f"{k}: {v}" for k, v in headers)]
        if isinstance(body, bytes):
            lines.append(f"Content-Length: {len(body)}")
        elif body is not None:
            lines.append("Transfer-Encoding: chunked")
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
        if isinstance(body, bytes):
            writer.write(body)
        elif body is not None:
            for part in body:
                writer.write(b"%x\r\n%b\r\n" % (len(part), part))
                await writer.drain()
            writer.write(b"0\r\n\r\n")
        parser = h11.Connection(h11.CLIENT)
        parser.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
        parser.send(h11.EndOfMessage())
        await _note(parser, reader, seen, on_piece, stop_after)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    return seen


async def _note(
    parser: h11.Connection,
    reader: asyncio.StreamReader,
    seen: Seen,
    on_piece: Callable[[bytes], Awaitable[None] | None] | None,
    stop_after: int | None,
) -> None:
    while True:
        try:
            event = parser.next_event()
        except h11.RemoteProtocolError:
            return  # cut
        if event is h11.NEED_DATA:
            try:
                parser.receive_data(await reader.read(1 << 16))
            except ConnectionError:
                return
        elif isinstance(event, h11.Response):
            seen.has_head = True
            seen.status = event.status_code
            seen.headers = [(k.decode(), v.decode("latin-1")) for k, v in event.headers]
        elif isinstance(event, h11.Data):
            seen.pieces.append(bytes(event.data))
            if on_piece is not None and (waits := on_piece(seen.body)) is not None:
                await waits
            if stop_after is not None and len(seen.pieces) >= stop_after:
                return
        elif isinstance(event, h11.EndOfMessage):
            seen.is_whole = True
            return
        elif isinstance(event, h11.ConnectionClosed):
            return
