"""HTTP client of a backend: vLLM, Patina's own servers, or any OpenAI-compatible endpoint.

aiohttp's exceptions are mapped once, in `_map_errors`. Bodies pass as bytes: nothing is decompressed, redirected, retried or re-encoded here, so
that the proxy can be transparent. A POST in one piece to an ``http://`` address uses `serving.http_connections` instead of aiohttp.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from yarl import URL

from serving.attestation import NO_ATTESTATION, NOT_SCORED, attest, read_scores, score_request
from serving.http_connections import MAX_FIELDS, ConnectionPool, PooledReply
from serving.protocol import Capabilities, Headers, ServedModel
from store.errors import (
    AdapterError,
    AdapterMismatch,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from store.manifest import Attestation, read_attestation
from store.values import LogprobMode

#: Below the 5 s after which uvicorn (vLLM, the built-in engine) closes an idle connection: no request meets a closing connection.
_KEEPALIVE_S = 4.0

#: A backend whose machine disappeared is detected after about two minutes. There is no limit on its computing time: the client decides.
_TCP_KEEPALIVE_IDLE_S, _TCP_KEEPALIVE_INTERVAL_S, _TCP_KEEPALIVE_PROBES = 60, 15, 4
#: aiohttp writes a body in one go; larger bodies are sent in pieces, so that they do not block the event loop.
_MAX_SINGLE_WRITE = 1 << 18

_SHORT_TIMEOUT = aiohttp.ClientTimeout(total=10.0)
_LOAD_TIMEOUT = aiohttp.ClientTimeout(total=120.0)
#: Versions whose log-probabilities are kept, to compare their successors with.
_KEPT_SCORES = 64


class HttpReply:
    """A response whose head has arrived (`serving.protocol.BackendReply`)."""

    def __init__(self, response: aiohttp.ClientResponse, address: str) -> None:
        self._response = response
        self._address = address

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Headers:
        return self._response.raw_headers

    async def chunks(self) -> AsyncIterator[bytes]:
        content = self._response.content
        with _map_errors(self._address):
            while True:
                data = await content.readany()
                if not data:
                    return
                yield data

    async def read(self) -> bytes:
        with _map_errors(self._address):
            return await self._response.read()

    def close(self) -> None:
        # A body that was read to its end has returned its connection already. For any other, this closes the socket, which stops the
        # backend.
        self._response.close()


class HttpBackend:
    """A backend at a base URL (`serving.protocol.BackendClient`).

    Args:
        base_url: with or without a trailing ``/v1``.
        api_key: sent as Bearer; never logged.
        speaks_vllm: it accepts `return_token_ids` and loads adapters at runtime.
        tag: ends the names of this home's adapters on an engine that other homes use too; theirs are not seen, and never unloaded.
        connect_timeout_s: for establishing a connection.
        read_timeout_s: longest silence before and within a response; None: as long as the client waits.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str = "",
        speaks_vllm: bool = True,
        tag: str = "",
        connect_timeout_s: float = 10.0,
        read_timeout_s: float | None = None,
    ) -> None:
        url = URL(base_url.rstrip("/").removesuffix("/v1"), encoded=True)
        self._root = str(url.with_user(None)) if url.user else str(url)
        self._api_key = api_key
        self._speaks_vllm = speaks_vllm
        self._tag = tag
        self._timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=connect_timeout_s, sock_read=read_timeout_s
        )
        self._session: aiohttp.ClientSession | None = None
        self._has_stats = False
        self._url = URL(self._root, encoded=True)
        self._uses_pool = self._url.scheme == "http" and bool(self._url.host) and read_timeout_s is None
        self._host = self._url.host_port_subcomponent.encode() if self._url.host_port_subcomponent else b""
        self._prefix = self._url.raw_path.rstrip("/")
        self._pool: ConnectionPool | None = None
        self._scores: dict[str, tuple[float, ...]] = {}  # of the newest attested adapters, by name

    @property
    def address(self) -> str:
        return self._root

    def _get_session(self) -> aiohttp.ClientSession:
        if self._session is None:  # created on first use: a session belongs to a running loop
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0, keepalive_timeout=_KEEPALIVE_S, socket_factory=_keepalive_socket
                ),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=self._timeout,
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
                read_bufsize=1 << 18,
                max_line_size=1 << 16,
                max_field_size=1 << 16,
                max_headers=MAX_FIELDS,
            )
        return self._session

    def _get_pool(self) -> ConnectionPool:
        if self._pool is None:
            self._pool = ConnectionPool(
                self._url.host or "",
                self._url.port or 80,
                address=self._root,
                prepare=_enable_tcp_keepalive,
                idle_s=_KEEPALIVE_S,
                connect_timeout_s=self._timeout.sock_connect or 10.0,
            )
        return self._pool

    async def open(
        self, method: str, path: str, headers: Headers, body: bytes | AsyncIterator[bytes] | None
    ) -> HttpReply | PooledReply:
        """Send a request and return once the response's head has arrived (`serving.protocol.BackendClient.open`)."""
        if (
            self._uses_pool
            and method == "POST"
            and isinstance(body, bytes)
            and len(body) <= _MAX_SINGLE_WRITE
        ):
            head = self._build_request_head(path, headers, len(body))
            if head is not None:
                reply = await self._get_pool().send(head + body)
                self._check_status(reply)
                return reply
        return await self._open_with_aiohttp(method, path, headers, body)

    def _build_request_head(self, path: str, headers: Headers, length: int) -> bytes | None:
        """Return the head of a POST; None for input that aiohttp must check (a line break, a space in the path)."""
        where = (self._prefix + path).encode("utf-8", "surrogateescape")
        lines = [b"POST %b HTTP/1.1\r\nhost: %b\r\n" % (where, self._host)]
        has_key = False
        for name, value in headers:
            name = name.lower()
            has_key = has_key or name == b"authorization"
            lines.append(b"%b: %b\r\n" % (name, value))
        if self._api_key and not has_key:
            # The client's own credentials, where they are forwarded, take precedence.
            lines.append(b"authorization: Bearer %b\r\n" % self._api_key.encode())
        head = b"".join(lines)
        ends = len(lines) + 1
        is_odd = b" " in where or head.count(b"\r") != ends or head.count(b"\n") != ends or b"\0" in head
        return None if is_odd else head + b"content-length: %d\r\n\r\n" % length

    async def _open_with_aiohttp(
        self, method: str, path: str, headers: Headers, body: bytes | AsyncIterator[bytes] | None
    ) -> HttpReply:
        # Lower case: aiohttp would treat "X-A" and "x-a" as a repeated field and replace the first.
        header_fields = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers]
        # The client's own credentials, where they are forwarded, take precedence.
        if self._api_key and not any(name == "authorization" for name, _ in header_fields):
            header_fields.append(("authorization", f"Bearer {self._api_key}"))
        data: Any = io.BytesIO(body) if isinstance(body, bytes) and len(body) > _MAX_SINGLE_WRITE else body
        with _map_errors(self.address):
            response = await self._get_session().request(
                method,
                URL(self._root + path, encoded=True),
                headers=header_fields,
                data=data,
                allow_redirects=False,
            )
        reply = HttpReply(response, self.address)
        self._check_status(reply)
        return reply

    def _check_status(self, reply: HttpReply | PooledReply) -> None:
        if not 200 <= reply.status <= 599:
            reply.close()
            raise UpstreamError(
                f"the backend at {self.address} answered {reply.status}, which is not an HTTP status"
            )

    async def _request(
        self,
        method: str,
        path: str,
        payload: Mapping[str, Any] | None = None,
        *,
        timeout: aiohttp.ClientTimeout,
    ) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json"} if payload is not None else {}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        data = None if payload is None else orjson.dumps(payload)
        with _map_errors(self.address):
            async with self._get_session().request(
                method, self._root + path, headers=headers, data=data, timeout=timeout, allow_redirects=False
            ) as response:
                return response.status, await response.read()

    async def _get_json(self, path: str) -> dict[str, Any]:
        status, body = await self._request("GET", path, timeout=_SHORT_TIMEOUT)
        if status != 200:
            raise UpstreamError(f"{self.address}{path} answered {status}", status=status, body=body)
        try:
            found = orjson.loads(body)
        except orjson.JSONDecodeError as exc:
            raise UpstreamError(
                f"{self.address}{path} did not answer JSON", status=status, body=body
            ) from exc
        if not isinstance(found, dict):
            raise UpstreamError(
                f"{self.address}{path} did not answer a JSON object", status=status, body=body
            )
        return found

    async def capabilities(self) -> Capabilities:
        """Query the backend's capabilities; an endpoint without vLLM's extensions is not queried."""
        if not self._speaks_vllm:
            return Capabilities(token_ids=True, logprobs=True, adapters=False)
        cards = (await self._get_json("/v1/models")).get("data") or [{}]
        # Patina's own servers state the mode in their model cards; vLLM's default is raw.
        mode = str(cards[0].get("logprobs_mode") or LogprobMode.RAW)
        version_info: dict[str, Any] = {}
        try:
            version_info = await self._get_json("/version")
        except UpstreamError as exc:
            if exc.status is None:
                raise  # it became unreachable; a server without this path is fine
        declared_capabilities: Any = version_info.get("capabilities") or {}
        self._has_stats = bool(declared_capabilities)  # one of Patina's own servers, which has /stats
        defaults: Any = version_info.get("sampling_defaults") or {}
        temperature = defaults.get("temperature") if isinstance(defaults, dict) else None
        return Capabilities(
            token_ids=True,
            logprobs=True,
            adapters=True,
            logprob_mode=LogprobMode(mode) if mode in tuple(LogprobMode) else LogprobMode.UNKNOWN,
            default_temperature=float(temperature) if isinstance(temperature, int | float) else 1.0,
            engine=f"{version_info.get('engine', '')} {version_info.get('version', '')}".strip(),
            tools=declared_capabilities.get("tools"),
            constrained=declared_capabilities.get("constrained"),
            token_stream=declared_capabilities.get("token_stream") is not False,
            adapter_slots=declared_capabilities.get("adapter_slots"),
            max_model_len=_context(cards[0]),
            notes=tuple(declared_capabilities.get("notes") or ()),
        )

    async def models(self) -> tuple[ServedModel, ...]:
        """Return the models that the backend serves now."""
        cards = (await self._get_json("/v1/models")).get("data")
        listed = [
            ServedModel(name=str(card["id"]), parent=card.get("parent"), max_model_len=_context(card))
            for card in (cards if isinstance(cards, list) else ())
            if isinstance(card, dict) and "id" in card
        ]
        if not self._tag:
            return tuple(listed)
        own = [model for model in listed if model.parent is None or model.name.endswith(self._tag)]
        return tuple(replace(model, name=model.name.removesuffix(self._tag)) for model in own)

    async def load_adapter(self, name: str, path: str) -> str:
        """Load a LoRA folder under an immutable name, and compare the log-probabilities that it then serves with the trainer's."""
        expected = await asyncio.to_thread(read_attestation, Path(path))
        status, body = await self._request(
            "POST",
            "/v1/load_lora_adapter",
            {"lora_name": name + self._tag, "lora_path": path},
            timeout=_LOAD_TIMEOUT,
        )
        if status != 200 and all(model.name != name for model in await self.models()):
            raise AdapterError(f"{self.address} cannot load {name} from {path}: {_describe(status, body)}")
        # With any other status it is loaded already, by an earlier process.
        if expected is None:
            return NO_ATTESTATION
        try:
            return await self._attest(name, expected)
        except (AdapterMismatch, UpstreamError):
            with contextlib.suppress(UpstreamError):  # then it is away, with its adapters
                await self.unload_adapter(name)
            raise

    async def _attest(self, name: str, expected: Attestation) -> str:
        token_ids = expected.token_ids
        names = [model.name for model in await self.models() if model.parent is None and model.name != name]
        if not names:
            raise UpstreamError(f"{self.address} lists no base model beside {name}")
        try:
            of_base = await self._score(names[0], token_ids, stream=False)
        except UpstreamError as exc:
            if exc.status is not None and 400 <= exc.status < 500:
                return f"{NOT_SCORED} ({_describe(exc.status, exc.body or b'')})"
            raise
        found = {
            "reply": await self._score(name + self._tag, token_ids, stream=False),
            "stream": await self._score(name + self._tag, token_ids, stream=True),
        }
        outcome = attest(expected, found, base=of_base, parent=self._scores.get(expected.parent_name))
        self._scores[name] = found["reply"]
        while len(self._scores) > _KEPT_SCORES:
            del self._scores[next(iter(self._scores))]
        return outcome

    async def _score(self, model: str, token_ids: tuple[int, ...], *, stream: bool) -> tuple[float, ...]:
        """Return the log-probabilities [T - 1] of a text's tokens after the first. Raises: UpstreamError."""
        status, body = await self._request(
            "POST", "/v1/completions", score_request(model, token_ids, stream=stream), timeout=_LOAD_TIMEOUT
        )
        if status != 200:
            raise UpstreamError(
                f"{self.address} answered {status} to a request for log-probabilities: {_describe(status, body)}",
                status=status,
                body=body,
            )
        events = _event_data(body) if stream else [body]
        try:
            return read_scores([orjson.loads(event) for event in events], token_ids)
        except orjson.JSONDecodeError as exc:
            raise UpstreamError(f"{self.address}/v1/completions did not answer JSON", status=status) from exc

    async def unload_adapter(self, name: str) -> None:
        """Unload an adapter; a missing adapter is not an error."""
        status, body = await self._request(
            "POST", "/v1/unload_lora_adapter", {"lora_name": name + self._tag}, timeout=_LOAD_TIMEOUT
        )
        if status not in (200, 404):
            raise UpstreamError(
                f"{self.address} cannot unload {name}: {_describe(status, body)}", status=status, body=body
            )

    async def is_healthy(self) -> bool:
        """Whether the backend responds; an endpoint without /health counts as healthy while it responds at all."""
        try:
            status, _ = await self._request("GET", "/health", timeout=aiohttp.ClientTimeout(total=2.0))
        except UpstreamError:
            return False
        return status == 200 if self._speaks_vllm else status < 500

    async def activity(self) -> Mapping[str, Any]:
        """Return the counters of Patina's own servers; others are not queried."""
        return await self._get_json("/stats") if self._has_stats else {}

    async def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None
        if self._session is not None:
            await self._session.close()
            self._session = None


def _keepalive_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    _enable_tcp_keepalive(made)
    return made


def _enable_tcp_keepalive(made: socket.socket) -> None:
    """Enable keep-alive probes, so that the system detects a lost peer."""
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _TCP_KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", _TCP_KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", _TCP_KEEPALIVE_PROBES),
    ):
        if hasattr(socket, name):  # other systems have other names and defaults
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _context(card: Mapping[str, Any]) -> int | None:
    limit = card.get("max_model_len")
    return limit if isinstance(limit, int) else None


def _event_data(body: bytes) -> list[bytes]:
    """Return the data of a stream's events, without its end."""
    lines = [line.removeprefix(b"data:").strip() for line in body.splitlines() if line.startswith(b"data:")]
    return [line for line in lines if line != b"[DONE]"]


def _describe(status: int, body: bytes) -> str:
    return f"status {status}, {body[:300].decode('utf-8', 'replace')}"


@contextmanager
def _map_errors(address: str) -> Iterator[None]:
    """Map aiohttp's exceptions to `store.errors`. Timeouts first: aiohttp's are connection errors too."""
    try:
        yield
    except TimeoutError as exc:
        raise UpstreamTimeout(f"the backend at {address} did not answer in time") from exc
    except aiohttp.ClientConnectorError as exc:
        raise UpstreamUnreachable(
            f"cannot connect to {address}: {exc.os_error.strerror or exc.os_error}"
        ) from exc
    except aiohttp.ClientPayloadError as exc:
        raise UpstreamError(f"the backend at {address} truncated its response") from exc
    except (aiohttp.ClientConnectionError, OSError) as exc:
        raise UpstreamUnreachable(f"the backend at {address} closed the connection") from exc
    except (aiohttp.ClientError, ValueError) as exc:
        raise UpstreamError(f"the backend at {address} did not speak HTTP: {type(exc).__name__}") from exc
