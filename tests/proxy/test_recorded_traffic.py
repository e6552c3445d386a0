"""Whatever is asked and answered: a turn that is announced (`x-patina-turn`) is in the record, and what is not announced is counted."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.errors import WireError
from tests.examples import examples
from tests.proxy.conftest import Gateway
from tests.proxy.test_malformed_traffic import anything, requests
from tests.proxy.test_relay import chat, get, post
from tests.recorder.exchanges import make_captured, user
from wire.captured_exchange import dump_exchange, load_exchange
from wire.chat_request import parse_chat

PLAIN = {"status": 200, "headers": {"content-type": "application/json"}, "body": "{}"}


def nest(depth: int, opening: str = "[", closing: str = "]") -> str:
    return opening * depth + "1" + closing * depth


def body_with(where: str, depth: int, opening: str = "[", closing: str = "]") -> bytes:
    """Return a chat request that is nested ``depth`` levels deep in one of its places."""
    inner = nest(depth, opening, closing)
    message = f'{{"role":"user","content":{inner if where == "content" else chr(34) + "hi" + chr(34)}}}'
    tools = inner if where == "tools" else "[]"
    return f'{{"model":"tiny","scripted":{json.dumps(PLAIN)},"messages":[{message}],"tools":{tools},"metadata":{inner if where == "metadata" else "{}"}}}'.encode()


DEPTHS = (1, 100, 200, 237, 238, 239, 240, 254, 255, 400, 700, 900, 980, 1020, 1030, 5000)


@pytest.mark.parametrize("where", ["content", "tools", "metadata"])
@pytest.mark.parametrize("kind", ["lists", "objects", "both"])
def test_a_body_of_any_depth_is_recorded_or_not_announced(gateway: Gateway, where: str, kind: str) -> None:
    opening, closing = {"lists": ("[", "]"), "objects": ('{"a":', "}"), "both": ('[{"content":', "}]")}[kind]
    announced = []
    for depth in DEPTHS:
        _, headers, _ = post(f"{gateway.url}/v1/chat/completions", body_with(where, depth, opening, closing))
        if "x-patina-turn" in headers:
            announced.append(headers["x-patina-turn"])
    assert len(announced) >= 2  # what is no attack is recorded
    rows = gateway.rows(len(announced))
    assert {row["turn_id"] for row in rows} == set(announced)
    own = get(f"{gateway.url}/v1/patina/status")[1]["proxy"]
    assert own["unrecorded"] == 0
    assert sum(own["not_captured"].values()) == len(DEPTHS) - len(announced)
    assert set(own["not_captured"]) <= {
        "the request is nested too deeply to be recorded",
        "the request is not JSON",  # beyond 1024 levels nothing reads it
    }


@pytest.mark.parametrize(
    "text", ['{"a":' + nest(4000) + "}", "[" * 5000, '{"type":"x","y":' + "[" * 4000 + "}", '"\\' * 3000]
)
@pytest.mark.parametrize("role", ["user", "assistant", "tool", "system"])
def test_a_text_that_looks_like_json_is_only_a_text(gateway: Gateway, role: str, text: str) -> None:
    messages = [
        {"role": role, "content": text, "tool_calls": [{"function": {"name": "f", "arguments": text}}]},
        {"role": "user", "content": "and now?"},
    ]
    _, headers, _ = post(f"{gateway.url}/v1/chat/completions", json.dumps({"messages": messages}).encode())
    (row,) = gateway.rows(1)
    assert row["turn_id"] == headers["x-patina-turn"]


ODD_REPLIES: tuple[tuple[str, str], ...] = (
    ("a lone surrogate", r'{"choices":[{"index":0,"message":{"content":"a \ud800 b"},"finish_reason":"stop"}]}'),
    ("one in an id", r'{"id":"\udfff","choices":[{"index":0,"message":{"content":"x"},"finish_reason":"\ud801"}]}'),
    ("one in a call", r'{"choices":[{"index":0,"message":{"tool_calls":[{"id":"\ud800","function":{"name":"\ud800","arguments":"\ud800"}}]}}]}'),
    ("one in usage", r'{"choices":[],"usage":{"\ud800":"\ud800"}}'),
    ("one in an error", r'{"error":{"message":"\ud800"}}'),
    ("deep usage", '{"choices":[],"usage":{"a":' + nest(700) + "}}"),
    ("deep usage and no number", '{"choices":[],"x":NaN,"usage":{"a":' + nest(700) + "}}"),
    ("deep arguments", '{"choices":[{"message":{"tool_calls":[{"function":{"name":"f","arguments":"' + nest(990) + '"}}]}}]}'),
    ("deeper arguments", '{"choices":[{"message":{"tool_calls":[{"function":{"name":"f","arguments":"' + "[" * 9999 + '"}}]}}]}'),
    ("huge numbers", '{"choices":[{"index":' + "9" * 30 + ',"message":{"content":"x"},"token_ids":[' + "9" * 30 + ']}],"usage":{"a":' + "9" * 5000 + "}}"),
    ("not finite", '{"choices":[{"message":{"content":"x"},"logprobs":{"content":[{"logprob":-Infinity},{"logprob":NaN}]}}],"usage":{"a":NaN}}'),
    ("zero bytes", r'{"id":"\u0000","choices":[{"message":{"content":"\u0000"},"finish_reason":"\u0000"}]}'),
)  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("name", "reply"), ODD_REPLIES, ids=[name for name, _ in ODD_REPLIES])
def test_a_reply_of_any_content_is_recorded(gateway: Gateway, name: str, reply: str, stream: bool) -> None:
    kind = "text/event-stream" if stream else "application/json"
    body = f"data: {reply}\n\ndata: [DONE]\n\n" if stream else reply
    scripted = {"status": 200, "headers": {"content-type": kind}, "body": body}
    status, headers, _ = post(f"{gateway.url}/v1/chat/completions", chat(scripted=scripted, stream=stream))
    assert status == 200
    (row,) = gateway.rows(1)
    assert row["turn_id"] == headers["x-patina-turn"]
    status = get(f"{gateway.url}/v1/patina/status")[1]
    assert (status["proxy"]["unrecorded"], status["store"]["lost"]) == (0, 0)
    assert json.dumps(row)


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(bodies=st.lists(requests | anything, min_size=1, max_size=6))
def test_requests_of_any_shape_are_recorded_or_not_announced(
    gateway: Gateway, record_file: Path, bodies: list[Any]
) -> None:
    announced = set()
    for body in bodies:
        if isinstance(body, dict):
            body["scripted"] = PLAIN
        _, headers, _ = post(f"{gateway.url}/v1/chat/completions", json.dumps(body).encode())
        if "x-patina-turn" in headers:
            announced.add(headers["x-patina-turn"])
    gateway.settle()
    with closing(sqlite3.connect(record_file)) as record:
        assert announced <= {row[0] for row in record.execute("SELECT turn_id FROM turns")}
    status = get(f"{gateway.url}/v1/patina/status")[1]
    assert (status["proxy"]["unrecorded"], status["store"]["lost"]) == (0, 0)


@settings(max_examples=examples(100))
@given(body=requests)
def test_what_is_read_of_a_body_survives_the_journal(body: Any) -> None:
    try:
        chat_read = parse_chat(json.dumps(body).encode())
    except WireError:
        return
    raw = json.dumps(body).encode()
    made = make_captured("a", [user("hello")], "answer", chat=chat_read)
    for sent in (raw, None):
        found = load_exchange(dump_exchange(made, sent)).chat
        assert (found.body, found.messages, found.n) == (chat_read.body, chat_read.messages, chat_read.n)
