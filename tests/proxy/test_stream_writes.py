"""In how many writes a stream reaches its client, and what waits for the journal: only the closing event."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson

from proxy.adapters import UpstreamAlias
from proxy.auth import Principal
from proxy.http_protocol import CONNECTION_EXTENSION, ClientConnection
from proxy.relay import ChatRelay, RelayCounters
from store.journal import EntryKind, JournalWriter

DONE = b"data: [DONE]\n\n"


def event(text: str) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return b"data: " + orjson.dumps({"id": "c", "choices": [choice]}) + b"\n\n"


class FakeTransport:
    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.has_written = asyncio.Event()

    def write(self, data: bytes) -> None:
        self.written.append(data)
        self.has_written.set()

    def is_closing(self) -> bool:
        return False


class FakeReply:
    status = 200
    headers = ((b"content-type", b"text/event-stream"),)
    has_buffered_body = True

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces
        self.is_complete = False

    async def chunks(self) -> AsyncIterator[bytes]:
        while self._pieces:
            piece = self._pieces.pop(0)
            self.is_complete = not self._pieces
            yield piece

    def close(self) -> None:
        pass


class FakeBackend:
    address = "http://nowhere"

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    async def open(self, *_: Any) -> FakeReply:
        return FakeReply(self._pieces)


class FakeJournal:
    """Takes an entry at once, or when ``written`` is done."""

    last_error = refuge = None

    def __init__(self, written: asyncio.Future[None] | None = None) -> None:
        self._written = written

    def append(self, *_: Any) -> asyncio.Future[None] | None:
        return self._written


async def serve(pieces: list[bytes], journal: Any, transport: Any) -> dict[bytes, bytes]:
    """Serve one streamed request on a connection; returns the headers of its reply."""
    backend: Any = FakeBackend(pieces)
    alias, counters, none = UpstreamAlias(backend, "tiny"), RelayCounters(), None
    relay = ChatRelay(backend, alias, journal, counters, none)  # type: ignore[arg-type]  # nothing is passed through
    connection = ClientConnection(transport, lambda: False)
    body = orjson.dumps({"model": "tiny", "stream": True, "messages": [{"role": "user", "content": "hi"}]})

    async def receive() -> Any:
        return {"type": "http.request", "body": body}

    found: dict[bytes, bytes] = {}

    async def send(message: Any) -> None:
        found.update(message.get("headers", ()))
        connection.write(message.get("body", b"HEAD "))

    scope: Any = {"type": "http", "headers": [], "extensions": {CONNECTION_EXTENSION: connection}}
    await relay(
        scope, receive, send, principal=Principal(key_name="k", client="c"), path="/v1/chat/completions", session=None
    )  # fmt: skip
    return found


async def test_the_head_leaves_with_the_first_events_and_the_last_events_with_the_closing_one() -> None:
    transport = FakeTransport()
    first, middle, last = event("one"), event("two"), event("three")
    await serve([first, middle, last + DONE], FakeJournal(), transport)
    assert transport.written == [b"HEAD " + first, middle, last + DONE]
    transport = FakeTransport()
    await serve([first + last + DONE], FakeJournal(), transport)
    assert transport.written == [b"HEAD " + first + last + DONE]


async def test_only_the_closing_event_waits_for_a_slow_journal() -> None:
    transport = FakeTransport()
    written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    request = asyncio.create_task(serve([event("one") + DONE], FakeJournal(written), transport))
    async with asyncio.timeout(30):
        await transport.has_written.wait()
    assert transport.written == [b"HEAD " + event("one")]
    written.set_result(None)
    await request
    assert transport.written == [b"HEAD " + event("one"), DONE]


async def test_a_backend_that_stays_silent_after_the_closing_event_holds_nothing_else_back() -> None:
    transport = FakeTransport()
    await serve([event("one") + DONE, b""], FakeJournal(), transport)
    assert transport.written == [b"HEAD " + event("one"), DONE]


async def test_a_reply_says_where_its_turn_goes_while_the_disk_refuses_it(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    folder.write_bytes(b"")  # no folder: nothing can be written
    journal = JournalWriter(folder, "gateway", memory_bytes=2_000)
    said = []
    for _ in range(4):
        headers = await serve([event("one") + DONE], journal, FakeTransport())
        said.append((headers.get(b"x-patina-journal"), journal.lost))
    assert said[0] == (None, 0)  # nothing was known before its end
    assert said[1][0] == b"memory"
    assert said[-1][0] == b"lost"
    assert [lost for _, lost in said] == sorted(lost for _, lost in said)
    folder.unlink()
    await journal.append_written(EntryKind.EXCHANGE, b"", 30.0)
    assert b"x-patina-journal" not in await serve([event("one") + DONE], journal, FakeTransport())
