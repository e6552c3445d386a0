"""Differential: the same request straight to a backend and through the proxy, and everything that comes back is compared.

What differs may only be hop-by-hop, cookies, `x-patina-turn`, and `x-request-id` where the backend sends none. Where Patina asks the backend for more, the backend here answers with more, so
what is compared is what a client sees who asked for nothing of it.
"""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import shutil
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.proxy.conftest import KEY, Gateway, run_gateway_at
from tests.proxy.raw_http import COOKIES, HOP, Cut, Request, Seen, Step, Until, WireUpstream, answer, exchange

JSON_TYPE = ("Content-Type", "application/json")
SSE = ("Content-Type", "text/event-stream; charset=utf-8")
Json = dict[str, Any]


@dataclass
class Pair:
    """A backend and the proxy in front of it."""

    upstream: WireUpstream
    gateway: Gateway

    def both(
        self,
        script: Callable[[Request], Sequence[Step]],
        method: str = "POST",
        target: str = "/v1/chat/completions",
        headers: Sequence[tuple[str, str]] = (),
        body: Any = None,
        **how: Any,
    ) -> tuple[Seen, Seen, Request, Request]:
        """Send it both ways; returns what both clients saw, and the last request the backend got from either."""
        self.upstream.script = script

        async def ask(url: str, more: Sequence[tuple[str, str]]) -> tuple[Seen, Request]:
            self.upstream.requests.clear()
            async with asyncio.timeout(60):
                seen = await exchange(url, method, target, [*headers, *more], body, **how)
            return seen, self.upstream.requests[-1]

        direct, asked = asyncio.run(ask(self.upstream.url, []))
        proxied, passed = asyncio.run(ask(self.gateway.url, [("Authorization", f"Bearer {KEY}")]))
        return direct, proxied, asked, passed

    def same(self, script: Callable[[Request], Sequence[Step]], **how: Any) -> tuple[Seen, Request]:
        """Send it both ways and compare everything; returns what was seen, and the backend's request through the proxy."""
        direct, proxied, asked, passed = self.both(script, **how)
        assert proxied.comparable() == direct.comparable()
        assert (passed.method, passed.target) == (asked.method, asked.target)
        assert sent_headers(passed) == sent_headers(asked)
        assert not COOKIES & {name for name, _ in (*passed.headers, *proxied.headers)}
        return proxied, passed


def sent_headers(request: Request) -> list[tuple[str, str]]:
    """What of a request's head must be the same: not the key, which is the hop's own, nor a length that additions change."""
    return sorted(h for h in request.headers if h[0] not in HOP | {"authorization", "content-length"})


@contextmanager
def pair_at(record_file: Path, **more: Any) -> Iterator[Pair]:
    upstream = WireUpstream()
    with (
        upstream.running() as url,
        run_gateway_at(url, upstream, record_file, is_local=False, **more) as gateway,
    ):
        yield Pair(upstream, gateway)


@pytest.fixture
def pair(record_file: Path) -> Iterator[Pair]:
    with pair_at(record_file) as made:
        yield made


@pytest.fixture(scope="module")
def pairs(empty_record: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[bool, Pair]]:
    """Two backends that live through all generated examples: one writes null where nothing was asked for, one leaves it out."""
    with ExitStack() as stack:
        made = {}
        for nulls in (True, False):
            file = tmp_path_factory.mktemp("faithful") / "patina.db"
            shutil.copy(empty_record, file)
            made[nulls] = stack.enter_context(pair_at(file, native_apis=True))
        yield made


def chat(**more: Any) -> bytes:
    return json.dumps(
        {"model": "gpt-x", "messages": [{"role": "user", "content": "Where is Oslo?"}], **more}
    ).encode()


# ------------------------------------------------------------------ a backend that gives what it is asked for


@dataclass(frozen=True)
class Style:
    """How a backend writes."""

    nulls: bool = True
    separators: tuple[str, str] = (",", ":")
    ascii: bool = False
    indent: int | None = None
    line_end: bytes = b"\n"
    prefix: bytes = b"data: "
    ping: bytes = b""
    silent: bool = False  #: tokens without text have a chunk of their own where tokens were asked for

    def write(self, value: Any) -> bytes:
        indent = self.indent
        return json.dumps(value, separators=self.separators, ensure_ascii=self.ascii, indent=indent).encode()

    def event(self, payload: bytes) -> bytes:
        lines = b"".join(self.prefix + line + self.line_end for line in payload.split(b"\n"))
        return lines + self.line_end

    def choice(self, asked: Json, index: int, part: str, messages: Json, reason: Any, tokens: int) -> Json:
        """A choice, with what was asked for; without tokens it is the opening of a stream."""
        found: Json = {"index": index, part: messages}
        content: list[Json] = [
            {"token": "t", "logprob": -0.5, "bytes": None, "top_logprobs": []} for _ in range(tokens)
        ]
        wanted = asked.get("logprobs") is True and tokens
        if self.nulls:
            found["logprobs"] = {"content": content, "refusal": None} if wanted else None
        found["finish_reason"] = reason
        if not self.nulls and wanted:
            found["logprobs"] = {"content": content}
        if asked.get("return_token_ids") is True and tokens:
            found["token_ids"] = list(range(tokens))
        return found

    def whole(self, asked: Json, says: Sequence[Json], extra: Json) -> bytes:
        choices = [self.choice(asked, i, "message", messages, "stop", 3) for i, messages in enumerate(says)]
        reply: Json = {"id": "c-1", "object": "chat.completion", **extra, "choices": choices}
        if asked.get("return_token_ids") is True:
            reply["prompt_token_ids"] = [5, 6]
        reply["usage"] = {"prompt_tokens": 2, "completion_tokens": 3 * len(says), "total_tokens": 9}
        return self.write(reply)

    def stream(self, asked: Json, says: Sequence[Sequence[Json]], extra: Json) -> list[bytes]:
        """The events of a stream: ``says`` holds the deltas of each choice."""
        usage = bool((asked.get("stream_options") or {}).get("include_usage"))
        more = {"usage": None} if usage else {}
        head: Json = {"id": "c-1", "object": "chat.completion.chunk", **extra}
        opening: Json = {"prompt_token_ids": [5]} if asked.get("return_token_ids") is True else {}
        events = [
            {**head, "choices": [self.choice(asked, i, "delta", {"role": "assistant", "content": ""}, None, 0)], **opening, **more}
            for i in range(len(says))
        ]  # fmt: skip
        for i, deltas in enumerate(says):
            if self.silent and (asked.get("logprobs") is True or asked.get("return_token_ids") is True):
                silence: Json = {} if self.nulls else {"content": ""}
                events.append(
                    {
                        **head,
                        "choices": [self.choice(asked, i, "delta", silence, None, 1)],
                        "extra": True,
                        **more,
                    }
                )
            for k, delta in enumerate(deltas):
                reason = "stop" if k == len(deltas) - 1 else None
                events.append({**head, "choices": [self.choice(asked, i, "delta", delta, reason, 1)], **more})
        if usage:
            events.append({**head, "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}})
        # no ping before the usage: it would belong to an event that is only there because it was asked for
        found = [
            (self.ping if event["choices"] and "extra" not in event else b"", self.event(self.write(event)))
            for event in events
        ]
        return [*itertools.chain.from_iterable(found), self.event(b"[DONE]")]


def cut_up(data: bytes, points: Sequence[float]) -> list[bytes]:
    edge_lines = [0, *sorted(int(p * len(data)) for p in points), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edge_lines) if b > a]


def packed(data: bytes, request: Request, offered: str) -> tuple[list[tuple[str, str]], bytes]:
    """Pack a body as a backend does that offers ``offered`` where the client takes it."""
    if offered and offered in (request.header("accept-encoding") or ""):
        body = gzip.compress(data, mtime=0) if offered == "gzip" else zlib.compress(data)
        return [("Content-Encoding", offered), ("Vary", "Accept-Encoding")], body
    return [], data


# ------------------------------------------------------------------ the corpus

names = st.sampled_from(["usage", "logprobs", "token_ids", "model", "prompt_token_ids", "x", "é", 'a"b'])
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(-9, 9) | st.text(max_size=6)
    | st.sampled_from(['"logprobs": [', '\\"usage\\":', "data: [DONE]\n\n", "\u2028"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=5,
).filter(lambda value: "\ud800" not in json.dumps(value, ensure_ascii=False))  # fmt: skip
messages = st.sampled_from(
    [
        {"content": "In Norway"},
        {"content": "så\n\"klart\" \\ \U0001f600 data: [DONE]"},
        {"content": None, "refusal": "I cannot"},
        {"content": "", "reasoning_content": "hm", "reasoning": None},
        {"content": None, "tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "w", "arguments": '{"logprobs": 1}'}}]},
        {"content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"content": [{"type": "text", "text": "parts"}], "annotations": [{"usage": 1}]},
    ]
)  # fmt: skip
contents = st.sampled_from(
    [
        "hi",
        [{"type": "text", "text": "what is this?"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}],
        [{"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}],
        "",
    ]
)  # fmt: skip


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    body: Json = {"model": "gpt-x"}
    if draw(st.booleans()):
        body = {**draw(st.dictionaries(st.sampled_from(["x", "seed", "metadata", "tools_x"]), json_values, max_size=3)), **body}  # fmt: skip
    body["messages"] = [{"role": "user", "content": draw(contents)}]
    choices: dict[str, list[Any]] = {
        "n": [1, 2, 3],
        "stream": [False],
        "logprobs": [None, False, True],
        "return_token_ids": [None, False, True],
        "temperature": [0, 0.70, 1],
        "store": [True],
        "tools": [[{"type": "function", "function": {"name": "w", "parameters": {"model": {}, "logprobs": 1}}}]],
    }  # fmt: skip
    for name, values in choices.items():
        if draw(st.booleans()):
            body[name] = draw(st.sampled_from(values))
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,", " :\t")]))
    indent = draw(st.sampled_from([None, None, 2]))
    return json.dumps(body, separators=separators, ensure_ascii=draw(st.booleans()), indent=indent).encode()


styles = st.builds(
    Style,
    nulls=st.booleans(),
    silent=st.booleans(),
    separators=st.sampled_from([(",", ":"), (", ", ": ")]),
    ascii=st.booleans(),
    line_end=st.sampled_from([b"\n", b"\n", b"\r\n", b"\r"]),
    prefix=st.sampled_from([b"data: ", b"data:", b"event: message\ndata: "]),
    ping=st.sampled_from([b"", b"", b": ping\n\n", b":\n", b"event: ping\ndata: {}\n\n", b"id: 7\nretry: 3\n\n"]),
)  # fmt: skip
many = settings(
    max_examples=examples(80),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def unpacked(seen: Seen) -> tuple[Any, ...]:
    """What a client makes of a reply: packing may differ byte by byte, the content may not."""
    status, headers, body, is_whole = seen.comparable()
    encoding = seen.header("content-encoding")
    if encoding is not None:
        headers = [h for h in headers if h[0] != "content-length"]
        engine = zlib.decompressobj(31 if encoding == "gzip" else 15)
        body = engine.decompress(body)
    return status, headers, body, is_whole


@many
@given(
    raw=requests(),
    says=st.lists(messages, min_size=1, max_size=3),
    extra=st.dictionaries(st.sampled_from(["model", "created", "x_extra", "system_fingerprint"]), json_values, max_size=3),
    style=styles,
    indent=st.sampled_from([None, 1]),
    points=st.lists(st.floats(0, 1), max_size=4),
    framing=st.sampled_from(["length", "chunked", "close"]),
    offered=st.sampled_from(["", "", "gzip", "deflate"]),
    after=st.sampled_from([b"", b"\n", b" \r\n\t"]),
)  # fmt: skip
def test_whole_replies(
    pairs: dict[bool, Pair],
    raw: bytes,
    says: list[Json],
    extra: Json,
    style: Style,
    indent: int | None,
    points: list[float],
    framing: str,
    offered: str,
    after: bytes,
) -> None:
    writes = Style(nulls=style.nulls, separators=style.separators, ascii=style.ascii, indent=indent)

    def script(request: Request) -> list[Step]:
        messages = [{"role": "assistant", **message} for message in says]
        packing, body = packed(writes.whole(request.json, messages, extra) + after, request, offered)
        return answer(
            200, [JSON_TYPE, ("X-Request-Id", "r"), *packing], cut_up(body, points), framing=framing
        )

    headers = [JSON_TYPE, ("Accept-Encoding", "gzip, deflate")]
    direct, proxied, asked, passed = pairs[style.nulls].both(script, headers=headers, body=raw)
    assert unpacked(proxied) == unpacked(direct)
    assert proxied.header("x-patina-turn")
    assert sent_headers(passed) == sent_headers(asked)
    assert_only_added(asked.body, passed.body)


@many
@given(
    raw=requests(),
    says=st.lists(st.lists(messages, min_size=1, max_size=3), min_size=1, max_size=2),
    extra=st.dictionaries(st.sampled_from(["model", "created", "x_extra"]), json_values, max_size=2),
    style=styles,
    points=st.lists(st.floats(0, 1), max_size=8),
    offered=st.sampled_from(["", "", "", "gzip"]),
    options=st.sampled_from([None, {}, {"include_usage": False}, {"include_usage": True}, {"x": 10**25}]),
    cut=st.none() | st.integers(0, 3),
)
def test_streams(
    pairs: dict[bool, Pair],
    raw: bytes,
    says: list[list[Json]],
    extra: Json,
    style: Style,
    points: list[float],
    offered: str,
    options: Json | None,
    cut: int | None,
) -> None:
    asked_for = {"stream": True} if options is None else {"stream": True, "stream_options": options}
    raw = raw.rstrip()[:-1] + b"," + json.dumps(asked_for).encode()[1:]

    # where a stream is cut is counted in events, and these are only there for those who asked
    writes = style if cut is None else replace(style, silent=False)

    def script(request: Request) -> list[Step]:
        events = writes.stream(request.json, says, extra)
        if cut is not None:  # after whole events: an event that was cut is not parsed
            events = events[: 2 * min(cut, len(says) + sum(map(len, says)))]
        packing, body = packed(b"".join(events), request, offered)
        pieces: list[Any] = list(cut_up(body, points))
        return answer(
            200, [SSE, *packing], [*pieces, Cut()] if cut is not None else pieces, framing="chunked"
        )

    headers = [JSON_TYPE, ("Accept-Encoding", "gzip")]
    direct, proxied, asked, passed = pairs[style.nulls].both(script, headers=headers, body=raw)
    assert unpacked(proxied) == unpacked(direct)
    assert proxied.header("x-patina-turn")
    assert_only_added(asked.body, passed.body)


@settings(many, max_examples=examples(60))
@given(
    says=st.lists(messages, min_size=1, max_size=2),
    style=styles,
    position=st.floats(0, 1),
    points=st.lists(st.floats(0, 1), max_size=3),
)
def test_a_stream_that_is_cut_inside_an_event_shows_nothing_the_client_did_not_ask_for(
    pairs: dict[bool, Pair], says: list[Json], style: Style, position: float, points: list[float]
) -> None:
    def script(request: Request) -> list[Step]:
        asked = {name: value for name, value in request.json.items() if name != "stream_options"}
        body = b"".join(style.stream(asked, [says], {}))
        pieces: list[Any] = list(cut_up(body[: int(position * len(body))], points))
        return answer(200, [SSE], [*pieces, Cut()], framing="chunked")

    style = replace(style, silent=False)
    plain = b"".join(style.stream({}, [says], {}))
    direct, proxied, _, _ = pairs[style.nulls].both(script, body=chat(stream=True))
    assert (proxied.status, proxied.is_whole) == (direct.status, direct.is_whole) == (200, False)
    assert plain.startswith(proxied.body)


def assert_only_added(sent: bytes, passed: bytes) -> None:
    """The request that reached the backend is the client's, byte for byte, but for the members that were set in it."""
    added = {"logprobs", "return_token_ids", "stream_options"}
    plain, more = json.loads(sent, parse_int=str), json.loads(passed, parse_int=str)
    assert {k: v for k, v in more.items() if k not in added} == {
        k: v for k, v in plain.items() if k not in added
    }
    for pattern in (b'"messages"', b'"model"'):
        assert sent[sent.index(pattern) :][:20] in passed
    if not {name for name in added if name in plain}:
        start = sent.index(b"{") + 1
        assert passed.endswith(sent[start:])


@settings(many, max_examples=examples(60))
@given(
    status=st.sampled_from([400, 401, 402, 403, 404, 409, 413, 415, 422, 429, 500, 502, 503, 504, 529]),
    body=st.binary(max_size=60) | st.sampled_from([b'{"error":{"message":"slow down","code":null}}', b"<html>oops</html>", b""]),
    kind=st.sampled_from(["application/json", "text/html", "text/event-stream", ""]),
    stream=st.booleans(),
    framing=st.sampled_from(["length", "chunked", "close"]),
)  # fmt: skip
def test_errors(
    pairs: dict[bool, Pair], status: int, body: bytes, kind: str, stream: bool, framing: str
) -> None:
    headers = [("Retry-After", "7"), ("X-RateLimit-Reset", "1s"), ("X-RateLimit-Reset", "2s")]
    headers += [("Content-Type", kind)] if kind else []
    proxied, _ = pairs[True].same(
        lambda request: answer(status, headers, [body] if body else [], framing=framing),
        body=chat(stream=stream),
    )
    assert proxied.status == status


METHODS = ["GET", "HEAD", "OPTIONS", "DELETE", "PUT", "PATCH", "POST"]
paths = st.sampled_from(
    [
        "/v1/models", "/v1/embeddings", "/v1/completions", "/v1/responses", "/v1/responses/resp_1?stream=true",
        "/v1/audio/transcriptions", "/v1/files/a%2Fb/content", "/v1/unknown/x;y=1?q=%20&q=b+c&empty=", "/v1/a//b/./c",
        "/v1/chat/completions/abc", "/v1/x?a=1?b=2&c[]=3",
    ]
)  # fmt: skip


@many
@given(
    method=st.sampled_from(METHODS),
    target=paths,
    body=st.none() | st.binary(max_size=300) | st.lists(st.binary(min_size=1, max_size=50), max_size=4),
    kind=st.sampled_from(["application/json", "multipart/form-data; boundary=b", "application/octet-stream"]),
    status=st.sampled_from([200, 201, 204, 206, 301, 304, 400, 404, 418, 500]),
    reply=st.lists(st.binary(max_size=80), max_size=4),
    headers=st.lists(
        st.tuples(st.sampled_from(["X-A", "X-B", "Set-Cookie", "Cache-Control", "WWW-Authenticate", "Link"]), st.sampled_from(["1", "a=b; Path=/", "no-store", "é"])),
        max_size=5,
    ),
    framing=st.sampled_from(["length", "chunked"]),
)  # fmt: skip
def test_everything_else(
    pairs: dict[bool, Pair],
    method: str,
    target: str,
    body: Any,
    kind: str,
    status: int,
    reply: list[bytes],
    headers: list[tuple[str, str]],
    framing: str,
) -> None:
    bodiless = method == "HEAD" or status in (204, 304)

    def script(request: Request) -> list[Step]:
        if bodiless:
            length = [("Content-Length", "5")] if method == "HEAD" or status == 304 else []
            return [answer(status, [*headers, *length], [], framing="chunked")[0].replace(b"Transfer-Encoding: chunked\r\n", b"")]  # type: ignore[union-attr]  # the head is bytes  # fmt: skip
        return answer(status, [*headers, ("Content-Type", kind)], reply, framing=framing)

    sent = [("Content-Type", kind), ("X-Twice", "1"), ("X-Twice", "2"), ("Accept-Encoding", "br;q=1.0, zstd")]
    sent += [("Cookie", "a=b"), ("User-Agent", "odd/1"), ("OpenAI-Beta", "assistants=v2")]
    _, passed = pairs[True].same(script, method=method, target=target, headers=sent, body=body)
    assert passed.body == (body if isinstance(body, bytes) else b"".join(body or []))


@settings(many, max_examples=examples(30))
@given(
    pieces=st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=4),
    framing=st.sampled_from(["length", "chunked"]),
    left=st.integers(1, 9),
)
def test_everything_else_is_cut_where_the_backend_cuts_it(
    pairs: dict[bool, Pair], pieces: list[bytes], framing: str, left: int
) -> None:
    def script(request: Request) -> list[Step]:
        if framing == "chunked":
            return answer(200, [SSE], [*pieces, Cut()], framing="chunked")
        whole = b"".join(pieces)
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(whole) + left}\r\n\r\n"
        return [head.encode(), *pieces, Cut()]

    proxied, _ = pairs[True].same(script, target="/v1/completions", body=b"{}")
    assert not proxied.is_whole


# ------------------------------------------------------------------ one by one


def test_an_upload_that_breaks_off_frees_the_backend(pair: Pair) -> None:
    """The client goes away in the middle of a body that is streamed through: the backend must not wait for the rest."""
    address = urlsplit(pair.gateway.url)
    for head in ("Content-Length: 100000", "Transfer-Encoding: chunked"):
        with socket.create_connection((address.hostname, address.port), timeout=60) as client:
            client.sendall(
                f"POST /v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n{head}\r\n\r\n5\r\nhello\r\n".encode()
            )
            for _ in range(3000):
                if pair.upstream.open_connections:
                    break
                time.sleep(0.02)
            assert pair.upstream.open_connections
        for _ in range(3000):
            if not pair.upstream.open_connections:
                break
            time.sleep(0.02)
        assert not pair.upstream.open_connections
    assert pair.upstream.requests == []


def test_an_unrequested_content_encoding_is_passed_on_and_decoded(pair: Pair) -> None:
    def script(request: Request) -> list[Step]:
        whole = Style().whole(request.json, [{"role": "assistant", "content": "In Norway"}], {})
        return answer(200, [JSON_TYPE, ("Content-Encoding", "gzip")], [gzip.compress(whole, mtime=0)])

    direct, proxied, _, _ = pair.both(script, headers=[JSON_TYPE], body=chat())
    assert unpacked(proxied) == unpacked(direct)
    (row,) = pair.gateway.rows(1)
    assert (row["completion"], row["drop_reason"], row["completion_token_ids"]) == (
        "In Norway",
        None,
        [0, 1, 2],
    )


def test_a_packing_that_cannot_be_read_is_not_asked_for_and_passes_when_it_comes_anyway(pair: Pair) -> None:
    proxied, passed = pair.same(
        lambda request: answer(200, [JSON_TYPE, ("Content-Encoding", "br")], [b"\x0b\x02\x80hello\x03"]),
        body=chat(),
    )
    assert proxied.body == b"\x0b\x02\x80hello\x03"
    _, _, _, passed = pair.both(
        lambda request: answer(200, [JSON_TYPE], [b"{}"]),
        headers=[("Accept-Encoding", "br;q=1, gzip;q=0.5, zstd")],
        body=chat(),
    )
    assert passed.header("accept-encoding") == "gzip;q=0.5"
    assert pair.gateway.rows(1)[0]["drop_reason"] == "unreadable"


BIG = b'{"model":"gpt-x","seed":123456789012345678901234567890,"x":[1.50,1e400,-0.0,"\\u00e9\\/"],"x":{"model":1},"messages":[{"role":"user","content":"hi"}],"logprobs" : false ,"stream":true, "stream_options":{ "y":18446744073709551616} }'


def test_numbers_escapes_and_repeated_keys_reach_the_backend_as_they_were_written(pair: Pair) -> None:
    for raw in (BIG, BIG.replace(b",1e400", b"")):  # a number beyond a double is infinite
        _, _, _, passed = pair.both(lambda request: answer(200, [SSE], [b"data: [DONE]\n\n"]), body=raw)
        assert passed.body == raw.replace(b'"logprobs" : false', b'"logprobs" : true').replace(
            b'{ "y":', b'{"include_usage":true, "y":'
        ).replace(b"{", b'{"return_token_ids":true,', 1)


def test_a_whole_reply_that_is_cut_is_the_same_head_and_the_same_cut(pair: Pair) -> None:
    for framing in ("length", "chunked"):

        def script(request: Request, framing: str = framing) -> list[Step]:
            whole = Style().whole(request.json, [{"role": "assistant", "content": "In Norway"}], {})
            head, *_ = answer(200, [JSON_TYPE], [whole], framing=framing)
            assert isinstance(head, bytes)
            first = whole[:40] if framing == "length" else b"%x\r\n%b\r\n" % (40, whole[:40])
            return [head, first, Cut()]

        direct, proxied, _, _ = pair.both(script, body=chat())
        assert (direct.status, direct.is_whole) == (proxied.status, proxied.is_whole) == (200, False)
        assert {k for k, _ in proxied.headers} == {k for k, _ in direct.headers} | {
            "x-patina-turn",
            "x-request-id",
        }
    assert [row["drop_reason"] for row in pair.gateway.rows(2)] == ["unfinished", "unfinished"]


def test_a_backend_that_closes_without_a_word_is_a_502_that_says_so(pair: Pair) -> None:
    _, proxied, _, _ = pair.both(lambda request: [Cut()], body=chat())
    assert (proxied.status, proxied.is_whole) == (502, True)
    assert "closed the connection" in orjson.loads(proxied.body)["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("asks_itself", [False, True])
def test_nothing_is_held_back_while_the_backend_waits(pair: Pair, path: str, asks_itself: bool) -> None:
    """The backend goes on only when the client has seen all that came so far."""
    runs = [b": one\n\n", b": two\n", b'"role"', b'"Hel"', b'"lo"', b"event: odd\ndata: x\n\n"]
    pair.upstream.events = {str(i): threading.Event() for i in range(len(runs))}

    def script(request: Request) -> list[Step]:
        style = Style()
        opening, hel, lo, *rest = style.stream(request.json, [[{"content": "Hel"}, {"content": "lo"}]], {})[
            1::2
        ]
        parts = [b": one\n\n", b": two\n", b"\n" + opening, hel, lo, b"event: odd\ndata: x\n\n"]
        steps: list[Any] = []
        for i, part in enumerate(parts):
            steps += [part, Until(str(i))]
        return answer(200, [SSE], [*steps, *rest, b"data: [DONE]\n\n"], framing="chunked")

    def on_piece(body: bytes) -> None:
        for i, mark in enumerate(runs):
            if mark in body:
                pair.upstream.events[str(i)].set()

    more = {"logprobs": True, "return_token_ids": True, "stream_options": {"include_usage": True}}
    body = chat(stream=True, **(more if asks_itself else {}))

    async def ask() -> Seen:
        pair.upstream.script = script
        async with asyncio.timeout(60):
            return await exchange(
                pair.gateway.url, "POST", path, [("Authorization", f"Bearer {KEY}")], body, on_piece=on_piece
            )

    seen = asyncio.run(ask())
    assert seen.is_whole
    assert all(event.is_set() for event in pair.upstream.events.values())


def test_white_space_that_keeps_a_client_waiting_goes_on_at_once(pair: Pair) -> None:
    pair.upstream.events = {"seen": threading.Event()}

    def script(request: Request) -> list[Step]:
        pair.upstream.events["seen"].clear()
        whole = Style().whole(request.json, [{"role": "assistant", "content": "In Norway"}], {})
        return answer(200, [JSON_TYPE], [b"\n", Until("seen"), b"\n" + whole], framing="chunked")

    direct, proxied, _, _ = pair.both(
        script, body=chat(), on_piece=lambda body: pair.upstream.events["seen"].set()
    )
    assert proxied.comparable() == direct.comparable()
    assert proxied.pieces[0] == b"\n"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_the_backend_at_once(pair: Pair, path: str, stream: bool) -> None:
    pair.upstream.events = {"never": threading.Event()}
    first = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    pair.upstream.script = lambda request: answer(
        200, [SSE if stream else JSON_TYPE], [first if stream else b" ", Until("never")], framing="chunked"
    )

    async def leave() -> Seen:
        headers = [("Authorization", f"Bearer {KEY}")]
        return await exchange(pair.gateway.url, "POST", path, headers, chat(stream=stream), stop_after=1)

    for _ in range(5):
        assert asyncio.run(leave()).status == 200
    for _ in range(3000):
        if pair.upstream.aborted == 5:
            break
        time.sleep(0.02)
    assert pair.upstream.aborted == 5


def test_large_bodies_pass_in_both_directions(pair: Pair) -> None:
    image = "A" * (40 << 20)
    content = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}]
    raw = chat(messages=[{"role": "user", "content": content}])

    def script(request: Request) -> list[Step]:
        messages = {"role": "assistant", "content": f"{len(request.body)}" + "b" * (1 << 20)}
        return answer(200, [JSON_TYPE], [Style().whole(request.json, [messages], {})])

    direct, proxied, _, passed = pair.both(script, body=raw)
    assert passed.body.endswith(raw[1:])
    assert len(proxied.body) >= len(direct.body) - 10
    _, passed = pair.same(
        lambda request: answer(200, [], [request.body[:5] * 1000]), target="/v1/files", body=raw
    )
    assert passed.body == raw


# ------------------------------------------------------------------ capture steps back


def refusing(
    *response_fields: str, says: str = "Unrecognized request argument supplied: {}", status: int = 400
) -> Any:
    def script(request: Request) -> list[Step]:
        found = [name for name in response_fields if name in request.json]
        if found:
            error = {"error": {"message": says.format(found[0]), "type": "invalid_request_error"}}
            return answer(status, [JSON_TYPE], [orjson.dumps(error)])
        if request.json["stream"]:
            return answer(
                200, [SSE], Style().stream(request.json, [[{"content": "hi"}]], {}), framing="chunked"
            )
        return answer(
            200, [JSON_TYPE], [Style().whole(request.json, [{"role": "assistant", "content": "hi"}], {})]
        )

    return script


@pytest.mark.parametrize("says", ["Unrecognized request argument supplied: {}", "Bad request", "Extra inputs are not permitted"])  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_a_backend_that_refuses_our_fields_is_understood_once(pair: Pair, says: str, stream: bool) -> None:
    script = refusing("return_token_ids", "logprobs", "stream_options", says=says)
    for attempt in range(3):
        pair.same(script, body=chat(stream=stream))
        if attempt:
            assert len(pair.upstream.requests) == 1
    assert pair.upstream.requests[-1].body == chat(stream=stream)


def test_learned_quirks_survive_a_restart(record_file: Path, tmp_path: Path) -> None:
    from proxy.backend_quirks import BackendQuirks

    upstream = WireUpstream(script=refusing("return_token_ids"))
    memory = tmp_path / "upstreams.json"
    with upstream.running() as url:
        for attempts in (2, 1):
            upstream.requests.clear()
            quirks = BackendQuirks(url, memory)
            with run_gateway_at(url, upstream, record_file, is_local=False, quirks=quirks) as gateway:
                headers = [("Authorization", f"Bearer {KEY}")]
                body = chat(stream=False)
                seen = asyncio.run(exchange(gateway.url, "POST", "/v1/chat/completions", headers, body))
            assert seen.status == 200
            assert len(upstream.requests) == attempts
    assert BackendQuirks(url, memory).refused == ["return_token_ids"]
    assert memory.stat().st_mode & 0o777 == 0o600


def test_a_field_refused_for_one_model_is_still_asked_of_the_others(pair: Pair) -> None:
    def script(request: Request) -> list[Step]:
        if request.json["model"] == "thinker" and "logprobs" in request.json:
            error = {"error": {"message": "You are not allowed to request logprobs from this model"}}
            return answer(403, [JSON_TYPE], [orjson.dumps(error)])
        return answer(
            200, [JSON_TYPE], [Style().whole(request.json, [{"role": "assistant", "content": "hi"}], {})]
        )

    for model in ("plain", "thinker", "plain", "thinker"):
        pair.same(script, body=chat(model=model))
        assert ("logprobs" in pair.upstream.requests[-1].json) == (model == "plain")
    assert pair.gateway.proxy._chat.refused == ["logprobs (thinker)"]


def test_a_request_error_names_the_clients_own_request(pair: Pair) -> None:
    """A backend that shows the request in its error shows the one the client sent, and nothing is learnt from it."""

    def script(request: Request) -> list[Step]:
        return answer(422, [JSON_TYPE], [orjson.dumps({"detail": [{"msg": "bad", "input": request.json}]})])

    pair.same(script, body=chat(temperature="hot"))
    assert pair.gateway.proxy._chat.refused == []
