"""A gateway and a recorder hold as many files after many requests as before: connections, journal segments, database handles."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from store.journal import JournalWriter, segments
from tests.proxy.conftest import KEY, Gateway, run_gateway_at
from tests.proxy.upstream import Upstream, running
from tests.waiting import until

pytestmark = pytest.mark.slow

#: Rotates after a few exchanges.
_SEGMENT_BYTES = 20_000
_REQUESTS = 40


@pytest.fixture
def rotating(upstream: Upstream, record_file: Path) -> Iterator[Gateway]:
    journal = JournalWriter(record_file.parent / "journal", "gateway", segment_bytes=_SEGMENT_BYTES)
    with (
        running(upstream) as url,
        run_gateway_at(url, upstream, record_file, is_local=True, journal=journal) as made,
    ):
        yield made


def open_files() -> list[str]:
    """Return what this process has open: gateway, recorder and backend run in it."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return found


def body(text: str, **more: object) -> dict[str, object]:
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], **more}


def replies(gateway: Gateway, number: int) -> None:
    with httpx.Client(verify=False, timeout=60) as client:
        for is_stream in (False, True):
            asked = body(f"question {number} {is_stream}", stream=is_stream)
            got = client.post(
                f"{gateway.url}/v1/chat/completions", json=asked, headers={"Authorization": f"Bearer {KEY}"}
            )
            assert got.status_code == 200


def upstream_errors(gateway: Gateway, number: int) -> None:
    """The backend answers with an error, or breaks off in a stream."""
    with httpx.Client(verify=False, timeout=60, headers={"Authorization": f"Bearer {KEY}"}) as client:
        failing = body(f"failing {number}", scripted={"status": 500, "headers": {}, "body": "{}"})
        assert client.post(f"{gateway.url}/v1/chat/completions", json=failing).status_code == 500
        cut = body(f"cut {number}", stream=True, scripted={"text": "one two three four", "cut_after": 2})
        with pytest.raises(httpx.RemoteProtocolError):
            client.post(f"{gateway.url}/v1/chat/completions", json=cut)


def dropped_clients(gateway: Gateway, number: int) -> None:
    """Clients that leave in their request, and while a stream runs."""
    address = ("127.0.0.1", urlsplit(gateway.url).port or 0)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
    with socket.create_connection(address, timeout=60) as client:
        client.sendall(f"{head}Content-Length: 1000\r\n\r\n{{".encode())
    content = httpx.Request("POST", "http://x", json=body(f"left {number}", stream=True)).content
    with socket.create_connection(address, timeout=60) as client:
        client.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        assert client.recv(100)


def refusals(gateway: Gateway, number: int) -> None:
    """Requests that are answered before their body has arrived."""
    address = ("127.0.0.1", urlsplit(gateway.url).port or 0)
    with socket.create_connection(address, timeout=60) as client:
        client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n{")
        assert b"401" in client.recv(1000)


@pytest.mark.parametrize("traffic", [replies, upstream_errors, dropped_clients, refusals])
def test_no_file_stays_open_after_many_requests(
    rotating: Gateway, upstream: Upstream, traffic: Callable[[Gateway, int], None]
) -> None:
    def settle() -> None:
        until(lambda: not segments(rotating.journal), "all segments being recorded and removed")

    for number in range(3):  # opens what stays: the record's connections, those to the backend
        replies(rotating, number)
        traffic(rotating, number)
    settle()
    before = len(open_files())
    for number in range(_REQUESTS):
        traffic(rotating, 100 + number)
    settle()
    # One file for each segment would be less than what follows allows. Journals of other tests in this process are not its own.
    own = str(rotating.journal)
    until(lambda: not [path for path in open_files() if own in path], "every segment being closed", 60)
    # The record opens a few connections when it needs them; one file a request would be four times as many.
    until(lambda: len(open_files()) <= before + _REQUESTS // 4, f"all but {before} files being closed", 60)
