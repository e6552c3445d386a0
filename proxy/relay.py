"""The hot route: one chat request to the backend and its reply to the client, recorded on the way.

Plain ASGI, because awaits in the ``finally`` of a streaming response's generator are cancelled when the client leaves. What everything
here keeps to:

* the client first: a chunk goes on to the client before (or, where bytes have to be taken out, as soon as) it is read by us;
* the row before the last byte: only the closing ``data: [DONE]``, or the last piece of a reply that is not streamed, waits for the
  commit, and never longer than the recorder's bound;
* what breaks, breaks visibly: a reply that the backend cuts is the same head and a cut for the client, streamed or not; only a
  backend that gave no answer at all is a 502, or a 504 when it could not be reached in time. Each is a recorded turn that says so.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from proxy.adapters import Alias, Lease, UnknownModel
from proxy.asgi import (
    BodyTooLarge,
    ClientLeft,
    Watch,
    line_of,
    read_body,
    send_body,
    send_error,
    send_head,
    streamed_body,
)
from proxy.canonical import History, body_key, read_history
from proxy.chunks import Usual, usual
from proxy.classify import Kind, classify
from proxy.clients import with_shape
from proxy.drafts import Draft, request_of
from proxy.earlier import Requests
from proxy.encoding import Packer, Unpacker, Unreadable, can_unpack, is_packed, readable_only, unpack
from proxy.guard import Line
from proxy.learnt import Learnt
from proxy.memory import LARGE
from proxy.ours import Caller, Wishes, header, read_wishes, request_headers, response_headers, told_length
from proxy.recorder import Recorder
from proxy.sse import DONE, EventSplitter, LastEventGate, event_data, with_data
from proxy.wire import (
    Assembler,
    ChatRequest,
    Habits,
    Injection,
    build_request,
    error_body,
    first_addition,
    is_tokens_only,
    is_usage_only,
    learn_habits,
    parse_chat,
    read_reply,
    refused_fields,
    strip_reply,
)
from serving.protocol import Engine, Reply
from store.errors import (
    UpstreamConnectTimeout,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnreachable,
    WireError,
)
from store.lifecycle import DropReason
from store.values import Json

log = logging.getLogger(__name__)

#: So long is a local backend waited for that is being restarted, before the client is told.
PATIENCE_S = 60.0
#: A request that brought the backend down once may be tried again; one that does so every time must not.
_MOST_ATTEMPTS = 3

_LENGTH = frozenset({b"content-length"})
#: The body's length is another one once something was added, and a reply has to be readable here.
_REPLACED = frozenset({b"content-length", b"accept-encoding"})
#: A refusal of a field comes as one of these; the second kind only counts when it names the field.
_REFUSALS, _NAMED_REFUSALS = frozenset({400, 422}), frozenset({400, 403, 422, 500, 501})
#: So much of a reply that is passed on as it comes is kept to be read for the record.
_MOST_KEPT = 64 << 20
#: The opening chunks of a stream tell a backend's habits.
_OPENING = 3
#: So many chunks of a stream are tried as the pattern for the others.
_TRIES = 12
_BLANK = b" \t\r\n"

_UPSTREAM_KIND = "upstream_error"
#: What a backend in good health says of a request that is wrong in itself: bad content, too long, of another type. Not 401 and 404:
#: a key or a model that the backend does not take may be our own setting.
_REFUSALS = frozenset({400, 413, 415, 422})
#: Ids are no secrets: a generator that is seeded once will do.
_CHANCE = random.Random(secrets.randbits(256))


def new_turn_id() -> str:
    """Return an id that sorts by time: microseconds since the epoch, then chance."""
    return f"turn_{time.time_ns() // 1000:014x}{_CHANCE.getrandbits(32):08x}"


@dataclass(slots=True)
class Counters:
    """What the relays count, for `status`."""

    in_flight: int = 0
    requests: int = 0
    passed_through: int = 0
    unfinished: int = 0
    requests_refused: int = 0  #: by the backend, for what the client had sent
    upstream_errors: int = 0
    unrecorded: int = 0
    large: int = 0  #: bodies that may leave holes in the heap
    not_captured: Counter[str] = field(default_factory=Counter)  #: chat requests passed on unread, by why


@dataclass(slots=True)
class _Answer:
    """What the client gets once the turn is written: a whole reply, or (``status`` None) the rest of a stream."""

    status: int | None
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class _Heard:
    """An error's body, read to see what it is about; ``fault`` when it was cut short."""

    body: bytes
    fault: UpstreamError | None


@dataclass(slots=True, kw_only=True)
class _Exchange:
    """One request on its way, and what is known of it so far."""

    turn_id: str
    created_at: float
    caller: Caller
    raw: bytes
    chat: ChatRequest
    wishes: Wishes
    size: int
    assembler: Assembler
    line: Line | None = None
    injection: Injection = field(default_factory=Injection)
    lease: Lease | None = None
    reply: Reply | None = None
    heard: _Heard | None = None
    chunks_read: int = 0
    usual: list[Usual] = field(default_factory=list)
    habits: Habits | None = None  # those that ``usual`` was found under
    tries: int = 0
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
            chat = self.chat
            before = chat.before.history if chat.before is not None else None
            self.history = read_history(chat.messages, self.caller.scope, self.wishes.user, before)
            if chat.remembered is not None:
                chat.remembered.history = self.history
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
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        path: str,
        body: bytes | None = None,
        passes_credentials: bool = False,
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
            sent = request_headers(headers, drop=_LENGTH, passes_credentials=passes_credentials)
        else:
            sent = request_headers(headers, passes_credentials=passes_credentials)
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
            await Watch(after_body, line_of(scope) if consumed.is_set() else None).during(pump())
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
        learnt: Learnt | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._engine = engine
        self._alias = alias
        self._recorder = recorder
        self._counters = counters
        self._through = through
        self._patience_s = patience_s
        self._learnt = learnt or Learnt(engine.address)
        self._earlier = Requests()

    @property
    def refused(self) -> list[str]:
        """Fields that this backend does not take, learnt from its own errors."""
        return self._learnt.refused

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send, *, caller: Caller, path: str, session: str | None
    ) -> None:
        """Relay and record one chat request of ``caller``; ``session`` is what the path says."""
        try:
            raw = await read_body(receive, told_length(scope["headers"]))
        except ClientLeft:
            return
        except BodyTooLarge:
            await send_error(send, 413, "The request body is larger than 64 MB.", code="request_too_large")
            return
        self._counters.requests += 1
        self._counters.in_flight += 1
        try:
            chat = parse_chat(raw, self._earlier)
            exchange = _Exchange(
                turn_id=new_turn_id(),
                created_at=time.time(),
                caller=caller,
                raw=raw,
                chat=chat,
                wishes=_wishes(scope["headers"], chat, session, caller),
                size=len(raw),
                assembler=Assembler(chat.n),
                line=line_of(scope),
            )
            await self._exchange(exchange, scope, receive, send, path)
        except WireError as exc:
            # Nothing was sent yet. What is wrong with the request is the backend's to say, in its own words.
            self._counters.not_captured[str(exc).partition(":")[0]] += 1
            await self._through(
                scope, receive, send, path=path, body=raw, passes_credentials=caller.passes_credentials
            )
        finally:
            self._counters.in_flight -= 1
            self._counters.large += len(raw) >= LARGE

    async def _exchange(
        self,
        exchange: _Exchange,
        scope: Scope,
        receive: Receive,
        send: Send,
        path: str,
    ) -> None:
        stayed, line = True, exchange.line
        try:
            stayed = await Watch(receive, line).during(self._pump(exchange, scope["headers"], send, path))
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
            await self._settle(exchange, written)
        answer = exchange.answer
        if answer is None:
            return  # cut short by the backend: the server closes the connection without an end, as the backend did
        if answer.status is None:
            await send_body(send, answer.body)
            return
        if line is not None:
            line.hold()
        await send_head(send, answer.status, answer.headers)
        await send_body(send, answer.body)
        if line is not None:
            line.let_go()

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

    async def _settle(self, exchange: _Exchange, written: asyncio.Future[None]) -> None:
        try:
            await self._recorder.settle(written)
        except Exception as exc:  # noqa: BLE001 - what cannot be kept must not cost its reply
            self._counters.unrecorded += 1
            log.error("turn %s cannot be kept safe: %s: %s", exchange.turn_id, type(exc).__name__, exc)

    def _draft(self, exchange: _Exchange) -> Draft:
        history, kind = exchange.prepare()
        chat, lease = exchange.chat, exchange.lease
        capabilities = self._alias.capabilities
        return Draft(
            turn_id=exchange.turn_id,
            created_at=exchange.created_at,
            finished_at=time.time(),
            scope=exchange.caller.scope,
            client=with_shape(exchange.caller.client, chat.body),
            wishes=exchange.wishes,
            kind=kind,
            policy=lease.policy if lease is not None else self._alias.policy,
            adapter_version=lease.version if lease is not None else 0,
            status_code=exchange.status,
            streamed=exchange.is_stream,
            chat=chat,
            history=history,
            body_key=body_key(history, request_of(chat)),
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
        passes = exchange.caller.passes_credentials
        sent = request_headers(headers, drop=_REPLACED, passes_credentials=passes)
        accept = header(headers, b"accept-encoding")
        if accept is not None:
            sent.append((b"accept-encoding", readable_only(accept).encode("latin-1")))
        reply = await self._open(exchange, sent, path)
        exchange.raw = b""
        exchange.status = reply.status
        content_type = (header(reply.headers, b"content-type") or "").lower()
        exchange.is_stream = content_type.startswith("text/event-stream")
        if reply.status in _REFUSALS:
            exchange.fault = (DropReason.REQUEST_REFUSED, f"the backend answered {reply.status}")
            self._counters.requests_refused += 1
        elif reply.status >= 400:
            exchange.fault = (DropReason.UPSTREAM_ERROR, f"the backend answered {reply.status}")
            self._counters.upstream_errors += 1
        encoding = header(reply.headers, b"content-encoding")
        is_editable = (
            exchange.injection.changes_reply
            and reply.status < 400
            and (not is_packed(encoding) or can_unpack(encoding))
        )
        packing = encoding if encoding is not None and is_packed(encoding) else None
        if exchange.is_stream and is_editable:
            await self._stream_edited(exchange, reply, send, packing)
        elif exchange.is_stream:
            await self._stream_as_is(exchange, reply, send, packing)
        elif is_editable and (not content_type or "json" in content_type):
            await self._whole_edited(exchange, reply, send, packing)
        else:
            await self._whole_as_is(exchange, reply, send, packing)

    def _prepare(self, exchange: _Exchange) -> None:
        try:
            exchange.prepare()
        except Exception as exc:  # noqa: BLE001 - told and counted when the draft is made from it
            log.debug("turn %s: %s", exchange.turn_id, exc)

    async def _open(self, exchange: _Exchange, headers: list[tuple[bytes, bytes]], path: str) -> Reply:
        """Send the request until an answer has begun that the client should see."""
        deadline = time.monotonic() + self._patience_s
        attempts = 0
        left_out: frozenset[str] = frozenset()
        was_broken = False
        while True:
            attempts += 1
            lease = await self._alias.lease(exchange.chat.model, wait_s=max(0.0, deadline - time.monotonic()))
            exchange.lease = lease
            # A turn that will never train needs no tokens; its reply, left alone, also shows the backend's habits.
            wanted = frozenset[str]() if exchange.wishes.is_opted_out else self._alias.fields
            fields = self._learnt.takes(wanted, exchange.chat.model) - left_out
            body, exchange.injection = build_request(
                exchange.raw, exchange.chat, fields=fields, served_model=lease.name
            )
            try:
                reply = await self._engine.open("POST", path, headers, body)
            except (UpstreamUnreachable, UpstreamConnectTimeout):
                lease.release()
                if not self._alias.can_wait or attempts >= _MOST_ATTEMPTS:
                    raise
                self._alias.suspect()
                continue
            exchange.reply = reply  # from here on it is closed whatever happens
            if reply.status == 404 and lease.version and attempts < _MOST_ATTEMPTS:
                # A restarted backend does not know its adapters any more: the alias brings the live one back.
                reply.close()
                lease.release()
                self._alias.suspect()
                continue
            suspected = await self._suspected(exchange, reply, is_retry=bool(left_out))
            if suspected:
                left_out |= suspected
                was_broken = reply.status >= 500
                reply.close()
                lease.release()
                attempts -= 1  # bounded by the number of fields
                continue
            if reply.status < 400:
                self._learnt.prove(exchange.injection.fields)
                if left_out:
                    self._learnt.refuse(left_out, exchange.chat.model, is_sure=not was_broken)
            return reply

    async def _suspected(self, exchange: _Exchange, reply: Reply, *, is_retry: bool) -> frozenset[str]:
        """Return which of the fields that we added may be what the backend refuses; they are left out and it is asked again.

        If it answers then, they were. If it refuses again with none of them left, it is the client's own error, told about the
        client's own request.
        """
        exchange.heard = None
        added = exchange.injection.fields
        if not added or reply.status not in _NAMED_REFUSALS:
            return frozenset()
        exchange.heard = heard = await _hear(reply)
        encoding = header(reply.headers, b"content-encoding")
        try:
            said = unpack(heard.body, encoding) if encoding and is_packed(encoding) else heard.body
        except Unreadable:
            said = b""
        if named := refused_fields(said, exchange.injection):
            return frozenset(named)
        if reply.status in _REFUSALS and (is_retry or not self._learnt.is_proven(added)):
            return frozenset(added)
        return frozenset()

    # ---- to the client: a reply that is not streamed

    async def _head(self, exchange: _Exchange, reply: Reply, send: Send, *, is_edited: bool) -> None:
        """Send the backend's head and the turn's id. The length of what will be edited is not known yet."""
        headers = response_headers(reply.headers, drop=_LENGTH if is_edited else frozenset())
        exchange.has_started = True
        await send_head(send, reply.status, [*headers, exchange.header])

    async def _pieces(self, exchange: _Exchange, reply: Reply) -> AsyncIterator[bytes]:
        """Yield the body as it arrives, and count it."""
        if exchange.heard is not None:
            exchange.size += len(exchange.heard.body)
            if exchange.heard.body:
                yield exchange.heard.body
            if exchange.heard.fault is not None:
                raise exchange.heard.fault
            return
        async for data in reply.chunks():
            exchange.size += len(data)
            yield data

    async def _whole_as_is(self, exchange: _Exchange, reply: Reply, send: Send, encoding: str | None) -> None:
        """Pass a body on as it comes, but for its last piece, or its end where its length was not told."""
        left = told_length(reply.headers)
        await self._head(exchange, reply, send, is_edited=False)
        kept: list[bytes] = []
        last = b""
        async for data in self._pieces(exchange, reply):
            if exchange.size <= _MOST_KEPT:
                kept.append(data)
            if left is not None:
                left -= len(data)
                if left <= 0:
                    last = data
                    continue
            await send_body(send, data, more=True)
        exchange.answer = _Answer(None, (), last)
        if reply.status >= 400:
            return
        if exchange.size > _MOST_KEPT:
            exchange.assembler.complain("the reply is too large to be read")
            return
        try:
            body = b"".join(kept)
            payload, problem = read_reply(unpack(body, encoding) if encoding is not None else body)
        except Unreadable as exc:
            exchange.assembler.complain(str(exc))
            return
        self._take_whole(exchange, payload, problem)

    async def _whole_edited(
        self, exchange: _Exchange, reply: Reply, send: Send, encoding: str | None
    ) -> None:
        """Read a body to its end, to pass it on without what was only asked for by us.

        White space in front keeps impatient clients waiting while a model is at work: it goes on at once, as does the head where no
        length is told.
        """
        is_open = header(reply.headers, b"content-length") is None
        if is_open:
            await self._head(exchange, reply, send, is_edited=True)
        kept: list[bytes] = []
        try:
            async for data in self._pieces(exchange, reply):
                if is_open and not kept and encoding is None:
                    rest = data.lstrip(_BLANK)
                    if blank := data[: len(data) - len(rest)]:
                        await send_body(send, blank, more=True)
                    data = rest
                if data:
                    kept.append(data)
        except UpstreamError:
            if not is_open:
                # As the client would see it from the backend: this head, and less than it promises.
                await self._head(exchange, reply, send, is_edited=False)
            raise
        body = self._stripped(exchange, b"".join(kept), encoding)
        if is_open:
            exchange.answer = _Answer(None, (), body)
            return
        headers = response_headers(reply.headers, drop=_LENGTH)
        length = (b"content-length", str(len(body)).encode())
        exchange.answer = _Answer(reply.status, (*headers, length, exchange.header), body)

    def _stripped(self, exchange: _Exchange, body: bytes, encoding: str | None) -> bytes:
        """Return a whole reply without what was added, read and noted down on the way."""
        try:
            plain = unpack(body, encoding) if encoding is not None else body
        except Unreadable as exc:
            exchange.assembler.complain(str(exc))
            return body
        payload, problem = read_reply(plain)
        self._take_whole(exchange, payload, problem)
        if not isinstance(payload, dict):
            return body
        try:
            stripped = strip_reply(plain, payload, exchange.injection, self._learnt.habits)
        except ValueError as exc:
            exchange.assembler.complain(f"the reply cannot be edited: {exc}")
            return body
        if stripped == plain:
            return body
        return stripped if encoding is None else Packer(encoding).end(stripped)

    def _take_whole(self, exchange: _Exchange, payload: Any, problem: str) -> None:
        if problem:
            exchange.assembler.complain(problem)
        if payload is None:
            return
        exchange.assembler.take(payload, part="message")
        if isinstance(payload, dict):
            self._learn(exchange, payload)

    def _learn(self, exchange: _Exchange, payload: Json) -> None:
        self._learnt.note(learn_habits(self._learnt.habits, payload, exchange.injection, exchange.chat.body))

    # ---- to the client: a stream

    async def _stream_edited(
        self, exchange: _Exchange, reply: Reply, send: Send, encoding: str | None
    ) -> None:
        """Pass a stream on event by event, without what was only asked for by us; its closing event waits for the commit."""
        line = exchange.line if getattr(reply, "is_ahead", False) else None
        if line is not None:
            line.hold()  # the first events came with the head: they leave with it
        await self._head(exchange, reply, send, is_edited=True)
        splitter = EventSplitter()
        unpacker = Unpacker(encoding) if encoding is not None else None
        packer = Packer(encoding) if encoding is not None else None
        tail: list[bytes] = []
        try:
            async for data in self._pieces(exchange, reply):
                out: list[bytes] = []
                rest = self._usual_events(
                    exchange, splitter, unpacker.feed(data) if unpacker is not None else data, out, tail
                )
                for event in splitter.feed(rest) if rest else ():
                    self._take_event(exchange, event, out, tail)
                if piece := b"".join(out):
                    await send_body(send, packer.feed(piece) if packer is not None else piece, more=True)
                if line is not None:
                    line.let_go()
                    line = None
        except UpstreamError:
            if rest := b"".join(tail) + self._torn(exchange, splitter.flush()):
                await send_body(send, packer.feed(rest) if packer is not None else rest, more=True)
            raise
        except Unreadable as exc:
            # Half of it has left in another packing: it cannot go on as it is.
            raise UpstreamError(f"the backend at {self._engine.address} broke off its answer: {exc}") from exc
        finally:
            if line is not None:
                line.let_go()
        rest = splitter.flush()
        payload = event_data(rest) if rest else None
        if payload is not None and payload != DONE:
            rest = self._edit(exchange, rest, payload)  # an event that was never closed
        end = b"".join(tail) + rest
        exchange.answer = _Answer(None, (), packer.end(end) if packer is not None else end)

    def _usual_events(
        self, exchange: _Exchange, splitter: EventSplitter, data: bytes, out: list[bytes], tail: list[bytes]
    ) -> bytes:
        """Take whole events off the front of ``data``, the usual ones in strides; returns what is left for the splitter."""
        if tail:
            return data
        buffer = splitter.flush() + data
        if b"\r" in buffer:
            return buffer
        at = 0
        while not tail:
            began = at
            for known in exchange.usual if exchange.habits is self._learnt.habits else ():
                at = known.take(buffer, at, out)
            if at > began:
                exchange.chunks_read = (
                    _OPENING  # what is like one that was read teaches nothing that it did not
                )
                continue
            end = buffer.find(b"\n\n", at)
            if end < 0:
                break
            self._take_event(exchange, buffer[at : end + 2], out, tail)
            at = end + 2
        return buffer[at:]

    def _take_event(self, exchange: _Exchange, event: bytes, out: list[bytes], tail: list[bytes]) -> None:
        """Add what the client gets of an event to ``out``; from the closing one on they wait in ``tail``."""
        payload = event_data(event)
        if tail or payload == DONE:
            tail.append(event)
        elif payload is None:
            out.append(event)
        else:
            out.append(self._edit(exchange, event, payload))

    def _look_for_usual(
        self, exchange: _Exchange, event: bytes, payload: bytes, chunk: Json, shown: bytes
    ) -> None:
        """See whether the next chunks will be like this one."""
        exchange.tries += 1
        found = usual(event, payload, chunk, shown)
        if found is not None:
            exchange.assembler.follow(found)
            exchange.habits = self._learnt.habits
            exchange.usual = [known for known in exchange.usual if known.index != found.index] + [found]

    def _edit(self, exchange: _Exchange, event: bytes, payload: bytes) -> bytes:
        chunk, problem = read_reply(payload)
        if problem:
            exchange.assembler.complain("an event is not JSON")
        if chunk is None:
            return event
        exchange.assembler.take(chunk, part="delta")
        if not isinstance(chunk, dict):
            return event
        if exchange.chunks_read < _OPENING:
            exchange.chunks_read += 1
            self._learn(exchange, chunk)
        injection = exchange.injection
        if injection.usage and is_usage_only(chunk):
            return b""
        adds = injection.logprobs or injection.token_ids or injection.usage
        if adds and is_tokens_only(chunk, exchange.chat.body):
            return b""
        try:
            stripped = strip_reply(payload, chunk, exchange.injection, self._learnt.habits)
        except ValueError as exc:
            exchange.assembler.complain(f"an event cannot be edited: {exc}")
            return event
        shown = event if stripped == payload else with_data(event, payload, stripped)
        if exchange.tries < _TRIES and exchange.chunks_read > 1:
            self._look_for_usual(exchange, event, payload, chunk, shown)
        return shown

    def _torn(self, exchange: _Exchange, event: bytes) -> bytes:
        """Return what a client may see of the event that a stream was cut in: nothing from the first thing on that only we asked for."""
        payload = event_data(event)
        if payload is not None and payload != DONE and read_reply(payload)[0] is not None:
            return self._edit(exchange, event, payload)  # all of it but its last line end
        return event[: first_addition(event, exchange.injection)]

    async def _stream_as_is(
        self, exchange: _Exchange, reply: Reply, send: Send, encoding: str | None
    ) -> None:
        """Pass a stream on byte by byte and read along; its closing event waits for the commit."""
        await self._head(exchange, reply, send, is_edited=False)
        gate, splitter = LastEventGate(), EventSplitter()
        unpacker = Unpacker(encoding) if encoding is not None and can_unpack(encoding) else None
        is_readable = encoding is None or unpacker is not None
        if not is_readable:
            exchange.assembler.complain(f"the reply is compressed ({encoding})")
        held: list[bytes] = []
        try:
            async for data in self._pieces(exchange, reply):
                plain = data
                if unpacker is not None:
                    try:
                        plain = unpacker.feed(data)
                    except Unreadable as exc:
                        exchange.assembler.complain(str(exc))
                        is_readable, unpacker = False, None
                if is_readable:
                    piece = gate.feed(plain)
                    if (
                        encoding is not None
                    ):  # what is packed is not cut in two: from the closing event's piece on it waits
                        piece = b"" if gate.is_closed else data
                        held += [data] if gate.is_closed else []
                else:
                    piece = data
                if piece:
                    await send_body(send, piece, more=True)
                if is_readable:
                    for event in splitter.feed(plain):
                        self._read_along(exchange, event)
        except UpstreamError:
            if rest := b"".join(held) if encoding is not None else gate.flush():
                await send_body(send, rest, more=True)
            raise
        if rest := splitter.flush():
            self._read_along(exchange, rest)
        exchange.answer = _Answer(None, (), b"".join(held) if encoding is not None else gate.flush())

    def _read_along(self, exchange: _Exchange, event: bytes) -> None:
        payload = event_data(event)
        if payload is None or payload == DONE:
            return
        chunk, problem = read_reply(payload)
        if problem:
            exchange.assembler.complain("an event is not JSON")
        if chunk is None:
            return
        exchange.assembler.take(chunk, part="delta")
        if exchange.chunks_read < _OPENING and isinstance(chunk, dict):
            exchange.chunks_read += 1
            self._learn(exchange, chunk)


async def _hear(reply: Reply) -> _Heard:
    """Read an error's body; what came of one that is cut short is kept."""
    parts: list[bytes] = []
    try:
        async for data in reply.chunks():
            parts.append(data)
    except UpstreamError as exc:
        return _Heard(b"".join(parts), exc)
    return _Heard(b"".join(parts), None)


def _wishes(
    headers: Iterable[tuple[bytes, bytes]], chat: ChatRequest, session: str | None, caller: Caller
) -> Wishes:
    wishes = read_wishes(headers, chat.body, session)
    return wishes if caller.trains else replace(wishes, is_opted_out=True)


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
