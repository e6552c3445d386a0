"""Responses that are complete before their request's body has arrived: the client gets them, and the connection stays in order.

The bodies are larger than the socket's buffers, and the clients read nothing while they send.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

import openai
import pytest

from proxy import relay
from proxy.http_protocol import LimitedHttpProtocol
from tests.proxy.conftest import KEY, Gateway

LARGE = 12 << 20
TOO_LARGE = 65 << 20
CHAT = "/v1/chat/completions"
SMALL = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}).encode()


@dataclass
class Reply:
    status: int
    head: str
    body: bytes

    @property
    def code(self) -> str:
        return str(json.loads(self.body)["error"]["code"])


class RawClient:
    """A client that sends a whole request before it reads."""

    def __init__(self, gateway: Gateway) -> None:
        self.socket = socket.create_connection(("127.0.0.1", urlsplit(gateway.url).port or 0), timeout=60)
        self.reader = self.socket.makefile("rb")

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.close()
        self.socket.close()

    def send_head(self, length: int, *fields: str, target: str = CHAT, key: str = KEY) -> None:
        lines = [f"POST {target} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {key}", *fields]
        framing = [] if "Transfer-Encoding: chunked" in fields else [f"Content-Length: {length}"]
        self.socket.sendall(("\r\n".join([*lines, *framing]) + "\r\n\r\n").encode())

    def send(self, body: bytes, *fields: str, target: str = CHAT, key: str = KEY) -> Reply:
        self.send_head(len(body), *fields, target=target, key=key)
        self.socket.sendall(body)
        return self.read()

    def read(self) -> Reply:
        status = int(self.reader.readline().split()[1])
        head = b"".join(iter(self.reader.readline, b"\r\n")).decode().lower()
        lengths = [line.partition(": ")[2] for line in head.splitlines() if line.startswith("content-length")]
        return Reply(status, head, self.reader.read(int(lengths[0])))

    def rest(self) -> bytes:
        """Return what comes until the server closes."""
        return self.reader.read()


@pytest.fixture
def full(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> Gateway:
    """A gateway whose memory for large bodies is taken."""
    monkeypatch.setattr(relay, "MAX_HELD_BYTES", LARGE)
    gateway.proxy._chat._held_bytes = LARGE
    return gateway


def chunked(size: int) -> bytes:
    piece = b" " * (1 << 20)
    return (b"%x\r\n%b\r\n" % (len(piece), piece)) * (size >> 20) + b"0\r\n\r\n"


REFUSALS: dict[str, tuple[int, str, Callable[[RawClient, tuple[str, ...]], Reply]]] = {
    "wrong key": (401, "invalid_api_key", lambda c, f: c.send(b" " * LARGE, *f, key="wrong")),
    "no memory": (503, "overloaded", lambda c, f: c.send(b" " * LARGE, *f)),
    "too large": (413, "request_too_large", lambda c, f: c.send(b" " * TOO_LARGE, *f)),
    "too large, in chunks": (
        413,
        "request_too_large",
        lambda c, f: c.send(chunked(TOO_LARGE + (4 << 20)), "Transfer-Encoding: chunked", *f),
    ),
    "feedback too large": (
        413,
        "request_too_large",
        lambda c, f: c.send(b" " * TOO_LARGE, *f, target="/v1/feedback"),
    ),
    "no such path": (404, "not_found", lambda c, f: c.send(b" " * LARGE, *f, target="/nothing")),
}


@pytest.mark.parametrize("name", list(REFUSALS))
def test_a_client_that_sends_first_reads_the_refusal_and_goes_on_with_the_connection(
    full: Gateway, name: str
) -> None:
    status, code, send = REFUSALS[name]
    with RawClient(full) as client:
        for _ in range(2):
            refused = send(client, ())
            assert (refused.status, refused.code) == (status, code)
            assert "connection: close" not in refused.head
            assert client.send(SMALL).status == 200


@pytest.mark.parametrize("name", list(REFUSALS))
def test_a_client_that_closes_afterwards_reads_the_refusal_too(full: Gateway, name: str) -> None:
    status, code, send = REFUSALS[name]
    with RawClient(full) as client:
        refused = send(client, ("Connection: close",))
        assert (refused.status, refused.code) == (status, code)
        assert "connection: close" in refused.head
        assert client.rest() == b""


def test_a_refused_head_is_read_to_its_end(gateway: Gateway) -> None:
    with RawClient(gateway) as client:
        client.socket.sendall(b"GET / HTTP/1.1\r\nX-Long: " + b"a" * LARGE)
        refused = client.read()
        assert (refused.status, refused.code) == (431, "headers_too_large")
        assert client.rest() == b""


def test_the_sdk_gets_each_refusal_as_its_error(full: Gateway) -> None:
    text = "x" * LARGE
    with pytest.raises(openai.InternalServerError) as overloaded:
        full.ask(text)
    assert (overloaded.value.status_code, overloaded.value.code) == (503, "overloaded")
    with pytest.raises(openai.APIStatusError) as too_large:
        full.ask("x" * TOO_LARGE)
    assert (too_large.value.status_code, too_large.value.code) == (413, "request_too_large")
    with pytest.raises(openai.AuthenticationError):
        full.client.with_options(api_key="wrong").chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": text}]
        )
    assert full.ask("Hello").choices[0].message.content


def test_a_client_that_waits_for_100_continue_may_leave_its_body_out(gateway: Gateway) -> None:
    expect = "Expect: 100-continue"
    with RawClient(gateway) as client:
        client.send_head(LARGE, expect, key="wrong")
        refused = client.read()
        assert (refused.status, "connection: close" in refused.head) == (401, True)
        assert client.rest() == b""
    with RawClient(gateway) as client:
        for _ in range(2):
            client.send_head(len(SMALL), expect)
            assert client.reader.readline() == b"HTTP/1.1 100 Continue\r\n"
            assert client.reader.readline() == b"\r\n"
            client.socket.sendall(SMALL)
            accepted = client.read()
            assert (accepted.status, "connection: close" in accepted.head) == (200, False)


@pytest.mark.parametrize("fields", [(), ("Connection: close",)])
def test_the_time_of_a_body_that_never_ends_is_limited_and_its_response_is_the_only_one(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, fields: tuple[str, ...]
) -> None:
    monkeypatch.setattr(LimitedHttpProtocol, "drain_s", 0.2)
    with RawClient(gateway) as client:
        client.send_head(LARGE, *fields, key="wrong")
        client.socket.sendall(b" " * 1000)
        assert client.read().status == 401
        assert client.rest() == b""


def test_the_bytes_of_a_body_that_never_ends_are_limited(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LimitedHttpProtocol, "drain_bytes", 1 << 20)
    with RawClient(gateway) as client:
        client.send_head(1 << 40, key="wrong")
        with pytest.raises(ConnectionError):
            client.socket.sendall(b" " * (256 << 20))


def test_a_broken_body_after_its_response_gets_no_second_one(gateway: Gateway) -> None:
    with RawClient(gateway) as client:
        client.send_head(0, "Transfer-Encoding: chunked", key="wrong")
        assert client.read().status == 401
        client.socket.sendall(b"no length\r\n")
        assert client.rest() == b""
