"""The chat relay: forwards one chat request to the backend and its reply to the client, and records both.

Plain ASGI, because awaits in the ``finally`` of a streaming response's generator are cancelled when the client disconnects. Rules:

* The client comes first: a chunk is sent to the client before it is parsed or, where bytes must be removed, as soon as it is parsed.
* The journal precedes the last byte: the closing ``data: [DONE]``, or the last piece of a reply that is not streamed, leaves when the exchange
  is in the journal. If the journal cannot be written, the client is served all the same, and the exchange waits in memory.
* Of the client's request only these bytes change: the model's name, the fields that ask for tokens, and the active wishes (`wire.wish_text`).
* Failures stay visible: a reply that the backend truncates is the same head and a truncated body for the client, streamed or not. Only a
  backend without any response is a 502, or a 504 after a connection timeout. Each is a recorded turn with its drop reason.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from proxy.adapters import AdapterBusy, Alias, Lease, ModelRequest, UnknownModel
from proxy.answers import send_busy
from proxy.api_error import build_error_body
from proxy.asgi import (
    MAX_BODY,
    BodyTooLarge,
    ClientDisconnected,
    DisconnectWatcher,
    client_connection,
    decode_body,
    read_body,
    refused_encoding,
    send_body,
    send_error,
    send_head,
    stream_body,
)
from proxy.auth import Principal
from proxy.backend_quirks import BackendQuirks
from proxy.client_names import add_client_hint
from proxy.heap import LARGE_BODY_BYTES
from proxy.http_protocol import ClientConnection
from proxy.issued import IssuedTurns
from proxy.prompt_wishes import PromptText, PromptWishes
from proxy.recent_turns import RecentTurns
from serving.protocol import BackendClient, BackendReply
from store.canary_arms import conversation_of
from store.errors import (
    UpstreamConnectTimeout,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnreachable,
    WireError,
)
from store.journal import EntryKind, JournalWriter
from store.keys import DEFAULT
from store.lifecycle import DropReason
from store.values import Json
from store.version import COMMAND
from wire.api_translation import ApiRequest
from wire.captured_exchange import CapturedExchange, dump_exchange
from wire.chat_request import ChatRequest, Injection, build_request, parse_chat
from wire.chunk_template import ChunkTemplate, derive_template
from wire.completion_request import API_NAME, CompletionAssembler, parse_completion
from wire.content_encoding import (
    Compressor,
    Decompressor,
    UndecodableBody,
    can_decode,
    decompress,
    is_encoded,
    supported_encodings,
)
from wire.headers import (
    Headers,
    RequestOptions,
    content_length,
    forward_request_headers,
    forward_response_headers,
    get_header,
    parse_request_options,
)
from wire.lenient_json import load_json
from wire.prefix_cache import MAX_BYTES as MAX_CACHED_BYTES
from wire.prefix_cache import PrefixCache
from wire.reply_assembly import Assembler
from wire.reply_strip import (
    NullFieldStyle,
    find_first_addition,
    is_tokens_only,
    is_usage_only,
    observe_null_style,
    read_reply,
    refused_fields,
    strip_reply,
)
from wire.sse import DONE, DoneEventHolder, EventSplitter, event_data, looks_like_events, replace_data
from wire.wish_text import count_in_usage, takes_wishes

log = logging.getLogger(__name__)

#: Longest time that a request waits for a local backend that restarts.
BACKEND_WAIT_S = 60.0
#: A request during which the backend died may be retried; one that kills it each time must not.
_MAX_ATTEMPTS = 3

_CONTENT_LENGTH = frozenset({b"content-length"})
#: Fields that are replaced: additions change the length and the encoding, and the proxy must be able to decode the reply.
_REPLACED = frozenset({b"content-length", b"content-encoding", b"accept-encoding"})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
#: Statuses with which backends refuse an unknown field.
_FIELD_REFUSALS = frozenset({400, 422})
#: Statuses that count as a refusal of a field when the error names the field.
_NAMED_FIELD_REFUSALS = frozenset({400, 403, 422, 500, 501})
#: A longer reply is forwarded as it comes and not recorded: parsed, it would take many times its size.
_MAX_KEPT_BYTES = 64 << 20
_TOO_LARGE = "the reply is too large to be read"
#: Bytes of all requests in flight; beyond it a large request is asked to come again.
MAX_HELD_BYTES, _LARGE_REQUEST_BYTES = 256 << 20, 1 << 20
#: Bodies of more bytes are parsed in a thread. They are not in the prefix cache, which is not thread-safe.
_THREAD_PARSE_BYTES = MAX_CACHED_BYTES
#: The first chunks of a stream show the backend's null style.
_NULL_STYLE_CHUNKS = 3
#: Chunks of a stream that are tried as a template for the others.
_MAX_TEMPLATE_ATTEMPTS = 12
_BLANK = b" \t\r\n"
#: zlib's window for gzip or zlib, whichever the data is.
_ANY_WINDOW = 47

#: Longest time that a reply waits for a slow disk.
JOURNAL_WAIT_S = 5.0

#: Parts of a path that are counted by: "", "v1", "embeddings"; and most paths.
_COUNTED_PARTS, _MAX_COUNTED_PATHS = 4, 50

#: Fields that are added to a request whose turn cannot train, to chat and to a translated one: its stream always shows the usage.
_PLAIN_FIELDS = (frozenset[str](), frozenset({"stream_options"}))

_UPSTREAM_ERROR_TYPE = "upstream_error"
#: Statuses with which a healthy backend refuses an invalid request. Not 401 and 404: a refused key or model may be Patina's own setting.
_INVALID_REQUEST_STATUSES = frozenset({400, 413, 415, 422})
#: Ids are not secrets: a generator that is seeded once suffices.
_RANDOM = random.Random(secrets.randbits(256))


def new_turn_id() -> str:
    """Return an id that sorts by time: microseconds since the epoch, then random bits."""
    return f"turn_{time.time_ns() // 1000:014x}{_RANDOM.getrandbits(32):08x}"


@dataclass(slots=True)
class RelayCounters:
    """Counters of the relays, for `status`."""

    started: dict[object, float] = field(
        default_factory=dict
    )  #: requests in flight: when each came, oldest first
    requests: int = 0
    passed_through: int = 0
    unfinished: int = 0
    requests_refused: int = 0  #: by the backend, because of the client's request
    upstream_errors: int = 0
    unrecorded: int = 0
    busy: int = 0  #: large requests refused because too many were in flight
    large: int = 0  #: large bodies, after which the heap is trimmed
    apis: Counter[str] = field(
        default_factory=Counter
    )  #: recorded requests by the API that the client speaks
    passed_paths: Counter[str] = field(
        default_factory=Counter
    )  #: requests forwarded and not recorded, by path
    left_out: Counter[str] = field(
        default_factory=Counter
    )  #: requests that offered hosted tools, by the tools' type
    not_captured: Counter[str] = field(default_factory=Counter)  #: chat requests forwarded unread, by reason

    @property
    def in_flight(self) -> int:
        return len(self.started)

    @property
    def oldest_request_at(self) -> float | None:
        """When the oldest request in flight came, Unix time; None: none is."""
        return next(iter(self.started.values()), None)

    def count_passed(self, path: str) -> None:
        """Count a request that is forwarded and not recorded, under the first parts of its path: the others are ids."""
        self.passed_through += 1
        name = "/".join(path.partition("?")[0].split("/")[:_COUNTED_PARTS])
        known = name in self.passed_paths or len(self.passed_paths) < _MAX_COUNTED_PATHS
        self.passed_paths[name if known else "other paths"] += 1


@dataclass(slots=True)
class _FinalResponse:
    """What the client gets after the turn is in the journal: a whole response, or (``status`` None) the rest of a stream."""

    status: int | None
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class _ErrorBody:
    """The body of an error response; ``fault`` when it was truncated."""

    body: bytes
    fault: UpstreamError | None


@dataclass(slots=True, kw_only=True)
class _Exchange:
    """The state of one request in flight."""

    turn_id: str
    created_at: float
    sent_at: float | None = None
    first_chunk_at: float | None = None
    backend_ended_at: float | None = None
    traceparent: str = ""
    principal: Principal
    raw: bytes
    sent: bytes  # ``raw`` as it came: perhaps compressed
    chat: ChatRequest
    options: RequestOptions
    size: int
    assembler: Assembler
    encoding: tuple[tuple[bytes, bytes], ...] = ()  # the field that says how ``sent`` is compressed
    api: Json | None = None  # the API that the client speaks, where it is not chat
    is_translated: bool = False  # the client gets another API's reply, made from this one
    reply_size: int = 0  # bytes that came of the reply
    connection: ClientConnection | None = None
    injection: Injection = field(default_factory=Injection)
    lease: Lease | None = None
    takes_wishes: bool | None = None  # None: not judged yet
    wishes: PromptText | None = None  # added to the prompt
    wish_place: str = ""
    reply: BackendReply | None = None
    error_body: _ErrorBody | None = None
    chunks_read: int = 0
    templates: list[ChunkTemplate] = field(default_factory=list)
    template_null_style: NullFieldStyle | None = None  # the style under which ``templates`` were derived
    template_attempts: int = 0
    status: int = 0
    has_started: bool = False
    is_stream: bool = False
    is_unread: bool = False  # the rest of the stream is forwarded as it comes
    fault: tuple[DropReason, str] | None = None
    final_response: _FinalResponse | None = None

    @property
    def own_headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """Return the headers that name the version that answers, the turn, where there will be one, and the number of wishes in its prompt."""
        found = []
        if self.lease is not None and self.lease.served is not None:
            found.append((b"x-patina-version", self.lease.served.encode()))
        if not self.chat.unreadable:
            found.append((b"x-patina-turn", self.turn_id.encode()))
            if self.wishes is not None:
                found.append((b"x-patina-wishes", b"%d" % self.wishes.count))
        return tuple(found)

    def judge_wishes(self) -> bool:
        """Whether wishes may be added to this request. Judged once: reading its words takes a while."""
        if self.takes_wishes is None:
            options = self.options
            self.takes_wishes = not options.is_without_wishes and takes_wishes(self.chat, options.kind)
        return self.takes_wishes

    def release(self) -> None:
        if self.reply is not None:
            self.reply.close()
        if self.lease is not None:
            self.lease.release()


class PassThrough:
    """Forwards every other path: bytes in both directions, as they arrive.

    The body of a key that does not own this home is read first where adapters are served: it must not name another key's.

    Args:
        is_page: the backend is the process of the web page, which checks `x-patina-key` itself and starts beside the gateway.
    """

    def __init__(
        self, backend: BackendClient, counters: RelayCounters, alias: Alias, *, is_page: bool = False
    ) -> None:
        self._backend = backend
        self._counters = counters
        self._alias = alias
        self._is_page = is_page

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        path: str,
        principal: Principal,
        body: bytes | None = None,
    ) -> None:
        """Relay one request; ``body`` is the request's body if it was read already."""
        self._counters.count_passed(path)
        headers = scope["headers"]
        consumed = asyncio.Event()
        has_body = get_header(headers, b"transfer-encoding") or get_header(
            headers, b"content-length"
        ) not in (
            None,
            "0",
        )
        if has_body and self._alias.capabilities.adapters and not principal.is_owner:
            body = await self._read_checked(receive, send, headers, body, principal)
            if body is None:
                return
        if is_read := body is not None or not has_body:
            consumed.set()
        forwarded = forward_request_headers(
            headers,
            drop=_CONTENT_LENGTH if is_read else frozenset(),
            passes_credentials=principal.passes_credentials,
            is_page=self._is_page,
        )
        started = False

        async def forward() -> None:
            nonlocal started
            data = body if body is not None or not has_body else stream_body(receive, consumed)
            reply = await self._backend.open(scope["method"], path, forwarded, data)
            try:
                if self._alias.can_wait and reply.status in _REDIRECTS:
                    # It names the address of a backend of ours, and an SDK would follow it there.
                    started = True
                    await send_error(
                        send, 404, f"There is no {path.partition('?')[0]} here.", code="not_found"
                    )
                    return
                await send_head(
                    send, reply.status, forward_response_headers(reply.headers, is_page=self._is_page)
                )
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
            await DisconnectWatcher(after_body, client_connection(scope) if consumed.is_set() else None).run(
                forward()
            )
        except UpstreamError as exc:
            self._counters.upstream_errors += 1
            if not started:
                await (_send_no_page(send) if self._is_page else _send_upstream_error(send, exc))
            # else: nothing more is sent, and the server closes the connection, as the backend did

    async def _read_checked(
        self, receive: Receive, send: Send, headers: Headers, body: bytes | None, principal: Principal
    ) -> bytes | None:
        """Return the body of a request that names no other key's adapter; None after an error was sent."""
        try:
            body = await read_body(receive, content_length(headers)) if body is None else body
            plain = await decode_body(body, headers)
        except ClientDisconnected:
            return None
        except BodyTooLarge:
            await send_error(send, 413, "The request body is larger than 64 MB.", code="request_too_large")
            return None
        except UndecodableBody as exc:
            refusal = refused_encoding(exc)
            await send_error(send, refusal.status, str(refusal), code=refusal.code)
            return None
        return body if await self._check_model(send, plain, principal) else None

    async def _check_model(self, send: Send, body: bytes, principal: Principal) -> bool:
        """Refuse a body that names another key's adapter, or that cannot be read; returns whether it may pass."""
        try:
            found = load_json(body) if body.strip() else {}
        except ValueError:
            await send_error(send, 400, "The body is not valid JSON.")
            return False
        model = found.get("model") if isinstance(found, dict) else None
        if isinstance(model, str) and self._alias.is_foreign(model, group=principal.adapter):
            message = f"The model `{model}` does not exist."
            await send_error(send, 404, message, code="model_not_found", param="model")
            return False
        return True


class ChatRelay:
    """Serves ``POST …/chat/completions``."""

    def __init__(
        self,
        backend: BackendClient,
        alias: Alias,
        journal: JournalWriter,
        counters: RelayCounters,
        pass_through: PassThrough,
        *,
        quirks: BackendQuirks | None = None,
        backend_wait_s: float = BACKEND_WAIT_S,
        wishes: PromptWishes | None = None,
    ) -> None:
        self._wishes = wishes or PromptWishes(None)
        self._backend = backend
        self._alias = alias
        self._journal = journal
        self.issued = IssuedTurns()
        self.recent = RecentTurns()
        self._counters = counters
        self._pass_through = pass_through
        self._patience_s = backend_wait_s
        self._quirks = quirks or BackendQuirks(backend.address)
        self._prefix_cache = PrefixCache()
        self._held_bytes = 0

    @property
    def refused(self) -> list[str]:
        """Return the fields that this backend refuses, observed from its errors."""
        return self._quirks.refused

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        principal: Principal,
        path: str,
        session: str | None,
        translate: Callable[[bytes], Awaitable[ApiRequest]] | None = None,
        is_completion: bool = False,
    ) -> None:
        """Relay and record one chat request of ``principal``; ``session`` comes from the path.

        Args:
            translate: makes a chat request of the body of another API; ``send`` then translates the reply.
            is_completion: it is a completion request (`wire.completion_request`).

        Raises:
            Untranslatable: by ``translate``; nothing was sent.
        """
        announced = content_length(scope["headers"])
        # Counted from here on: many large bodies may be on their way at once.
        held = announced if announced is not None and announced <= MAX_BODY else 0
        if await self._refuse_if_full(send, held):
            return
        self._held_bytes += held
        try:
            sent = raw = await read_body(receive, announced)
            try:
                raw = await decode_body(sent, scope["headers"])
            except UndecodableBody as exc:
                if translate is not None:
                    raise refused_encoding(exc) from exc
                self._counters.not_captured["the request's content encoding cannot be read"] += 1
                await self._pass_through(scope, receive, send, path=path, body=sent, principal=principal)
                return
            if (more := len(raw) - held) > 0:  # sent in chunks, or unpacked
                if await self._refuse_if_full(send, more):
                    return
                held += more
                self._held_bytes += more
            api = await translate(raw) if translate is not None else None
            if api is not None:
                sent = raw = api.chat
            await self._serve(
                scope,
                receive,
                send,
                raw,
                sent=sent,
                principal=principal,
                path=path,
                session=session,
                api=api,
                is_completion=is_completion,
            )
        except ClientDisconnected:
            return
        except BodyTooLarge:
            await send_error(send, 413, "The request body is larger than 64 MB.", code="request_too_large")
        finally:
            self._held_bytes -= held

    async def _serve(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        raw: bytes,
        *,
        sent: bytes,
        principal: Principal,
        path: str,
        session: str | None,
        api: ApiRequest | None,
        is_completion: bool,
    ) -> None:
        detail: Json | None = {"name": API_NAME} if is_completion else api.detail if api is not None else None
        self._counters.requests += 1
        self._counters.apis["chat" if detail is None else str(detail["name"])] += 1
        self._counters.left_out.update(api.left_out if api is not None else ())
        request = object()
        self._counters.started[request] = time.time()
        try:
            if is_completion:
                chat = parse_completion(raw)
            elif len(raw) > _THREAD_PARSE_BYTES:
                chat = await asyncio.to_thread(parse_chat, raw)
            else:
                chat = parse_chat(raw, self._prefix_cache)
            shows_logprobs = api is not None and chat.body.get("logprobs") is True
            exchange = _Exchange(
                turn_id=new_turn_id(),
                created_at=time.time(),
                principal=principal,
                raw=raw,
                sent=sent,
                chat=chat,
                options=_request_options(scope["headers"], chat, session, principal, api),
                size=len(raw),
                assembler=CompletionAssembler(chat.n)
                if is_completion
                else Assembler(chat.n, keeps_logprobs=shows_logprobs),
                template_attempts=_MAX_TEMPLATE_ATTEMPTS if shows_logprobs else 0,
                api=detail,
                encoding=() if sent is raw else tuple(_encoding_of(scope["headers"])),
                is_translated=api is not None,
                connection=client_connection(scope),
                traceparent=get_header(scope["headers"], b"traceparent") or "",
            )
            await self._exchange(exchange, scope, receive, send, path)
        except WireError as exc:
            # Nothing was sent yet. The backend reports what is wrong with the request.
            self._counters.not_captured[str(exc).partition(":")[0]] += 1
            await self._pass_through(scope, receive, send, path=path, body=sent, principal=principal)
        finally:
            del self._counters.started[request]
            self._counters.large += len(raw) >= LARGE_BODY_BYTES

    async def _refuse_if_full(self, send: Send, size: int) -> bool:
        """Refuse a large request while the requests in flight take too much memory; returns whether it was refused."""
        if size < _LARGE_REQUEST_BYTES or self._held_bytes + size <= MAX_HELD_BYTES:
            return False
        self._counters.busy += 1
        await send_error(
            send,
            503,
            "Too many large requests are in flight. Retry the request.",
            kind="server_error",
            code="overloaded",
            headers=[(b"retry-after", b"1")],
        )
        return True

    async def _exchange(
        self,
        exchange: _Exchange,
        scope: Scope,
        receive: Receive,
        send: Send,
        path: str,
    ) -> None:
        client_stayed, connection = True, exchange.connection
        try:
            client_stayed = await DisconnectWatcher(receive, connection).run(
                self._forward(exchange, scope["headers"], send, path)
            )
        except UnknownModel as exc:
            await send_error(
                send, 404, str(exc), kind="invalid_request_error", code="model_not_found", param="model"
            )
            return
        except AdapterBusy as exc:
            await send_busy(send, exc)
            return
        except UpstreamError as exc:
            self._counters.upstream_errors += 1
            self._record_failure(exchange, exc)
        except asyncio.CancelledError:
            exchange.fault = (DropReason.UNFINISHED, "the proxy was stopped")
            self._submit(exchange)
            raise
        finally:
            exchange.release()
        if not client_stayed:
            exchange.fault = (DropReason.UNFINISHED, "the client disconnected")
            self._counters.unfinished += 1
            self._submit(exchange)
            return
        written = self._submit(exchange)
        if written is not None:
            if connection is not None:
                connection.flush_writes()
            await self._wait_written(written)
        final_response = exchange.final_response
        if (
            final_response is not None
        ):  # None: the backend truncated it, so the server closes the connection without an end
            if connection is not None:
                connection.buffer_writes()
            if final_response.status is not None:
                headers = (*final_response.headers, *self._journal_headers())
                await send_head(send, final_response.status, headers)
            await send_body(send, final_response.body)
        if connection is not None:
            connection.flush_writes()

    def _record_failure(self, exchange: _Exchange, error: UpstreamError) -> None:
        """Record a failure of the backend: an error response if the reply has not begun, otherwise a truncated reply."""
        if exchange.has_started:
            exchange.fault = (DropReason.UNFINISHED, str(error))
            return
        exchange.fault = (DropReason.UPSTREAM_ERROR, str(error))
        exchange.status, body = _build_upstream_error(error)
        exchange.final_response = _FinalResponse(
            exchange.status,
            (
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                *exchange.own_headers,
            ),
            body,
        )

    def _submit(self, exchange: _Exchange) -> asyncio.Future[None] | None:
        """Append the exchange to the journal; returns a future where that takes a while."""
        if exchange.chat.unreadable:
            self._counters.not_captured[exchange.chat.unreadable] += 1
            return None
        try:
            captured = self._capture(exchange)
            self.issued.add(captured)
            if captured.api is not None and captured.api.get("store"):
                self.recent.add(captured)
            return self._journal.append(EntryKind.EXCHANGE, dump_exchange(captured, exchange.raw))
        except Exception as exc:  # noqa: BLE001 - a request no reader was made for must not cost its reply
            self._counters.unrecorded += 1
            log.error("turn %s cannot be recorded: %s: %s", exchange.turn_id, type(exc).__name__, exc)
            return None

    def _journal_headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """Return the header that says that turns are not on the disk when their clients see the end."""
        refuge = self._journal.refuge
        return () if refuge is None else ((b"x-patina-journal", refuge.encode()),)

    async def _wait_written(self, written: asyncio.Future[None]) -> None:
        """Wait for the journal; while it cannot be written the client is served at once."""
        if self._journal.last_error is None:
            await asyncio.wait((written,), timeout=JOURNAL_WAIT_S)

    def _capture(self, exchange: _Exchange) -> CapturedExchange:
        chat, lease, api = exchange.chat, exchange.lease, exchange.api
        if api is not None and exchange.assembler.logprobs:  # its client may read them again
            api = {**api, "logprobs": exchange.assembler.logprobs}
        capabilities = self._alias.capabilities
        return CapturedExchange(
            turn_id=exchange.turn_id,
            created_at=exchange.created_at,
            finished_at=time.time(),
            key_name=exchange.principal.key_name,
            client=add_client_hint(exchange.principal.client, chat.body),
            options=exchange.options,
            policy=lease.policy if lease is not None else self._alias.policy,
            adapter_version=lease.version if lease is not None else 0,
            status_code=exchange.status,
            streamed=exchange.is_stream,
            chat=chat,
            reply=exchange.assembler.close(),
            fault=exchange.fault,
            temperature=capabilities.default_temperature if chat.temperature is None else chat.temperature,
            logprob_mode=capabilities.logprob_mode,
            size=exchange.size,
            api=api,
            sent_at=exchange.sent_at,
            first_chunk_at=exchange.first_chunk_at,
            backend_ended_at=exchange.backend_ended_at,
            traceparent=exchange.traceparent,
            wish_text=exchange.wishes.text if exchange.wishes is not None else "",
            wish_place=exchange.wish_place,
            drawn=lease.drawn if lease is not None else "",
        )

    # ---- to the backend

    async def _forward(
        self, exchange: _Exchange, headers: Iterable[tuple[bytes, bytes]], send: Send, path: str
    ) -> None:
        """Get the reply and forward it, except what must wait until the turn is in the journal (`exchange.final_response`)."""
        passes_credentials = exchange.principal.passes_credentials
        forwarded = forward_request_headers(headers, drop=_REPLACED, passes_credentials=passes_credentials)
        accept = get_header(headers, b"accept-encoding")
        if accept is not None:
            forwarded.append((b"accept-encoding", supported_encodings(accept).encode("latin-1")))
        reply = await self._open(exchange, forwarded, path)
        exchange.status = reply.status
        content_type = (get_header(reply.headers, b"content-type") or "").lower()
        exchange.is_stream = content_type.startswith("text/event-stream")
        if reply.status in _INVALID_REQUEST_STATUSES:
            exchange.fault = (DropReason.REQUEST_REFUSED, f"the backend answered {reply.status}")
            self._counters.requests_refused += 1
        elif reply.status >= 400:
            exchange.fault = (DropReason.UPSTREAM_ERROR, f"the backend answered {reply.status}")
            self._counters.upstream_errors += 1
        encoding = get_header(reply.headers, b"content-encoding")
        is_editable = (
            exchange.injection.changes_reply
            and reply.status < 400
            and (not is_encoded(encoding) or can_decode(encoding))
        )
        packing = encoding if encoding is not None and is_encoded(encoding) else None
        if exchange.is_stream:
            stream = self._stream_edited if is_editable else self._stream_unchanged
            await stream(exchange, reply, send, packing, self._body_pieces(exchange, reply))
        else:
            await self._send_body(exchange, reply, send, packing, is_editable=is_editable)

    async def _open(self, exchange: _Exchange, headers: list[tuple[bytes, bytes]], path: str) -> BackendReply:
        """Send the request until a response begins that the client should see."""
        deadline = time.monotonic() + self._patience_s
        attempts = 0
        omitted: frozenset[str] = frozenset()
        was_broken = False
        while True:
            attempts += 1
            asked = ModelRequest(
                model=exchange.chat.model,
                group=exchange.principal.adapter,
                is_owner=exchange.principal.is_owner,
                conversation=lambda: conversation_of(
                    exchange.principal.key_name,
                    exchange.options.user,
                    exchange.options.session,
                    exchange.chat.messages,
                ),
            )
            lease = await self._alias.lease(asked, wait_s=max(0.0, deadline - time.monotonic()))
            exchange.lease = lease
            if not lease.is_own:  # a policy learns from its own keys only
                exchange.options = replace(exchange.options, is_opted_out=True)
            # A turn that opted out needs no tokens; its unchanged reply also shows the backend's null style.
            is_plain = exchange.options.is_opted_out or exchange.chat.unreadable
            wanted = (
                self._alias.fields & _PLAIN_FIELDS[exchange.is_translated] if is_plain else self._alias.fields
            )
            fields = self._quirks.accepted_fields(wanted, exchange.chat.model) - omitted
            body, exchange.injection = build_request(
                await self._add_wishes(exchange, lease),
                exchange.chat,
                fields=fields,
                served_model=lease.name,
            )
            if exchange.wishes is not None:
                exchange.injection.wish_tokens = exchange.wishes.tokens
            exchange.sent_at = time.time()
            told = headers
            if body == exchange.raw:
                body, told = exchange.sent, [*headers, *exchange.encoding]
            try:
                reply = await self._backend.open("POST", path, told, body)
            except (UpstreamUnreachable, UpstreamConnectTimeout):
                lease.release()
                if not self._alias.can_wait or attempts >= _MAX_ATTEMPTS:
                    raise
                self._alias.mark_unhealthy()
                continue
            exchange.reply = reply  # from here on it is always closed
            if reply.status == 404 and lease.version and attempts < _MAX_ATTEMPTS:
                # A restarted backend has lost its adapters: the alias loads the live version again.
                reply.close()
                lease.release()
                self._alias.mark_unhealthy()
                continue
            suspected = await self._suspect_fields(exchange, reply, is_retry=bool(omitted))
            if suspected:
                omitted |= suspected
                was_broken = reply.status >= 500
                reply.close()
                lease.release()
                attempts -= 1  # limited by the number of fields
                continue
            if exchange.wishes is not None and reply.status in _INVALID_REQUEST_STATUSES:
                # The client's own request may fit the context, or the template: its reply counts.
                exchange.takes_wishes = False
                reply.close()
                lease.release()
                attempts -= 1  # once
                continue
            if reply.status < 400:
                self._quirks.record_accepted(exchange.injection.fields)
                if omitted:
                    self._quirks.record_refused(omitted, exchange.chat.model, is_certain=not was_broken)
            return reply

    async def _add_wishes(self, exchange: _Exchange, lease: Lease) -> bytes:
        """Return the request with the active wishes of its policy. A request for one version, or the base model, gets none."""
        exchange.wishes, exchange.wish_place = None, ""
        if lease.is_pinned:
            return exchange.raw
        found = await self._wishes.find(lease.policy, exchange.chat, is_wanted=exchange.judge_wishes)
        if found is None:
            return exchange.raw
        try:
            if len(exchange.raw) > _THREAD_PARSE_BYTES:
                added = await asyncio.to_thread(self._wishes.add, exchange.raw, exchange.chat, found)
            else:
                added = self._wishes.add(exchange.raw, exchange.chat, found)
        except ValueError:  # its newest message is no text
            exchange.takes_wishes = False
            return exchange.raw
        body, exchange.wish_place = added
        exchange.wishes = found
        return body

    async def _suspect_fields(
        self, exchange: _Exchange, reply: BackendReply, *, is_retry: bool
    ) -> frozenset[str]:
        """Return which of the added fields the backend may refuse; the request is repeated without them.

        If that request succeeds, the backend refuses them. If it fails with none of them left, the error is the client's own, about the
        client's own request.
        """
        exchange.error_body = None
        added = exchange.injection.fields
        if not added or reply.status not in _NAMED_FIELD_REFUSALS:
            return frozenset()
        exchange.error_body = error_body = await _read_error_body(reply)
        encoding = get_header(reply.headers, b"content-encoding")
        try:
            body = (
                decompress(error_body.body, encoding)
                if encoding and is_encoded(encoding)
                else error_body.body
            )
        except UndecodableBody:
            body = b""
        if named := refused_fields(body, exchange.injection):
            return frozenset(named)
        if reply.status in _FIELD_REFUSALS and (is_retry or not self._quirks.has_accepted(added)):
            return frozenset(added)
        return frozenset()

    # ---- to the client: a reply that is not streamed

    async def _send_response_head(
        self, exchange: _Exchange, reply: BackendReply, send: Send, *, is_edited: bool
    ) -> None:
        """Send the backend's head with the turn's id. The length of a body that will be edited is not known yet."""
        headers = forward_response_headers(reply.headers, drop=_CONTENT_LENGTH if is_edited else frozenset())
        exchange.has_started = True
        await send_head(send, reply.status, [*headers, *exchange.own_headers, *self._journal_headers()])

    async def _body_pieces(self, exchange: _Exchange, reply: BackendReply) -> AsyncIterator[bytes]:
        """Yield the body as it arrives, and count its bytes."""
        if exchange.error_body is not None:
            exchange.size += len(exchange.error_body.body)
            if exchange.error_body.body:
                yield exchange.error_body.body
            if exchange.error_body.fault is not None:
                raise exchange.error_body.fault
            return
        async for data in reply.chunks():
            if exchange.first_chunk_at is None:
                exchange.first_chunk_at = time.time()
            exchange.size += len(data)
            exchange.reply_size += len(data)
            if (
                exchange.reply_size > _MAX_KEPT_BYTES
                and exchange.is_stream
                and not exchange.assembler.has_given_up
            ):
                exchange.templates, exchange.template_attempts = [], _MAX_TEMPLATE_ATTEMPTS
                exchange.assembler.give_up(_TOO_LARGE)
            yield data
        exchange.backend_ended_at = time.time()

    async def _send_body(
        self, exchange: _Exchange, reply: BackendReply, send: Send, encoding: str | None, *, is_editable: bool
    ) -> None:
        """Forward a reply that is not labelled as a stream, by its first bytes: events, an object to be edited, or anything else.

        White space at the front keeps impatient clients waiting while a model works. It is forwarded at once, as is the head where no
        length is announced, or where nothing is edited.
        """
        is_open = get_header(reply.headers, b"content-length") is None
        if is_open or not is_editable:
            await self._send_response_head(exchange, reply, send, is_edited=is_editable)
        pieces = self._body_pieces(exchange, reply)
        first = start = b""
        try:
            async for data in pieces:
                if is_open and encoding is None:
                    first = data.lstrip(_BLANK)
                    if blank := data[: len(data) - len(first)]:
                        await send_body(send, blank, more=True)
                else:
                    first += data
                if start := _start_of(first, encoding):
                    break
        except UpstreamError:
            await self._send_torn_head(exchange, reply, send)
            raise
        pieces = _chain(first, pieces)
        is_small = (content_length(reply.headers) or 0) <= _MAX_KEPT_BYTES
        if reply.status < 400 and looks_like_events(start):
            exchange.is_stream = True
            stream = self._stream_edited if is_editable else self._stream_unchanged
            await stream(exchange, reply, send, encoding, pieces)
        elif is_editable and is_small and start.startswith(b"{"):
            await self._send_edited_body(exchange, reply, send, encoding, pieces)
        else:
            await self._send_body_unchanged(exchange, reply, send, encoding, pieces)

    async def _send_torn_head(self, exchange: _Exchange, reply: BackendReply, send: Send) -> None:
        """Send what the client would see of a reply that the backend broke off: its head, and less than it announces."""
        if not exchange.has_started:
            await self._send_response_head(exchange, reply, send, is_edited=False)

    async def _send_body_unchanged(
        self,
        exchange: _Exchange,
        reply: BackendReply,
        send: Send,
        encoding: str | None,
        pieces: AsyncIterator[bytes],
    ) -> None:
        """Forward a body as it arrives, except its last piece, or its end where its length was not announced."""
        left = content_length(reply.headers)
        if not exchange.has_started:
            await self._send_response_head(exchange, reply, send, is_edited=False)
        kept: list[bytes] = []
        last = b""
        async for data in pieces:
            if exchange.reply_size <= _MAX_KEPT_BYTES:
                kept.append(data)
            if left is not None:
                left -= len(data)
                if left <= 0:
                    last = data
                    continue
            await send_body(send, data, more=True)
        exchange.final_response = _FinalResponse(None, (), last)
        if reply.status >= 400:
            return
        if exchange.reply_size > _MAX_KEPT_BYTES:
            exchange.assembler.add_problem(_TOO_LARGE)
            return
        try:
            body = b"".join(kept)
            self._read_body(exchange, decompress(body, encoding) if encoding is not None else body)
        except UndecodableBody as exc:
            exchange.assembler.add_problem(str(exc))

    async def _send_edited_body(
        self,
        exchange: _Exchange,
        reply: BackendReply,
        send: Send,
        encoding: str | None,
        pieces: AsyncIterator[bytes],
    ) -> None:
        """Read a whole body, to forward it without the additions."""
        kept: list[bytes] = []
        try:
            async for data in pieces:
                kept.append(data)
                if exchange.reply_size > _MAX_KEPT_BYTES:
                    # Its length was not announced. From here on it is forwarded as it comes.
                    exchange.assembler.give_up(_TOO_LARGE)
                    await send_body(send, b"".join(kept), more=True)
                    kept = []
        except UpstreamError:
            await self._send_torn_head(exchange, reply, send)
            raise
        if exchange.assembler.has_given_up:
            exchange.final_response = _FinalResponse(None, (), b"")
            return
        body = self._strip_body(exchange, b"".join(kept), encoding)
        if exchange.has_started:
            exchange.final_response = _FinalResponse(None, (), body)
            return
        headers = forward_response_headers(reply.headers, drop=_CONTENT_LENGTH)
        length = (b"content-length", str(len(body)).encode())
        exchange.final_response = _FinalResponse(
            reply.status, (*headers, length, *exchange.own_headers), body
        )

    def _strip_body(self, exchange: _Exchange, body: bytes, encoding: str | None) -> bytes:
        """Return a whole reply without the additions; it is parsed and recorded on the way."""
        try:
            plain = decompress(body, encoding) if encoding is not None else body
        except UndecodableBody as exc:
            exchange.assembler.add_problem(str(exc))
            return body
        payload = self._read_body(exchange, plain)
        if not isinstance(payload, dict):
            return body
        try:
            stripped = strip_reply(plain, payload, exchange.injection, self._quirks.null_style)
            stripped = count_in_usage(stripped, payload, exchange.injection.wish_tokens)
        except ValueError as exc:
            exchange.assembler.add_problem(f"the reply cannot be edited: {exc}")
            return body
        if stripped == plain:
            return body
        return stripped if encoding is None else Compressor(encoding).end(stripped)

    def _read_body(self, exchange: _Exchange, body: bytes) -> Any:
        """Parse and record a whole reply; returns it, None where it cannot be parsed."""
        payload = exchange.assembler.read(body, part="message")
        if isinstance(payload, dict):
            self._observe_null_style(exchange, payload)
        return payload

    def _observe_null_style(self, exchange: _Exchange, payload: Json) -> None:
        if exchange.chat.is_completion:
            return  # its choices have other fields than those of chat
        self._quirks.record_null_style(
            observe_null_style(self._quirks.null_style, payload, exchange.injection, exchange.chat.body)
        )

    # ---- to the client: a stream

    async def _stream_edited(
        self,
        exchange: _Exchange,
        reply: BackendReply,
        send: Send,
        encoding: str | None,
        pieces: AsyncIterator[bytes],
    ) -> None:
        """Forward a stream event by event without the additions; the closing event waits for the journal."""
        connection = exchange.connection
        if connection is not None and getattr(reply, "has_buffered_body", False):
            connection.buffer_writes()  # the first events came with the head and leave with it
        if not exchange.has_started:
            await self._send_response_head(exchange, reply, send, is_edited=True)
        splitter = EventSplitter()
        unpacker = Decompressor(encoding) if encoding is not None else None
        packer = Compressor(encoding) if encoding is not None else None
        tail: list[bytes] = []
        try:
            async for data in pieces:
                out: list[bytes] = []
                plain = unpacker.feed(data) if unpacker is not None else data
                if exchange.is_unread:
                    out.append(plain)
                    plain = b""
                rest = self._consume_template_events(exchange, splitter, plain, out, tail)
                for event in splitter.feed(rest) if rest else ():
                    self._edit_event(exchange, event, out, tail)
                if splitter.is_overlong:
                    self._stop_reading(exchange)
                    out += [*tail, splitter.flush()]
                    tail = []
                # The last events leave with the closing one: only the journal's write is between them.
                is_last = bool(tail) and getattr(reply, "is_complete", False)
                if connection is not None and is_last:
                    connection.buffer_writes()
                if piece := b"".join(out):
                    await send_body(send, packer.feed(piece) if packer is not None else piece, more=True)
                if connection is not None and not is_last:
                    connection.flush_writes()
        except UpstreamError:
            if rest := b"".join(tail) + self._visible_part(exchange, splitter.flush()):
                await send_body(send, packer.feed(rest) if packer is not None else rest, more=True)
            raise
        except UndecodableBody as exc:
            # A part was sent with another encoding: the rest cannot be forwarded unchanged.
            raise UpstreamError(
                f"the backend at {self._backend.address} truncated its response: {exc}"
            ) from exc
        rest = splitter.flush()
        payload = event_data(rest) if rest else None
        if payload is not None and payload != DONE:
            rest = self._edit_chunk(exchange, rest, payload)  # an event that was not closed
        elif rest.lstrip().startswith(b"{"):
            rest = self._strip_body(exchange, rest, None)  # a whole reply under a stream's label
        end = b"".join(tail) + rest
        exchange.final_response = _FinalResponse(None, (), packer.end(end) if packer is not None else end)

    def _consume_template_events(
        self, exchange: _Exchange, splitter: EventSplitter, data: bytes, out: list[bytes], tail: list[bytes]
    ) -> bytes:
        """Consume whole events at the front of ``data``, by template where possible; returns the rest for the splitter."""
        if tail or b"\r" in data:
            return data
        buffer = data
        if not splitter.is_empty:
            if splitter.extend(data):
                return b""
            buffer = splitter.flush() + data
            if b"\r" in buffer:
                return buffer
        at, size = 0, len(buffer)
        while at < size and not tail:
            began = at
            for known in (
                exchange.templates if exchange.template_null_style is self._quirks.null_style else ()
            ):
                at = known.consume(buffer, at, out)
            if at > began:
                exchange.chunks_read = (
                    _NULL_STYLE_CHUNKS  # a chunk that matches a template shows no new null style
                )
                continue
            end = buffer.find(b"\n\n", at)
            if end < 0:
                break
            self._edit_event(exchange, buffer[at : end + 2], out, tail)
            at = end + 2
        return buffer[at:]

    def _edit_event(self, exchange: _Exchange, event: bytes, out: list[bytes], tail: list[bytes]) -> None:
        """Append what the client gets of an event to ``out``; from the closing event on, append to ``tail``."""
        payload = event_data(event)
        if tail or payload == DONE:
            tail.append(event)
        elif payload is None:
            out.append(event)
        else:
            out.append(self._edit_chunk(exchange, event, payload))

    def _derive_template(
        self, exchange: _Exchange, event: bytes, payload: bytes, chunk: Json, shown: bytes
    ) -> None:
        """Try to derive a template for the following chunks from this one."""
        exchange.template_attempts += 1
        found = derive_template(event, payload, chunk, shown)
        if found is not None:
            exchange.assembler.attach_template(found)
            exchange.template_null_style = self._quirks.null_style
            exchange.templates = [known for known in exchange.templates if known.index != found.index] + [
                found
            ]

    def _edit_chunk(self, exchange: _Exchange, event: bytes, payload: bytes) -> bytes:
        chunk = exchange.assembler.read(payload, part="delta", event=event)
        if not isinstance(chunk, dict):
            return event
        if exchange.chunks_read < _NULL_STYLE_CHUNKS:
            exchange.chunks_read += 1
            self._observe_null_style(exchange, chunk)
        if exchange.is_translated and chunk.get("prompt_token_ids"):
            return event  # the other API's reply begins with their number
        injection = exchange.injection
        if injection.usage and is_usage_only(chunk):
            if not exchange.is_translated:
                return b""
            counted = count_in_usage(payload, chunk, injection.wish_tokens)
            return replace_data(event, payload, counted)  # other APIs show the usage
        adds = injection.logprobs or injection.token_ids or injection.usage
        if adds and is_tokens_only(chunk, exchange.chat.body):
            return b""
        try:
            stripped = strip_reply(payload, chunk, exchange.injection, self._quirks.null_style)
            stripped = count_in_usage(stripped, chunk, exchange.injection.wish_tokens)
        except ValueError as exc:
            exchange.assembler.add_problem(f"an event cannot be edited: {exc}")
            return event
        shown = event if stripped == payload else replace_data(event, payload, stripped)
        counts_wishes = injection.wish_tokens is not None and isinstance(chunk.get("usage"), dict)
        if (
            exchange.template_attempts < _MAX_TEMPLATE_ATTEMPTS
            and exchange.chunks_read > 1
            and not counts_wishes
        ):
            self._derive_template(exchange, event, payload, chunk, shown)
        return shown

    def _visible_part(self, exchange: _Exchange, event: bytes) -> bytes:
        """Return the part of a truncated event that a client may see: up to the first addition."""
        payload = event_data(event)
        if payload is not None and payload != DONE and read_reply(payload)[0] is not None:
            return self._edit_chunk(exchange, event, payload)  # complete but for its last line end
        return event[: find_first_addition(event, exchange.injection)]

    async def _stream_unchanged(
        self,
        exchange: _Exchange,
        reply: BackendReply,
        send: Send,
        encoding: str | None,
        pieces: AsyncIterator[bytes],
    ) -> None:
        """Forward a stream byte by byte while reading it; the closing event waits for the journal."""
        if not exchange.has_started:
            await self._send_response_head(exchange, reply, send, is_edited=False)
        gate, splitter = DoneEventHolder(), EventSplitter()
        unpacker = Decompressor(encoding) if encoding is not None and can_decode(encoding) else None
        is_readable = encoding is None or unpacker is not None
        if not is_readable:
            exchange.assembler.add_problem(f"the reply is compressed ({encoding})")
        held: list[bytes] = []
        try:
            async for data in pieces:
                plain = data
                if unpacker is not None:
                    try:
                        plain = unpacker.feed(data)
                    except UndecodableBody as exc:
                        exchange.assembler.add_problem(str(exc))
                        is_readable, unpacker = False, None
                if is_readable:
                    piece = gate.feed(plain)
                    if (
                        encoding is not None
                    ):  # compressed data cannot be split: from the closing event's piece on, all of it waits
                        piece = b"" if gate.is_closed else data
                        held += [data] if gate.is_closed else []
                else:
                    piece = data
                if piece:
                    await send_body(send, piece, more=True)
                if is_readable and not exchange.is_unread:
                    for event in splitter.feed(plain):
                        self._observe_event(exchange, event)
                    if splitter.is_overlong:
                        self._stop_reading(exchange)
                        splitter.flush()
        except UpstreamError:
            if rest := b"".join(held) if encoding is not None else gate.flush():
                await send_body(send, rest, more=True)
            raise
        if rest := splitter.flush():
            self._observe_event(exchange, rest)
        exchange.final_response = _FinalResponse(
            None, (), b"".join(held) if encoding is not None else gate.flush()
        )

    @staticmethod
    def _stop_reading(exchange: _Exchange) -> None:
        """Forward the rest of a stream as it comes: an event of it is too large to be read."""
        exchange.is_unread = True
        exchange.templates, exchange.template_attempts = [], _MAX_TEMPLATE_ATTEMPTS
        exchange.assembler.give_up("an event of the reply is too large to be read")

    def _observe_event(self, exchange: _Exchange, event: bytes) -> None:
        payload = event_data(event)
        if payload is None and event.lstrip().startswith(b"{"):
            self._read_body(exchange, event)  # a whole reply under a stream's label
        if payload is None or payload == DONE:
            return
        chunk = exchange.assembler.read(payload, part="delta", event=event)
        if exchange.chunks_read < _NULL_STYLE_CHUNKS and isinstance(chunk, dict):
            exchange.chunks_read += 1
            self._observe_null_style(exchange, chunk)


def _encoding_of(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [field for field in headers if field[0].lower() == b"content-encoding"]


def _start_of(data: bytes, encoding: str | None) -> bytes:
    """Return the first bytes of a body after white space; b"" if none has arrived."""
    if encoding is not None:
        try:
            data = zlib.decompressobj(_ANY_WINDOW).decompress(data, 64)
        except zlib.error:
            return data[:1]
    return data[:4096].lstrip(_BLANK)[:64]


async def _chain(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if first:
        yield first
    async for data in rest:
        yield data


async def _read_error_body(reply: BackendReply) -> _ErrorBody:
    """Read the body of an error response; keep what arrived of a truncated one."""
    parts: list[bytes] = []
    try:
        async for data in reply.chunks():
            parts.append(data)
    except UpstreamError as exc:
        return _ErrorBody(b"".join(parts), exc)
    return _ErrorBody(b"".join(parts), None)


def _request_options(
    headers: Iterable[tuple[bytes, bytes]],
    chat: ChatRequest,
    session: str | None,
    principal: Principal,
    api: ApiRequest | None,
) -> RequestOptions:
    if api is None:
        options = parse_request_options(headers, chat.body, session)
        options = replace(options, session=_session_id(principal.key_name, options.session))
    else:
        options = parse_request_options(headers, api.option_fields, api.session or session)
        options = replace(options, continues=api.continues)
    return options if principal.trains else replace(options, is_opted_out=True)


def _session_id(key_name: str, session: str | None) -> str | None:
    """Return a session's id for the name that a client gave it: sessions of different keys never share one.

    Names of keys hold no colon. Sessions of the first key keep their name where it holds none either.
    """
    if session is None or (key_name == DEFAULT and ":" not in session):
        return session
    return f"{key_name}:{session}"


def _build_upstream_error(error: UpstreamError) -> tuple[int, bytes]:
    status = 504 if isinstance(error, UpstreamTimeout) else 502
    code = {504: "upstream_timeout", 502: "upstream_unavailable"}[status]
    return status, build_error_body(str(error), kind=_UPSTREAM_ERROR_TYPE, code=code)


async def _send_no_page(send: Send) -> None:
    await send_error(
        send,
        503,
        f"The process of the web page does not answer: it is starting, or it ended. Try again in a moment; `{COMMAND} status` shows its state.",
        kind="server_error",
        headers=[(b"retry-after", b"1")],
    )


async def _send_upstream_error(send: Send, error: UpstreamError) -> None:
    status, body = _build_upstream_error(error)
    await send_head(
        send,
        status,
        [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())],
    )
    await send_body(send, body)
