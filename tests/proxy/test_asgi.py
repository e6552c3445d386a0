"""Noticing that a client has left: by the connection itself, or by what the server says."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from proxy.asgi import DisconnectWatcher, client_connection
from proxy.http_protocol import CONNECTION_EXTENSION, ClientConnection


class FakeTransport:
    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.written.append(data)

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed


def line_with(transport: FakeTransport) -> ClientConnection:
    untyped: Any = transport
    return ClientConnection(untyped, lambda: False)


async def never() -> Any:
    await asyncio.Event().wait()


async def left() -> Any:
    return {"type": "http.disconnect"}


@pytest.mark.parametrize("has_line", [True, False])
async def test_work_is_stopped_when_the_client_leaves_and_what_comes_after_is_not(has_line: bool) -> None:
    line = line_with(FakeTransport()) if has_line else None
    stopped = False

    async def work() -> None:
        nonlocal stopped
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            stopped = True
            raise

    if line is not None:
        asyncio.get_running_loop().call_later(0.01, line.mark_lost)
    assert not await DisconnectWatcher(never if has_line else left, line).run(work())
    assert stopped
    await asyncio.sleep(0.01)  # nothing is left of the cancellation


async def test_work_that_ends_as_the_client_leaves_leaves_no_cancellation_behind() -> None:
    line = line_with(FakeTransport())

    async def work() -> None:
        line.mark_lost()

    assert not await DisconnectWatcher(never, line).run(work())
    await asyncio.sleep(0.01)


@pytest.mark.parametrize("has_line", [True, False])
async def test_work_that_is_done_and_a_server_that_stops(has_line: bool) -> None:
    line = line_with(FakeTransport()) if has_line else None
    assert await DisconnectWatcher(never, line).run(asyncio.sleep(0))
    if line is not None:
        line.mark_lost()  # the client has gone
    task = asyncio.ensure_future(DisconnectWatcher(never, line).run(asyncio.sleep(30)))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_line_writes_what_it_held_in_one_piece_and_nothing_once_it_is_lost() -> None:
    transport = FakeTransport()
    line = line_with(transport)
    line.write(b"a")
    line.buffer_writes()
    line.write(b"head ")
    line.write(b"body")
    assert transport.written == [b"a"]
    line.flush_writes()
    assert transport.written == [b"a", b"head body"]
    line.buffer_writes()
    line.write(b"rest")
    line.close()
    assert transport.written[2:] == [b"rest"]
    line.flush_writes()
    line.mark_lost()
    line.write(b"after the client left")
    assert len(transport.written) == 3


def test_a_line_is_found_where_the_server_is_ours() -> None:
    line = line_with(FakeTransport())
    assert client_connection({"type": "http", "extensions": {CONNECTION_EXTENSION: line}}) is line
    assert client_connection({"type": "http"}) is None
