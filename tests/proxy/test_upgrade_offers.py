"""An offer to change the protocol is ignored, and its request is served as HTTP/1.1 (RFC 9110, 7.8). Java's and curl's clients offer HTTP/2."""

from __future__ import annotations

import json
import socket
from typing import BinaryIO
from urllib.parse import urlsplit

import pytest

from tests.proxy.conftest import KEY, Gateway

OFFERS = {
    "java": "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAA",
    "spaced": "connection:  keep-alive ,  UPGRADE\r\nupgrade: h2c, websocket",
    "websocket": "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13",
    "tls": "Upgrade: TLS/1.2\r\nConnection: upgrade",
    "alone": "Upgrade: h2c",
}
BODY = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}).encode()


def request(offer: str, framing: str) -> bytes:
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n{offer}\r\n"
    if framing == "chunked":
        body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (BODY[:9], BODY[9:])) + b"0\r\n\r\n"
        return f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + body
    return f"{head}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY


def read_reply(reader: BinaryIO) -> tuple[int, bytes]:
    status = int(reader.readline().split()[1])
    length = 0
    while (line := reader.readline().strip()) != b"":
        if line.lower().startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    return status, reader.read(length)


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("piece", [1 << 20, 300, 7])
@pytest.mark.parametrize("offer", OFFERS)
def test_a_request_with_an_offer_is_served_with_its_body(
    gateway: Gateway, offer: str, piece: int, framing: str
) -> None:
    """Twice on one connection, with a plain request between, in pieces of any size."""
    data = request(OFFERS[offer], framing) + request("X-Plain: 1", framing) + request(OFFERS[offer], framing)
    with socket.create_connection(("127.0.0.1", urlsplit(gateway.url).port or 0), timeout=60) as connection:
        for at in range(0, len(data), piece):
            connection.sendall(data[at : at + piece])
        with connection.makefile("rb") as reader:
            replies = [read_reply(reader) for _ in range(3)]
    assert [status for status, _ in replies] == [200] * 3
    assert all(json.loads(body)["object"] == "chat.completion" for _, body in replies)
    assert len(gateway.rows(3)) == 3
    names = {name for seen in gateway.upstream.seen for name, _ in seen.headers}
    assert b"upgrade" not in names
    assert b"http2-settings" not in names


def test_an_offer_on_a_request_without_a_body_is_ignored(gateway: Gateway) -> None:
    with socket.create_connection(("127.0.0.1", urlsplit(gateway.url).port or 0), timeout=60) as connection:
        connection.sendall(
            f"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n{OFFERS['java']}\r\n\r\n".encode()
        )
        with connection.makefile("rb") as reader:
            assert read_reply(reader)[0] == 200
