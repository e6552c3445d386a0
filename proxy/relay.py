"""The hot route: one chat request to the backend and its reply to the client, recorded on the way.

Plain ASGI, because awaits in the ``finally`` of a streaming response's generator are cancelled when the client leaves. What everything
here keeps to:

* the client first: a chunk goes on to the client before (or, where bytes have to be taken out, as soon as) it is read by us;
* the row before the last byte: only the closing ``data: [DONE]``, or the one body of a reply that is not streamed, waits for the commit,
  and never longer than the recorder's bound;
* what breaks, breaks visibly: a cut upstream is a cut for the client, an unreachable one a 502, a slow one a 504; each is a recorded
  turn that says so.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import orjson
from starlette.types import Message, Receive, Scope, Send

from proxy.adapters import Alias, Lease, UnknownModel
from proxy.asgi import (
    BodyTooLarge,
    ClientLeft,
    Watch,
    read_body,
    send_body,
    send_error,
    send_head,
    streamed_body,
)
from proxy.canonical import History, read_history
from proxy.classify import Kind, classify
from proxy.drafts import Draft, request_of
from proxy.ours import Caller, Wishes, header, read_wishes, request_headers, response_headers
from proxy.recorder import Recorder
from proxy.sse import DONE, EventSplitter, LastEventGate, event_data
from proxy.wire import (
    Assembler,
    ChatRequest,
    Injection,
    build_request,
    error_body,
    is_usage_only,
    parse_chat,
    refused_fields,
    strip_reply,
)
from serving.protocol import Engine, Reply
from store.errors import UpstreamError, UpstreamTimeout, UpstreamUnreachable, WireError
from store.hashing import digest
from store.lifecycle import DropReason

log = logging.getLogger(__name__)

#: So long is a local backend waited for that is being restarted, before the client is told.
PATIENCE_S = 60.0
#: A request that brought the backend down once may be tried again; one that does so every time must not.
_MOST_ATTEMPTS = 3

_LENGTH = frozenset({b"content-length"})
#: A reply that is edited must not be compressed, and the body's length is another one.
_REPLACED = frozenset({b"content-length", b"accept-encoding"})
_PLAIN = (b"accept-encoding", b"identity")

_UPSTREAM_KIND = "upstream_error"


def new_turn_id() -> str:
    """Return an id that sorts by time: microseconds since the epoch, then chance."""
    return f"turn_{time.time_ns() // 1000:014x}{secrets.token_hex(4)}"


@dataclass(slots=True)
class Counters:
    """What the relays count, for `status`."""

    in_flight: int = 0
    requests: int = 0
    passed_through: int = 0
    unfinished: int = 0
    upstream_errors: int = 0
    unrecorded: int = 0


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the client gets once the turn is written: a whole reply, or (``status`` None) the rest of a stream."""

    status: int | None
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


@dataclass(slots=True, kw_only=True)
class _Exchange:
    """One request on its way, and what is known of it so far."""

    turn_id: str
    created_at: float
    caller: Caller
    chat: ChatRequest
    wishes: Wishes
    size: int
    assembler: Assembler
    injection: Injection = field(default_factory=Injection)
    lease: Lease | None = None
    reply: Reply | None = None
    error_said: bytes | None = None
    status: int = 0
    has_started: bool = False
    is_stream: bool = False
    fault: tuple[DropReason, str] | None = None
    answer: _Answer | None = None
    history: History | None = None
    kind: Kind | None = None

    @property
    def header(self) -> tuple[bytes, bytes]:
        return b"x-patina-turn", self.turn_id.encode()

    def prepare(self) -> tuple[History, Kind]:
        """Read the history and classify the request; once, and best while the backend is at work."""
        if self.history is None or self.kind is None:
            self.history = read_history(self.chat.messages, self.caller.scope, self.wishes.user)
            if self.wishes.kind is not None:
                self.kind = Kind(kind=self.wishes.kind, reason="said by the client")
            else:
                self.kind = classify(self.chat.messages, self.chat.body)
        return self.history, self.kind

    def release(self) -> None:
        if self.reply is not None:
            self.reply.close()
        if self.lease is not None:
            self.lease.release()


class PassThrough:
    """Every path that is not ours: bytes in both directions, as they come."""

    def __init__(self, engine: Engine, counters: Counters) -> None:
        self._engine = engine
        self._counters = counters

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send, *, path: str, body: bytes | None = None
    ) -> None:
        """Relay one request; ``body`` is the request's body where it was read already."""
        self._counters.passed_through += 1
        headers = scope["headers"]
        consumed = asyncio.Event()
        has_body = header(headers, b"transfer-encoding") or header(headers, b"content-length") not in (
            None,
            "0",
        )
        if body is not None or not has_body:
            consumed.set()
            sent = request_headers(headers, drop=_LENGTH)
        else:
            sent = request_headers(headers)
        started = False

        async def pump() -> None:
            nonlocal started
            data = body if body is not None or not has_body else streamed_body(receive, consumed)
            reply = await self._engine.open(scope["method"], path, sent, data)
            try:
                await send_head(send, reply.status, response_headers(reply.headers))
                started = True
                async for chunk in reply.chunks():
                    await send_body(send, chunk, more=True)
                await send_body(send, b"")
            finally:
                reply.close()

        async def after_body() -> Message:
            await consumed.wait()
            return await receive()

        try:
            await Watch(after_body).during(pump())
        except UpstreamError as exc:
            self._counters.upstream_errors += 1
            if not started:
                await _send_upstream_error(send, exc)
            # else: nothing more is sent, and the server cuts the connection, as the upstream did


class ChatRelay:
    """``POST …/chat/completions``."""

    def __init__(
        self,
        engine: Engine,
        alias: Alias,
        recorder: Recorder,
        counters: Counters,
        through: PassThrough,
        *,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._engine = engine
        self._alias = alias
        self._recorder = recorder
        self._counters = counters
        self._through = through
        self._patience_s = patience_s
        self._refused: frozenset[str] = frozenset()

    @property
    def refused(self) -> list[str]:
        """Fields that this backend does not take, learnt from its own errors."""
        return sorted(self._refused)

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send, *, caller: Caller, path: str, session: str | None
    ) -> None:
        """Relay and record one chat request of ``caller``; ``session`` is what the path says."""
        try:
            raw = await read_body(receive)
        except ClientLeft:
            return
        except BodyTooLarge:
            await send_error(send, 413, "The request body is larger than 64 MB.", code="request_too_large")
            return
        self._counters.requests += 1
        self._counters.in_flight += 1
        try:
            chat = parse_chat(raw)
            exchange = _Exchange(
                turn_id=new_turn_id(),
                created_at=time.time(),
                caller=caller,
                chat=chat,
                wishes=read_wishes(scope["headers"], chat.body, session),
                size=len(raw),
                assembler=Assembler(chat.n),
            )
            await self._exchange(exchange, scope["headers"], receive, send, path)
        except WireError:
            # Nothing was sent yet. What is wrong with the request is the backend's to say, in its own words.
            await self._through(scope, receive, send, path=path, body=raw)
        finally:
            self._counters.in_flight -= 1

    async def _exchange(
        self,
        exchange: _Exchange,
        headers: Iterable[tuple[bytes, bytes]],
        receive: Receive,
        send: Send,
        path: str,
    ) -> None:
        stayed = True
        try:
            stayed = await Watch(receive).during(self._pump(exchange, headers, send, path))
        except UnknownModel as exc:
            await send_error(
                send, 404, str(exc), kind="invalid_request_error", code="model_not_found", param="model"
            )
            return
        except UpstreamError as exc:
            self._counters.upstream_errors += 1
            self._fail(exchange, exc)
        except asyncio.CancelledError:
            exchange.fault = (DropReason.UNFINISHED, "the proxy was stopped")
            self._submit(exchange)
            raise
        finally:
            exchange.release()
        if not stayed:
            exchange.fault = (DropReason.UNFINISHED, "the client left")
            self._counters.unfinished += 1
            self._submit(exchange)
            return
        written = self._submit(exchange)
        if written is not None:
            await self._recorder.settle(written)
        answer = exchange.answer
        if answer is None:
            return  # cut short by the backend: the server closes the connection without an end, as the backend did
        if answer.status is not None:
            await send_head(send, answer.status, answer.headers)
        await send_body(send, answer.body)

    def _fail(self, exchange: _Exchange, error: UpstreamError) -> None:
        """The backend failed: tell the client if its reply has not begun, else leave it cut."""
        if exchange.has_started:
            exchange.fault = (DropReason.UNFINISHED, str(error))
            return
        exchange.fault = (DropReason.UPSTREAM_ERROR, str(error))
        exchange.status, body = _upstream_error(error)
        exchange.answer = _Answer(
            exchange.status,
            (
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                exchange.header,
            ),
            body,
        )

    def _submit(self, exchange: _Exchange) -> asyncio.Future[None] | None:
        try:
            return self._recorder.submit(self._draft(exchange))
        except Exception as exc:  # noqa: BLE001 - a request no reader was made for must not cost its reply
            self._counters.unrecorded += 1
            log.error("turn %s cannot be recorded: %s: %s", exchange.turn_id, type(exc).__name__, exc)
            return None

    def _draft(self, exchange: _Exchange) -> Draft:
        history, kind = exchange.prepare()
        chat, lease = exchange.chat, exchange.lease
        capabilities = self._alias.capabilities
        return Draft(
            turn_id=exchange.turn_id,
            created_at=exchange.created_at,
            finished_at=time.time(),
            scope=exchange.caller.scope,
            client=exchange.caller.client,
            wishes=exchange.wishes,
            kind=kind,
            policy=lease.policy if lease is not None else self._alias.policy,
            adapter_version=lease.version if lease is not None else 0,
            status_code=exchange.status,
            streamed=exchange.is_stream,
            chat=chat,
            history=history,
            # Order of keys included: a resend is the same bytes, and anything else is another request.
            body_key=digest(history.request_key, orjson.dumps([chat.messages, request_of(chat)]).decode()),
            reply=exchange.assembler.close(),
            fault=exchange.fault,
            temperature=capabilities.default_temperature if chat.temperature is None else chat.temperature,
            logprob_mode=capabilities.logprob_mode,
            size=exchange.size,
        )

    # ---- to the backend

    async def _pump(
        self, exchange: _Exchange, headers: Iterable[tuple[bytes, bytes]], send: Send, path: str
    ) -> None:
        """Get the reply and pass it on, but for what has to wait until the turn is written (`exchange.answer`)."""
        # Runs while the request is on its way to the backend, so that nobody waits for it.
        asyncio.get_running_loop().call_soon(self._prepare, exchange)
        reply = await self._open(exchange, [*request_headers(headers, drop=_REPLACED), _PLAIN], path)
        exchange.reply = reply
        exchange.status = reply.status
        content_type = header(reply.headers, b"content-type") or ""
        exchange.is_stream = content_type.startswith("text/event-stream")
        if reply.status >= 400:
            exchange.fault = (DropReason.UPSTREAM_ERROR, f"the backend answered {reply.status}")
            self._counters.upstream_errors += 1
        if exchange.is_stream:
            await self._stream(exchange, reply, send)
        else:
            await self._whole(exchange, reply)

    def _prepare(self, exchange: _Exchange) -> None:
        try:
            exchange.prepare()
        except Exception as exc:  # noqa: BLE001 - told and counted when the draft is made from it
            log.debug("turn %s: %s", exchange.turn_id, exc)

    async def _open(self, exchange: _Exchange, headers: list[tuple[bytes, bytes]], path: str) -> Reply:
        """Send the request until an answer has begun that the client should see."""
        deadline = time.monotonic() + self._patience_s
        attempts = 0
        while True:
            attempts += 1
            lease = await self._alias.lease(exchange.chat.model, wait_s=max(0.0, deadline - time.monotonic()))
            exchange.lease = lease
            fields = self._alias.fields - self._refused
            body, exchange.injection = build_request(exchange.chat, fields=fields, served_model=lease.name)
            try:
                reply = await self._engine.open("POST", path, headers, body)
            except UpstreamUnreachable:
                lease.release()
                if not self._alias.can_wait or attempts >= _MOST_ATTEMPTS:
                    raise
                self._alias.suspect()
                continue
            if reply.status == 404 and lease.version and attempts < _MOST_ATTEMPTS:
                # A restarted backend does not know its adapters any more: the alias brings the live one back.
                reply.close()
                lease.release()
                self._alias.suspect()
                continue
            if reply.status in (400, 422) and exchange.injection.fields and not self._alias.can_wait:
                exchange.error_said = await reply.read()
                refused = refused_fields(exchange.error_said, exchange.injection)
                if refused:
                    log.warning("%s does not take %s", self._engine.address, ", ".join(refused))
                    self._refused |= frozenset(refused)
                    exchange.error_said = None
                    reply.close()
                    lease.release()
                    attempts -= 1  # bounded by the number of fields
                    continue
            return reply

    # ---- to the client

    async def _whole(self, exchange: _Exchange, reply: Reply) -> None:
        body = exchange.error_said if exchange.error_said is not None else await reply.read()
        exchange.size += len(body)
        if reply.status < 400:
            body = self._read_whole(exchange, reply, body)
        headers = response_headers(reply.headers, drop=_LENGTH)
        if header(reply.headers, b"content-length") is not None:
            headers.append((b"content-length", str(len(body)).encode()))
        exchange.answer = _Answer(reply.status, (*headers, exchange.header), body)

    def _read_whole(self, exchange: _Exchange, reply: Reply, body: bytes) -> bytes:
        encoding = header(reply.headers, b"content-encoding")
        if encoding not in (None, "identity"):
            exchange.assembler.complain(
                f"the reply is compressed ({encoding}) although identity was asked for"
            )
            return body
        try:
            payload = orjson.loads(body)
        except orjson.JSONDecodeError:
            exchange.assembler.complain("the reply is not JSON")
            return body
        exchange.assembler.take(payload, part="message")
        if isinstance(payload, dict) and exchange.injection.changes_reply:
            return strip_reply(body, payload, exchange.injection)
        return body

    async def _stream(self, exchange: _Exchange, reply: Reply, send: Send) -> None:
        await send_head(send, reply.status, [*response_headers(reply.headers, drop=_LENGTH), exchange.header])
        exchange.has_started = True
        if exchange.injection.changes_reply:
            tail = await self._stream_edited(exchange, reply, send)
        else:
            tail = await self._stream_as_is(exchange, reply, send)
        exchange.answer = _Answer(None, (), tail)

    async def _stream_edited(self, exchange: _Exchange, reply: Reply, send: Send) -> bytes:
        """Pass a stream on event by event, without what was only asked for by us; return the closing event."""
        splitter = EventSplitter()
        tail: list[bytes] = []
        try:
            async for data in reply.chunks():
                exchange.size += len(data)
                out = []
                for event in splitter.feed(data):
                    payload = event_data(event)
                    if tail or payload == DONE:
                        tail.append(event)
                    elif payload is None:
                        out.append(event)
                    else:
                        out.append(self._edit(exchange, event, payload))
                if piece := b"".join(out):
                    await send_body(send, piece, more=True)
        except UpstreamError:
            if rest := b"".join(tail) + splitter.flush():
                await send_body(send, rest, more=True)
            raise
        rest = splitter.flush()
        payload = event_data(rest) if rest else None
        if payload is not None and payload != DONE:
            rest = self._edit(exchange, rest, payload)  # an event that was never closed
        return b"".join(tail) + rest

    def _edit(self, exchange: _Exchange, event: bytes, payload: bytes) -> bytes:
        try:
            chunk = orjson.loads(payload)
        except orjson.JSONDecodeError:
            exchange.assembler.complain("an event is not JSON")
            return event
        exchange.assembler.take(chunk, part="delta")
        if not isinstance(chunk, dict):
            return event
        if exchange.injection.usage and is_usage_only(chunk):
            return b""
        stripped = strip_reply(payload, chunk, exchange.injection)
        if stripped == payload:
            return event
        if payload in event:
            return event.replace(payload, stripped, 1)
        return b"data: " + stripped + b"\n\n"  # JSON spread over several data lines

    async def _stream_as_is(self, exchange: _Exchange, reply: Reply, send: Send) -> bytes:
        """Pass a stream on byte by byte and read along; return the closing event."""
        gate, splitter = LastEventGate(), EventSplitter()
        try:
            async for data in reply.chunks():
                if piece := gate.feed(data):
                    await send_body(send, piece, more=True)
                exchange.size += len(data)
                for event in splitter.feed(data):
                    self._read_along(exchange, event)
        except UpstreamError:
            if rest := gate.flush():
                await send_body(send, rest, more=True)
            raise
        if rest := splitter.flush():
            self._read_along(exchange, rest)
        return gate.flush()

    def _read_along(self, exchange: _Exchange, event: bytes) -> None:
        payload = event_data(event)
        if payload is None or payload == DONE:
            return
        try:
            exchange.assembler.take(orjson.loads(payload), part="delta")
        except orjson.JSONDecodeError:
            exchange.assembler.complain("an event is not JSON")


def _upstream_error(error: UpstreamError) -> tuple[int, bytes]:
    status = 504 if isinstance(error, UpstreamTimeout) else 502
    code = {504: "upstream_timeout", 502: "upstream_unavailable"}[status]
    return status, error_body(str(error), kind=_UPSTREAM_KIND, code=code)


async def _send_upstream_error(send: Send, error: UpstreamError) -> None:
    status, body = _upstream_error(error)
    await send_head(
        send,
        status,
        [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())],
    )
    await send_body(send, body)
