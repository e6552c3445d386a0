"""The HTTP client of the benches: raw sockets on the loopback, connections that are kept, replies framed by length or chunks."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Any

import orjson

#: An idle connection is used again for so many seconds; servers close older ones.
_KEPT_S = 15.0


def post_request(path: str, body: Mapping[str, Any], key: str) -> bytes:
    """Return a POST request with a JSON body."""
    data = orjson.dumps(body)
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


def framed_length(received: bytes | bytearray) -> int:
    """Return the length of a whole reply, head included, by its Content-Length; 0: it is chunked; -1: its head is incomplete."""
    end = received.find(b"\r\n\r\n")
    if end < 0:
        return -1
    head = bytes(received[:end]).lower()
    at = head.find(b"content-length:")
    return end + 4 + int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0


class MeasuredReply:
    """What was received of a reply, which may be a part."""

    def __init__(self) -> None:
        self.received = bytearray()
        self._length = -1

    def feed(self, data: bytes) -> None:
        self.received += data
        if self._length < 0:
            self._length = framed_length(self.received)

    @property
    def is_complete(self) -> bool:
        if self._length > 0:
            return len(self.received) >= self._length
        return self._length == 0 and self.received.endswith(b"\r\n0\r\n\r\n")

    @property
    def head(self) -> str:
        return self.received.partition(b"\r\n\r\n")[0].decode("latin-1").lower()

    @property
    def body(self) -> bytes:
        """As received: a chunked one with its framing."""
        return bytes(self.received.partition(b"\r\n\r\n")[2])

    @property
    def is_ok(self) -> bool:
        return self.received.startswith(b"HTTP/1.1 200")

    @property
    def turn_id(self) -> str:
        """Id of the recorded turn; "" where the head has none or is incomplete."""
        if self._length < 0:
            return ""
        return self.head.partition("x-patina-turn:")[2].partition("\r\n")[0].strip()


class Client:
    """Sends requests to one server; any number at a time.

    Args:
        keeps: use connections again.
    """

    def __init__(self, port: int, key: str, *, keeps: bool = True) -> None:
        self._port, self._key, self._keeps = port, key, keeps
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter, float]] = []

    async def post(
        self, path: str, body: Mapping[str, Any], reply: MeasuredReply | None = None
    ) -> MeasuredReply:
        """Send a request and read until the reply is complete or the connection ends.

        Args:
            reply: where to put what is received, for callers that cancel.

        Raises:
            OSError: the connection failed.
        """
        reply = reply or MeasuredReply()
        reader, writer = await self._connect()
        try:
            writer.write(post_request(path, body, self._key))
            while not reply.is_complete and (data := await reader.read(1 << 16)):
                reply.feed(data)
        except BaseException:
            writer.close()
            raise
        if self._keeps and reply.is_complete:
            self._idle.append((reader, writer, time.monotonic()))
        else:
            writer.close()
        return reply

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._idle:
            reader, writer, since = self._idle.pop()
            if time.monotonic() - since < _KEPT_S and not reader.at_eof():
                return reader, writer
            writer.close()
        return await asyncio.open_connection("127.0.0.1", self._port)

    async def close(self) -> None:
        """Close the connections that are kept."""
        for _, writer, _ in self._idle:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        self._idle.clear()
