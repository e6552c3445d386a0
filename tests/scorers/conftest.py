"""A scripted OpenAI-compatible server, and answered turns as values."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest_asyncio
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from store.values import Json

# Read once, when litellm is imported; without it the import itself asks the network. The supervisor sets it for the process.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

Answer = str | Response


@dataclass
class ScriptedJudge:
    """Answers chat completions by ``script(body, n)``: a text, or a response of its own. ``requests`` is what came in."""

    script: Callable[[Json, int], Answer]
    base: str = ""
    delay_s: float = 0.0
    requests: list[Json] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    async def __call__(self, request: Request) -> Response:
        body: Json = await request.json()
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        answer = self.script(body, len(self.requests))
        return answer if isinstance(answer, Response) else completion(body, answer)


def completion(body: Json, text: str | None) -> Response:
    return JSONResponse(
        {
            "id": "chatcmpl-judge",
            "object": "chat.completion",
            "created": 1,
            "model": body["model"],
            "choices": [
                {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            ],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
    )


def failure(status: int, message: str = "no") -> Response:
    return JSONResponse({"error": {"message": message, "type": "error", "code": None}}, status_code=status)


def is_hint_question(body: Json) -> bool:
    return '{"hint"' in body["messages"][-1]["content"]


def by_question(verdict: str, hint: str = '{"hint": null}') -> Callable[[Json, int], Answer]:
    return lambda body, _: hint if is_hint_question(body) else verdict


def free_socket() -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", 0))
    return bound


class Serving:
    """A scripted judge on a real port."""

    def __init__(self, judge: ScriptedJudge, bound: socket.socket) -> None:
        app = Starlette(routes=[Route("/v1/chat/completions", judge.__call__, methods=["POST"])])
        self._bound = bound
        self._server = uvicorn.Server(
            uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
        )
        self._task: asyncio.Task[Any] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._server.serve(sockets=[self._bound]))
        while not self._server.started:  # noqa: ASYNC110  uvicorn offers no event
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        if self._task is not None:
            self._server.should_exit = True
            await self._task
            self._task = None
        self._bound.close()


@pytest_asyncio.fixture
async def scripted() -> AsyncIterator[ScriptedJudge]:
    """A judge that is up, approving of everything until the test gives it another script."""
    judge = ScriptedJudge(by_question("\\boxed{1}"))
    bound = free_socket()
    judge.base = f"http://127.0.0.1:{bound.getsockname()[1]}/v1"
    serving = Serving(judge, bound)
    await serving.start()
    yield judge
    await serving.stop()
