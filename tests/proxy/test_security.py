"""Authentication, separation of keys, and limits on what one client can do to others."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import orjson
import pytest
import uvicorn

from proxy.cors import CorsPolicy
from proxy.http_protocol import MAX_FIELDS, MAX_HEAD_BYTES, LimitedHttpProtocol
from serving.ports import free_port
from store.keys import KeyFile, Keyring
from store.settings import REPOSITORY, read_settings
from tests.proxy.conftest import KEY, run_gateway_at
from tests.proxy.raw_http import Request, Seen, Step, WireUpstream, answer, exchange
from tests.proxy.test_transparency import JSON_TYPE, Style, chat, pair_at
from tests.proxy.upstream import Upstream, free_socket, running

CHAT = "/v1/chat/completions"


def ask(url: str, headers: Any = (), *, method: str = "POST", target: str = CHAT, body: Any = None) -> Seen:
    return asyncio.run(exchange(url, method, target, headers, chat() if body is None else body))


def memory() -> int:
    """Bytes of this process that are in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def bearer(key: str) -> list[tuple[str, str]]:
    return [("Authorization", f"Bearer {key}")]


def answers(request: Request) -> list[Step]:
    return answer(
        200, [JSON_TYPE], [Style().whole(request.json, [{"role": "assistant", "content": "hi"}], {})]
    )


# ------------------------------------------------------------------ keys


def test_each_key_is_a_separate_principal_and_a_revoked_one_is_none(record_file: Path) -> None:
    file = KeyFile(record_file.with_name("keys.json"))
    ann, bob, quiet = file.add("ann"), file.add("bob"), file.add("quiet", trains=False)
    with pair_at(record_file, keys=Keyring(KEY, named=file)) as pair:
        pair.upstream.script = answers
        history = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "y"}]  # fmt: skip
        for key, messages in (
            (ann, history[:1]),
            (bob, history),
            (ann, history),
            (quiet, history[:1]),
            (KEY, history[:1]),
        ):
            assert ask(pair.gateway.url, bearer(key), body=chat(messages=messages)).status == 200
        rows = pair.gateway.rows(5)
        assert [row["relation"] for row in rows[:3]] == ["first", "first", "next"]
        assert rows[2]["parent_turn_id"] == rows[0]["turn_id"]
        assert [row["drop_reason"] == "opted_out" for row in rows] == [False, False, False, True, False]
        assert "logprobs" not in pair.upstream.requests[3].json
        file.revoke("ann")
        time.sleep(0.25)
        assert ask(pair.gateway.url, bearer(ann)).status == 401
        assert ask(pair.gateway.url, bearer(bob)).status == 200
        assert len(pair.upstream.requests) == 6


def test_credentials_are_passed_through_where_that_is_asked_for(record_file: Path) -> None:
    file = KeyFile(record_file.with_name("keys.json"))
    ann = file.add("ann")
    with pair_at(record_file, keys=Keyring(KEY, named=file), passes_credentials=True) as pair:
        pair.upstream.script = answers
        for target in (CHAT, "/v1/embeddings"):
            theirs = [
                ("Authorization", "Bearer sk-theirs"),
                ("OpenAI-Organization", "org"),
                ("X-Patina-Key", ann),
            ]
            assert ask(pair.gateway.url, theirs, target=target).status == 200
            seen = pair.upstream.requests[-1]
            assert seen.header("authorization") == "Bearer sk-theirs"
            assert seen.header("openai-organization") == "org"
            assert seen.header("x-patina-key") is None
            # our own key in their place is never theirs to see
            assert ask(pair.gateway.url, bearer(ann), target=target).status == 200
            assert pair.upstream.requests[-1].header("authorization") == "Bearer upstream-key"
            assert ask(pair.gateway.url, bearer("sk-theirs"), target=target).status == 401
        assert len(pair.upstream.requests) == 4


def test_without_a_key_different_credentials_are_different_people(record_file: Path) -> None:
    with pair_at(record_file, keys="", passes_credentials=True) as pair:
        pair.upstream.script = answers
        history = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "y"}]  # fmt: skip
        for key, messages in (("sk-one", history[:1]), ("sk-two", history), ("sk-one", history)):
            assert ask(pair.gateway.url, bearer(key), body=chat(messages=messages)).status == 200
            assert pair.upstream.requests[-1].header("authorization") == f"Bearer {key}"
        assert [row["relation"] for row in pair.gateway.rows(3)] == ["first", "first", "next"]


SECRETS = {
    "patina": "patina-sentinel-AAAAAAAAAAAAAAAAAAAAAAAA",
    "wrong": "patina-sentinel-wrong-BBBBBBBBBBBBBBBBB",
    "upstream": "sk-sentinel-CCCCCCCCCCCCCCCCCCCCCCCC",
    "theirs": "sk-sentinel-DDDDDDDDDDDDDDDDDDDDDDDD",
    "body": "sk-sentinel-EEEEEEEEEEEEEEEEEEEEEEEE",
    "password": "hunter2-sentinel-FFFFFFFFFFFF",
    "query": "sentinel-query-GGGGGGGGGGGG",
}


def test_no_secret_is_in_the_record_the_logs_the_errors_or_the_status(
    record_file: Path, tmp_path: Path
) -> None:
    """A process of its own, with all there is to hide: everything it says and everything it leaves on disk is searched."""

    def script(request: Request) -> list[Step]:
        credentials = request.header("authorization") or ""
        if b"refuse" in request.body:
            error = {"error": {"message": f"Incorrect API key provided: {credentials}"}}
            if request.json.get("stream"):
                return answer(
                    200, [("Content-Type", "text/event-stream")], [b"data: %b\n\n" % orjson.dumps(error)]
                )
            return answer(401, [JSON_TYPE], [b"{}"])
        return answers(request) if CHAT in request.target else answer(200, [], [b"ok"])

    upstream = WireUpstream(script=script)
    port = free_port()
    with upstream.running() as url:
        settings = tmp_path / "settings.json"
        address = url.replace("//", f"//user:{SECRETS['password']}@")
        read_settings(
            {
                "home": tmp_path, "proxy_port": port, "api_key": SECRETS["patina"], "upstream": address,
                "upstream_auth": "passthrough", "upstream_api_key": SECRETS["upstream"],
            }
        ).dump(settings)  # fmt: skip
        proxy = f"http://127.0.0.1:{port}"
        process = subprocess.Popen(
            [sys.executable, "-m", "proxy", "--settings", str(settings)],
            cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        outputs: list[bytes] = []
        try:
            wait_until_up(proxy, process)
            ours = [("X-Patina-Key", SECRETS["patina"]), ("Cookie", f"a={SECRETS['theirs']}")]
            theirs = [("Authorization", f"Bearer {SECRETS['theirs']}"), ("X-Api-Key", SECRETS["theirs"])]
            body = chat(
                api_key=SECRETS["body"], extra_headers={"Authorization": f"Bearer {SECRETS['body']}"},
                tools=[{"type": "mcp", "headers": {"x-api-key": SECRETS["body"]}}],
            )  # fmt: skip
            for headers in ([*ours, *theirs], [*ours], bearer(SECRETS["wrong"]), [*theirs]):
                for sent in (body, chat(stream=True, refuse=1), chat(refuse=1), b"{", chat(messages="x")):
                    for target in (
                        CHAT,
                        f"{CHAT}?key={SECRETS['query']}",
                        f"/v1/x?api_key={SECRETS['query']}",
                    ):
                        seen = asyncio.run(exchange(proxy, "POST", target, headers, sent))
                        outputs.append(seen.body if seen.status in (401, 404, 413, 502) else b"")
            assert SECRETS["body"].encode() in upstream.requests[0].body
            outputs.append(ask(proxy, ours, method="GET", target="/v1/patina/status", body=b"").body)
            outputs.append(ask(proxy, ours, method="GET", target="/healthz", body=b"").body)
            outputs.append(ask(proxy, ours, method="GET", target="/elsewhere", body=b"").body)
            raw(
                port,
                b"GET /v1/x HTTP/1.1\r\nAuthorization: Bearer "
                + SECRETS["theirs"].encode()
                + b"\r\nbad header\r\n\r\n",
            )
            upstream.script = lambda request: [b"SSH-2.0 " + SECRETS["theirs"].encode()]
            outputs.append(asyncio.run(exchange(proxy, "POST", CHAT, [*ours, *theirs], body)).body)
        finally:
            process.terminate()
            output, _ = process.communicate(timeout=60)
    outputs.append(output)
    left = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path != settings}
    assert any(path.name == "patina.db" for path in left)
    for name, secret in SECRETS.items():
        assert not [text for text in outputs if secret.encode() in text], name
        assert not [path for path, text in left.items() if secret.encode() in text], name


def wait_until_up(url: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(1200):
        assert process.poll() is None
        try:
            with urllib.request.urlopen(f"{url}/healthz", timeout=5):
                return
        except OSError:
            time.sleep(0.05)


def test_secrets_are_blanked_in_settings_that_are_shown() -> None:
    from store.settings import to_json

    settings = read_settings(
        {
            "upstream": "http://me:pw@host/v1",
            "database": "postgresql+asyncpg://me:pw@host/db",
            "api_key": "pw",
        }
    )
    assert settings.upstream_address == "http://host/v1"
    assert "pw" not in json.dumps(to_json(settings))


# ------------------------------------------------------------------ browsers


def test_web_pages_are_not_let_in_unless_asked_for(record_file: Path) -> None:
    page = [("Origin", "https://page.example")]
    preflight = [
        *page,
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "authorization, x-y"),
    ]

    def script(request: Request) -> list[Step]:
        return answer(200, [("Access-Control-Allow-Origin", "*"), JSON_TYPE], [b"{}"])

    with pair_at(record_file) as pair:
        pair.upstream.script = script
        refused = ask(pair.gateway.url, preflight, method="OPTIONS")
        assert refused.status == 403
        assert b"--cors-origins https://page.example" in refused.body  # the developer tools show it
        seen = ask(pair.gateway.url, [*page, *bearer(KEY)])
        assert seen.status == 200
        assert not [name for name, _ in seen.headers if name.startswith("access-control")]
    with pair_at(record_file, origins=CorsPolicy("https://page.example, http://localhost:3000")) as pair:
        pair.upstream.script = script
        seen = ask(pair.gateway.url, preflight, method="OPTIONS")
        assert (seen.status, seen.header("access-control-allow-origin")) == (204, "https://page.example")
        assert seen.header("access-control-allow-headers") == "authorization, x-y"
        assert pair.upstream.requests == []
        for target in (CHAT, "/v1/embeddings"):
            seen = ask(pair.gateway.url, [*page, *bearer(KEY)], target=target)
            assert seen.header("access-control-allow-origin") == "https://page.example"
        assert ask(pair.gateway.url, page).status == 401
        other = ask(pair.gateway.url, [("Origin", "https://evil.example"), *bearer(KEY)])
        assert other.header("access-control-allow-origin") is None


@pytest.mark.parametrize("origins", ["", "https://page.example"])
def test_the_origin_of_a_request_that_was_let_in_is_not_sent_to_a_backend_that_refuses_web_pages(
    record_file: Path, origins: str
) -> None:
    body = orjson.dumps({"model": "tiny", "messages": [{"role": "user", "content": "a"}]})
    headers = [("Origin", "https://page.example"), JSON_TYPE, *bearer(KEY)]
    upstream = Upstream()
    with (
        running(upstream) as url,
        run_gateway_at(url, upstream, record_file, origins=CorsPolicy(origins)) as gateway,
    ):
        for target in (CHAT, "/v1/embeddings"):
            seen = ask(gateway.url, headers, body=body, target=target)
            assert seen.status < 400, seen.body
            assert upstream.seen[-1].header("origin") is None


def test_without_a_key_no_unknown_page_may_make_a_visitors_browser_ask(record_file: Path) -> None:
    with pair_at(record_file, keys="", origins=CorsPolicy("http://localhost:3000")) as pair:
        pair.upstream.script = lambda request: answer(200, [JSON_TYPE], [b"{}"])
        assert (
            ask(pair.gateway.url, [("Origin", "https://evil.example"), ("Content-Type", "text/plain")]).status
            == 403
        )
        assert pair.upstream.requests == []
        assert ask(pair.gateway.url, [("Origin", "http://localhost:3000")]).status == 200
        assert ask(pair.gateway.url).status == 200


# ------------------------------------------------------------------ names and paths


def test_names_of_versions_ids_and_paths_are_checked(record_file: Path) -> None:
    with running(Upstream()) as url, run_gateway_at(url, None, record_file) as gateway:
        for model in (
            "tiny@" + "9" * 5000,
            "tiny@-1",
            "tiny@1.0",
            "tiny@",
            "@1",
            "tiny@\u0661",
            "../x",
            "tiny@7",
        ):
            with pytest.raises(openai.NotFoundError):
                gateway.client.chat.completions.create(
                    model=model, messages=[{"role": "user", "content": "x"}]
                )
        for path in (
            "/%73/v1/chat/completions", "/s//v1/chat/completions", "/s/x/v2/y", "/s/x/v1/../load_lora_adapter",
            "/v1/%2e%2e/x", "/v1/%252e%252e/x", "/v1/./LOAD_LORA_ADAPTER", "/s/a/v1/unload%5Flora%5Fadapter", "//v1/x", "/v1",
        ):  # fmt: skip
            seen = ask(gateway.url, bearer(KEY), target=path)
            assert seen.status == 404, path
        for session in ("a\x00b", "x\ty", "", "é\u0007"):
            body = chat(model="tiny", metadata={"session_id": session})
            assert ask(gateway.url, bearer(KEY), body=body).status == 200
        for name in ("l" * 5000, "l" * 5001):
            body = chat(model="tiny", metadata={"session_id": name}, user=name)
            assert ask(gateway.url, bearer(KEY), body=body).status == 200
        assert (
            ask(
                gateway.url, bearer(KEY), target="/s/a%2Fb/v1/chat/completions", body=chat(model="tiny")
            ).status
            == 200
        )
        sessions = [row["session_id"] for row in gateway.rows(7)]
        assert len(set(sessions)) == 7
        assert sessions[6] == "a/b"
        assert all(len(name) <= 200 and name.isprintable() for name in sessions)


# ------------------------------------------------------------------ limits


class Hasty(LimitedHttpProtocol):
    """The same clocks, faster."""

    head_timeout_s = 0.4
    body_window_s = 0.4


@contextmanager
def guarded(record_file: Path) -> Iterator[tuple[int, WireUpstream]]:
    """A proxy behind the protocol that its process uses, in front of a scripted backend."""
    upstream = WireUpstream(script=lambda request: answer(200, [JSON_TYPE], [b"{}"]))
    with upstream.running() as url, run_gateway_at(url, upstream, record_file, is_local=False) as gateway:
        listener = free_socket()
        config = uvicorn.Config(
            gateway.proxy, loop="uvloop", http=Hasty, ws="none", lifespan="off", log_config=None, access_log=False,
            server_header=False, date_header=False,
        )  # fmt: skip
        server = uvicorn.Server(config)
        # The application belongs to the event loop of the running gateway; a second server would run on another loop, so it only gets requests that need none.
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            while not server.started:
                time.sleep(0.005)
            yield listener.getsockname()[1], upstream
        finally:
            server.should_exit = True
            thread.join(60)


def raw(port: int, data: bytes, *more: bytes, pause_s: float = 0.05) -> bytes:
    """Send bytes, and more after pauses; return all that comes until the server closes or a reply is whole."""
    with socket.create_connection(("127.0.0.1", port), timeout=15) as client:
        for part in (data, *more):
            try:
                client.sendall(part)
            except OSError:
                break
            if more:
                time.sleep(pause_s)
        seen = b""
        while True:
            try:
                got = client.recv(65536)
            except OSError:
                return seen
            seen += got
            if not got or (b"\r\n\r\n" in seen and b"connection: close" not in seen and seen.endswith(b"}")):
                return seen


def status_of(seen: bytes) -> int:
    return int(seen.split(b" ")[1]) if seen.startswith(b"HTTP/1.1 ") else 0


def test_heads_have_a_limit_and_slow_clients_an_end(record_file: Path) -> None:
    with guarded(record_file) as (port, _):
        start = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
        assert status_of(raw(port, start + b"\r\n")) == 200
        assert status_of(raw(port, start + b"X-Long: " + b"a" * (MAX_HEAD_BYTES + 10) + b"\r\n\r\n")) == 431
        assert (
            status_of(raw(port, start + b"X-Long: " + b"a" * (MAX_HEAD_BYTES * 3))) == 431
        )  # without an end
        assert (
            status_of(
                raw(port, start + b"".join(b"X-%d: 1\r\n" % i for i in range(MAX_FIELDS + 1)) + b"\r\n")
            )
            == 431
        )
        assert status_of(raw(port, b"GET /" + b"a" * MAX_HEAD_BYTES + b" HTTP/1.1\r\n\r\n")) == 431
        seen = raw(port, start)  # a head without an end
        assert status_of(seen) == 408
        assert json.loads(seen.split(b"\r\n\r\n")[1])["error"]["code"] == "request_timeout"
        assert status_of(raw(port, start, *[b"X: 1\r\n"] * 30)) == 408  # a byte now and then does not help
        assert raw(port, b"") == b""  # opened and never used
        assert raw(port, b"\r\n") == b"" or status_of(raw(port, b"\r\n")) == 408
        half = (
            b"POST /v1/chat/completions HTTP/1.1\r\nAuthorization: Bearer %b\r\nContent-Length: 100\r\n\r\n{"
            % KEY.encode()
        )
        assert status_of(raw(port, half)) == 408
        assert status_of(raw(port, half, *[b" "] * 30)) == 408
        # several requests on one connection, with pauses shorter than the limits, are within the limits
        seen = raw(port, start + b"\r\n", *[start + b"\r\n"] * 3, pause_s=0.3)
        assert seen.count(b"HTTP/1.1 200") >= 1


def test_a_body_beyond_the_limit_is_a_413_at_once(record_file: Path) -> None:
    with pair_at(record_file) as pair:
        for target in (CHAT, "/v1/feedback"):
            head = f"POST {target} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {65 << 20}\r\n\r\n{{"
            seen = raw(urlsplit(pair.gateway.url).port or 0, head.encode())
            assert status_of(seen) == 413
            assert json.loads(seen.split(b"\r\n\r\n")[1])["error"]["code"] == "request_too_large"
        assert pair.upstream.requests == []


def test_a_slow_reader_holds_back_the_backend_and_costs_no_memory(record_file: Path) -> None:
    """400 MB are offered to a client that reads nothing: what is taken from the backend stays small."""
    event = b"data: " + orjson.dumps({"choices": [], "x": "y" * (1 << 20)}) + b"\n\n"
    offered: list[int] = []

    def script(request: Request) -> Iterator[Step]:
        yield answer(200, [("Content-Type", "text/event-stream")], [], framing="chunked")[0]
        for i in range(400):
            offered.append(i)
            yield b"%x\r\n%b\r\n" % (len(event), event)

    for body in (
        chat(stream=True),
        chat(stream=True, logprobs=True, return_token_ids=True, stream_options={"include_usage": True}),
    ):
        with pair_at(record_file) as pair:
            pair.upstream.script = script  # type: ignore[assignment]  # an iterator of steps will do
            offered.clear()
            address = urlsplit(pair.gateway.url)
            before = memory()
            with socket.create_connection((address.hostname, address.port), timeout=60) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.sendall(
                    f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                    + body
                )
                last = -1
                while len(offered) != last:  # until nothing moves any more
                    last = len(offered)
                    time.sleep(0.5)
                assert 0 < len(offered) < 60
                assert memory() - before < 150 << 20
            del client


def test_nothing_of_a_request_is_logged(record_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with pair_at(record_file) as pair:
        pair.upstream.script = answers
        ask(pair.gateway.url, bearer(KEY), body=chat(messages=[{"role": "user", "content": "my-diary"}]))
        ask(pair.gateway.url, bearer("wrong-key-sentinel"))
    assert "my-diary" not in caplog.text
    assert "sentinel" not in caplog.text
    assert KEY not in caplog.text
