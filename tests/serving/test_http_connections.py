"""The hot route's connections, against servers that say exactly what a test wants."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from serving.http import HttpBackend, HttpReply
from serving.http_connections import MAX_FIELDS, PooledReply
from store.errors import UpstreamError, UpstreamUnreachable

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Script:
    """A server that gives each request of a connection the next answer, in pieces; None closes the connection."""

    def __init__(self, answers: Sequence[Sequence[bytes | None]]) -> None:
        self.answers = list(answers)
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self.writers: list[asyncio.StreamWriter] = []
        self.closed = asyncio.Event()
        self.tasks: set[asyncio.Task[None]] = set()

    def begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.add(asyncio.ensure_future(self.serve(reader, writer)))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
                self.heads.append(head)
                self.bodies.append(await reader.readexactly(length))
                for piece in self.answers.pop(0):
                    if piece is None:
                        break
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.02)
                if piece is None:
                    break
        self.closed.set()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def scripted(
    *answers: Sequence[bytes | None], prefix: str = ""
) -> AsyncIterator[tuple[HttpBackend, Script]]:
    script = Script(answers)
    server = await asyncio.start_server(script.begin, "127.0.0.1", 0)
    engine = HttpBackend(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{prefix}")
    try:
        yield engine, script
    finally:
        await engine.close()
        await asyncio.wait_for(asyncio.gather(*script.tasks), 60)
        server.close()
        await server.wait_closed()


async def send(
    engine: HttpBackend, headers: Any = (), body: bytes = b"{}", path: str = "/v1/x"
) -> PooledReply | HttpReply:
    return await engine.open("POST", path, headers, body)


async def test_one_connection_serves_many_requests_and_every_byte_arrives() -> None:
    async with scripted([OK], [OK]) as (engine, script):
        for number in range(2):
            reply = await send(
                engine, [(b"X-One", b"a b"), (b"x-one", b"c")], b"body %d" % number, "/v1/x?a=b%20c"
            )
            assert isinstance(reply, PooledReply)
            assert (reply.status, list(reply.headers)) == (200, [(b"Content-Length", b"2")])
            assert await reply.read() == b"ok"
            reply.close()
    assert script.connections == 1
    assert script.bodies == [b"body 0", b"body 1"]
    lines = script.heads[1].split(b"\r\n")
    assert lines[0] == b"POST /v1/x?a=b%20c HTTP/1.1"
    assert lines[2:5] == [b"x-one: a b", b"x-one: c", b"content-length: 6"]


async def test_an_unread_response_keeps_while_its_connection_serves_others() -> None:
    async with scripted([OK], [OK.replace(b"ok", b"no")]) as (engine, script):
        first = await send(engine)
        second = await send(engine)
        assert (await first.read(), await second.read()) == (b"ok", b"no")
        assert script.connections == 1


async def test_a_base_url_with_a_path() -> None:
    async with scripted([OK], prefix="/api/v1") as (engine, script):
        await (await send(engine)).read()
    assert script.heads[0].startswith(b"POST /api/v1/x HTTP/1.1\r\n")


async def test_answers_before_the_answer_are_not_the_answer() -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    async with scripted([b"HTTP/1.1 100 Continue\r\n\r\n", early, OK]) as (engine, _):
        reply = await send(engine)
        assert (reply.status, list(reply.headers)) == (200, [(b"Content-Length", b"2")])
        assert await reply.read() == b"ok"


async def test_pieces_come_when_they_come_and_trailers_are_no_headers() -> None:
    chunked = [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"3\r\none\r\n",
        b"3\r\ntwo\r\n5\r\nthree\r\n",
        b"0\r\nX-Sum: 1\r\n\r\n",
    ]
    async with scripted(chunked, [OK]) as (engine, script):
        reply = await send(engine)
        assert [piece async for piece in reply.chunks()] == [b"one", b"twothree"]
        assert list(reply.headers) == [(b"Transfer-Encoding", b"chunked")]
        await (await send(engine)).read()
        assert script.connections == 1


async def test_a_body_without_a_length_ends_with_its_connection() -> None:
    async with scripted([b"HTTP/1.1 200 OK\r\n\r\nhel", b"lo", None]) as (engine, _):
        assert await (await send(engine)).read() == b"hello"


@pytest.mark.parametrize(
    "reply",
    [
        [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello", None],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", b"zz\r\n", None],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", None],
    ],
)
async def test_what_was_cut_tells_what_came(reply: list[bytes | None]) -> None:
    async with scripted(reply) as (engine, _):
        pieces = (await send(engine)).chunks()
        assert await anext(pieces) == b"hello"
        with pytest.raises(UpstreamError, match="truncated its response"):
            await anext(pieces)


@pytest.mark.parametrize(
    "reply",
    [
        [OK + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"],
        [OK, b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"],
        [OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")],
        [OK, None],
    ],
)
async def test_a_connection_that_cannot_be_trusted_is_not_used_again(reply: list[bytes | None]) -> None:
    async with scripted(reply, [OK]) as (engine, script):
        assert await (await send(engine)).read() == b"ok"
        await asyncio.sleep(0.1)
        assert await (await send(engine)).read() == b"ok"
        assert script.connections == 2


@pytest.mark.parametrize("unasked", [b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", None])
async def test_what_the_loop_has_not_come_to_yet_is_seen_before_a_connection_is_used_again(
    unasked: bytes | None,
) -> None:
    async with scripted([OK], [OK]) as (engine, script):
        assert await (await send(engine)).read() == b"ok"
        (writer,) = script.writers
        if unasked is None:
            writer.transport.abort()
            await asyncio.sleep(0)  # it is closed now, and this side's reader runs in the next round
        else:
            writer.write(unasked)  # on the wire at once
        assert await (await send(engine)).read() == b"ok"
        assert script.connections == 2


async def test_what_is_no_answer_is_an_error() -> None:
    upgrade = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"
    endless = b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: %b\r\n" % (i, b"a" * 30_000) for i in range(12))
    for reply in (upgrade, endless, b"SSH-2.0-hello\r\n\r\n"):
        async with scripted([reply, None]) as (engine, _):
            with pytest.raises(UpstreamError) as caught:
                await send(engine)
            assert not isinstance(caught.value, UpstreamUnreachable)


def many_fields(count: int) -> bytes:
    fields = b"".join(b"X-%d: 1\r\n" % i for i in range(count - 1))
    return b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n" + fields + b"\r\nok"


@pytest.mark.parametrize("size", [2, (1 << 18) + 1])
async def test_a_head_has_the_same_limit_of_fields_in_both_clients(size: int) -> None:
    """The second attack: a reply with 2,000 fields was passed on, but refused where aiohttp read it (a large body)."""
    for count, is_taken in ((MAX_FIELDS, True), (MAX_FIELDS + 1, False), (2000, False)):
        async with scripted([many_fields(count), None]) as (engine, _):
            if is_taken:
                assert len(list((await send(engine, body=b" " * size)).headers)) == count
                continue
            with pytest.raises(UpstreamError) as caught:
                await send(engine, body=b" " * size)
            assert not isinstance(caught.value, UpstreamUnreachable)


async def test_a_head_of_one_piece_and_trailers_have_the_limit_of_a_head_without_an_end() -> None:
    large = b"HTTP/1.1 200 OK\r\nX: %b\r\nContent-Length: 2\r\n\r\nok" % (b"a" * (1 << 18))
    async with scripted([large, None]) as (engine, _):
        with pytest.raises(UpstreamError, match="head"):
            await send(engine)
    start = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX: "
    async with scripted([start, *[b"a" * (1 << 16)] * 6, None]) as (engine, _):
        pieces = (await send(engine)).chunks()
        assert await anext(pieces) == b"ok"
        with pytest.raises(UpstreamError, match="truncated"):
            await anext(pieces)


async def test_a_request_that_is_no_longer_read_gets_an_error() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello"
    async with scripted([head]) as (engine, script):
        reply = await send(engine)
        reply.close()
        await asyncio.wait_for(script.closed.wait(), 60)
    async with scripted([b"HTTP/1.1 200 OK\r\n"]) as (engine, script):
        waiting = asyncio.ensure_future(send(engine))
        await asyncio.sleep(0.1)
        waiting.cancel()
        await asyncio.wait_for(script.closed.wait(), 60)


async def test_a_slow_reader_holds_the_backend_back() -> None:
    size = 64 << 20
    async with scripted([b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size, b"x" * size]) as (
        engine,
        _,
    ):
        reply = await send(engine)
        await asyncio.sleep(0.3)
        pieces = [len(piece) async for piece in reply.chunks()]
        assert sum(pieces) == size
        assert max(pieces) < 2 << 20


async def test_idle_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.http._KEEPALIVE_S", 0.1)
    async with scripted([OK], [OK]) as (engine, script):
        await (await send(engine)).read()
        await asyncio.wait_for(script.closed.wait(), 60)
        await (await send(engine)).read()
        assert script.connections == 2


async def test_nothing_is_smuggled_into_a_head() -> None:
    async with scripted([OK], [OK]) as (engine, script):
        for headers, path in (([(b"x", b"a\r\nevil: yes")], "/v1/x"), ([], "/v1/x HTTP/1.1\r\nevil: yes")):
            with contextlib.suppress(UpstreamError):
                await (await send(engine, headers, path=path)).read()
        assert not any(b"\nevil" in head for head in script.heads)
