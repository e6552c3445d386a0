"""The proxy as an ASGI application: authentication and routing.

* ``/v1/chat/completions`` is relayed and recorded; ``/v1/responses`` and ``/v1/messages`` are, as chat;
* ``/healthz``, ``/v1/models`` (of a local backend), ``/v1/patina/status`` and ``/v1/feedback`` are answered here;
* everything else under ``/v1/`` is forwarded as bytes, except paths that administer the backend.

A path may name its session: ``/s/<session>/v1/…``. Bodies, keys and headers are never logged.
"""

from __future__ import annotations

import asyncio
import logging
import os
import posixpath
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import orjson
from starlette.types import Message, Receive, Scope, Send

from proxy.adapters import AdapterAlias, Alias, UnknownModel, UpstreamAlias
from proxy.api_relay import ApiRelay
from proxy.asgi import (
    BodyTooLarge,
    ClientDisconnected,
    read_json,
    send_body,
    send_error,
    send_head,
    send_json,
    with_error_body,
    with_request_id,
)
from proxy.auth import KeyStore, Principal, authenticate
from proxy.backend_quirks import BackendQuirks
from proxy.cors import CorsPolicy, is_preflight
from proxy.endpoints import (
    CHAT,
    COMPLETIONS,
    CONVERSATIONS,
    COUNT,
    FATE,
    FEEDBACK,
    FEEDBACK_STATE,
    FILES,
    FORWARDED_PREFIX,
    HEALTH,
    HEALTH_DETAIL,
    JOBS,
    LORA,
    MESSAGES,
    MODEL,
    MODELS,
    RESPONSE,
    RESPONSES,
    ROOT,
    SCORE,
    STATUS,
    STORED,
    STORED_ONE,
    TOKENS,
    Endpoint,
    find_endpoint,
    is_messages_path,
    methods_of,
)
from proxy.feedback import FeedbackBody, parse_feedback
from proxy.feedback_batch import BatchBody, FeedbackBatches, is_batch, parse_batch
from proxy.fine_tuning.files import TrainingFiles
from proxy.fine_tuning.jobs import FineTuningJobs
from proxy.heap import trim_heap
from proxy.item_pages import list_of, read_query
from proxy.lora import LoraPaths
from proxy.pages import BASE_PATHS, DASHBOARD, is_page_path, wants_page
from proxy.prompt_wishes import PromptWishes
from proxy.relay import BACKEND_WAIT_S, JOURNAL_WAIT_S, ChatRelay, PassThrough, RelayCounters
from proxy.score import ScorePath
from proxy.store_state import add_up, describe_store, describe_trainer
from proxy.stored_completions import StoredCompletions
from proxy.version_locks import VersionLocks
from serving.protocol import BackendClient
from serving.vllm.gpu_sharing import GpuSharingBackend
from store.catch_up import read_recorder_state, wait_recorded
from store.errors import RecordError, RecordUnavailable, WireError
from store.hashing import digest
from store.heartbeats import LOOK_S, SILENT_S, HeartbeatWriter
from store.hosts import is_local_host
from store.journal import EntryKind, JournalWriter, Lag
from store.lifecycle import may_teach
from store.record import Record
from store.record_handle import RecordHandle
from store.values import (
    BASE_VERSION,
    AdapterState,
    Feedback,
    Json,
    adapter_name,
    may_hold_hint,
    new_feedback_id,
)
from store.version import VERSION
from wire.api_translation import Untranslatable
from wire.error_codes import describe_missing_path, rewrite_error
from wire.headers import get_header
from wire.messages_api.reply import build_anthropic_model, translate_error
from wire.responses_api.items import turn_of

log = logging.getLogger(__name__)

#: Paths that administer the backend: clients must not load code or weights.
_FORBIDDEN = ("load_lora_adapter", "unload_lora_adapter")

#: The web page checks who asks, so it gets the credentials.
_PAGE_PRINCIPAL = Principal(key_name="", client="", passes_credentials=True, is_owner=True)
_STORE_PROBLEMS = {"stopped": "the recorder does not run", "away": "the record cannot be written"}
_STATUS_TIMEOUT_S, _STATUS_WAIT_S = 3.0, 1.0
#: Feedback can arrive before the turn of another gateway is recorded: longest wait for it.
_FEEDBACK_WAIT_S = 20.0
_MAX_FEEDBACK_KEYS = 10_000
#: Shortest interval between two heap trims.
_TRIM_INTERVAL_S = 5.0


class Proxy:
    """The application and its background work.

    Args:
        backend: client of the backend.
        policy: name under which the policy is served and recorded.
        open_record: opens the record.
        keys: accepted API keys: one key, or a key store; "": no key is required.
        is_local: Patina manages the backend (loads adapters, restarts it).
        backend_wait_s: longest time a request waits for a local backend that restarts.
        quirks: known quirks of the backend; default: none yet.
        journal: takes every exchange before its client sees the end; the recorder reads it.
        passes_credentials: forward clients' own credentials to the backend; Patina's key then comes as `x-patina-key`.
        native_apis: the backend serves the Responses and Messages APIs itself: their requests are forwarded and not recorded.
        origins: web pages that may call the proxy; default: none.
        is_on_loopback: only this machine reaches it: without a key, a request must name this machine.
        accepts_any_model: the policy answers for unknown model names; None: where it is the only one.
        name: of this process, one of several gateways on one port.
        locks: on adapter versions, shared with the other gateways.
        engine_tag: see `AdapterAlias`.
        no_jobs: see `FineTuningJobs`.
        read_wish_place: returns where the active wishes stand in a prompt (`wire.wish_text`); None: they are not added.
        on_crash: called when a background task ends with an unexpected error; the process should exit.
    """

    def __init__(
        self,
        *,
        backend: BackendClient,
        policy: str,
        open_record: Callable[[], Awaitable[Record]],
        keys: KeyStore | str,
        is_local: bool,
        journal: JournalWriter,
        backend_wait_s: float = BACKEND_WAIT_S,
        quirks: BackendQuirks | None = None,
        passes_credentials: bool = False,
        native_apis: bool = False,
        origins: CorsPolicy | None = None,
        is_on_loopback: bool = False,
        accepts_any_model: bool | None = False,
        name: str = "proxy",
        locks: VersionLocks | None = None,
        engine_tag: str = "",
        no_jobs: str = "",
        pages: BackendClient | None = None,
        read_wish_place: Callable[[], str] | None = None,
        on_crash: Callable[[], None] = lambda: None,
    ) -> None:
        self._page_client = pages
        self._backend = backend
        self._policy = policy
        self._name = name
        self._keys = keys
        self._allows_anonymous = not keys if isinstance(keys, str) else keys.is_open
        # With a key, a rebound name is of no use.
        self._checks_host = is_on_loopback and self._allows_anonymous
        self._passes_credentials = passes_credentials
        self._origins = origins or CorsPolicy()
        self._on_crash = on_crash
        self._started = time.time()
        self._counters = RelayCounters()
        self._heartbeat_errors = 0
        self._beats = HeartbeatWriter(name)
        self._large_seen, self._trimmed_at = 0, 0.0
        self._record = RecordHandle(open_record)
        self._journal = journal
        self._alias: Alias = (
            self._make_alias(locks, accepts_any_model, engine_tag)
            if is_local
            else UpstreamAlias(backend, policy)
        )
        self._is_local = is_local
        # The page's redirects are its own: they name no address.
        self._pages = (
            None
            if pages is None
            else PassThrough(pages, RelayCounters(), UpstreamAlias(pages, policy), is_page=True)
        )
        self._pass_through = PassThrough(backend, self._counters, self._alias)
        self._wishes = (
            PromptWishes(None)
            if read_wish_place is None
            else PromptWishes(self._record, backend if is_local else None, read_wish_place)
        )
        self._chat = ChatRelay(
            backend,
            self._alias,
            journal,
            self._counters,
            self._pass_through,
            quirks=quirks,
            backend_wait_s=backend_wait_s,
            wishes=self._wishes,
        )
        self._native_apis = native_apis
        self._apis = ApiRelay(self._chat, backend, self._alias, self._record, journal, is_local=is_local)
        self._lora = LoraPaths(self._record, self._alias, policy)
        self._score = ScorePath(backend, self._alias)
        self._batches = self._make_batches()
        self._stored = StoredCompletions(self._record, journal, self._append_feedback)
        self._files = TrainingFiles(self._record)
        self._jobs = self._make_jobs(no_jobs)
        self._feedback_keys: dict[str, None] = {}  # of the newest feedback that may not be recorded yet
        self._tasks: list[asyncio.Task[None]] = []

    def _make_alias(
        self, locks: VersionLocks | None, accepts_any_model: bool | None, engine_tag: str
    ) -> Alias:
        return AdapterAlias(
            self._backend,
            self._policy,
            lambda: self._record.record,
            locks=locks,
            engine_tag=engine_tag,
            accepts_any=lambda: self._has_one_policy() if accepts_any_model is None else accepts_any_model,
        )

    def _make_jobs(self, refusal: str) -> FineTuningJobs:
        return FineTuningJobs(
            self._record, self._alias, self._policy, created_at=self._started, refusal=refusal
        )

    def _make_batches(self) -> FeedbackBatches:
        return FeedbackBatches(
            self._record,
            self._lora,
            find_turn=self._find_turn,
            append=self._append_feedback,
            why_untrained=self._why_untrained,
        )

    def _has_one_policy(self) -> bool:
        return isinstance(self._keys, str) or self._keys.is_shared

    # ---- lifecycle

    async def start(self) -> None:
        """Start the background work."""
        for work in (self._alias.run(), self._wishes.run(), self._heartbeat_loop()):
            self._spawn(work)
        if isinstance(self._backend, GpuSharingBackend):
            self._spawn(self._backend.run(lambda: self._record.record))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(self._on_task_done)
        self._tasks.append(task)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            # Without its heartbeat or its alias a proxy would look healthy and serve old versions; the supervisor starts a new one.
            log.critical("a background task ended: %s: %s", type(error).__name__, error, exc_info=error)
            self._on_crash()

    async def stop(self) -> None:
        """Append to the journal what waits in memory, then stop the background tasks."""
        left = await self._journal.close()
        if left:
            self._journal.lost += left
            self._journal.last_loss = (
                f"{left} entries: the journal cannot be written ({self._journal.last_error})"
            )
        record = self._record.record
        if record is not None:
            await self._write_heartbeat(record, "stopped")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._backend.close()
        if self._page_client is not None:
            await self._page_client.close()
        await self._record.close()

    @property
    def lost(self) -> int:
        """Return the number of exchanges that neither the journal nor the memory could take."""
        return self._journal.lost

    @property
    def last_loss(self) -> str | None:
        return self._journal.last_loss

    async def _heartbeat_loop(self) -> None:
        """Open the record and write heartbeats; keep the journal's segments in order."""
        while True:
            try:
                record = await self._record.get()
            except RecordError:
                # The record is unavailable: replies continue without it, `status` reports it, and the next heartbeat retries.
                self._heartbeat_errors += 1
            else:
                await self._write_heartbeat(record, "running")
            self._journal.maintain()
            await self._trim_heap()
            await asyncio.sleep(LOOK_S)

    async def _trim_heap(self) -> None:
        """Return free heap memory to the system after large bodies."""
        now = time.monotonic()
        if self._counters.large != self._large_seen and now - self._trimmed_at > _TRIM_INTERVAL_S:
            self._large_seen, self._trimmed_at = self._counters.large, now
            await asyncio.to_thread(trim_heap)

    async def _write_heartbeat(self, record: Record, state: str) -> None:
        try:
            await self._beats.write(record, state, self._process_state())
        except RecordError:
            self._heartbeat_errors += 1  # shown in `status`; the next heartbeat retries

    def _process_state(self) -> Json:
        counters = self._counters
        return {
            "pid": os.getpid(),
            "started_at": self._started,
            "in_flight": counters.in_flight,
            "requests": counters.requests,
            "passed_through": counters.passed_through,
            "unfinished": counters.unfinished,
            "unrecorded": counters.unrecorded,
            "busy": counters.busy,
            "not_captured": dict(counters.not_captured),
            "recorded_by_api": dict(counters.apis),
            "unrecorded_by_path": dict(counters.passed_paths),
            "tools_left_out": dict(counters.left_out),
            "native_apis": self._native_apis,
            "is_local": self._is_local,
            "requests_refused": counters.requests_refused,
            "upstream_errors": counters.upstream_errors,
            "heartbeat_errors": self._heartbeat_errors,
            "refused_fields": self._chat.refused,
            "oldest_request_at": counters.oldest_request_at,
            "keys_problem": getattr(self._keys, "problem", None),
            "journal": self._journal.state(),
            "backend": self._alias.state(),
            "wishes": self._wishes.state(),
        }

    # ---- routing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; one that the end of this process cuts before its response began gets a 503."""
        has_started = False

        def noting(message: Message) -> Awaitable[None]:
            nonlocal has_started
            has_started = True  # the head precedes everything else
            return send(message)

        try:
            await self._serve(scope, receive, noting)
        except asyncio.CancelledError:
            if has_started or scope["type"] != "http":
                raise
            await send_error(
                send,
                503,
                "Patina is stopping. Retry the request.",
                kind="server_error",
                code="stopping",
                headers=[(b"retry-after", b"5"), (b"connection", b"close")],
            )

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1003})
            return
        if self._checks_host and not is_local_host(get_header(scope["headers"], b"host")):
            message = "Without a key this server answers to names of this machine only: call it as 127.0.0.1 or localhost."
            await send_error(send, 403, message, code="host_not_allowed")
            return
        path: str = scope["path"]
        if path == HEALTH.path:
            await self._health(send)
            return
        if path.removeprefix("/v1") == HEALTH_DETAIL.path:
            await self._health_detail(send)
            return
        if path == ROOT.path or (path in BASE_PATHS and self._shows_page(scope)):
            await self._root(scope, send)
            return
        if self._pages is not None and is_page_path(path):
            # The page has a sign-in of its own.
            await self._pages(scope, receive, send, path=_target_of(scope), principal=_PAGE_PRINCIPAL)
            return
        session, target = _session_of((scope.get("raw_path") or path.encode()).decode("latin-1"))
        if session is not None:
            path = unquote(target)
        if is_messages_path(_canonical_path(path)) or (self._is_local and _is_anthropic(scope)):
            send = with_error_body(with_request_id(send, b"x-request-id", b"request-id"), translate_error)
        else:
            send = with_request_id(send, b"x-request-id")
        allowed = await self._check_origin(scope, send)
        if allowed is None:
            return
        send = allowed
        principal = authenticate(scope["headers"], self._keys, passes_credentials=self._passes_credentials)
        if principal is None:
            how = "in the header x-patina-key" if self._passes_credentials else "as a Bearer token"
            await send_error(
                send,
                401,
                f"Incorrect API key provided, or none. Send the key that Patina printed at its first start {how}.",
                code="invalid_api_key",
                headers=[(b"www-authenticate", b"Bearer")],
            )
            return
        query: bytes = scope.get("query_string") or b""
        target = f"{target}?{query.decode('latin-1')}" if query else target
        if self._is_local and get_header(scope["headers"], b"origin") is not None:
            # The backend's own port refuses every web page; which pages may call was decided above.
            scope = {**scope, "headers": [field for field in scope["headers"] if field[0] != b"origin"]}
        await self._dispatch(scope, receive, send, principal, path, target, session)

    async def _check_origin(self, scope: Scope, send: Send) -> Send | None:
        """Return the ``send`` for a request's origin; None when the request was answered: a preflight, or a page that may not call."""
        origin = get_header(scope["headers"], b"origin")
        if origin is None:
            return send
        asks_first = is_preflight(scope["method"], scope["headers"])
        if self._origins.allows(origin):
            if asks_first:
                await send_head(send, 204, self._origins.preflight_headers(origin, scope["headers"]))
                await send_body(send, b"")
                return None
            return _with_response_headers(send, self._origins.response_fields(origin))
        if not asks_first and not self._allows_anonymous:
            return send  # not a browser, or a page that has the key and cannot read the reply
        # Without a key, any web page could reach the model, so the page's origin must be allowed.
        advice = f"Web pages of {origin} may not call this server. Start Patina with --cors-origins {origin} to allow it."
        log.warning("%s", advice)
        # The browser shows the page only a failure; this field lets its developer tools show the sentence.
        shown = [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"origin")]
        await send_error(send, 403, advice, code="origin_not_allowed", headers=shown)
        return None

    async def _dispatch(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        principal: Principal,
        path: str,
        target: str,
        session: str | None,
    ) -> None:
        """Route a request; ``target`` is the path and query for the backend, percent-encoded as the client sent it."""
        method: str = scope["method"]
        plain = _canonical_path(path)
        endpoint = find_endpoint(method, plain, is_local=self._is_local, native_apis=self._native_apis)
        if endpoint is not None and plain != path:
            path, target = plain, plain + target[target.find("?") :] if "?" in target else plain
        if self._is_local:
            send = with_error_body(send, lambda status, body: rewrite_error(status, body, plain))
        if endpoint is CHAT:
            await self._chat(scope, receive, send, principal=principal, path=target, session=session)
        elif endpoint is COMPLETIONS:
            await self._chat(
                scope, receive, send, principal=principal, path=target, session=session, is_completion=True
            )
        elif endpoint is not None and endpoint.is_translated:
            await self._dispatch_api(endpoint, scope, receive, send, principal, path, session)
        elif endpoint is JOBS:
            await self._jobs(scope, receive, send, principal=principal, path=path)
        elif endpoint is FILES:
            await self._files(scope, receive, send, principal=principal, path=path)
        elif endpoint is STATUS:
            await send_json(send, 200, await self._status(principal))
        elif endpoint is FEEDBACK:
            await self._feedback(scope, receive, send, principal)
        elif endpoint is FEEDBACK_STATE:
            poll = self._poll_batch(path.removeprefix(FEEDBACK_STATE.path[:-1]), principal)
            await self._answer_batch(send, poll)
        elif endpoint is LORA:
            await self._lora(scope, receive, send, principal=principal, path=path)
        elif endpoint is SCORE:
            await self._score(scope, receive, send, principal=principal)
        elif endpoint is FATE:
            await self._fate(send, principal.key_name, path.removeprefix(FATE.path[:-1]))
        elif endpoint in (MODELS, MODEL):
            name = path.removeprefix(MODELS.path)[1:]
            await self._models(send, name, principal, as_anthropic=_is_anthropic(scope))
        else:
            await self._forward(scope, receive, send, principal, path, target)

    async def _forward(
        self, scope: Scope, receive: Receive, send: Send, principal: Principal, path: str, target: str
    ) -> None:
        """Forward a request that is none of Patina's own, or refuse it."""
        methods = methods_of(_canonical_path(path), native_apis=self._native_apis) if self._is_local else []
        if methods:
            message = f"{scope['method']} {path} is not served: send {' or '.join(methods)}."
            allowed = [(b"allow", ", ".join(methods).encode())]
            await send_error(send, 405, message, code="method_not_allowed", headers=allowed)
        elif _is_forbidden(path) or not path.startswith(FORWARDED_PREFIX):
            await send_error(send, 404, describe_missing_path(path), code="not_found")
        else:
            await self._pass_through(scope, receive, send, path=target, principal=principal)

    async def _dispatch_api(
        self,
        endpoint: Endpoint,
        scope: Scope,
        receive: Receive,
        send: Send,
        principal: Principal,
        path: str,
        session: str | None,
    ) -> None:
        """Route a request of an API that is translated to chat."""
        if endpoint is RESPONSES:
            await self._apis.create_response(scope, receive, send, principal=principal, session=session)
        elif endpoint is TOKENS:
            await self._apis.count_response_tokens(scope, receive, send, principal=principal)
        elif endpoint is RESPONSE:
            await self._apis.existing_response(scope, send, principal=principal, path=path)
        elif endpoint is CONVERSATIONS:
            await self._apis.conversations(scope, receive, send, key_name=principal.key_name, path=path)
        elif endpoint is MESSAGES:
            await self._apis.create_message(scope, receive, send, principal=principal, session=session)
        elif endpoint in (STORED, STORED_ONE):
            await self._stored(scope, receive, send, key_name=principal.key_name, path=path)
        elif endpoint is COUNT:
            await self._apis.count_message_tokens(scope, receive, send, principal=principal)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await self.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.stop()
        await send({"type": "lifespan.shutdown.complete"})

    # ---- own endpoints

    async def _root(self, scope: Scope, send: Send) -> None:
        if self._shows_page(scope):
            await send_head(send, 303, [(b"location", DASHBOARD.encode()), (b"content-length", b"0")])
            await send_body(send, b"")
        else:
            await send_json(send, 200, {"name": "patina", "version": VERSION})

    def _shows_page(self, scope: Scope) -> bool:
        return self._pages is not None and wants_page(get_header(scope["headers"], b"accept"))

    async def _health_detail(self, send: Send) -> None:
        """Answer whether backend, record and trainer work. The status code is 200 in either case, as users of CLaaS expect."""
        problems = [] if self._alias.state()["ready"] else ["the backend does not answer"]
        state, error = "unknown", None
        try:
            async with asyncio.timeout(_STATUS_TIMEOUT_S):
                record = await self._record.get()
                beat, supervisor = await record.beat_of("trainer"), await record.beat_of("supervisor")
        except (RecordError, TimeoutError) as exc:
            problems.append(str(exc) or "the record does not answer")
        else:
            state, error, is_down = describe_trainer(beat, supervisor, time.time())
            problems += [error] if is_down and error else []
            runs = {} if supervisor is None else supervisor.detail
            store = self._describe_store()["state"] if "recorder" in runs else "ok"
            problems += [_STORE_PROBLEMS[store]] if store in _STORE_PROBLEMS else []
        worker = {"status": state, "error": error or "; ".join(problems) or None}
        await send_json(send, 200, {"status": "degraded" if problems else "healthy", "worker": worker})

    async def _health(self, send: Send) -> None:
        """Answer without a key, and so with nothing that depends on the rows or the requests of one."""
        answer = {
            "status": "ok",
            "policy": self._policy,
            "backend": {"ready": self._alias.state()["ready"]},
            "record": {"available": self._record.record is not None},
        }
        await send_json(send, 200, answer)

    async def _status(self, principal: Principal) -> Json:
        """Return what a caller may see: an owner everything, another key its own turns and its own policy."""
        if principal.is_owner:
            return await self._status_of_all()
        (mine, *_) = self._alias.served(group=principal.adapter, is_owner=False)
        found: Json = {"policy": mine.policy, "record_error": None}
        try:
            async with asyncio.timeout(_STATUS_TIMEOUT_S):
                record = await self._record.get()
                await wait_recorded(record, self._journal.folder, _STATUS_WAIT_S)
                counted = await record.status(policy=mine.policy, key_name=principal.key_name)
        except (RecordError, TimeoutError):
            return {**found, "record_error": "the record does not answer"}
        shown = counted.to_json()
        del shown["heartbeats"]
        return {**shown, **found}

    async def _status_of_all(self) -> Json:
        """Return the record's counts and the state of this process; the latter even when the record is unavailable."""
        own: Json = {"policy": self._policy, "proxy": self._process_state()}
        try:
            async with asyncio.timeout(_STATUS_TIMEOUT_S):
                record = await self._record.get()
                lag = await wait_recorded(record, self._journal.folder, _STATUS_WAIT_S)
                found = (await record.status()).to_json()
        except (RecordError, TimeoutError) as exc:
            error = str(exc) or "the record does not answer"
            return {**own, "store": self._describe_store(), "record_error": error}
        now = time.time()
        processes = {
            beat["process"]: {**beat, "age_s": round(now - beat["at"], 3)} for beat in found["heartbeats"]
        }
        others = [
            beat["detail"]
            for name, beat in processes.items()
            if name.startswith("proxy") and name != self._name and beat["age_s"] < SILENT_S
        ]
        own["proxy"] = add_up([own["proxy"], *others])
        store = {**self._describe_store(lag), "lost": own["proxy"]["journal"]["lost"]}
        return {**found, **own, "store": store, "processes": processes, "record_error": None}

    def _describe_store(self, lag: Lag | None = None) -> Json:
        return describe_store(self._journal, read_recorder_state(self._journal.folder), lag)

    async def _model_cards(self, principal: Principal) -> list[Json]:
        """Return a card for each policy that a caller may use, each followed by its retained versions, the newest first."""
        cards = []
        for one in self._alias.served(group=principal.adapter, is_owner=principal.is_owner):
            cards.append(self._model_card(one.name, one.policy, one.version))
            for version in await self._retained(one.policy):
                cards.append(self._model_card(f"{one.name}@{version}", one.policy, version))
        return cards

    async def _retained(self, policy: str) -> list[int]:
        """Return the versions of a policy that can be served; none while the record is unavailable."""
        try:
            found = await (await self._record.get()).adapters(policy)
        except RecordError:
            return []
        return [one.version for one in reversed(found) if one.state is AdapterState.PUBLISHED]

    def _model_card(self, name: str, policy: str, version: int) -> Json:
        limit = self._alias.capabilities.max_model_len
        return {
            "id": name,
            "object": "model",
            "created": int(self._started),
            "owned_by": "patina",
            **({} if limit is None else {"max_model_len": limit}),
            "metadata": {"version": version, "name": adapter_name(policy, version)},
        }

    async def _models(self, send: Send, name: str, principal: Principal, *, as_anthropic: bool) -> None:
        """Answer with all models ("") or for one name, as chat does: also for an alias, and for any name where any is accepted."""
        if not name:
            cards = await self._model_cards(principal)
            if as_anthropic:
                await send_json(send, 200, list_of([build_anthropic_model(c) for c in cards], has_more=False))
            else:
                await send_json(send, 200, {"object": "list", "data": cards})
            return
        try:
            policy, version = self._alias.resolve(name, group=principal.adapter, is_owner=principal.is_owner)
            if version is not None and version not in (BASE_VERSION, *await self._retained(policy)):
                raise UnknownModel(f"The model `{name}` is not loaded. `{self._policy}` is the live version.")
        except UnknownModel as exc:
            await send_error(send, 404, str(exc), code="model_not_found", param="model")
            return
        served = self._alias.served(group=principal.adapter, is_owner=principal.is_owner)
        live = next((one.version for one in served if one.policy == policy), BASE_VERSION)
        card = self._model_card(name, policy, live if version is None else version)
        await send_json(send, 200, build_anthropic_model(card) if as_anthropic else card)

    async def _answer_batch(self, send: Send, work: Awaitable[tuple[int, Json]]) -> None:
        try:
            status, answer = await work
        except Untranslatable as exc:
            await send_error(send, exc.status, str(exc), code=exc.code, param=exc.param)
        except (RecordError, OSError) as exc:
            await self._refuse_feedback(send, exc)
        else:
            await send_json(send, status, answer)

    async def _poll_batch(self, request_id: str, principal: Principal) -> tuple[int, Json]:
        """Return what became of a batch; one that was taken a moment ago is waited for until it is recorded."""
        record = await self._record.get()
        lag = await wait_recorded(record, self._journal.folder, _FEEDBACK_WAIT_S)
        try:
            return await self._batches.poll(request_id, principal)
        except Untranslatable:
            if lag.entries:
                raise RecordUnavailable("feedback waits to be recorded, and this may be among it") from None
            raise

    async def _submit_batch(self, body: Json, scope: Scope, principal: Principal) -> tuple[int, Json]:
        waits = read_query(scope.get("query_string") or b"").get("wait") == "true"
        batch: BatchBody = parse_batch(body)
        return await self._batches.submit(batch, principal, waits=waits)

    async def _feedback(self, scope: Scope, receive: Receive, send: Send, principal: Principal) -> None:
        try:
            raw = await read_json(receive, scope["headers"])
        except ClientDisconnected:
            return
        except BodyTooLarge:
            await send_error(send, 413, "The request body is larger than 64 MB.", code="request_too_large")
            return
        except Untranslatable as exc:
            await send_error(send, exc.status, str(exc), code=exc.code)
            return
        try:
            given = orjson.loads(raw)
            if is_batch(given):
                await self._answer_batch(send, self._submit_batch(given, scope, principal))
                return
            body = parse_feedback(given)
        except orjson.JSONDecodeError:
            await send_error(send, 400, "The body is not valid JSON.")
            return
        except WireError as exc:
            await send_error(send, 400, f"Feedback: {exc}.")
            return
        try:
            turn_id = await self._find_turn(principal.key_name, body)
            if turn_id is None:
                await send_error(send, 404, "No turn of this key matches.", code="unknown_turn")
                return
            status = await self._append_feedback(principal.key_name, turn_id, body)
        except (RecordError, OSError) as exc:
            await self._refuse_feedback(send, exc)
            return
        reason = await self._why_untrained(turn_id, body)
        answer = {} if reason is None else {"trains": False, "reason": reason}
        await send_json(send, 200, {"status": status, "turn_id": turn_id, **answer})

    async def _fate(self, send: Send, key_name: str, turn_id: str) -> None:
        try:
            record = await self._record.get()
            await wait_recorded(record, self._journal.folder, _FEEDBACK_WAIT_S)
            found = await record.turn_progress(key_name, turn_id)
        except RecordError as exc:
            log.warning("the fate of a turn could not be read: %s", exc)
            await send_error(
                send, 503, "The record cannot be read now. Retry the request.", kind="server_error"
            )
            return
        if found is None:
            await send_error(send, 404, "No turn of this key matches.", code="unknown_turn")
            return
        fate = found.fate
        answer = {
            "turn_id": turn_id,
            "policy": found.policy,
            "stage": fate.stage,
            "drop_reason": fate.drop_reason,
        }
        await send_json(send, 200, {**answer, "version": fate.trained_in_version, "is_live": found.is_live})

    async def _refuse_feedback(self, send: Send, exc: Exception) -> None:
        log.warning("feedback was not kept or read: %s", exc)
        await send_error(
            send,
            503,
            f"The feedback cannot be kept or read now: {exc}. Retry the request.",
            kind="server_error",
            headers=[(b"retry-after", b"1")],
        )

    async def _why_untrained(self, turn_id: str, body: FeedbackBody) -> str | None:
        """Return why no version learns from this feedback: its turn's stage, or why that was dropped; None: one may."""
        record = self._record.record
        try:
            fate = None if record is None else (await record.fates([turn_id])).get(turn_id)
        except RecordError:
            return None  # the feedback is in the journal all the same
        if fate is None or may_teach(
            fate.stage, fate.drop_reason, has_words=may_hold_hint(body.text, body.score)
        ):
            return None
        return fate.stage.value if fate.drop_reason is None else fate.drop_reason.value

    async def _find_turn(self, key_name: str, body: FeedbackBody) -> str | None:
        """Return the id of the turn that feedback is about: a recently issued one, or a recorded one.

        Another gateway may have issued it a moment ago: what is in the journal when the request comes is waited for.

        Raises:
            RecordError: the record does not know it, and not all of the journal is recorded yet.
        """
        if body.reference is not None and (named := turn_of(body.reference)) is not None:
            body = replace(body, reference=named)  # the id of a response or of a message names its turn
        if body.reference is not None:
            issued = self._chat.issued.find(key_name, body.reference)
            if issued is not None:
                return issued
        record = await self._record.get()
        lag = await wait_recorded(record, self._journal.folder, _FEEDBACK_WAIT_S)
        if body.reference is not None:
            turn_id = await record.find_turn(key_name, body.reference)
        else:
            turn_id = await record.find_exchange(key_name, body.prompt or "", body.response or "")
        if turn_id is None and lag.entries:
            raise RecordUnavailable("turns wait to be recorded, and the turn may be among them")
        return turn_id

    async def _append_feedback(
        self, key_name: str, turn_id: str, body: FeedbackBody, feedback_id: str = ""
    ) -> str:
        """Append feedback to the journal, behind its turn; returns "recorded" or "duplicate". Raises: OSError, RecordError."""
        given = body.idempotency_key or digest("content", turn_id, repr(body.score), body.text)
        key = f"{key_name}:{given}"
        is_known = key in self._feedback_keys
        if not is_known and self._record.record is not None:
            is_known = await self._record.record.has_feedback(key)
        if is_known or key in self._feedback_keys:  # an equal request may have come meanwhile
            return "duplicate"
        self._feedback_keys[key] = None
        feedback = Feedback(
            feedback_id=feedback_id or new_feedback_id(),
            turn_id=turn_id,
            score=body.score,
            text=body.text,
            idempotency_key=key,
            created_at=time.time(),
        )
        try:
            await self._journal.append_written(EntryKind.FEEDBACK, orjson.dumps(feedback), JOURNAL_WAIT_S)
        except OSError:
            self._feedback_keys.pop(key, None)
            raise
        while len(self._feedback_keys) > _MAX_FEEDBACK_KEYS:
            del self._feedback_keys[next(iter(self._feedback_keys))]
        return "recorded"


def _target_of(scope: Scope) -> str:
    """Return path and query, percent-encoded as the client sent them."""
    raw = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
    query: bytes = scope.get("query_string") or b""
    return f"{raw}?{query.decode('latin-1')}" if query else raw


def _session_of(raw: str) -> tuple[str | None, str]:
    """Split ``/s/<session>/v1/…``, still percent-encoded; return other paths unchanged."""
    if raw.startswith("/s/"):
        session, slash, rest = raw[3:].partition("/")
        if slash and session and rest.startswith("v1/"):
            return unquote(session), "/" + rest
    return None, raw


def _canonical_path(path: str) -> str:
    """Return a path without doubled or closing slashes, which clients make of a base URL."""
    if "//" not in path and not (path.endswith("/") and path != "/"):
        return path
    return "/" + "/".join(part for part in path.split("/") if part)


def _is_anthropic(scope: Scope) -> bool:
    return get_header(scope["headers"], b"anthropic-version") is not None


def _with_response_headers(send: Send, response_fields: list[tuple[bytes, bytes]]) -> Send:
    """Return a ``send`` that adds header fields to the response."""

    async def adding(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *response_fields]}
        await send(message)

    return adding


def _is_forbidden(path: str) -> bool:
    """Whether a path leads to the backend's administration, in any spelling."""
    decoded = unquote(unquote(path)).lower()
    parts = posixpath.normpath(decoded).split("/")
    return ".." in decoded.split("/") or any(part in _FORBIDDEN for part in parts)
