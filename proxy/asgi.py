"""ASGI helpers: read a body, send a response, detect a client's disconnect."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any

import orjson
from starlette.types import Message, Receive, Scope, Send

from proxy.api_error import build_error_body
from proxy.http_protocol import CONNECTION_EXTENSION, ClientConnection
from wire.api_translation import Untranslatable
from wire.content_encoding import TooMuch, UndecodableBody, UnknownEncoding, decode_request, is_encoded
from wire.headers import Headers, content_length, get_header

#: Largest body that is read into memory. Larger bodies pass only where they are streamed.
MAX_BODY = 64 << 20

_JSON = (b"content-type", b"application/json")


class ClientDisconnected(Exception):
    """The client closed the connection before its request was answered."""


class BodyTooLarge(Exception):
    """The body is larger than `MAX_BODY`."""


async def read_body(receive: Receive, content_length: int | None = None) -> bytes:
    """Return the whole body; ``content_length`` is the announced size. Raises: ClientDisconnected, BodyTooLarge."""
    if content_length is not None and content_length > MAX_BODY:
        raise BodyTooLarge
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnected
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        return body
    parts = [body]
    size = len(body)
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        part: bytes = message.get("body", b"")
        parts.append(part)
        size += len(part)
        if size > MAX_BODY:
            raise BodyTooLarge
        if not message.get("more_body", False):
            return b"".join(parts)


async def decode_body(body: bytes, headers: Headers) -> bytes:
    """Return a request's body without its content encoding. Raises: UndecodableBody, BodyTooLarge."""
    encoding = get_header(headers, b"content-encoding")
    try:
        if is_encoded(encoding):  # a small body may unpack to a large one
            return await asyncio.to_thread(decode_request, body, encoding, MAX_BODY)
        return decode_request(body, None, MAX_BODY)
    except TooMuch as exc:
        raise BodyTooLarge from exc


async def read_json(receive: Receive, headers: Headers) -> bytes:
    """Return the whole body of a request that Patina answers. Raises: ClientDisconnected, BodyTooLarge, Untranslatable."""
    try:
        return await decode_body(await read_body(receive, content_length(headers)), headers)
    except UndecodableBody as exc:
        raise refused_encoding(exc) from exc


def refused_encoding(error: UndecodableBody) -> Untranslatable:
    """Return the refusal of a body that could not be decoded."""
    if isinstance(error, UnknownEncoding):
        message = f"The content encoding '{error}' is not supported: use gzip, deflate, br, zstd or none."
        return Untranslatable(message, status=415, code="unsupported_encoding")
    return Untranslatable(f"The request's content encoding does not fit: {error}.")


# A chunk of a stream passes all of the following: they return the inner awaitable, which is cheaper than a coroutine each.


def send_head(send: Send, status: int, headers: Sequence[tuple[bytes, bytes]]) -> Awaitable[None]:
    return send({"type": "http.response.start", "status": status, "headers": list(headers)})


def send_body(send: Send, body: bytes, *, more: bool = False) -> Awaitable[None]:
    return send({"type": "http.response.body", "body": body, "more_body": more})


async def send_json(send: Send, status: int, value: Any, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
    """Send a JSON response; ``value`` may be encoded already."""
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
    """Send an error in the OpenAI format."""
    await send_json(send, status, build_error_body(message, kind=kind, code=code, param=param), headers)


def client_connection(scope: Scope) -> ClientConnection | None:
    """Return the connection of a request, where the server is `proxy.http_protocol`."""
    connection: ClientConnection | None = scope.get("extensions", {}).get(CONNECTION_EXTENSION)
    return connection


def with_request_id(send: Send, *names: bytes) -> Send:
    """Return a ``send`` that sets these header fields to the request's id, where the backend did not: SDKs show it with errors."""

    def naming(message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            headers = message["headers"]
            missing = [name for name in names if get_header(headers, name) is None]
            if missing:
                turn_id = get_header(headers, b"x-patina-turn") or f"req_{uuid.uuid4().hex}"
                message = {**message, "headers": [*headers, *((name, turn_id.encode()) for name in missing)]}
        return send(message)

    return naming


def with_error_body(send: Send, rewrite: Callable[[int, bytes], bytes]) -> Send:
    """Return a ``send`` that rewrites the bodies of JSON errors, and passes everything else as it is."""
    head: Message = {}
    body: list[bytes] = []

    async def hold(message: Message) -> None:
        if not head:
            head.update(message)
            return
        body.append(message.get("body", b""))
        if not message.get("more_body", False):
            fields = [f for f in head["headers"] if f[0].lower() not in (b"content-length", b"content-type")]
            await send_json(send, head["status"], rewrite(head["status"], b"".join(body)), fields)

    def rewriting(message: Message) -> Awaitable[None]:
        is_held = head or (message["type"] == "http.response.start" and _is_json_error(message))
        return hold(message) if is_held else send(message)

    return rewriting


def _is_json_error(head: Message) -> bool:
    headers = head["headers"]
    kind = get_header(headers, b"content-type") or ""
    return (
        head["status"] >= 400
        and kind.startswith("application/json")
        and get_header(headers, b"content-encoding") is None
    )


class DisconnectWatcher:
    """Cancel a piece of work when the client disconnects.

    ``await watcher.run(work)`` runs the work in the caller's task and returns False when it was cancelled. What the caller does afterwards
    (record the partial turn) is not cancelled, unlike a generator's ``finally`` inside a streaming response.

    Args:
        connection: reports the loss of the connection; without one, a task waits for the server's disconnect message.
    """

    def __init__(self, receive: Receive, connection: ClientConnection | None = None) -> None:
        self._receive = receive
        self._connection = connection

    async def run(self, work: Coroutine[Any, Any, None]) -> bool:
        main = asyncio.current_task()
        assert main is not None  # ASGI servers call applications in tasks
        if self._connection is not None:
            return await self._run_with_connection(self._connection, work, main)
        state = _WatchState()
        watcher = asyncio.create_task(self._wait_for_disconnect(main, state))
        try:
            await work
        except asyncio.CancelledError:
            if not state.has_left:
                raise  # the server is shutting down
            main.uncancel()
            return False
        finally:
            state.is_over = True
            watcher.cancel()
        return True

    async def _run_with_connection(
        self, connection: ClientConnection, work: Coroutine[Any, Any, None], main: asyncio.Task[Any]
    ) -> bool:
        has_left = False

        def leave() -> None:
            nonlocal has_left
            has_left = True
            main.cancel()

        connection.on_lost = leave
        try:
            await work
            if has_left:
                await asyncio.sleep(0)  # the cancellation is raised at the next await: make it this one
        except asyncio.CancelledError:
            if not has_left:
                raise  # the server is shutting down, not our doing
            main.uncancel()
            return False
        finally:
            connection.on_lost = None
        return True

    async def _wait_for_disconnect(self, main: asyncio.Task[Any], state: _WatchState) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not state.is_over:
            state.has_left = True
            main.cancel()


class _WatchState:
    __slots__ = ("has_left", "is_over")

    def __init__(self) -> None:
        self.has_left = False
        self.is_over = False


async def stream_body(receive: Receive, consumed: asyncio.Event) -> AsyncIterator[bytes]:
    """Yield a request body as it arrives. Raises: ClientDisconnected."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        if message.get("body"):
            yield message["body"]
        if not message.get("more_body", False):
            consumed.set()
            return
