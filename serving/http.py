"""A backend reached over HTTP: vLLM, the servers of ours, or any OpenAI-compatible endpoint.

aiohttp's exceptions are mapped once, in `_mapped`. Bodies pass as bytes: nothing is decompressed, redirected, retried or re-encoded
here, so that a proxy in front can be invisible. What goes to an ``http://`` address as a POST in one piece takes the shorter way of
`serving.connections`.
"""

from __future__ import annotations

import io
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import aiohttp
import orjson
from yarl import URL

from serving.connections import Answer, Pool
from serving.protocol import Capabilities, Headers, ServedModel
from store.errors import AdapterError, UpstreamError, UpstreamTimeout, UpstreamUnreachable
from store.values import LogprobMode

#: Below the 5 s after which uvicorn (vLLM, the built-in engine) closes an idle connection: a request never meets a closing one.
_KEEPALIVE_S = 4.0

#: A backend whose machine went away without a word is noticed after about two minutes; how long one may think is the client's to say.
_PROBE_IDLE_S, _PROBE_EVERY_S, _PROBES = 60, 15, 4
#: aiohttp writes bytes in one go; larger bodies go out in pieces, so that they do not hold up everybody else.
_PIECEWISE = 1 << 18

_SMALL_TIMEOUT = aiohttp.ClientTimeout(total=10.0)
_LOAD_TIMEOUT = aiohttp.ClientTimeout(total=120.0)


class HttpReply:
    """An answer whose head has arrived (`serving.protocol.Reply`)."""

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
        with _mapped(self._address):
            while True:
                data = await content.readany()
                if not data:
                    return
                yield data

    async def read(self) -> bytes:
        with _mapped(self._address):
            return await self._response.read()

    def close(self) -> None:
        # A body that was read to its end gave its connection back already; for any other this closes the socket, which
        # is how a backend learns that nobody listens any more.
        self._response.close()


class HttpEngine:
    """A backend at a base URL (`serving.protocol.Engine`).

    Args:
        base_url: with or without a trailing ``/v1``.
        api_key: sent as Bearer; never logged.
        speaks_vllm: it understands `return_token_ids` and loads adapters at runtime.
        connect_timeout_s: for a connection to be made.
        read_timeout_s: longest silence before and within an answer; None: for as long as the client waits.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str = "",
        speaks_vllm: bool = True,
        connect_timeout_s: float = 10.0,
        read_timeout_s: float | None = None,
    ) -> None:
        url = URL(base_url.rstrip("/").removesuffix("/v1"), encoded=True)
        self._root = str(url.with_user(None)) if url.user else str(url)
        self._api_key = api_key
        self._speaks_vllm = speaks_vllm
        self._timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=connect_timeout_s, sock_read=read_timeout_s
        )
        self._session: aiohttp.ClientSession | None = None
        self._has_stats = False
        self._url = URL(self._root, encoded=True)
        self._is_plain = self._url.scheme == "http" and bool(self._url.host) and read_timeout_s is None
        self._host = self._url.host_port_subcomponent.encode() if self._url.host_port_subcomponent else b""
        self._prefix = self._url.raw_path.rstrip("/")
        self._pool: Pool | None = None

    @property
    def address(self) -> str:
        return self._root

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:  # made on first use: a session belongs to a running loop
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0, keepalive_timeout=_KEEPALIVE_S, socket_factory=_probing_socket
                ),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=self._timeout,
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
                read_bufsize=1 << 18,
                max_line_size=1 << 16,
                max_field_size=1 << 16,
            )
        return self._session

    def _open_pool(self) -> Pool:
        if self._pool is None:
            self._pool = Pool(
                self._url.host or "",
                self._url.port or 80,
                address=self._root,
                prepare=_probe,
                idle_s=_KEEPALIVE_S,
                connect_timeout_s=self._timeout.sock_connect or 10.0,
            )
        return self._pool

    async def open(
        self, method: str, path: str, headers: Headers, body: bytes | AsyncIterator[bytes] | None
    ) -> HttpReply | Answer:
        """Send a request and return once the head of the answer is there (`serving.protocol.Engine.open`)."""
        if self._is_plain and method == "POST" and isinstance(body, bytes) and len(body) <= _PIECEWISE:
            head = self._head(path, headers, len(body))
            if head is not None:
                answer = await self._open_pool().ask(head + body)
                self._check(answer)
                return answer
        return await self._open_anyhow(method, path, headers, body)

    def _head(self, path: str, headers: Headers, length: int) -> bytes | None:
        """Return the head of a POST; None for what aiohttp should judge (a line break, a blank in the path)."""
        where = (self._prefix + path).encode("utf-8", "surrogateescape")
        lines = [b"POST %b HTTP/1.1\r\nhost: %b\r\n" % (where, self._host)]
        has_key = False
        for name, value in headers:
            name = name.lower()
            has_key = has_key or name == b"authorization"
            lines.append(b"%b: %b\r\n" % (name, value))
        if self._api_key and not has_key:
            # a client's own credentials, where they are passed on, come before ours
            lines.append(b"authorization: Bearer %b\r\n" % self._api_key.encode())
        head = b"".join(lines)
        ends = len(lines) + 1
        is_odd = b" " in where or head.count(b"\r") != ends or head.count(b"\n") != ends or b"\0" in head
        return None if is_odd else head + b"content-length: %d\r\n\r\n" % length

    async def _open_anyhow(
        self, method: str, path: str, headers: Headers, body: bytes | AsyncIterator[bytes] | None
    ) -> HttpReply:
        # one case: aiohttp would take "X-A" and "x-a" for a repetition to be replaced
        sent = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers]
        # a client's own credentials, where they are passed on, come before ours
        if self._api_key and not any(name == "authorization" for name, _ in sent):
            sent.append(("authorization", f"Bearer {self._api_key}"))
        data: Any = io.BytesIO(body) if isinstance(body, bytes) and len(body) > _PIECEWISE else body
        with _mapped(self.address):
            response = await self._open_session().request(
                method, URL(self._root + path, encoded=True), headers=sent, data=data, allow_redirects=False
            )
        reply = HttpReply(response, self.address)
        self._check(reply)
        return reply

    def _check(self, reply: HttpReply | Answer) -> None:
        if not 200 <= reply.status <= 599:
            reply.close()
            raise UpstreamError(
                f"the backend at {self.address} answered {reply.status}, which is no HTTP status"
            )

    async def _ask(
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
        with _mapped(self.address):
            async with self._open_session().request(
                method, self._root + path, headers=headers, data=data, timeout=timeout, allow_redirects=False
            ) as response:
                return response.status, await response.read()

    async def _ask_json(self, path: str) -> dict[str, Any]:
        status, body = await self._ask("GET", path, timeout=_SMALL_TIMEOUT)
        if status != 200:
            raise UpstreamError(f"{self.address}{path} answered {status}", status=status, body=body)
        try:
            found = orjson.loads(body)
        except orjson.JSONDecodeError as exc:
            raise UpstreamError(f"{self.address}{path} answered no JSON", status=status, body=body) from exc
        if not isinstance(found, dict):
            raise UpstreamError(f"{self.address}{path} answered no JSON object", status=status, body=body)
        return found

    async def capabilities(self) -> Capabilities:
        """Ask what it can do; an endpoint that is not vLLM's dialect is not asked."""
        if not self._speaks_vllm:
            return Capabilities(token_ids=True, logprobs=True, adapters=False)
        cards = (await self._ask_json("/v1/models")).get("data") or [{}]
        # Servers of ours say so in their cards; vLLM reports raw log-probabilities unless it was told otherwise.
        mode = str(cards[0].get("logprobs_mode") or LogprobMode.RAW)
        told: dict[str, Any] = {}
        try:
            told = await self._ask_json("/version")
        except UpstreamError as exc:
            if exc.status is None:
                raise  # it went away while being asked; a server without this path is fine
        declared: Any = told.get("capabilities") or {}
        self._has_stats = bool(declared)  # a server of ours: it has /stats
        defaults: Any = told.get("sampling_defaults") or {}
        temperature = defaults.get("temperature") if isinstance(defaults, dict) else None
        return Capabilities(
            token_ids=True,
            logprobs=True,
            adapters=True,
            logprob_mode=LogprobMode(mode) if mode in tuple(LogprobMode) else LogprobMode.UNKNOWN,
            default_temperature=float(temperature) if isinstance(temperature, int | float) else 1.0,
            engine=f"{told.get('engine', '')} {told.get('version', '')}".strip(),
            tools=declared.get("tools"),
            constrained=declared.get("constrained"),
            token_stream=declared.get("token_stream") is not False,
            adapter_slots=declared.get("adapter_slots"),
            notes=tuple(declared.get("notes") or ()),
        )

    async def models(self) -> tuple[ServedModel, ...]:
        """Return what it serves now."""
        cards = (await self._ask_json("/v1/models")).get("data")
        return tuple(
            ServedModel(name=str(card["id"]), parent=card.get("parent"))
            for card in (cards if isinstance(cards, list) else ())
            if isinstance(card, dict) and "id" in card
        )

    async def load_adapter(self, name: str, path: str) -> None:
        """Load a LoRA folder under an immutable name."""
        status, body = await self._ask(
            "POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": path}, timeout=_LOAD_TIMEOUT
        )
        if status == 200:
            return
        if any(model.name == name for model in await self.models()):
            return  # loaded before, by us in an earlier life
        raise AdapterError(f"{self.address} would not load {name} from {path}: {_said(status, body)}")

    async def unload_adapter(self, name: str) -> None:
        """Unload an adapter; one that is not there is fine."""
        status, body = await self._ask(
            "POST", "/v1/unload_lora_adapter", {"lora_name": name}, timeout=_LOAD_TIMEOUT
        )
        if status not in (200, 404):
            raise UpstreamError(
                f"{self.address} would not unload {name}: {_said(status, body)}", status=status, body=body
            )

    async def is_healthy(self) -> bool:
        """Whether it answers; an endpoint without /health counts as long as anybody answers."""
        try:
            status, _ = await self._ask("GET", "/health", timeout=aiohttp.ClientTimeout(total=2.0))
        except UpstreamError:
            return False
        return status == 200 if self._speaks_vllm else status < 500

    async def activity(self) -> Mapping[str, Any]:
        """What a server of ours counts; others are not asked."""
        return await self._ask_json("/stats") if self._has_stats else {}

    async def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None
        if self._session is not None:
            await self._session.close()
            self._session = None


def _probing_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    _probe(made)
    return made


def _probe(made: socket.socket) -> None:
    """Have the system notice a peer that is gone."""
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _PROBE_IDLE_S),
        ("TCP_KEEPINTVL", _PROBE_EVERY_S),
        ("TCP_KEEPCNT", _PROBES),
    ):
        if hasattr(socket, name):  # other systems have other names, and their own defaults
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _said(status: int, body: bytes) -> str:
    return f"status {status}, {body[:300].decode('utf-8', 'replace')}"


@contextmanager
def _mapped(address: str) -> Iterator[None]:
    """Map aiohttp's exceptions to ours, once. Timeouts first: aiohttp's are connection errors too."""
    try:
        yield
    except TimeoutError as exc:
        raise UpstreamTimeout(f"the backend at {address} did not answer in time") from exc
    except aiohttp.ClientConnectorError as exc:
        raise UpstreamUnreachable(
            f"nobody answers at {address}: {exc.os_error.strerror or exc.os_error}"
        ) from exc
    except aiohttp.ClientPayloadError as exc:
        raise UpstreamError(f"the backend at {address} broke off its answer") from exc
    except (aiohttp.ClientConnectionError, OSError) as exc:
        raise UpstreamUnreachable(f"the backend at {address} closed the connection") from exc
    except (aiohttp.ClientError, ValueError) as exc:
        raise UpstreamError(f"the backend at {address} did not speak HTTP: {type(exc).__name__}") from exc
