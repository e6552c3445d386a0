"""The openai SDKs for Python and Node, straight to a backend and through the proxy: what they return and what they raise is the same."""

from __future__ import annotations

import base64
import json
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import orjson
import pytest

from tests.clients.packages import npm
from tests.proxy.conftest import KEY
from tests.proxy.raw_http import Cut, Request, Step, answer, is_addition
from tests.proxy.test_transparency import JSON_TYPE, SSE, Json, Pair, Style, pair_at

NODE_SDK = "openai@6.10.0"
SCRIPT = Path(__file__).with_name("sdk.mjs")
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}


def backend(request: Request) -> list[Step]:
    """A backend that knows the whole API a little, and writes as OpenAI does."""
    path = request.target.split("?")[0]
    if path == "/v1/chat/completions":
        return chat(request.json)
    if path == "/v1/audio/transcriptions":
        assert b"\x07" * 100_000 in request.body
        return reply({"text": "sevens"})
    if path == "/v1/audio/speech":
        return answer(200, [("Content-Type", "audio/mpeg")], [bytes(range(256))], framing="chunked")
    if path == "/v1/responses" and request.json.get("stream"):
        events = [{"type": "response.created"}, {"type": "response.output_text.delta", "delta": "hi"}, {"type": "response.completed"}]  # fmt: skip
        pieces = [b"event: %b\ndata: %b\n\n" % (e["type"].encode(), orjson.dumps(e)) for e in events]
        return answer(200, [SSE], pieces, framing="chunked")
    known: dict[str, Json] = {
        "/v1/models": {"object": "list", "data": [{"id": "gpt-x", "object": "model", "created": 1, "owned_by": "me"}]},
        "/v1/completions": {"id": "x", "object": "text_completion", "choices": [{"index": 0, "text": " upon", "logprobs": None}]},
        "/v1/responses": {"id": "resp_1", "object": "response", "output": [], "model": "r", "usage": None},
        "/v1/files/file-1": {"id": "file-1", "object": "file", "deleted": True},
        "/v1/embeddings": {"object": "list", "model": "e", "data": [
            {"object": "embedding", "index": i, "embedding": base64.b64encode(struct.pack("<2f", 0.5, i)).decode()} for i in range(2)
        ]},
    }  # fmt: skip
    if path in known:
        return reply(known[path])
    return reply(
        {"error": {"message": "not here", "type": "invalid_request_error", "code": "model_not_found"}}, 404
    )


def reply(value: Any, status: int = 200, *more: tuple[str, str]) -> list[Step]:
    return answer(status, [JSON_TYPE, ("x-request-id", "req-1"), *more], [orjson.dumps(value)])


def chat(asked: Json) -> list[Step]:
    user = asked.get("user", "")
    if user in ("400", "429", "500"):
        error = {"message": f"sorry {user}", "type": "some_error", "param": None, "code": "c"}
        return reply({"error": error}, int(user), ("retry-after", "3"))
    says: Json = {"content": "In Norway", "refusal": None}
    if asked.get("tools"):
        says = {"content": None, "tool_calls": [{"index": 0, **CALL}]}
    style = Style()
    n = asked.get("n") or 1
    extra = {"created": 1, "model": "gpt-x-2026", "system_fingerprint": "fp"}
    if asked.get("stream"):
        events = style.stream(asked, [[says, {}]] * n, extra)
        if user == "cut":
            return answer(200, [SSE], [*events[:4], Cut()], framing="chunked")
        return answer(200, [SSE, ("x-request-id", "req-1")], events, framing="chunked")
    whole = style.whole(asked, [{"role": "assistant", **says}] * n, extra)
    if user == "cut":
        return [*answer(200, [JSON_TYPE], [whole])[:1], whole[:30], Cut()]
    return answer(200, [JSON_TYPE, ("x-request-id", "req-1")], [whole])


@pytest.fixture(scope="module")
def pair(empty_record: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    file = tmp_path_factory.mktemp("sdks") / "patina.db"
    shutil.copy(empty_record, file)
    with pair_at(file, native_apis=True) as made:
        made.upstream.script = backend
        yield made


MESSAGES: Any = [{"role": "user", "content": "Where is Oslo?"}]
PYTHON: dict[str, Callable[[openai.OpenAI], Any]] = {
    "whole": lambda c: c.chat.completions.create(model="m", messages=MESSAGES),
    "choices": lambda c: c.chat.completions.create(model="m", messages=MESSAGES, n=3),
    "logprobs": lambda c: c.chat.completions.create(model="m", messages=MESSAGES, logprobs=True, top_logprobs=2),
    "tools": lambda c: c.chat.completions.create(model="m", messages=MESSAGES, tools=[{"type": "function", "function": {"name": "w"}}]),
    "stream": lambda c: list(c.chat.completions.create(model="m", messages=MESSAGES, stream=True)),
    "stream with usage": lambda c: list(c.chat.completions.create(model="m", messages=MESSAGES, stream=True, stream_options={"include_usage": True})),
    "stream of choices": lambda c: list(c.chat.completions.create(model="m", messages=MESSAGES, stream=True, n=2)),
    "raw": lambda c: sorted((k, v) for k, v in c.chat.completions.with_raw_response.create(model="m", messages=MESSAGES).headers.items() if not is_addition(k, v)),
    "cut stream": lambda c: list(c.chat.completions.create(model="m", messages=MESSAGES, stream=True, user="cut")),
    "cut reply": lambda c: c.chat.completions.create(model="m", messages=MESSAGES, user="cut"),
    "too many": lambda c: c.chat.completions.create(model="m", messages=MESSAGES, user="429"),
    "wrong": lambda c: c.chat.completions.create(model="m", messages=MESSAGES, user="400"),
    "broken": lambda c: c.chat.completions.create(model="m", messages=MESSAGES, user="500"),
    "missing": lambda c: c.models.retrieve("unknown"),
    "models": lambda c: list(c.models.list()),
    "embeddings": lambda c: c.embeddings.create(model="e", input=["a", "b"]),
    "completions": lambda c: c.completions.create(model="c", prompt="Once"),
    "responses": lambda c: c.responses.create(model="r", input="hi"),
    "responses as a stream": lambda c: list(c.responses.create(model="r", input="hi", stream=True)),
    "speech": lambda c: c.audio.speech.create(model="s", voice="v", input="hi").content,
    "transcription": lambda c: c.audio.transcriptions.create(model="w", file=("a.wav", b"\x07" * 100_000)),
    "delete": lambda c: c.files.delete("file-1"),
}  # fmt: skip


def outcome(url: str, call: Callable[[openai.OpenAI], Any]) -> Any:
    """What a call gives: its value, or all that its error says."""
    with httpx.Client(verify=False, timeout=60) as plain:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, http_client=plain)
        try:
            return "value", call(client)
        except openai.APIStatusError as error:
            headers = sorted((k, v) for k, v in error.response.headers.items() if not is_addition(k, v))
            return type(error), error.status_code, str(error), error.body, headers
        except (openai.OpenAIError, httpx.HTTPError) as error:
            return type(error), str(error), type(error.__cause__), str(error.__cause__)


@pytest.mark.parametrize("name", PYTHON)
def test_the_python_sdk_cannot_tell(pair: Pair, name: str) -> None:
    direct = outcome(pair.upstream.url, PYTHON[name])
    proxied = outcome(pair.gateway.url, PYTHON[name])
    # the error names where a torn body ends in bytes, which depends on the request
    assert proxied == direct or (name == "cut reply" and proxied[:2] == direct[:2])
    if name not in ("cut stream", "cut reply", "too many", "wrong", "broken", "missing"):
        assert direct[0] == "value"


def test_the_node_sdk_cannot_tell(pair: Pair, tmp_path: Path) -> None:
    folder = npm(NODE_SDK)
    script = folder / f"sdk-{os.getpid()}.mjs"  # modules are looked for beside the script
    shutil.copy(SCRIPT, script)
    found = []
    try:
        for url in (pair.upstream.url, pair.gateway.url):
            command = ["node", str(script), f"{url}/v1", KEY]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
            assert done.returncode == 0, done.stderr
            found.append([json.loads(line) for line in done.stdout.splitlines()])
    finally:
        script.unlink()
    direct, proxied = found
    assert [call["name"] for call in direct if "error" in call] == ["cutStream", "cutWhole", "slow", "wrong", "broken", "missing"]  # fmt: skip
    assert len(direct) >= 24
    for one, other in zip(direct, proxied, strict=True):
        assert other == one
