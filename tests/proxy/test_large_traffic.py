"""Replies that are too large to be recorded, and more large requests than memory should hold."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy import relay
from tests.proxy.conftest import Gateway
from tests.proxy.test_relay import chat, post
from tests.waiting import until

LIMIT = 50_000
TEXT = "word " * (LIMIT // 2)


def whole(text: str) -> str:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return json.dumps({"id": "c-1", "object": "chat.completion", "choices": [choice]})


def stream(text: str) -> str:
    size = 1000
    parts = [text[at : at + size] for at in range(0, len(text), size)]
    events = [{"id": "c-1", "choices": [{"index": 0, "delta": {"content": part}}]} for part in parts]
    events.append({"id": "c-1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_reply_beyond_the_limit_is_forwarded_whole_and_recorded_without_its_text(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, is_stream: bool
) -> None:
    monkeypatch.setattr(relay, "_MAX_KEPT_BYTES", LIMIT)
    kind = "text/event-stream" if is_stream else "application/json"
    body = stream(TEXT) if is_stream else whole(TEXT)
    scripted = {"status": 200, "headers": {"content-type": kind}, "body": body}
    status, headers, seen = post(
        f"{gateway.url}/v1/chat/completions", chat(scripted=scripted, stream=is_stream)
    )
    assert (status, text_of(seen, is_stream)) == (200, TEXT)
    (row,) = gateway.rows(1)
    assert row["turn_id"] == headers["x-patina-turn"]
    assert (row["drop_reason"], row["completion"]) == ("unreadable", "")
    small = post(f"{gateway.url}/v1/chat/completions", chat())
    assert small[0] == 200
    assert gateway.rows(2)[-1]["completion"]


def text_of(seen: bytes, is_stream: bool) -> str:
    if not is_stream:
        return str(json.loads(seen)["choices"][0]["message"]["content"])
    events: list[Any] = [
        json.loads(line[6:]) for line in seen.decode().splitlines() if line.startswith("data: {")
    ]
    return "".join(event["choices"][0]["delta"].get("content", "") for event in events)


def test_large_requests_beyond_the_memory_are_asked_to_come_again_and_small_ones_pass(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Larger than the socket's buffers: the response comes before the body is read, and this client reads none while it sends.
    monkeypatch.setattr(relay, "MAX_HELD_BYTES", 20 << 20)
    large = chat(user="x" * (12 << 20))
    held = gateway.proxy._chat
    held._held_bytes = 10 << 20  # of other requests in flight
    status, headers, seen = post(f"{gateway.url}/v1/chat/completions", large)
    assert (status, headers["retry-after"]) == (503, "1")
    assert json.loads(seen)["error"]["code"] == "overloaded"
    assert post(f"{gateway.url}/v1/chat/completions", chat())[0] == 200
    held._held_bytes = 0
    assert post(f"{gateway.url}/v1/chat/completions", large)[0] == 200
    # The gateway gives the bytes back after the client has the reply.
    until(lambda: held._held_bytes <= 0, "the memory of the large request being given back", 10)
    assert held._held_bytes == 0
    assert gateway.client.get("/patina/status", cast_to=object)["proxy"]["busy"] == 1  # type: ignore[index]
