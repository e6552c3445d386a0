"""A load generator cheaper than what it loads: `python -m lab.bench.load --port N --connections 16 --mode stream --seconds 2`.

Closed loop: every connection sends its next request when the last reply has ended. Requests are turns of conversations of four turns
each that re-send their history, no two alike. Prints one line of JSON: requests, errors, latencies and times to the first event.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from itertools import count
from typing import cast

import orjson
import uvloop

from lab.bench.backend import MODEL, TEXT
from lab.bench.client import framed_length

_TURNS = 4
_NUMBER = count()


class LoadConnection(asyncio.Protocol):
    """One client: sends, waits for the end of the reply, sends again."""

    def __init__(self, head: bytes, mode: str, deadline: float, found: Found) -> None:
        self._head, self._mode, self._deadline, self._found = head, mode, deadline, found
        self._messages: list[dict[str, str]] = []
        self._got = bytearray()
        self._end = -1
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own kind
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self._found.errors += 1
            self.done.set_result(None)

    def _send(self) -> None:
        if len(self._messages) >= 2 * _TURNS:
            self._messages = []
        if self._messages:
            self._messages.append({"role": "assistant", "content": TEXT})
        self._messages.append({"role": "user", "content": f"question number {next(_NUMBER)} of {id(self)}"})
        body: dict[str, object] = {"model": MODEL, "messages": self._messages, "temperature": 0.7}
        if self._mode != "plain":
            body["stream"] = True
        if self._mode == "paced":
            body["paced"] = True
        data = orjson.dumps(body)
        self._got.clear()
        self._end = -1
        self._first = 0.0
        self._began = time.perf_counter()
        self._transport.write(self._head + b"content-length: %d\r\n\r\n" % len(data) + data)

    def data_received(self, data: bytes) -> None:
        got = self._got
        got += data
        if not self._first and (self._mode == "plain" or b"data:" in data):
            self._first = time.perf_counter()
        if self._end < 0:
            self._end = framed_length(got)
            if self._end < 0:
                return
        if (self._end and len(got) >= self._end) or (not self._end and got.endswith(b"\r\n0\r\n\r\n")):
            now = time.perf_counter()
            found = self._found
            found.requests += 1
            if not got.startswith(b"HTTP/1.1 200") or b"word61" not in got:
                found.errors += 1
            found.latencies.append(now - self._began)
            found.firsts.append((self._first or now) - self._began)
            if now < self._deadline:
                self._send()
            else:
                self.done.set_result(None)
                self._transport.close()


class Found:
    """What was counted."""

    def __init__(self) -> None:
        self.requests = 0
        self.errors = 0
        self.latencies: list[float] = []
        self.firsts: list[float] = []


async def load(port: int, key: str, connections: int, mode: str, seconds: float) -> dict[str, float]:
    """Load a server on the loopback and return the counts."""
    loop = asyncio.get_running_loop()
    found = Found()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nauthorization: Bearer {key}\r\n"
        "content-type: application/json\r\n"
    ).encode()
    began = time.perf_counter()
    deadline = began + seconds
    made = []
    for _ in range(connections):
        _, connection = await loop.create_connection(
            lambda: LoadConnection(head, mode, deadline, found), "127.0.0.1", port
        )
        made.append(connection)
    await asyncio.wait([c.done for c in made], timeout=seconds + 60)
    took = time.perf_counter() - began
    return {
        "requests": found.requests,
        "errors": found.errors + sum(not c.done.done() for c in made),
        "rps": found.requests / took,
        "p50_ms": 1e3 * statistics.median(found.latencies or [0.0]),
        "p99_ms": 1e3 * sorted(found.latencies or [0.0])[int(0.99 * len(found.latencies or [0.0])) - 1],
        "ttft_ms": 1e3 * statistics.median(found.firsts or [0.0]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.bench.load")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--key", default="bench")
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--mode", choices=("plain", "stream", "paced"), default="plain")
    parser.add_argument("--seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    print(orjson.dumps(uvloop.run(load(**vars(arguments)))).decode())


if __name__ == "__main__":
    main()
