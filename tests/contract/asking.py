"""Chat with a backend through the protocol that the proxy uses, and read what the record would keep."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from serving.protocol import BackendClient
from tests.contract.backends import POLICY

_HEADERS = [(b"content-type", b"application/json")]
QUESTION = "What is the capital of France?"


def body_of(text: str = QUESTION, **more: Any) -> dict[str, Any]:
    return {
        "model": POLICY,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 24,
        "temperature": 0,
        "logprobs": True,
        "return_token_ids": True,
        **more,
    }


@dataclass
class Completion:
    """What came of a request."""

    status: int
    whole: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    ids: list[int] = field(default_factory=list)
    prompt_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: str | None = None
    chunks: int = 0
    is_ended: bool = False

    @property
    def message(self) -> dict[str, Any]:
        found: dict[str, Any] = self.whole["choices"][0]["message"]
        return found

    @property
    def error(self) -> str:
        """What an error says, in either of the two usual places."""
        return str((self.whole.get("error") or self.whole).get("message"))


async def ask(
    engine: BackendClient, body: dict[str, Any] | bytes, path: str = "/v1/chat/completions"
) -> Completion:
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    reply = await engine.open("POST", path, _HEADERS, raw)
    try:
        whole: dict[str, Any] = orjson.loads(await reply.read())
    finally:
        reply.close()
    reply_seen = Completion(status=reply.status, whole=whole)
    if reply.status == 200:
        _take(reply_seen, whole["choices"][0], whole["choices"][0]["message"])
        reply_seen.prompt_ids = whole.get("prompt_token_ids") or []
    return reply_seen


async def stream(engine: BackendClient, body: dict[str, Any]) -> Completion:
    reply_seen = Completion(status=0)
    async for chunk in events(engine, body, reply_seen):
        reply_seen.chunks += 1
        reply_seen.prompt_ids += chunk.get("prompt_token_ids") or []
        for choice in chunk["choices"]:
            _take(reply_seen, choice, choice["delta"])
    return reply_seen


async def events(
    engine: BackendClient, body: dict[str, Any], reply_seen: Completion
) -> AsyncIterator[dict[str, Any]]:
    reply = await engine.open(
        "POST", "/v1/chat/completions", _HEADERS, orjson.dumps({**body, "stream": True})
    )
    reply_seen.status = reply.status
    rest = b""
    try:
        async for piece in reply.chunks():
            rest += piece
            *whole, rest = rest.split(b"\n\n")
            for event in whole:
                payload = event.removeprefix(b"data: ")
                if payload == b"[DONE]":
                    reply_seen.is_ended = True
                else:
                    yield orjson.loads(payload)
    finally:
        reply.close()


def _take(reply_seen: Completion, choice: dict[str, Any], part: dict[str, Any]) -> None:
    reply_seen.text += part.get("content") or ""
    reply_seen.ids += choice.get("token_ids") or []
    reply_seen.logprobs += [entry["logprob"] for entry in (choice.get("logprobs") or {}).get("content") or []]
    reply_seen.finish = choice.get("finish_reason") or reply_seen.finish
