"""The built-in engine with a scripted backend in front: ``python -m lab.bench.hybrid_backend --port N --engine PORT``.

Two cores cannot sample 50 replies a second, and a Patina that learns needs sampled replies. So a request with ``"scripted": "text"`` or
``"call"`` in its body gets the scripted reply of `lab.bench.backend` or a tool call at once; every other request, and all administration, is
passed to the engine (`serving.embedded`, on the loopback), byte for byte in both directions.

Replies that were not sampled must not be trained on, and must not load the trainer: scripted replies count one token more in ``usage``
than they report, so that they are captured, linked and recorded whole and then left alone (`token_mismatch`).
"""

from __future__ import annotations

import argparse
import asyncio
import socket
from functools import partial
from typing import Any, ClassVar

import orjson
import uvloop

from lab.bench.backend import Serving, serve

_HEAD = {"id": "chatcmpl-call", "created": 1_700_000_000, "model": "patina-tiny"}
#: What a scripted call is; a client that goes on with the conversation re-sends it.
CALL: dict[str, Any] = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city":"Oslo"}'},
}
_IDS = list(range(2000, 2012))


def _logprobs() -> dict[str, Any]:
    return {"content": [{"token": "x", "logprob": -0.25, "bytes": [120], "top_logprobs": []} for _ in _IDS]}


def call(*, streamed: bool, captured: bool) -> bytes:
    """Return a reply that calls a tool, HTTP head included."""
    tokens: dict[str, Any] = {"logprobs": _logprobs(), "token_ids": _IDS} if captured else {}
    prompt: dict[str, Any] = {"prompt_token_ids": list(range(60))} if captured else {}
    usage = {"prompt_tokens": 60, "completion_tokens": len(_IDS) + 1, "total_tokens": 61 + len(_IDS)}
    if not streamed:
        message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls", **tokens}
        body = orjson.dumps(
            {**_HEAD, "object": "chat.completion", "choices": [choice], **prompt, "usage": usage}
        )
        return (
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
            + body
        )
    deltas: list[tuple[dict[str, Any], str | None]] = [
        ({"role": "assistant", "content": None}, None),
        ({"tool_calls": [{"index": 0, **CALL, "function": {"name": "get_weather", "arguments": ""}}]}, None),
        ({"tool_calls": [{"index": 0, "function": {"arguments": '{"city":"Oslo"}'}}]}, None),
        ({}, "tool_calls"),
    ]
    events = []
    for i, (delta, reason) in enumerate(deltas):
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        more = {**(tokens if i == 2 else {})}
        chunk = {**_HEAD, "object": "chat.completion.chunk", "choices": [{**choice, **more}]}
        events.append(orjson.dumps({**chunk, **(prompt if i == 0 else {})}))
    if captured:
        events.append(
            orjson.dumps({**_HEAD, "object": "chat.completion.chunk", "choices": [], "usage": usage})
        )
    events.append(b"[DONE]")
    framed = [b"data: " + event + b"\n\n" for event in events]
    body = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in framed) + b"0\r\n\r\n"
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n" + body


def _miscounted(reply: bytes) -> bytes:
    return reply.replace(b'"completion_tokens":63', b'"completion_tokens":64')


_CALLS = {(s, c): call(streamed=s, captured=c) for s in (False, True) for c in (False, True)}


class HybridConnection(Serving):
    """One connection of the proxy's."""

    whole: ClassVar = {captured: _miscounted(reply) for captured, reply in Serving.whole.items()}
    stream: ClassVar = {
        captured: [_miscounted(piece) for piece in pieces] for captured, pieces in Serving.stream.items()
    }

    def __init__(self, engine: int) -> None:
        self._engine = engine
        self._relay: asyncio.Task[None] | None = None

    def answer(self, head: bytes, data: bytes) -> None:
        if b'"scripted":"text"' in data:
            super().answer(head, data)
        elif b'"scripted":"call"' in data:
            is_stream = b'"stream":true' in data
            self._transport.write(_CALLS[is_stream, b"return_token_ids" in data])
        else:
            self._relay = asyncio.create_task(self._from_engine(head, data))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._relay is not None:
            self._relay.cancel()  # the client left: close the connection to the engine

    async def _from_engine(self, head: bytes, data: bytes) -> None:
        """Relay the engine's reply; the connection ends with it, so its length need not be known."""
        writer: asyncio.StreamWriter | None = None
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._engine)
            end = len(head)
            writer.write(data[:end] + b"\r\nconnection: close" + data[end:])
            while data := await reader.read(1 << 16):
                self._transport.write(data)
        except OSError:
            pass  # the proxy reports a connection that breaks off
        finally:
            if writer is not None:
                writer.close()
            self._transport.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.bench.hybrid_backend")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--engine", type=int, required=True, help="port of the built-in engine")
    arguments = parser.parse_args()
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", arguments.port))
    listener.listen(2048)
    uvloop.run(partial(serve, listener, partial(HybridConnection, arguments.engine))())


if __name__ == "__main__":
    main()
