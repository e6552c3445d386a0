"""The proxy as an ASGI application: who may come in, and which of three doors a path leads to.

* the hot route, ``/v1/chat/completions``: relayed and recorded;
* our own: ``/healthz``, ``/v1/models`` (of a local backend), ``/v1/patina/status``, ``/v1/feedback``;
* everything else under ``/v1/``: passed through as bytes, except what would let a client administer the backend.

A path may name its session: ``/s/<session>/v1/…``. Bodies, keys and headers are never logged.
"""

from __future__ import annotations

import asyncio
import logging
import os
import posixpath
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any
from urllib.parse import unquote

import orjson
from starlette.types import Message, Receive, Scope, Send

from proxy.adapters import AdapterAlias, Alias, UpstreamAlias
from proxy.asgi import BodyTooLarge, ClientLeft, read_body, send_body, send_error, send_head, send_json
from proxy.cors import Origins, is_preflight
from proxy.journal import Journal
from proxy.learnt import Learnt
from proxy.memory import give_back
from proxy.ours import Caller, Door, Headers, header, parse_feedback, read_caller, told_length
from proxy.recorder import Recorder
from proxy.relay import PATIENCE_S, ChatRelay, Counters, PassThrough
from serving.protocol import Engine
from serving.vllm.turns import EngineByTurns
from store.errors import RecordError, RecordUnavailable, WireError
from store.hashing import digest
from store.record import Record
from store.values import Feedback, Heartbeat, Json

log = logging.getLogger(__name__)

_CHAT = "/v1/chat/completions"
#: Administration of the backend: loading code and weights is not a client's business.
_FORBIDDEN = ("load_lora_adapter", "unload_lora_adapter")

_HEARTBEAT_S = 1.0
_STATUS_TIMEOUT_S = 2.0
#: Feedback may come before a late turn is written: so long is its row waited for.
_FEEDBACK_PATIENCE_S, _FEEDBACK_POLL_S = 20.0, 0.1
_DRAIN_S = 5.0
#: The heap is tidied up after large bodies, but not more often.
_TIDY_S = 5.0


class Proxy:
    """The application and its background work.

    Args:
        engine: the backend.
        policy: name the policy is served and recorded under.
        opening: opens the record.
        keys: what clients must send: a key, or who knows several; "": nothing.
        is_local: the backend is ours (it loads adapters, and somebody restarts it).
        wait_s: longest time a reply waits for its row.
        patience_s: longest time a request waits for a local backend that is being restarted.
        learnt: what is known of the backend from earlier; default: nothing yet.
        journal: where turns are safe that the record does not take in time.
        passes_credentials: clients' own credentials go on to the backend; our key then comes as `x-patina-key`.
        origins: web pages that may call; default: none.
        on_crash: called when background work ended by an error nobody expected; the process should end.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        policy: str,
        opening: Callable[[], Awaitable[Record]],
        keys: Door | str,
        is_local: bool,
        wait_s: float = 0.25,
        patience_s: float = PATIENCE_S,
        learnt: Learnt | None = None,
        journal: Journal | None = None,
        passes_credentials: bool = False,
        origins: Origins | None = None,
        on_crash: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._policy = policy
        self._keys = keys
        self._is_open = not keys if isinstance(keys, str) else keys.is_open
        self._passes_credentials = passes_credentials
        self._origins = origins or Origins()
        self._on_crash = on_crash
        self._started = time.time()
        self._counters = Counters()
        self._heartbeat_errors = 0
        self._large_seen, self._tidied_at = 0, 0.0
        self._recorder = Recorder(opening, wait_s=wait_s, journal=journal)
        self._alias: Alias = (
            AdapterAlias(engine, policy, lambda: self._recorder.record)
            if is_local
            else UpstreamAlias(engine, policy)
        )
        self._is_local = is_local
        self._through = PassThrough(engine, self._counters)
        self._chat = ChatRelay(
            engine,
            self._alias,
            self._recorder,
            self._counters,
            self._through,
            learnt=learnt,
            patience_s=patience_s,
        )
        self._tasks: list[asyncio.Task[None]] = []

    # ---- life

    async def start(self) -> None:
        """Start the background work."""
        for work in (self._recorder.run(), self._alias.run(), self._beat()):
            self._spawn(work)
        if isinstance(self._engine, EngineByTurns):
            self._spawn(self._engine.run(lambda: self._recorder.record))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            # A proxy without its writer or its alias would look alive and do harm; the supervisor starts a new one.
            log.critical("background work ended: %s: %s", type(error).__name__, error, exc_info=error)
            self._on_crash()

    async def stop(self) -> None:
        """Write what still waits, then end the background work."""
        left = await self._recorder.drain(_DRAIN_S)
        if left:
            log.error("%d turns could not be written before the end; they go into the journal", left)
        await self._recorder.stow()
        record = self._recorder.record
        if record is not None:
            await self._beat_once(record, "stopped")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._engine.close()
        if record is not None:
            await record.close()

    async def _beat(self) -> None:
        """Open the record and say every second that this process lives."""
        while True:
            try:
                record = await self._recorder.opened()
            except RecordError as exc:
                # Away or not there yet: replies flow without it, `status` says so, and the next beat tries again.
                self._heartbeat_errors += 1
                self._recorder.last_error = str(exc)
            else:
                await self._beat_once(record, "running")
            await self._tidy()
            await asyncio.sleep(_HEARTBEAT_S)

    async def _tidy(self) -> None:
        """Give back what large bodies have left in the heap."""
        now = time.monotonic()
        if self._counters.large != self._large_seen and now - self._tidied_at > _TIDY_S:
            self._large_seen, self._tidied_at = self._counters.large, now
            await asyncio.to_thread(give_back)

    async def _beat_once(self, record: Record, state: str) -> None:
        beat = Heartbeat(
            process="proxy", pid=os.getpid(), state=state, detail=self._own_state(), at=time.time()
        )
        try:
            await record.heartbeat(beat)
        except RecordError:
            self._heartbeat_errors += 1  # shown in `status`; the next beat tries again

    def _own_state(self) -> Json:
        counters = self._counters
        return {
            "pid": os.getpid(),
            "started_at": self._started,
            "in_flight": counters.in_flight,
            "requests": counters.requests,
            "passed_through": counters.passed_through,
            "unfinished": counters.unfinished,
            "unrecorded": counters.unrecorded,
            "not_captured": dict(counters.not_captured),
            "requests_refused": counters.requests_refused,
            "upstream_errors": counters.upstream_errors,
            "heartbeat_errors": self._heartbeat_errors,
            "refused_fields": self._chat.refused,
            "keys_problem": getattr(self._keys, "problem", None),
            "recorder": self._recorder.state(),
            "backend": self._alias.state(),
        }

    # ---- doors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1003})
            return
        path: str = scope["path"]
        if path == "/healthz":
            await self._health(send)
            return
        origin = header(scope["headers"], b"origin")
        if origin is not None:
            if self._origins.allows(origin):
                if is_preflight(scope["method"], scope["headers"]):
                    await send_head(send, 204, self._origins.preflight(origin, scope["headers"]))
                    await send_body(send, b"")
                    return
                send = _adding(send, self._origins.fields(origin))
            elif self._is_open:
                # No key stands between a web page and the model here, so the page must be known.
                await send_error(
                    send, 403, "Web pages may not call this server: see --cors-origins.", code="origin"
                )
                return
        caller = read_caller(scope["headers"], self._keys, passes_credentials=self._passes_credentials)
        if caller is None:
            how = "in the header x-patina-key" if self._passes_credentials else "as a Bearer token"
            await send_error(
                send,
                401,
                f"Incorrect or missing API key. Send the key that Patina printed at its first start {how}.",
                code="invalid_api_key",
                headers=[(b"www-authenticate", b"Bearer")],
            )
            return
        session, target = _session_of((scope.get("raw_path") or path.encode()).decode("latin-1"))
        if session is not None:
            path = unquote(target)
        query: bytes = scope.get("query_string") or b""
        target = f"{target}?{query.decode('latin-1')}" if query else target
        await self._enter(scope, receive, send, caller, path, target, session)

    async def _enter(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        caller: Caller,
        path: str,
        target: str,
        session: str | None,
    ) -> None:
        """Open the door that ``path`` leads to; ``target`` is the same for the backend, percent-encoded as the client sent it."""
        method: str = scope["method"]
        if path == _CHAT and method == "POST":
            await self._chat(scope, receive, send, caller=caller, path=target, session=session)
        elif path == "/v1/patina/status" and method == "GET":
            await send_json(send, 200, await self._status())
        elif path == "/v1/feedback" and method == "POST":
            await self._feedback(scope["headers"], receive, send, caller)
        elif self._is_local and path == "/v1/models" and method == "GET":
            await send_json(send, 200, {"object": "list", "data": [self._card()]})
        elif self._is_local and path.startswith("/v1/models/") and method == "GET":
            await self._one_model(send, path.removeprefix("/v1/models/"))
        elif _is_forbidden(path) or not path.startswith("/v1/"):
            await send_error(send, 404, f"There is no {path} here.", code="not_found")
        else:
            await self._through(
                scope, receive, send, path=target, passes_credentials=caller.passes_credentials
            )

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await self.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.stop()
        await send({"type": "lifespan.shutdown.complete"})

    # ---- our own

    async def _health(self, send: Send) -> None:
        recorder = self._recorder.state()
        await send_json(
            send,
            200,
            {
                "status": "ok",
                "policy": self._policy,
                "backend": self._alias.state(),
                "record": {"available": recorder["available"], "last_error": recorder["last_error"]},
            },
        )

    async def _status(self) -> Json:
        """Return the record's counts and this process's own; the latter even when the record is away."""
        own = {"policy": self._policy, "proxy": self._own_state(), "store": self._recorder.state()}
        try:
            async with asyncio.timeout(_STATUS_TIMEOUT_S):
                record = await self._recorder.opened()
                found = (await record.status()).to_json()
        except (RecordError, TimeoutError) as exc:
            return {**own, "record_error": str(exc) or "the record does not answer"}
        now = time.time()
        processes = {
            beat["process"]: {**beat, "age_s": round(now - beat["at"], 3)} for beat in found["heartbeats"]
        }
        return {**found, **own, "processes": processes, "record_error": None}

    def _card(self) -> Json:
        state = self._alias.state()
        return {
            "id": self._policy,
            "object": "model",
            "created": int(self._started),
            "owned_by": "patina",
            "metadata": {"version": state["live"], "name": f"{self._policy}@{state['live']}"},
        }

    async def _one_model(self, send: Send, name: str) -> None:
        if name == self._policy:
            await send_json(send, 200, self._card())
        else:
            await send_error(
                send, 404, f"The model `{name}` does not exist.", code="model_not_found", param="model"
            )

    async def _feedback(self, headers: Headers, receive: Receive, send: Send, caller: Caller) -> None:
        try:
            raw = await read_body(receive, told_length(headers))
        except ClientLeft:
            return
        except BodyTooLarge:
            await send_error(send, 413, "The request body is larger than 64 MB.", code="request_too_large")
            return
        try:
            body = parse_feedback(orjson.loads(raw))
        except orjson.JSONDecodeError:
            await send_error(send, 400, "The body is not JSON.")
            return
        except WireError as exc:
            await send_error(send, 400, f"Feedback: {exc}.")
            return
        try:
            record = await self._recorder.opened()

            async def find() -> str | None:
                if body.reference is not None:
                    return await record.find_turn(caller.scope, body.reference)
                return await record.find_exchange(caller.scope, body.prompt or "", body.response or "")

            asked = asyncio.get_running_loop().time()
            while True:
                is_held = self._recorder.may_hold(body.reference, asked)  # now: it may be written meanwhile
                turn_id = await find()
                if turn_id is not None:
                    break
                if not is_held:
                    await send_error(send, 404, "No turn of yours is known by that.", code="unknown_turn")
                    return
                if asyncio.get_running_loop().time() > asked + _FEEDBACK_PATIENCE_S:
                    raise RecordUnavailable("turns are waiting to be written, and it may be one of them")
                await asyncio.sleep(_FEEDBACK_POLL_S)
            key = body.idempotency_key or digest("content", turn_id, repr(body.score), body.text)
            is_new = await record.add_feedback(
                Feedback(
                    feedback_id=f"feedback_{uuid.uuid4().hex}",
                    turn_id=turn_id,
                    score=body.score,
                    text=body.text,
                    idempotency_key=f"{caller.scope}:{key}",
                    created_at=time.time(),
                )
            )
        except RecordError as exc:
            log.warning("feedback was not taken: %s", exc)
            await send_error(
                send,
                503,
                f"The record cannot be written now: {exc}. Send it again.",
                kind="server_error",
                headers=[(b"retry-after", b"1")],
            )
            return
        await send_json(send, 200, {"status": "recorded" if is_new else "duplicate", "turn_id": turn_id})


def _session_of(raw: str) -> tuple[str | None, str]:
    """Split ``/s/<session>/v1/…``, still percent-encoded; other paths come back as they are."""
    if raw.startswith("/s/"):
        session, slash, rest = raw[3:].partition("/")
        if slash and session and rest.startswith("v1/"):
            return unquote(session), "/" + rest
    return None, raw


def _adding(send: Send, fields: list[tuple[bytes, bytes]]) -> Send:
    """Return a ``send`` that adds fields to the head."""

    async def adding(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *fields]}
        await send(message)

    return adding


def _is_forbidden(path: str) -> bool:
    """Whether a path leads to the backend's administration, however it is written."""
    decoded = unquote(unquote(path)).lower()
    parts = posixpath.normpath(decoded).split("/")
    return ".." in decoded.split("/") or any(part in _FORBIDDEN for part in parts)
