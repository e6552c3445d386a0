"""A scripted Patina: the public interface that evals use, served for real, with a policy that learns by rule.

It "learns" after a given number of complaints: its replies then meet the preferences. It opts probes out as the proxy does.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from lab.evals.question_splits import PROBE_QUESTIONS, USER_QUESTIONS

ANSWERS = {question.text: question.answer for question in (*USER_QUESTIONS, *PROBE_QUESTIONS)}
KEY = "scripted-key"


def verbose_reply(text: str) -> str:
    """The answer to the question that ``text`` begins with, in the manner that no user prefers."""
    return (
        f"Hey there! 😊 Thank you so much for your lovely question about this, I am happy to help you: "
        f"the answer is **{answer_to(text)}**! Just ask me again whenever you want to know more. 🎉"
    )


def concise_reply(text: str) -> str:
    return f"The answer is {answer_to(text)}."


def answer_to(text: str) -> str:
    return next((answer for question, answer in ANSWERS.items() if text.startswith(question)), "unknown")


@dataclass
class ScriptedPatina:
    """Replies with ``before`` until ``complaints_needed`` complaints arrived, then with ``after``."""

    complaints_needed: int = 3
    before: Callable[[str], str] = verbose_reply
    after: Callable[[str], str] = concise_reply
    honours_opt_out: bool = True
    stuck: bool = False
    version: int = 0
    complaints: int = 0
    probes: int = 0
    away: int = 0
    turns: list[list[dict[str, Any]]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/v1/patina/status", self._status),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
            ]
        )

    async def _models(self, request: Request) -> JSONResponse:
        return JSONResponse({"object": "list", "data": [{"id": "scripted", "object": "model"}]})

    async def _status(self, request: Request) -> JSONResponse:
        if self.away > 0:  # as the proxy says it: its own state, and no counts
            self.away -= 1
            return JSONResponse({"policy": "scripted", "record_error": "the record does not answer"})
        return JSONResponse(
            {
                "stages": {"trained": len(self.turns), "claimed": int(self.stuck)},
                "drop_reasons": {"opted_out": self.probes},
                "live": {"scripted": self.version} if self.version else {},
                "heartbeats": [],
            }
        )

    async def _chat(self, request: Request) -> JSONResponse:
        body = json.loads(await request.body())
        self.keys.append(request.headers.get("authorization", ""))
        messages = body["messages"]
        text = messages[-1]["content"]
        is_probe = request.headers.get("x-patina-train") == "off" and self.honours_opt_out
        if is_probe:
            self.probes += 1
        else:
            self.turns.append(messages)
            if len(messages) > 1 and ("emoji" in text or "short" in text):
                self.complaints += 1
                self.version = self.complaints // self.complaints_needed
        reply = (self.after if self.version else self.before)(messages[0]["content"])
        if "long" in text or "detail" in text:
            reply = verbose_reply(text)
        return JSONResponse(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "created": 1,
                "model": "scripted",
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": reply},
                        "finish_reason": "stop",
                    }
                ],
            },
            headers={"x-patina-turn": f"turn-{len(self.turns)}"},
        )


@contextmanager
def serving(app: Starlette) -> Iterator[str]:
    """Serve on a free port; gives the base URL."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", ws="none"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the scripted server did not start"
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.should_exit = True
        thread.join(60)
