"""The backend's port is the gateway's alone."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from serving.openai_server.guard import KeyGuard


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"in"})


async def ask(key: str, headers: dict[str, str], path: str = "/v1/models") -> httpx.Response:
    transport = httpx.ASGITransport(app=KeyGuard(answer, key))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        return await client.get(path, headers=headers)


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/version", "/stats", "/tokenize", "/nowhere"])
@pytest.mark.parametrize(
    "sent", [None, "", "Bearer", "Bearer wrong", "bearer secret", "Basic secret", "secret"]
)
async def test_without_the_key_every_path_is_closed(path: str, sent: str | None) -> None:
    reply = await ask("secret", {} if sent is None else {"authorization": sent}, path)
    assert reply.status_code == 401
    assert reply.json()["error"]["type"] == "AuthenticationError"


async def test_the_key_opens_it_and_a_web_page_stays_out() -> None:
    assert (await ask("secret", {"authorization": "Bearer secret"})).text == "in"
    page = {"authorization": "Bearer secret", "origin": "http://127.0.0.1:3000"}
    assert (await ask("secret", page)).status_code == 403


async def test_a_server_that_a_person_starts_without_a_key_is_open() -> None:
    assert (await ask("", {"origin": "http://localhost"})).text == "in"
