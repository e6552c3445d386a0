"""A scripted backend that costs next to nothing: `python -m lab.bench.backend --port N`. It speaks enough of vLLM's dialect to be proxied.

What it says is made beforehand; a request chooses among four replies: streamed or not, with what capture asks for (token ids,
logprobs, usage) or without. ``"paced": true`` in the body sends a chunk of a stream every 5 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
from collections.abc import Callable
from functools import partial
from typing import ClassVar, cast

import orjson
import uvloop

CHUNKS = 64
GAP_S = 0.005
MODEL = "patina-tiny"

#: What it always says; a client that goes on with the conversation re-sends it.
WORDS = [f" word{i}" for i in range(CHUNKS - 2)]
TEXT = "".join(WORDS)

_HEAD = {"id": "chatcmpl-bench", "created": 1_700_000_000, "model": MODEL}
_PROMPT_IDS = list(range(100, 160))


def _logprobs(token: str) -> dict[str, object]:
    return {
        "content": [{"token": token, "logprob": -0.6931, "bytes": list(token.encode()), "top_logprobs": []}]
    }


def _usage(count: int) -> dict[str, int]:
    return {
        "prompt_tokens": len(_PROMPT_IDS),
        "completion_tokens": count,
        "total_tokens": len(_PROMPT_IDS) + count,
    }


def whole(captured: bool) -> bytes:
    """Return a reply that is not streamed, HTTP head included."""
    tokens = [*WORDS, "<end>"]
    choice: dict[str, object] = {
        "index": 0,
        "message": {"role": "assistant", "content": TEXT},
        "logprobs": None,
        "finish_reason": "stop",
    }
    reply: dict[str, object] = {**_HEAD, "object": "chat.completion", "choices": [choice]}
    if captured:
        choice["logprobs"] = {"content": [entry for t in tokens for entry in _logprobs(t)["content"]]}  # type: ignore[attr-defined]  # a list, see above
        choice["token_ids"] = list(range(1000, 1000 + len(tokens)))
        reply["prompt_token_ids"] = _PROMPT_IDS
    reply["usage"] = _usage(len(tokens))
    body = orjson.dumps(reply)
    return _head("application/json", f"content-length: {len(body)}") + body


def stream(captured: bool) -> list[bytes]:
    """Return the pieces of a streamed reply: the HTTP head, then one event each."""
    tokens = [*WORDS, "<end>"]
    events: list[bytes] = []

    def add(choices: list[dict[str, object]], **more: object) -> None:
        chunk = {**_HEAD, "object": "chat.completion.chunk", "choices": choices, **more}
        events.append(b"data: " + orjson.dumps(chunk) + b"\n\n")

    opening = {
        "index": 0,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": None,
    }
    if captured:
        add([opening], prompt_token_ids=_PROMPT_IDS)
    else:
        add([opening])
    for i, token in enumerate(tokens):
        is_last = i == len(tokens) - 1
        choice: dict[str, object] = {
            "index": 0,
            "delta": {} if is_last else {"content": token},
            "logprobs": _logprobs(token) if captured else None,
            "finish_reason": "stop" if is_last else None,
        }
        if captured:
            choice["token_ids"] = [1000 + i]
        add([choice])
    if captured:
        add([], usage=_usage(len(tokens)))
    events.append(b"data: [DONE]\n\n")
    pieces = [b"%x\r\n%b\r\n" % (len(event), event) for event in events]
    pieces[-1] += b"0\r\n\r\n"
    return [_head("text/event-stream", "transfer-encoding: chunked"), *pieces]


def _head(content_type: str, framing: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\n{framing}\r\n\r\n".encode()


_WHOLE = {captured: whole(captured) for captured in (False, True)}
_STREAM = {captured: stream(captured) for captured in (False, True)}
_CARDS = orjson.dumps({"object": "list", "data": [{"id": MODEL, "object": "model", "parent": None}]})
_OTHER = _head("application/json", f"content-length: {len(_CARDS)}") + _CARDS


class Serving(asyncio.Protocol):
    """One connection; requests come one after the other.

    Attributes:
        whole, stream: the reply, by whether tokens are requested.
    """

    whole: ClassVar = _WHOLE
    stream: ClassVar = _STREAM

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own kind
        self._loop = asyncio.get_running_loop()
        self._got = b""

    def data_received(self, data: bytes) -> None:
        self._got = data = self._got + data if self._got else data
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return
        head = data[:end].lower()
        length = 0
        if (at := head.find(b"content-length:")) >= 0:
            stop = head.find(b"\r\n", at)
            length = int(head[at + 15 : stop if stop >= 0 else len(head)])
        elif b"transfer-encoding: chunked" in head:
            if not data.endswith(b"0\r\n\r\n"):
                return
            length = len(data) - end - 4
        if len(data) < end + 4 + length:
            return
        self._got = b""
        self.answer(head, data)

    def answer(self, head: bytes, data: bytes) -> None:
        """Answer one request; ``head`` is its head in lower case, ``data`` all of it."""
        if not head.startswith(b"post") or b"chat/completions" not in head[:80]:
            self._transport.write(_OTHER)
            return
        captured = b"return_token_ids" in data
        if b'"stream":true' not in data.replace(b'"stream": true', b'"stream":true'):
            self._transport.write(self.whole[captured])
            return
        pieces = self.stream[captured]
        self._transport.write(pieces[0])
        step = self._loop.call_soon
        if b'"paced"' in data:
            self._paced(pieces, 1, self._loop.time())
        else:
            step(self._quick, pieces, 1)

    def _quick(self, pieces: list[bytes], position: int) -> None:
        if not self._transport.is_closing():
            self._transport.write(pieces[position])
            if position + 1 < len(pieces):
                self._loop.call_soon(self._quick, pieces, position + 1)

    def _paced(self, pieces: list[bytes], position: int, began: float) -> None:
        """Write one piece and plan the next by the clock: a late piece does not delay those behind it. Usage follows the last token at once."""
        if not self._transport.is_closing():
            self._transport.write(pieces[position])
            if position + 1 < len(pieces):
                at = began + min(position, CHUNKS - 1) * GAP_S
                self._loop.call_at(at, self._paced, pieces, position + 1, began)


async def serve(listener: socket.socket, connection: Callable[[], asyncio.BaseProtocol] = Serving) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    server = await loop.create_server(connection, sock=listener)
    await stopped.wait()
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.bench.backend")
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", arguments.port))
    listener.listen(2048)
    uvloop.run(partial(serve, listener)())


if __name__ == "__main__":
    main()
