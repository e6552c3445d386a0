"""A scripted backend that speaks vLLM's dialect on a real port, and helpers to run ASGI applications there.

The request itself scripts the answer, in a field ``scripted`` that a proxy must pass on like any unknown field:

    text, reasoning, tool_calls    the message                finish          finish reason
    status, headers, body          a plain answer instead     cut_after       break the connection after so many chunks
    delay_s                        seconds before a reply that is not streamed
    hold                           name of an event (`Upstream.events`) to wait for after the first chunk
    drop_logprobs, drop_ids, lose_logprob, usage_off_by       what does not add up
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
import uvicorn

Json = dict[str, Any]


def free_socket(port: int = 0) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(512)
    return listener


@contextmanager
def running(app: Any, listener: socket.socket | None = None, *, http: Any = "httptools") -> Iterator[str]:
    """Serve an ASGI application on a real port in a thread of its own, behind a protocol; yields its base URL."""
    listener = listener or free_socket()
    config = uvicorn.Config(
        app, loop="uvloop", http=http, ws="none", lifespan="auto", access_log=False, log_config=None,
        server_header=False, date_header=False, timeout_graceful_shutdown=2,
    )  # fmt: skip
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    port = listener.getsockname()[1]
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.005)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(timeout=60)
        assert not thread.is_alive()


def tokens_of(text: str) -> list[str]:
    """Split a text into its tokens: words with the blank before them."""
    pieces: list[str] = []
    for word in text.split(" "):
        pieces.append(word if not pieces else " " + word)
    return [p for p in pieces if p]


def token_id(token: str) -> int:
    return int.from_bytes(hashlib.blake2b(token.encode(), digest_size=2).digest(), "big")


def logprob(position: int) -> float:
    return -0.125 * (position + 1)


END = "<end>"


@dataclass
class Seen:
    method: str
    path: str
    headers: list[tuple[bytes, bytes]]
    raw: bytes

    @property
    def body(self) -> Json:
        found: Json = orjson.loads(self.raw)
        return found

    def header(self, name: str) -> str | None:
        for key, value in self.headers:
            if key == name.encode():
                return value.decode()
        return None


@dataclass
class Upstream:
    """The application, and what it saw."""

    base: str = "tiny"
    refuses: tuple[str, ...] = ()
    is_down: bool = False
    slots: int | None = None
    chunk_delay_s: float = 0.0
    adapters: dict[str, str] = field(default_factory=dict)
    broken_adapters: set[str] = field(default_factory=set)
    seen: list[Seen] = field(default_factory=list)
    admin: list[tuple[str, str]] = field(default_factory=list)
    events: dict[str, threading.Event] = field(default_factory=dict)
    held: threading.Event = field(default_factory=threading.Event)
    closed_by_peer: list[str] = field(default_factory=list)
    count: int = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        raw = b""
        while True:
            message = await receive()
            raw += message.get("body", b"")
            if not message.get("more_body"):
                break
        path = scope["raw_path"].decode() + (
            "?" + scope["query_string"].decode() if scope["query_string"] else ""
        )
        normalise_line = scope["path"]
        if normalise_line == "/health":
            await self._answer(send, 200, b"")
        elif normalise_line == "/version":
            # as a vLLM that does not tell its sampling defaults, unless there are slots to tell of
            version = {"capabilities": {"adapter_slots": self.slots}}
            await (self._json(send, 200, version) if self.slots else self._answer(send, 404, b""))
        elif normalise_line == "/v1/models":
            cards: list[Json] = [{"id": self.base, "object": "model", "parent": None}]
            cards += [
                {"id": n, "object": "model", "parent": self.base, "root": p} for n, p in self.adapters.items()
            ]
            await self._json(send, 200, {"object": "list", "data": cards})
        elif normalise_line == "/v1/load_lora_adapter":
            await self._load(send, orjson.loads(raw))
        elif normalise_line == "/v1/unload_lora_adapter":
            name = orjson.loads(raw)["lora_name"]
            self.admin.append(("unload", name))
            self.adapters.pop(name, None)
            await self._answer(send, 200, b"ok")
        elif normalise_line == "/tokenize" and b'"prompt"' in raw:
            await self._json(send, 200, {"count": len(orjson.loads(raw)["prompt"].split())})
        else:
            seen = Seen(scope["method"], path, list(scope["headers"]), raw)
            self.seen.append(seen)
            if normalise_line == "/v1/chat/completions":
                await self._chat(seen, receive, send)
            else:
                await self._other(seen, send)

    async def _load(self, send: Any, body: Json) -> None:
        name = body["lora_name"]
        self.admin.append(("load", name))
        if name in self.broken_adapters:
            await self._json(send, 400, {"error": {"message": "torn", "code": 400}})
            return
        self.adapters[name] = body["lora_path"]
        await self._answer(send, 200, b"ok")

    async def _other(self, seen: Seen, send: Any) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": 207,
                "headers": [(b"content-type", b"application/x-odd"), (b"x-odd", b"yes"), (b"connection", b"x-hop"), (b"x-hop", b"1")],
            }
        )  # fmt: skip
        for piece in (b"first ", seen.raw, b" last"):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _answer(self, send: Any, status: int, body: bytes, headers: Any = ()) -> None:
        length = (b"content-length", str(len(body)).encode())
        await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
        await send({"type": "http.response.body", "body": body})

    async def _json(self, send: Any, status: int, value: Any) -> None:
        await self._answer(send, status, orjson.dumps(value), [(b"content-type", b"application/json")])

    # ---- chat

    async def _chat(self, seen: Seen, receive: Any, send: Any) -> None:
        try:
            body = seen.body
            messages = body["messages"]
        except (ValueError, KeyError):
            await self._json(
                send, 400, {"error": {"message": "what is this", "type": "BadRequestError", "code": 400}}
            )
            return
        if self.is_down:
            await self._answer(send, 503, b'{"error":{"message":"loading"}}', [(b"retry-after", b"7")])
            return
        refused = [name for name in self.refuses if name in body]
        if refused:
            await self._json(
                send, 400, {"error": {"message": f"Unrecognized request argument supplied: {refused[0]}"}}
            )
            return
        model = body.get("model", self.base)
        if model not in (self.base, *self.adapters):
            await self._json(
                send, 404, {"error": {"message": f"The model `{model}` does not exist.", "code": 404}}
            )
            return
        script: Json = body.get("scripted") or {}
        if "status" in script:
            headers = [(k.encode(), v.encode()) for k, v in (script.get("headers") or {}).items()]
            await self._answer(send, script["status"], script.get("body", "").encode(), headers)
            return
        self.count += 1
        last = messages[-1].get("content")
        text = script.get("text", f"Answer {self.count} of {model} to {last}")
        if body.get("stream"):
            await self._stream(body, model, text, script, receive, send)
        else:
            if "hold" in script:
                await self._hold(script["hold"])
            await asyncio.sleep(script.get("delay_s", 0.0))
            await self._json(send, 200, self._whole(body, model, text, script))

    def _tokens(self, text: str, script: Json) -> list[str]:
        tokens = tokens_of(text) if text else []
        if script.get("tool_calls"):
            tokens += ["<tool_call>"]
        return [*tokens, END]

    def _logprobs(self, body: Json, tokens: list[str], start: int, script: Json) -> Json | None:
        if not body.get("logprobs") or script.get("drop_logprobs"):
            return None
        content = [
            {"token": t, "logprob": logprob(start + i), "bytes": list(t.encode()), "top_logprobs": []}
            for i, t in enumerate(tokens)
        ]
        if script.get("lose_logprob"):
            content = content[:-1]
        return {"content": content}

    def _ids(self, body: Json, tokens: list[str], script: Json) -> list[int] | None:
        if not body.get("return_token_ids") or script.get("drop_ids"):
            return None
        return [token_id(t) for t in tokens]

    def _prompt_ids(self, body: Json) -> list[int]:
        return [token_id(str(m.get("content"))) for m in body["messages"]]

    def _usage(self, body: Json, tokens: list[str], script: Json) -> Json:
        n = body.get("n") or 1
        prompt = len(self._prompt_ids(body))
        completion = len(tokens) * n + script.get("usage_off_by", 0)
        return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}

    def _whole(self, body: Json, model: str, text: str, script: Json) -> Json:
        tokens = self._tokens(text, script)
        choices = []
        for index in range(body.get("n") or 1):
            message: Json = {"role": "assistant", "content": text + (f" ({index})" if index else "")}
            if script.get("reasoning"):
                message["reasoning_content"] = script["reasoning"]
            if script.get("tool_calls"):
                message["tool_calls"] = script["tool_calls"]
                message["content"] = text or None
            choice: Json = {
                "index": index,
                "message": message,
                "logprobs": self._logprobs(body, tokens, 0, script),
            }
            choice["finish_reason"] = script.get(
                "finish", "tool_calls" if script.get("tool_calls") else "stop"
            )
            ids = self._ids(body, tokens, script)
            if ids is not None:
                choice["token_ids"] = ids
            choices.append(choice)
        whole: Json = {
            "id": f"chatcmpl-{self.count}", "object": "chat.completion", "created": 1_700_000_000, "model": model,
            "choices": choices, "usage": self._usage(body, tokens, script),
        }  # fmt: skip
        if body.get("return_token_ids"):
            whole["prompt_token_ids"] = self._prompt_ids(body)
        return whole

    def chunks(self, body: Json, model: str, text: str, script: Json) -> list[Json]:
        """Return the chunks of a stream as vLLM would send them for this body."""
        options = body.get("stream_options") or {}
        head = {
            "id": f"chatcmpl-{self.count}",
            "object": "chat.completion.chunk",
            "created": 1_700_000_000,
            "model": model,
        }
        tokens = self._tokens(text, script)
        found: list[Json] = []
        n = body.get("n") or 1

        def add(choices: list[Json], **more: Any) -> None:
            found.append({**head, "choices": choices, **more})

        first: Json = {"prompt_token_ids": self._prompt_ids(body)} if body.get("return_token_ids") else {}
        for index in range(n):
            delta = {"role": "assistant", "content": ""}
            add([{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}], **first)
        if script.get("reasoning"):
            for index in range(n):
                delta = {"reasoning_content": script["reasoning"]}
                add([{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}])
        for index in range(n):
            for i, token in enumerate(tokens):
                is_last = i == len(tokens) - 1
                content: Json = {} if is_last else {"content": token}
                if token == "<tool_call>":
                    content = {"tool_calls": [{"index": k, **c} for k, c in enumerate(script["tool_calls"])]}
                reason = script.get("finish", "tool_calls" if script.get("tool_calls") else "stop")
                logprobs = self._logprobs(body, [token], i, {} if not is_last else script)
                if script.get("drop_logprobs"):
                    logprobs = None
                choice: Json = {"index": index, "delta": content, "logprobs": logprobs, "finish_reason": reason if is_last else None}  # fmt: skip
                ids = self._ids(body, [token], script)
                if ids is not None:
                    choice["token_ids"] = ids
                add([choice])
        if options.get("include_usage"):
            add([], usage=self._usage(body, tokens, script))
        return found

    async def _stream(self, body: Json, model: str, text: str, script: Json, receive: Any, send: Any) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [
                    (b"content-type", b"text/event-stream; charset=utf-8"),
                    (b"x-request-id", b"up-1"),
                ],
            }
        )
        gone = asyncio.create_task(self._gone(receive))
        for i, chunk in enumerate(self.chunks(body, model, text, script)):
            if i == script.get("cut_after"):
                gone.cancel()
                return  # without an end: the server closes the connection
            await send({"type": "http.response.body", "body": b"data: " + orjson.dumps(chunk) + b"\n\n", "more_body": True})  # fmt: skip
            if i == 1 and "hold" in script:
                holding = asyncio.create_task(self._hold(script["hold"]))
                await asyncio.wait({holding, gone}, return_when=asyncio.FIRST_COMPLETED)
                holding.cancel()
            if self.chunk_delay_s:
                await asyncio.sleep(self.chunk_delay_s)
            if gone.done():
                self.closed_by_peer.append(str(body["messages"][-1].get("content")))
                return
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        gone.cancel()

    async def _gone(self, receive: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async def _hold(self, name: str) -> None:
        self.held.set()
        await asyncio.to_thread(self.events[name].wait, 20.0)
