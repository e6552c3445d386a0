"""The HTTP client of the benches: framing in every cut, and connections that are kept."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
import pytest

from lab.bench.client import Client, MeasuredReply, framed_length, post_request

PLAIN = b"HTTP/1.1 200 OK\r\nX-Patina-Turn: t1\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"


@pytest.mark.parametrize("whole", [PLAIN, CHUNKED])
def test_a_reply_is_complete_with_its_last_byte(whole: bytes) -> None:
    for cut in range(1, len(whole)):
        reply = MeasuredReply()
        states = []
        for part in (whole[:cut], whole[cut:]):
            reply.feed(part)
            states.append(reply.is_complete)
        assert states == [False, True]
        assert reply.is_ok
        assert b"hello" in reply.body


def test_a_head_names_the_length_and_the_turn() -> None:
    assert framed_length(PLAIN) == len(PLAIN)
    assert framed_length(CHUNKED) == 0
    assert framed_length(PLAIN[:20]) == -1
    reply = MeasuredReply()
    reply.feed(PLAIN)
    assert reply.turn_id == "t1"
    part = MeasuredReply()
    part.feed(PLAIN[:30])
    assert part.turn_id == ""


def test_a_request_is_json_with_its_length() -> None:
    head, _, body = post_request("/v1/x", {"a": 1}, "key").partition(b"\r\n\r\n")
    assert orjson.loads(body) == {"a": 1}
    assert b"content-length: %d" % len(body) in head
    assert b"authorization: Bearer key" in head


@asynccontextmanager
async def serving(reply: bytes) -> AsyncIterator[tuple[int, list[object]]]:
    """Answer every request with ``reply``; gives the port and a list with an entry for each connection."""
    connections: list[object] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(asyncio.current_task())
        while await reader.read(1 << 16):
            writer.write(reply)
            if reply != PLAIN:
                break
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], connections
    finally:
        server.close()
        await asyncio.gather(*(task for task in connections if isinstance(task, asyncio.Task)))


@pytest.mark.parametrize(("keeps", "expected"), [(True, 1), (False, 3)])
async def test_connections_are_used_again_where_they_are_kept(keeps: bool, expected: int) -> None:
    async with serving(PLAIN) as (port, connections):
        client = Client(port, "key", keeps=keeps)
        for _ in range(3):
            assert (await client.post("/v1/x", {})).is_complete
        await client.close()
    assert len(connections) == expected


async def test_a_connection_that_ends_early_leaves_an_incomplete_reply() -> None:
    async with serving(PLAIN[:-1]) as (port, _):
        reply = await Client(port, "key").post("/v1/x", {})
    assert not reply.is_complete
    assert reply.turn_id == "t1"
