"""What real clients and backends send beside the specification: it is served, and recorded as what it is."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import zlib
from collections.abc import Sequence
from typing import Any

import brotli
import pytest
import zstandard

from tests.proxy.conftest import KEY
from tests.proxy.raw_http import Request, Seen, Step, Until, answer, exchange
from tests.proxy.test_transparency import JSON_TYPE, SSE, Pair, pair
from wire.content_encoding import decode_request
from wire.sse import MAX_EVENT_BYTES

__all__ = ["pair"]  # a fixture

CHAT = "/v1/chat/completions"
HEAD = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}


def body(text: str = "Where is Oslo?", **more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], **more}).encode()


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    return b"data: " + json.dumps({**HEAD, "choices": choices, **more}).encode() + b"\n\n"


STREAM = [chunk({"role": "assistant", "content": "In "}), chunk({"content": "Norway."}), chunk({}, "stop"), b"data: [DONE]\n\n"]  # fmt: skip
WHOLE = json.dumps(
    {**HEAD, "object": "chat.completion", "choices": [{"index": 0, "message": {"role": "assistant", "content": "In Norway."}, "finish_reason": "stop"}]}
).encode()  # fmt: skip


def ask(pair: Pair, script: Sequence[Step], raw: bytes, *headers: tuple[str, str], path: str = CHAT) -> Seen:
    """Send one request through the proxy."""
    pair.upstream.script = lambda request: list(script)
    fields = [("Authorization", f"Bearer {KEY}"), JSON_TYPE, *headers]
    return asyncio.run(asyncio.wait_for(exchange(pair.gateway.url, "POST", path, fields, raw), 60))


def row(pair: Pair) -> dict[str, Any]:
    return pair.gateway.rows(1)[-1]


def prompt_of(pair: Pair) -> Any:
    return row(pair)["messages"][-1]["content"]


# ---- requests

LARGE = body("Where is Oslo? " * 300)


def raw_deflate(data: bytes) -> bytes:
    engine = zlib.compressobj(wbits=-15)
    return engine.compress(data) + engine.flush()


ENCODED = {
    "gzip": gzip.compress(LARGE),
    "x-gzip": gzip.compress(LARGE),
    "deflate": zlib.compress(LARGE),
    "Deflate": raw_deflate(LARGE),
    "br": brotli.compress(LARGE),
    "zstd": zstandard.compress(LARGE),
    "gzip, br": brotli.compress(gzip.compress(LARGE)),
    "identity": LARGE,
}


@pytest.mark.parametrize("train", ["on", "off"])
@pytest.mark.parametrize("encoding", ENCODED)
def test_a_compressed_request_is_served_and_recorded(pair: Pair, encoding: str, train: str) -> None:
    """Where nothing is added to it, the backend gets the very bytes."""
    sent = ENCODED[encoding]
    fields = [("Content-Encoding", encoding), ("X-Patina-Train", train)]
    assert ask(pair, answer(200, [JSON_TYPE], [WHOLE]), sent, *fields).status == 200
    assert prompt_of(pair) == json.loads(LARGE)["messages"][0]["content"]
    passed = pair.upstream.requests[-1]
    given = decode_request(passed.body, passed.header("content-encoding"), 1 << 20)
    assert json.loads(given)["messages"] == json.loads(LARGE)["messages"]
    assert train == "on" or passed.body == sent


def test_a_translated_api_takes_compressed_requests(pair: Pair) -> None:
    raw = zstandard.compress(body(max_tokens=9))
    seen = ask(pair, answer(200, [JSON_TYPE], [WHOLE]), raw, ("Content-Encoding", "zstd"), path="/v1/messages")  # fmt: skip
    assert json.loads(seen.body).get("content") == [{"type": "text", "text": "In Norway."}], seen.body
    assert prompt_of(pair) == "Where is Oslo?"


@pytest.mark.parametrize(
    ("encoding", "raw", "status", "message"),
    [
        ("snappy", b"xxxx", 415, "'snappy'"),
        ("gzip", b"xxxx", 400, "not gzip"),
        ("zstd", LARGE, 400, "not zstd"),
        ("br", b"xxxx", 400, "not br"),
        ("gzip", gzip.compress(b" " * (65 << 20), 1), 413, "64 MB"),
        ("zstd", zstandard.compress(b" " * (65 << 20)), 413, "64 MB"),
        ("br", brotli.compress(b" " * (65 << 20), quality=1), 413, "64 MB"),
    ],
)  # fmt: skip
def test_what_cannot_be_unpacked_is_refused_by_name(
    pair: Pair, encoding: str, raw: bytes, status: int, message: str
) -> None:
    """A chat request goes to the backend as it came, and `status` says why it is not recorded."""
    fields = ("Content-Encoding", encoding)
    seen = ask(pair, [], raw, fields, path="/v1/messages")
    assert (seen.status, message in seen.body.decode()) == (status, True)
    seen = ask(pair, answer(200, [JSON_TYPE], [WHOLE]), raw, fields)
    if status == 413:
        assert seen.status == 413
    else:
        assert (seen.status, pair.upstream.requests[-1].body) == (200, raw)
        counters = pair.gateway.proxy._counters
        assert counters.not_captured == {"the request's content encoding cannot be read": 1}


SURROGATE = rb'{"model":"m","messages":[{"role":"user","content":"nice \ud83d Oslo"}]}'


@pytest.mark.parametrize(
    ("raw", "prompt"),
    [
        (b"\xef\xbb\xbf" + body(), "Where is Oslo?"),
        (body().decode().encode("utf-16"), "Where is Oslo?"),
        (body().decode().encode("utf-32-be"), "Where is Oslo?"),
        (SURROGATE, "nice \ufffd Oslo"),
        (SURROGATE.replace(rb"\ud83d", b"\xed\xa0\xbd"), "nice \ufffd\ufffd\ufffd Oslo"),
        (SURROGATE.replace(rb"\ud83d", rb"\ud83d\ude00\ude00"), "nice 😀\ufffd Oslo"),
        (body(temperature=float("nan"), top_p=float("inf")), "Where is Oslo?"),
        (body()[:-1] + b',"model":"other","model":"m"}', "Where is Oslo?"),
        (b'{"messages":[],' + body()[1:], "Where is Oslo?"),
        (b" \n" + body() + b"\r\n ", "Where is Oslo?"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("train", ["on", "off"])
def test_a_request_that_lenient_backends_understand_is_recorded(
    pair: Pair, raw: bytes, prompt: str, train: str
) -> None:
    seen = ask(pair, answer(200, [JSON_TYPE], [WHOLE]), raw, ("X-Patina-Train", train))
    assert (seen.status, seen.header("x-patina-turn") is not None) == (200, True)
    assert prompt_of(pair) == prompt
    passed = pair.upstream.requests[-1].body
    assert train == "on" or passed == raw
    assert b"Oslo" in passed.replace(b"\0", b"")


def test_a_session_with_half_an_emoji_in_its_history_goes_on(pair: Pair) -> None:
    ask(pair, answer(200, [JSON_TYPE], [WHOLE]), SURROGATE)
    more = rb',{"role":"assistant","content":"In Norway."},{"role":"user","content":"Shorter, please."}]}'
    ask(pair, answer(200, [JSON_TYPE], [WHOLE]), SURROGATE[:-2] + more)
    first, second = pair.gateway.rows(2)
    assert second["parent_turn_id"] == first["turn_id"]


# ---- replies

LABELS = {"json": [JSON_TYPE], "text": [("Content-Type", "text/plain")], "none": [], "binary": [("Content-Type", "application/octet-stream")]}  # fmt: skip


@pytest.mark.parametrize("opening", [b"", b": ping\n\n", b"\n", b"\xef\xbb\xbf", b"event: message\n"])
@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("label", LABELS)
def test_a_stream_is_recognised_under_any_label(pair: Pair, label: str, asked: bool, opening: bytes) -> None:
    """And its chunks leave one by one: the backend waits until the client has the first."""
    pair.upstream.events["first"] = arrived = threading.Event()
    pieces: list[Step] = [opening + STREAM[0], Until("first"), *STREAM[1:]]

    def script(request: Request) -> list[Step]:
        return answer(200, LABELS[label], pieces, framing="chunked")

    pair.upstream.script = script

    def on_piece(seen: bytes) -> None:
        if b"In " in seen:
            arrived.set()

    fields = [("Authorization", f"Bearer {KEY}"), JSON_TYPE]
    asking = exchange(pair.gateway.url, "POST", CHAT, fields, body(stream=asked), on_piece=on_piece)
    seen = asyncio.run(asyncio.wait_for(asking, 60))
    assert seen.body == opening + b"".join(STREAM)
    found = row(pair)
    assert (found["completion"], found["finish_reason"]) == ("In Norway.", "stop")


@pytest.mark.parametrize("train", ["on", "off"])
def test_a_compressed_stream_is_recognised_under_any_label(pair: Pair, train: str) -> None:
    steps = answer(200, [JSON_TYPE, ("Content-Encoding", "gzip")], [gzip.compress(b"".join(STREAM))])
    seen = ask(pair, steps, body(stream=True), ("Accept-Encoding", "gzip"), ("X-Patina-Train", train))
    assert zlib.decompress(seen.body, 31) == b"".join(STREAM)
    assert row(pair)["completion"] == "In Norway."


@pytest.mark.parametrize("train", ["on", "off"])
@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
def test_a_whole_reply_under_a_streams_label_is_read(pair: Pair, path: str, train: str) -> None:
    steps = answer(200, [SSE], [WHOLE], framing="chunked")
    seen = ask(pair, steps, body(stream=True, max_tokens=9), ("X-Patina-Train", train), path=path)
    assert seen.body == WHOLE if path == CHAT else b"message_stop" in seen.body
    assert row(pair)["completion"] == "In Norway."


@pytest.mark.parametrize("label", LABELS)
def test_a_stream_under_any_label_is_translated(pair: Pair, label: str) -> None:
    steps = answer(200, LABELS[label], STREAM, framing="chunked")
    seen = ask(pair, steps, body(stream=True, max_tokens=9), path="/v1/messages")
    assert b"event: message_stop" in seen.body
    assert b"Norway." in seen.body


FAILED = {
    "an error event": [STREAM[0], b'data: {"error":{"message":"out of memory","code":500}}\n\n'],
    "a named event": [STREAM[0], b'event: error\ndata: {"message":"out of memory"}\n\n'],
    "an error with a choice": [
        STREAM[0],
        chunk({"content": ""}, "error", error={"message": "out of memory"}),
        STREAM[-1],
    ],
    "an abort": [STREAM[0], chunk({}, "abort"), STREAM[-1]],
    "no reason": [STREAM[0], chunk({}, ""), STREAM[-1]],
    "no end": STREAM[:2],
}


@pytest.mark.parametrize("case", FAILED)
@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/responses"])
def test_a_reply_that_failed_is_one_in_every_api_and_never_trains(pair: Pair, path: str, case: str) -> None:
    steps = answer(200, [SSE], FAILED[case], framing="chunked")
    seen = ask(pair, steps, body(stream=True, max_tokens=9, input="Where is Oslo?"), path=path)
    if path == CHAT:
        assert seen.body == b"".join(FAILED[case])
    elif path == "/v1/messages":
        assert b"event: error" in seen.body
        assert b"message_stop" not in seen.body
        assert b'stop_reason":"' not in seen.body
    else:
        assert b"event: response.failed" in seen.body
        assert b"response.completed" not in seen.body
    found = row(pair)
    is_cut = case in ("no reason", "no end")
    assert found["drop_reason"] == ("unfinished" if is_cut else "upstream_error")
    assert found["completion"] == ("In Norway." if case == "no end" else "In ")
    if not is_cut:
        story = pair.gateway.in_record(lambda record: record.story(found["turn_id"]))
        assert ("abort" if case == "an abort" else "out of memory") in story["drop_detail"]


@pytest.mark.parametrize("train", ["on", "off"])
@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
def test_an_event_without_an_end_passes_and_is_not_kept(pair: Pair, path: str, train: str) -> None:
    large = b"data: " + b"x" * (MAX_EVENT_BYTES + (4 << 20))
    steps = answer(200, [SSE], [*STREAM[:2], large, b"y\n\n", *STREAM[2:]], framing="chunked")
    seen = ask(pair, steps, body(stream=True, max_tokens=9), ("X-Patina-Train", train), path=path)
    if path == CHAT:
        assert seen.body == b"".join([*STREAM[:2], large, b"y\n\n", *STREAM[2:]])
    else:
        assert b"event: error" in seen.body
        assert len(seen.body) < 1 << 16
    found = row(pair)
    assert (found["drop_reason"], found["completion"]) == ("unreadable", "")
