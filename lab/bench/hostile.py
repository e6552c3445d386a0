"""Ten thousand hostile requests against a proxy process: ``python -m lab.bench.hostile [--requests 10000] [--seed 0]``.

Malformed bodies, wrong types, ten-megabyte strings, deep nesting, bytes that are no text, floods of header fields, sockets left half open,
smuggled lengths, odd methods and paths, and a backend that answers as badly. What must hold: no 5xx of the proxy's own but 502 and 504
(each because the backend gave no answer), every connection ends, memory stays flat, and an honest client is served all the while.
Prints one JSON object; exit code 1 when something did not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.bench.proxy import recording
from migrations import upgrade
from serving.ports import free_port
from store.settings import REPOSITORY, child_environment, read_settings

KEY = "patina-bench-hostile"
CHAT = "/v1/chat/completions"
#: A connection that is not ended by then hangs. Above the proxy's own clocks would be right for half-open ones, which leave by themselves.
HANG_S = 60.0
#: So much of an answer is looked at: more than the longest head that the backend here gives.
_KEPT = 1 << 17


@dataclass(frozen=True)
class Attack:
    """What is sent on one connection.

    Attributes:
        parts: written one after the other, with a short pause between.
        leaves: the client goes away without waiting for an answer: "" (it waits), "close" or "reset".
    """

    kind: str
    parts: tuple[bytes, ...]
    leaves: str = ""


def request(
    body: bytes,
    *,
    target: str = CHAT,
    method: str = "POST",
    key: str = KEY,
    fields: Sequence[tuple[str, str]] = (),
    length: str | None = None,
) -> bytes:
    """Return a request; ``length`` is what its head says of the body's length, when that is not the truth."""
    lines = [f"{method} {target} HTTP/1.1", "Host: x", f"Authorization: Bearer {key}"]
    lines += [f"{name}: {value}" for name, value in fields]
    lines.append(f"Content-Length: {len(body) if length is None else length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace") + body


# ---------------------------------------------------------------- what is sent

_WEIRD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**40, -(10**400), 0.5, -0.0, 1e308, "", "x", "\x00", "\ufffe", "💥" * 50,
    [], {}, [[]], [None], [{}], {"": None}, {"type": "function"}, [1, "a", None, {"role": "user"}], {"a": {"b": {"c": []}}}, "0" * 5000,
)  # fmt: skip
_FIELDS = (
    "model", "messages", "stream", "stream_options", "n", "temperature", "logprobs", "top_logprobs", "return_token_ids", "metadata",
    "user", "tools", "tool_choice", "response_format", "max_tokens", "stop", "store", "prompt_cache_key", "seed",
)  # fmt: skip
_MESSAGE = (
    "role",
    "content",
    "name",
    "tool_calls",
    "tool_call_id",
    "refusal",
    "reasoning_content",
    "function_call",
)


def honest(rng: random.Random) -> dict[str, Any]:
    return {
        "model": "m",
        "messages": [{"role": "user", "content": f"question {rng.random()}"}],
        "stream": rng.random() < 0.4,
    }


def dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def wrong_types(rng: random.Random) -> Attack:
    body = honest(rng)
    for _ in range(rng.randint(1, 4)):
        body[rng.choice(_FIELDS)] = rng.choice(_WEIRD)
    if rng.random() < 0.6:
        body["messages"] = [
            rng.choice(_WEIRD)
            if rng.random() < 0.2
            else {rng.choice(_MESSAGE): rng.choice(_WEIRD) for _ in range(3)}
            for _ in range(rng.randint(0, 4))
        ]
    return Attack("wrong types", (request(dump(body)),))


def malformed(rng: random.Random) -> Attack:
    body = bytearray(dump(honest(rng)))
    for _ in range(rng.randint(1, 6)):
        place = rng.randrange(len(body))
        what = rng.random()
        if what < 0.4:
            body[place] = rng.randrange(256)
        elif what < 0.7:
            del body[place:]
            body += b"{"
        else:
            body[place:place] = rng.choice(
                (b"\x00", b"}", b'"', b"\\u", b",", b"\xff\xfe", b"NaN", b"1e999", b"//")
            )
    return Attack("malformed JSON", (request(bytes(body)),))


def no_text(rng: random.Random) -> Attack:
    body = dump(honest(rng))
    made = rng.choice(
        (
            body.replace(b"question", b"\xff\xfe\x80"),
            body.replace(b"question", b"\xed\xa0\x80"),
            body.replace(b"question", b"\\ud800"),
            body.replace(b"question", b"\\u0000\\u0000"),
            b"\xef\xbb\xbf" + body,
            body.decode().encode("utf-16"),
            rng.randbytes(rng.randint(0, 3000)),
            b"\x1f\x8b\x08" + rng.randbytes(50),
        )
    )
    fields = [("Content-Encoding", "gzip")] if made[:2] == b"\x1f\x8b" else []
    return Attack("bad UTF-8", (request(made, fields=fields),))


def deep(rng: random.Random) -> Attack:
    depth = rng.choice((60, 200, 260, 500, 900, 1020, 1030, 5000, 100_000))
    nest = rng.choice(((b"[", b"]"), (b'{"a":', b"}"), (b'[{"content":', b"}]")))
    inner = nest[0] * depth + b"1" + nest[1] * depth
    place = rng.choice((b'"question"', b'"x"'))
    body = b'{"model":"m","messages":[{"role":"user","content":"question"}],"y":"x","api_key":"a"}'.replace(
        place, inner
    )
    return Attack("deep nesting", (request(body),))


def large(rng: random.Random) -> Attack:
    size = 10 << 20
    kind = rng.randrange(6)
    if kind == 0:
        body = dump({**honest(rng), "messages": [{"role": "user", "content": "a" * size}]})
    elif kind == 1:
        body = dump({**honest(rng), "model": "m" * size})
    elif kind == 2:
        body = b'{"model":"m","messages":[{"role":"user","content":"' + b"\\n" * (size // 2) + b'"}]}'
    elif kind == 3:
        body = b'{"model":"m","messages":[' + b"{}," * (size // 3) + b"{}]}"
    elif kind == 4:
        body = (
            b'{"model":"m","x":[' + b"0," * (size // 2) + b'0],"messages":[{"role":"user","content":"hi"}]}'
        )
    else:
        body = b" " * size + dump(honest(rng))
    return Attack("10 MB", (request(body),))


def heads(rng: random.Random) -> Attack:
    body = dump(honest(rng))
    kind = rng.randrange(12)
    if kind == 0:
        data = request(body, fields=[(f"X-{i}", "1") for i in range(rng.randint(200, 5000))])
    elif kind == 1:
        data = request(body, fields=[("X-Long", "a" * rng.randint(60_000, 300_000))])
    elif kind == 2:
        data = request(body, fields=[("Authorization", "Bearer x")] * 20 + [("X-Session-Id", "é\x01" * 300)])
    elif kind == 3:
        data = request(
            body,
            fields=[("Transfer-Encoding", rng.choice(("chunked", "gzip, chunked", "identity", "chunkedx")))],
        )
    elif kind == 4:
        data = request(
            body, length=rng.choice(("-1", "1e3", "0x10", "99999999999999999999", "", "5, 6", str(10**15)))
        )
    elif kind == 5:
        data = request(body).replace(
            b"\r\n", rng.choice((b"\n", b"\r", b"\r\n ", b"\x00\r\n")), rng.randint(1, 3)
        )
    elif kind == 6:
        chunks = rng.choice(
            (
                b"zz\r\nhello\r\n",
                b"-5\r\nhello\r\n",
                b"ffffffffffffffffff\r\nx",
                b"5;a=b\r\nhello\r\n0\r\nX: y\r\n\r\n",
            )
        )
        data = request(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked") + chunks
    elif kind == 7:
        data = request(body, fields=[(rng.choice(("X-Session-Id", "X-Turn-Type", "X-Patina-Train", "Accept-Encoding", "Connection", "Expect", "Origin", "X-Patina-Key")), rng.choice(("", "\x7f", "a" * 9000, "é", "100-continue", "close, authorization", "gzip;q=nan")))])  # fmt: skip
    elif kind == 8:
        data = request(body, key=rng.choice(("", "é", "x" * 50_000, "patina-\x00", KEY[:-1])))
    elif kind == 9:
        data = rng.randbytes(rng.randint(1, 2000))
    elif kind == 10:
        data = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(
            200
        )  # a TLS client at a plain port
    else:
        data = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + rng.randbytes(30)
    return Attack("heads", (data,))


def half_open(rng: random.Random) -> Attack:
    whole = request(dump(honest(rng)))
    cut = rng.randrange(len(whole) + 1)
    parts = [whole[:cut]] if rng.random() < 0.7 else [whole[i : i + 40] for i in range(0, cut, 40)]
    return Attack("half open", tuple(p for p in parts if p), rng.choice(("close", "reset")))


def odd_paths(rng: random.Random) -> Attack:
    target = rng.choice(
        (
            "/", "*", "//", "/v1", "/v1/", "/v1/%00", "/v1/%ff%fe", "/v1/../../etc/passwd", "/v1/" + "a/" * 8000, "/s/", "/s//v1/x", "/%73/x/v1/y",
            "http://elsewhere/v1/models", "http://", "/v1/models/" + "%41" * 500, "/v1/load_lora_adapter", "/v1/x?" + "&" * 9000, "/healthz?x=%zz",
            "/v1/feedback", "/v1/patina/status", "/s/%0d%0aX:y/v1/chat/completions", "/v1/chat/completions#frag", "/\xff", "elsewhere:443", "/v1/\ud83d".encode("utf-8", "replace").decode("latin-1"),
        )
    )  # fmt: skip
    method = rng.choice(
        (
            "GET",
            "POST",
            "PUT",
            "DELETE",
            "HEAD",
            "OPTIONS",
            "TRACE",
            "CONNECT",
            "PATCH",
            "BREW",
            "get",
            "M-SEARCH",
        )
    )
    return Attack("paths and methods", (request(dump(honest(rng)), target=target, method=method),))


def feedback(rng: random.Random) -> Attack:
    names = (
        "turn_id",
        "completion_id",
        "prompt",
        "response",
        "score",
        "thumbs",
        "rating",
        "text",
        "feedback",
        "idempotency_key",
    )
    body: Any = {rng.choice(names): rng.choice(_WEIRD) for _ in range(rng.randint(0, 5))}
    if rng.random() < 0.1:
        body = rng.choice(_WEIRD)
    return Attack("feedback", (request(dump(body), target="/v1/feedback"),))


def leaves_early(rng: random.Random) -> Attack:
    body = {**honest(rng), "stream": True, "long": True}
    return Attack("leaves mid-stream", (request(dump(body)), b""), rng.choice(("close", "reset")))


def pipelined(rng: random.Random) -> Attack:
    two = request(dump(honest(rng))) * rng.randint(2, 5)
    return Attack("pipelined", (two + rng.choice((b"", b"garbage", b"GET / HTTP/1.1\r\n\r\n")),), "close")


def bad_backend(rng: random.Random) -> Attack:
    body = {**honest(rng), "reply": rng.randrange(len(BAD_REPLIES))}
    return Attack("bad backend", (request(dump(body), target=rng.choice((CHAT, CHAT, "/v1/completions"))),))


ATTACKS: tuple[tuple[Callable[[random.Random], Attack], int], ...] = (
    (wrong_types, 26), (malformed, 14), (no_text, 10), (deep, 6), (large, 1), (heads, 14), (half_open, 8), (odd_paths, 9), (feedback, 4),
    (leaves_early, 3), (pipelined, 2), (bad_backend, 6),
)  # fmt: skip


def attacks(count: int, seed: int) -> Iterator[Attack]:
    """Yield ``count`` attacks, the same for the same seed."""
    rng = random.Random(seed)
    kinds, weights = [kind for kind, _ in ATTACKS], [weight for _, weight in ATTACKS]
    for _ in range(count):
        yield rng.choices(kinds, weights)[0](rng)


# ---------------------------------------------------------------- the backend

_FROM = b"X-From: backend\r\n"
_OK = b'{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"completion_tokens":1}}'
_CHUNK = b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"hi "},"finish_reason":null}]}\n\n'


def _reply(head: bytes, body: bytes) -> bytes:
    return head + _FROM + b"Content-Length: %d\r\n\r\n" % len(body) + body


_200 = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
_SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
_TORN: tuple[bytes, ...] = (
    b"",
    b"SSH-2.0-hello\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
    _200 + _FROM + b"Content-Length: 100\r\n\r\n{",
    _200 + _FROM + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"HTTP/1.1 101 Up\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
)
_ODD: tuple[bytes, ...] = (
    b"HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n",
    _reply(_200, b"not json"),
    _reply(_200, b"\xff\xfe"),
    _reply(_200, b"[" * 100_000),
    _reply(_200, b'{"choices":' + b"[" * 900 + b"]" * 900 + b"}"),
    _reply(_200, b'{"choices":[{"index":"a","message":7,"logprobs":{"content":[{"logprob":NaN}]},"token_ids":"x"}],"usage":[]}'),
    _reply(_200, b'{"choices":{"a":1},"model":{"x":[]},"usage":null,"prompt_token_ids":null}'),
    _reply(_200 + b"Content-Encoding: gzip\r\n", b"no gzip"),
    _reply(_200 + b"Content-Encoding: x-unknown\r\n", b"?"),
    _reply(_SSE, b"data: {\n\ndata: [1]\n\ndata: null\n\n: \xff\n\ndata: \xff\n\ndata: [DONE]\n\ntrailing"),
    _reply(_SSE, b'data: {"choices":[null,7,{"delta":[],"token_ids":{}}],"usage":3}\r\r'),
    _reply(_SSE, b"data: " + b"[" * 50_000 + b"\n\n"),
    _reply(_SSE, b"x" * 200_000),
    b"HTTP/1.1 204 No\r\n" + _FROM + b"\r\n",
    b"HTTP/1.1 304 No\r\n" + _FROM + b"\r\n",
    _reply(b"HTTP/1.1 500 Oops\r\n", b"oops"),
    _reply(b"HTTP/1.1 400 Bad\r\n", b'{"error":{"message":"logprobs"}}'),
)  # fmt: skip


BAD_REPLIES = _TORN + _ODD


class Backend:
    """Answers whatever it is asked, at once, as HTTP or as `BAD_REPLIES`."""

    def __init__(self) -> None:
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                body = await self._body(head, reader)
                if not await self._answer(head, body, writer):
                    return
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            return  # the proxy may close this connection at any time
        finally:
            self.connections -= 1
            writer.close()

    async def _body(self, head: bytes, reader: asyncio.StreamReader) -> bytes:
        for line in head.split(b"\r\n"):
            if line.startswith(b"content-length:"):
                return await reader.readexactly(int(line.split(b":")[1]))
        parts = []
        while b"transfer-encoding: chunked" in head:
            size = int((await reader.readline()).strip() or b"0", 16)
            parts.append((await reader.readexactly(size + 2))[:-2])
            if not size:
                break
        return b"".join(parts)

    async def _answer(self, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> bool:
        is_head = head.startswith(b"head ")
        request: Any = None
        if b'"reply"' in body or b'"stream"' in body:
            with contextlib.suppress(ValueError, RecursionError):
                request = json.loads(body)
        request = request if isinstance(request, dict) else {}
        number = request.get("reply")
        if isinstance(number, int) and 0 <= number < len(BAD_REPLIES):
            writer.write(BAD_REPLIES[number])
            await writer.drain()
            return number >= len(_TORN)  # the connection ends with what is no whole reply
        if request.get("stream") is True and request.get("messages") and not is_head:
            writer.write(_SSE + _FROM + b"Transfer-Encoding: chunked\r\n\r\n")
            for _ in range(400 if request.get("long") else 3):
                writer.write(b"%x\r\n%b\r\n" % (len(_CHUNK), _CHUNK))
                await writer.drain()
                await asyncio.sleep(0.002 if request.get("long") else 0)
            writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        else:
            writer.write(_reply(_200, _OK)[: -len(_OK) if is_head else None])
        await writer.drain()
        return True


@contextlib.asynccontextmanager
async def backend() -> AsyncIterator[tuple[Backend, str]]:
    made = Backend()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, limit=1 << 20)
    try:
        yield made, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


# ---------------------------------------------------------------- the attack


@dataclass
class Findings:
    """What was seen.

    Attributes:
        wrong: one line for each thing that must not be.
    """

    statuses: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def judge(self, attack: Attack, seen: bytes) -> None:
        """Take what one connection got back."""
        self.kinds[attack.kind] += 1
        if not seen:
            self.statuses["closed"] += 1
            return
        status = seen[9:12].decode("latin-1")
        self.statuses[status] += 1
        head, _, body = seen.partition(b"\r\n\r\n")
        if not seen.startswith(b"HTTP/1.1 ") or not status.isdigit():
            self.wrong.append(f"{attack.kind}: no HTTP: {seen[:80]!r}")
        elif status >= "500" and b"x-from: backend" not in head.lower():
            is_upstream = b"upstream_unavailable" in body or b"upstream_timeout" in body
            if status not in ("502", "504") or not is_upstream or attack.kind != "bad backend":
                self.wrong.append(f"{attack.kind}: own {status}: {body[:200]!r} to {attack.parts[0][:300]!r}")


async def strike(port: int, attack: Attack) -> bytes:
    """Send one attack and return what comes back until the proxy closes or has answered whole."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    seen = b""
    try:
        for i, part in enumerate(attack.parts):
            if i:
                await asyncio.sleep(0.02)
            writer.write(part)
            await writer.drain()
        if attack.leaves == "reset":
            raw: socket.socket = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if attack.leaves:
            return b""
        while True:  # the client keeps its side open: an answer is due, or the proxy has to close
            data = await reader.read(1 << 16)
            if not data:
                return seen
            seen = (seen + data)[:_KEPT] if len(seen) < _KEPT else seen
            if _is_answered(seen, data, is_head=attack.parts[0].startswith(b"HEAD ")):
                return seen
    except ConnectionError:
        return seen
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def _is_answered(seen: bytes, data: bytes, *, is_head: bool) -> bool:
    head, end, body = seen.partition(b"\r\n\r\n")
    if not end or is_head:
        return bool(end)
    lower = head.lower()
    if b"transfer-encoding: chunked" in lower:
        return data.endswith(b"0\r\n\r\n")
    for line in lower.split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return len(body) >= min(int(line.split(b":")[1]), _KEPT - len(head) - 4)
    return True


async def storm(port: int, count: int, seed: int, at_once: int, findings: Findings) -> None:
    """Strike ``count`` times, ``at_once`` connections at a time."""
    waiting = attacks(count, seed)

    async def one_after_the_other() -> None:
        for attack in waiting:
            try:
                async with asyncio.timeout(HANG_S):
                    seen = await strike(port, attack)
            except TimeoutError:
                findings.wrong.append(f"{attack.kind}: hangs: {attack.parts[0][:300]!r}")
            else:
                findings.judge(attack, seen)

    await asyncio.gather(*(one_after_the_other() for _ in range(at_once)))


async def honest_client(port: int, findings: Findings, done: asyncio.Event) -> int:
    """Send a well-formed request every half second; every reply must be right."""
    asked = 0
    rng = random.Random(1)
    while not done.is_set():
        attack = Attack("honest", (request(dump({**honest(rng), "stream": False})),))
        async with asyncio.timeout(HANG_S):
            seen = await strike(port, attack)
        asked += 1
        if not seen.startswith(b"HTTP/1.1 200") or b"x-patina-turn" not in seen.lower():
            findings.wrong.append(f"an honest request got {seen[:120]!r}")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), 0.5)
    return asked


def memory_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 1e6


async def status_of(port: int) -> dict[str, Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request(b"", method="GET", target="/v1/patina/status", fields=[("Connection", "close")]))
    seen = await reader.read()
    writer.close()
    found: dict[str, Any] = json.loads(seen.partition(b"\r\n\r\n")[2])
    return found


async def run(count: int, seed: int, at_once: int) -> dict[str, Any]:
    """Start a proxy, storm it, and return the findings."""
    findings = Findings()
    with tempfile.TemporaryDirectory(prefix="patina-hostile-") as folder:
        home, port = Path(folder), free_port()
        settings = home / "settings.json"
        async with backend() as (behind, url):
            chosen = read_settings({"home": home, "proxy_port": port, "api_key": KEY, "upstream": url})
            upgrade(chosen.database_url)
            chosen.dump(settings)
            with (home / "proxy.log").open("wb") as log:
                process = subprocess.Popen(  # noqa: ASYNC220 - returns at once; nothing else runs on this loop yet
                    [sys.executable, "-m", "proxy", "--settings", str(settings)],
                    cwd=REPOSITORY,
                    env=child_environment(),
                    stderr=log,
                )
            try:
                with recording(home, home):
                    return await _measured(
                        process, port, behind, count, seed, at_once, findings, home / "proxy.log"
                    )
            finally:
                process.terminate()
                process.wait(30)


async def _measured(
    process: subprocess.Popen[bytes],
    port: int,
    behind: Backend,
    count: int,
    seed: int,
    at_once: int,
    findings: Findings,
    log: Path,
) -> dict[str, Any]:
    await _until_up(port)
    done = asyncio.Event()
    client = asyncio.create_task(honest_client(port, findings, done))
    start = time.monotonic()
    memory = []
    blocks = 10
    for block in range(blocks):
        await storm(port, count // blocks, seed * 1000 + block, at_once, findings)
        await asyncio.sleep(1.0)  # what is still being written is written
        memory.append(round(memory_mb(process.pid), 1))
    took = time.monotonic() - start
    done.set()
    asked = await client
    for _ in range(100):
        if not behind.connections:
            break
        await asyncio.sleep(0.1)
    status = await _recorded(port)
    own, store = status["proxy"], status["store"]
    if store["lag_turns"] or store["rejected"]:
        findings.wrong.append(f"{store['lag_turns']} turns wait, {store['rejected']} cannot be recorded")
    if process.poll() is not None:
        findings.wrong.append("the proxy died")
    if own["in_flight"]:
        findings.wrong.append(f"{own['in_flight']} requests never ended")
    # The first blocks fill caches and arenas; from then on nothing may pile up. A short run has no "then".
    grown = statistics.median(memory[-3:]) / statistics.median(memory[2:5])
    if grown > 1.25 and count >= 5000:
        findings.wrong.append(f"memory grew by {grown - 1:.0%} from the first third to the last")
    logged = await asyncio.to_thread(log.read_text, errors="replace")
    if "Traceback" in logged:
        findings.wrong.append("the log has a traceback: " + logged[-2000:])
    reasons = Counter(
        line.split("cannot be recorded: ")[1][:80]
        for line in logged.splitlines()
        if "cannot be recorded: " in line
    )
    return {
        "requests": sum(findings.kinds.values()),
        "seconds": round(took, 1),
        "kinds": dict(findings.kinds),
        "statuses": dict(sorted(findings.statuses.items())),
        "honest_requests_meanwhile": asked,
        "memory_mb_after_each_tenth": memory,
        "idle_backend_connections": behind.connections,
        "turns_recorded": store["written"],
        "unrecorded": own["unrecorded"],
        "unrecorded_why": dict(reasons),
        "lost": store["lost"],
        "last_loss": store["last_loss"],
        "wrong": findings.wrong[:20],
        "wrong_total": len(findings.wrong),
    }


async def _recorded(port: int) -> dict[str, Any]:
    """Return the status once the recorder's newest state has everything of the journal."""
    for _ in range(120):
        status = await status_of(port)
        if status["store"]["journal_bytes"] == 0 and status["store"]["lag_turns"] == 0:
            break
        await asyncio.sleep(0.5)
    return status


async def _until_up(port: int) -> None:
    for _ in range(600):
        try:
            if "proxy" in await status_of(port):
                return
        except (OSError, ValueError):
            pass
        await asyncio.sleep(0.05)
    raise SystemExit("the proxy did not start")


def main() -> int:
    parser = argparse.ArgumentParser(description="hostile requests against a proxy process")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=16)
    arguments = parser.parse_args()
    found = asyncio.run(run(arguments.requests, arguments.seed, arguments.at_once))
    print(json.dumps(found, indent=1))
    return 1 if found["wrong_total"] else 0


if __name__ == "__main__":
    sys.exit(main())
