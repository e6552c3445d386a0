"""A backend over HTTP, against real servers: bytes stay bytes, and every failure has one of our names."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from serving.http import HttpBackend
from serving.protocol import ServedModel
from store.errors import AdapterError, UpstreamError, UpstreamTimeout, UpstreamUnreachable
from store.values import LogprobMode
from tests.proxy.upstream import Upstream, running


@pytest_asyncio.fixture
async def backend() -> AsyncIterator[tuple[HttpBackend, Upstream]]:
    upstream = Upstream()
    with running(upstream) as url:
        engine = HttpBackend(url)
        yield engine, upstream
        await engine.close()


@contextlib.asynccontextmanager
async def raw_server(answer: bytes, *, hang: bool = False) -> AsyncIterator[str]:
    """A server that reads a request's head, writes ``answer`` and closes (or says nothing more)."""
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        if hang:
            await ended.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        ended.set()
        server.close()
        await server.wait_closed()


@contextlib.asynccontextmanager
async def engine_at(url: str, **options: Any) -> AsyncIterator[HttpBackend]:
    engine = HttpBackend(url, **options)
    try:
        yield engine
    finally:
        await engine.close()


async def test_a_request_goes_out_as_it_is_and_the_answer_comes_back_as_it_is(backend: Any) -> None:
    engine, upstream = backend
    reply = await engine.open(
        "PUT", "/v1/files/a%2Fb?x=%20", [(b"X-Odd", b"1"), (b"x-odd", b"2")], b"\x00raw"
    )
    pieces = [piece async for piece in reply.chunks()]
    reply.close()
    assert (reply.status, b"".join(pieces)) == (207, b"first \x00raw last")
    assert (b"x-odd", b"yes") in reply.headers
    seen = upstream.seen[-1]
    assert (seen.method, seen.path, seen.raw) == ("PUT", "/v1/files/a%2Fb?x=%20", b"\x00raw")
    assert [value for name, value in seen.headers if name == b"x-odd"] == [b"1", b"2"]
    assert {name for name, _ in seen.headers} == {b"host", b"x-odd", b"content-length"}


async def test_a_body_may_be_streamed_to_the_backend(backend: Any) -> None:
    engine, _ = backend

    async def body() -> AsyncIterator[bytes]:
        yield b"one "
        yield b"two"

    reply = await engine.open("POST", "/v1/upload", [], body())
    assert await reply.read() == b"first one two last"


async def test_compressed_answers_stay_compressed() -> None:
    packed = gzip.compress(b"hello")
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n\r\n".encode()
    async with raw_server(head + packed) as url, engine_at(url) as engine:
        reply = await engine.open("GET", "/x", [], None)
        assert await reply.read() == packed


async def test_a_key_and_a_base_url_with_v1() -> None:
    upstream = Upstream()
    with running(upstream) as url:
        async with engine_at(f"{url}/v1/", api_key="k", speaks_vllm=False) as engine:
            (await engine.open("GET", "/v1/x", [], None)).close()
            assert engine.address == url
            assert (await engine.capabilities()).adapters is False
            assert await engine.is_healthy()
    assert upstream.seen[-1].path == "/v1/x"
    assert upstream.seen[-1].header("authorization") == "Bearer k"


async def test_adapters_are_loaded_listed_and_unloaded(backend: Any) -> None:
    engine, upstream = backend
    await engine.load_adapter("tiny@1", "/folder")
    assert await engine.models() == (ServedModel(name="tiny"), ServedModel(name="tiny@1", parent="tiny"))
    await engine.unload_adapter("tiny@1")
    await engine.unload_adapter("tiny@1")
    assert await engine.models() == (ServedModel(name="tiny"),)
    upstream.broken_adapters.add("tiny@2")
    with pytest.raises(AdapterError, match="torn"):
        await engine.load_adapter("tiny@2", "/folder")
    upstream.adapters["tiny@2"] = "/folder"
    await engine.load_adapter("tiny@2", "/folder")  # refused, but it is there: fine


async def test_what_a_backend_can_do_is_asked_of_it(backend: Any) -> None:
    engine, _ = backend
    found = await engine.capabilities()
    assert (found.token_ids, found.adapters, found.logprob_mode) == (True, True, LogprobMode.RAW)
    assert found.default_temperature == 1.0
    assert await engine.is_healthy()


async def test_a_port_without_a_server_is_unreachable() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        async with engine_at(f"http://127.0.0.1:{closed.getsockname()[1]}") as engine:
            with pytest.raises(UpstreamUnreachable, match="cannot connect to"):
                await engine.open("POST", "/v1/x", [], b"")
            assert not await engine.is_healthy()
            with pytest.raises(UpstreamUnreachable):
                await engine.capabilities()


async def test_a_connection_closed_before_the_answer_is_unreachable() -> None:
    async with raw_server(b"") as url, engine_at(url) as engine:
        with pytest.raises(UpstreamUnreachable, match="closed the connection"):
            await engine.open("POST", "/v1/x", [], b"")


async def test_a_body_that_is_cut_short_is_an_error_after_what_came() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
    async with raw_server(head) as url, engine_at(url) as engine:
        reply = await engine.open("POST", "/v1/x", [], b"")
        pieces = reply.chunks()
        assert await anext(pieces) == b"hello"
        with pytest.raises(UpstreamError, match="truncated"):
            await anext(pieces)
        reply.close()


async def test_silence_is_a_timeout() -> None:
    async with raw_server(b"", hang=True) as url, engine_at(url, read_timeout_s=0.1) as engine:
        with pytest.raises(UpstreamTimeout):
            await engine.open("POST", "/v1/x", [], b"")


async def test_a_reply_that_is_not_http_is_reported() -> None:
    async with raw_server(b"SSH-2.0-hello\r\n\r\n") as url, engine_at(url) as engine:
        with pytest.raises(UpstreamError):
            await engine.open("POST", "/v1/x", [], b"")
