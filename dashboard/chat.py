"""The chat panel: sends a person's words through the gateway, as any client does, and shows a second version's answer beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from serving.http import HttpBackend
from store.errors import UpstreamError
from store.values import Json

_MAX_TEXT, _MAX_TOKENS = 4_000, 400
_CLIENT = (b"user-agent", b"Patina-dashboard/1.0")


@dataclass(frozen=True, slots=True)
class Exchange:
    """What was asked, the answer of the live version, and that of the version beside it.

    Attributes:
        turn_id: of the live version's turn.
        beside: name and answer of the other version; None: none was asked.
    """

    asked: str
    answer: str
    version: str
    turn_id: str
    beside: tuple[str, str] | None


class ChatPanel:
    """One conversation with the live version. It is kept in memory, and recorded like any other."""

    def __init__(self, gateway_url: str, key: str, policy: str) -> None:
        self._gateway = HttpBackend(gateway_url, api_key=key, speaks_vllm=False)
        self._key = key
        self._policy = policy
        self.exchanges: list[Exchange] = []

    async def close(self) -> None:
        await self._gateway.close()

    def clear(self) -> None:
        self.exchanges.clear()

    async def send(self, text: str, beside: str) -> str:
        """Ask the live version, and version ``beside`` of the policy unless it is "". Returns what went wrong; "" when all went well."""
        if not text:
            return "Write something first."
        if len(text) > _MAX_TEXT:
            return f"The text is longer than {_MAX_TEXT} characters."
        messages: list[Json] = []
        for one in self.exchanges:
            messages += [{"role": "user", "content": one.asked}, {"role": "assistant", "content": one.answer}]
        messages.append({"role": "user", "content": text})
        try:
            answer, turn_id, version = await self._ask(self._policy, messages)
            other = None
            if beside.isdecimal():
                name = f"{self._policy}@{beside}"
                other = (name, (await self._ask(name, messages, trains=False))[0])
        except UpstreamError as exc:
            return str(exc)
        except ValueError as exc:
            return f"The gateway answered: {exc}"
        self.exchanges.append(Exchange(text, answer, version, turn_id, other))
        return ""

    async def _ask(self, model: str, messages: list[Json], *, trains: bool = True) -> tuple[str, str, str]:
        """Return (answer, turn id, version). Raises: ValueError: an error reply. UpstreamError: the gateway cannot be reached."""
        headers = [(b"content-type", b"application/json"), (b"x-patina-key", self._key.encode()), _CLIENT]
        if not trains:
            headers.append((b"x-patina-train", b"off"))
        body: dict[str, Any] = {"model": model, "messages": messages, "max_tokens": _MAX_TOKENS}
        reply = await self._gateway.open("POST", "/v1/chat/completions", headers, orjson.dumps(body))
        try:
            raw = b"".join([chunk async for chunk in reply.chunks()])
        finally:
            reply.close()
        found = orjson.loads(raw)
        if reply.status != 200:
            raise ValueError(found.get("error", {}).get("message", f"status {reply.status}"))
        sent = {name.lower(): value for name, value in reply.headers}
        answer = found["choices"][0]["message"].get("content") or ""
        return answer, sent.get(b"x-patina-turn", b"").decode(), found.get("model", model)
