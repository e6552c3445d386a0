"""Small pieces of ASGI that both relays use: reading a body, answering, noticing that the client has left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

import orjson
from starlette.types import Message, Receive, Scope, Send

from proxy.guard import EXTENSION, Line
from proxy.wire import error_body

#: Largest body that is read into memory. Whatever is larger passes only where it is streamed through.
MAX_BODY = 64 << 20

_JSON = (b"content-type", b"application/json")


class ClientLeft(Exception):
    """The client closed the connection before its request was answered."""


class BodyTooLarge(Exception):
    """The body is larger than `MAX_BODY`."""


async def read_body(receive: Receive, told: int | None = None) -> bytes:
    """Return the whole body, of which ``told`` bytes are announced. Raises: ClientLeft, BodyTooLarge."""
    if told is not None and told > MAX_BODY:
        raise BodyTooLarge
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientLeft
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        return body
    parts = [body]
    size = len(body)
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        part: bytes = message.get("body", b"")
        parts.append(part)
        size += len(part)
        if size > MAX_BODY:
            raise BodyTooLarge
        if not message.get("more_body", False):
            return b"".join(parts)


async def send_head(send: Send, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})


async def send_body(send: Send, body: bytes, *, more: bool = False) -> None:
    message: Message = {"type": "http.response.body", "body": body, "more_body": more}
    await send(message)


async def send_json(send: Send, status: int, value: Any, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
    """Answer with JSON; ``value`` may be encoded already."""
    body = value if isinstance(value, bytes) else orjson.dumps(value)
    await send_head(send, status, [_JSON, (b"content-length", str(len(body)).encode()), *headers])
    await send_body(send, body)


async def send_error(
    send: Send,
    status: int,
    message: str,
    *,
    kind: str = "invalid_request_error",
    code: str | None = None,
    param: str | None = None,
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> None:
    """Answer with an error in the shape that OpenAI clients understand."""
    await send_json(send, status, error_body(message, kind=kind, code=code, param=param), headers)


def line_of(scope: Scope) -> Line | None:
    """Return the connection of a request, where the server is ours (`proxy.guard`)."""
    line: Line | None = scope.get("extensions", {}).get(EXTENSION)
    return line


class Watch:
    """Stop a piece of work as soon as the client leaves.

    ``await watch.during(work)`` runs the work in the caller's own task and returns False when it was stopped. Whatever the caller does
    afterwards (recording what there is) is not cancelled: a generator's ``finally`` inside a streaming response would be.

    Args:
        line: tells that the connection is lost; without one a task waits for the server to say so.
    """

    def __init__(self, receive: Receive, line: Line | None = None) -> None:
        self._receive = receive
        self._line = line

    async def during(self, work: Coroutine[Any, Any, None]) -> bool:
        main = asyncio.current_task()
        assert main is not None  # ASGI servers call applications in tasks
        if self._line is not None:
            return await self._on_line(self._line, work, main)
        state = _State()
        watcher = asyncio.create_task(self._wait(main, state))
        try:
            await work
        except asyncio.CancelledError:
            if not state.has_left:
                raise  # the server is shutting down, not our doing
            main.uncancel()
            return False
        finally:
            state.is_over = True
            watcher.cancel()
        return True

    async def _on_line(self, line: Line, work: Coroutine[Any, Any, None], main: asyncio.Task[Any]) -> bool:
        has_left = False

        def leave() -> None:
            nonlocal has_left
            has_left = True
            main.cancel()

        line.on_lost = leave
        try:
            await work
            if has_left:
                await asyncio.sleep(0)  # the cancellation comes with the next wait: let it be this one
        except asyncio.CancelledError:
            if not has_left:
                raise  # the server is shutting down, not our doing
            main.uncancel()
            return False
        finally:
            line.on_lost = None
        return True

    async def _wait(self, main: asyncio.Task[Any], state: _State) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not state.is_over:
            state.has_left = True
            main.cancel()


class _State:
    __slots__ = ("has_left", "is_over")

    def __init__(self) -> None:
        self.has_left = False
        self.is_over = False


async def streamed_body(receive: Receive, consumed: asyncio.Event) -> AsyncIterator[bytes]:
    """Yield a request body as it arrives. Raises: ClientLeft."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        if message.get("body"):
            yield message["body"]
        if not message.get("more_body", False):
            consumed.set()
            return
