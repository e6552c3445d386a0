"""What an outsider gets: rebound names, bytes that are not HTTP, a process that stops, shared session names."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy.app import Proxy
from serving.http import HttpBackend
from store.journal import JournalWriter
from store.keys import KeyFile, Keyring
from store.record import Record
from tests.proxy.conftest import KEY, Gateway, run_gateway_at
from tests.proxy.upstream import Upstream, running

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}


def raw(url: str, data: bytes) -> tuple[bytes, Any]:
    """Send bytes; return the response's head and its parsed body."""
    address = httpx.URL(url)
    with socket.create_connection((address.host, address.port or 80), timeout=60) as connection:
        connection.sendall(data)
        found = b""
        while piece := connection.recv(65_536):
            found += piece
    head, _, body = found.partition(b"\r\n\r\n")
    return head, json.loads(body)


@pytest.mark.parametrize(
    "data", [b"hello\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET / HTTP/9.9\r\n\r\n", b"GET /\x00 HTTP/1.1\r\n\r\n"]
)  # fmt: skip
def test_what_is_not_http_gets_an_error_in_openais_shape(gateway: Gateway, data: bytes) -> None:
    head, body = raw(gateway.url, data)
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"application/json" in head
    assert (body["error"]["type"], body["error"]["code"]) == ("invalid_request_error", "invalid_http")


def test_without_a_key_a_rebound_name_is_refused(record_file: Path, upstream: Upstream) -> None:
    with (
        running(upstream) as url,
        run_gateway_at(url, upstream, record_file, keys="", is_on_loopback=True) as gateway,
    ):
        for path in ("/healthz", "/v1/models", "/v1/patina/status"):
            page = httpx.get(f"{gateway.url}{path}", headers={"host": "evil.example:30000"})
            assert (page.status_code, page.json()["error"]["code"]) == (403, "host_not_allowed")
            assert httpx.get(f"{gateway.url}{path}", headers={"host": "localhost:30000"}).status_code == 200
        assert httpx.post(
            f"{gateway.url}/v1/chat/completions", json=CHAT, headers={"host": "evil.example"}
        ).is_client_error
        assert upstream.seen == []


def test_with_a_key_any_name_may_be_in_front(gateway: Gateway) -> None:
    headers = {"host": "patina.example", "authorization": f"Bearer {KEY}"}
    assert httpx.post(f"{gateway.url}/v1/chat/completions", json=CHAT, headers=headers).status_code == 200


async def test_a_request_that_the_end_of_the_process_cuts_gets_a_503(tmp_path: Path) -> None:
    proxy = Proxy(
        backend=HttpBackend("http://127.0.0.1:9"),
        policy="tiny",
        open_record=lambda: Record.open("sqlite+aiosqlite:///nowhere.db"),
        keys="",
        is_local=True,
        journal=JournalWriter(tmp_path, "gateway"),
    )
    sent: list[Any] = []
    asked = asyncio.Event()

    async def receive() -> Any:
        asked.set()
        await asyncio.sleep(60)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/chat/completions",
        "headers": [(b"content-length", b"9")],
    }
    serving = asyncio.create_task(proxy(scope, receive, send))
    await asked.wait()
    serving.cancel()  # as uvicorn does when the time for requests in flight is over
    await serving
    assert sent[0]["status"] == 503
    assert (b"content-type", b"application/json") in sent[0]["headers"]
    assert json.loads(sent[1]["body"])["error"]["code"] == "stopping"


def test_a_redirect_of_the_backend_does_not_show_its_address(gateway: Gateway) -> None:
    async def redirect(seen: Any, send: Any) -> None:
        location = (b"location", f"{gateway.upstream_url}/v1/embeddings".encode())
        await send(
            {"type": "http.response.start", "status": 307, "headers": [location, (b"content-length", b"0")]}
        )
        await send({"type": "http.response.body", "body": b""})

    gateway.upstream._other = redirect
    headers = {"authorization": f"Bearer {KEY}"}
    reply = httpx.post(f"{gateway.url}/v1/embeddings/x", json={"input": "a"}, headers=headers)
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found")
    assert "location" not in reply.headers


def test_sessions_of_different_keys_never_share_an_id(record_file: Path, upstream: Upstream) -> None:
    names = {"default": KEY}
    keys = KeyFile(record_file.parent / "keys.json")
    names |= {name: keys.add(name, adapter="") for name in ("ann", "bob")}
    with (
        running(upstream) as url,
        run_gateway_at(url, upstream, record_file, keys=Keyring(KEY, named=keys)) as gateway,
    ):
        for key in names.values():
            for session in ("one", "ann:one"):
                headers = {"authorization": f"Bearer {key}", "x-session-id": session}
                assert httpx.post(f"{gateway.url}/v1/chat/completions", json=CHAT, headers=headers).is_success
        rows = gateway.rows(6)
        assert len({row["session_id"] for row in rows}) == 6
        assert rows[0]["session_id"] == "one"
