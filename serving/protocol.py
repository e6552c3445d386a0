"""What a serving backend is to the rest of the house: one protocol, spoken by every engine.

Rules: this file knows no library and no transport. Errors are those of `store.errors` (`UpstreamUnreachable`, `UpstreamTimeout`,
`UpstreamError`); a backend's own error *answer* (a 400, a 503) is not an exception but a reply with that status.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from store.values import LogprobMode

#: Header fields as they are on the wire, in order, repeated where repeated.
Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What can be asked of a backend.

    Attributes:
        token_ids: it understands `return_token_ids` (vLLM's dialect).
        logprobs: it reports the sampled tokens' log-probabilities.
        adapters: LoRA adapters can be loaded and unloaded while it runs.
        logprob_mode: of what distribution the log-probabilities are.
        default_temperature: what it samples with when a request does not say.
        engine: what it is, e.g. ``vLLM 0.32.0``; "" where it does not say.
        tools: optional tools (`tool_choice` auto) are understood and calls parsed; None: nobody asked.
        constrained: `response_format` and forced calls are kept by a grammar; None: nobody asked.
        token_stream: a stream comes token by token, not from the finished reply.
        adapter_slots: versions it serves at once; None: as many as memory takes.
        notes: what it cannot do, in sentences for people.
    """

    token_ids: bool
    logprobs: bool
    adapters: bool
    logprob_mode: LogprobMode = LogprobMode.UNKNOWN
    default_temperature: float = 1.0
    engine: str = ""
    tools: bool | None = None
    constrained: bool | None = None
    token_stream: bool = True
    adapter_slots: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One entry of the backend's list of models; ``parent`` is the base model's name for an adapter."""

    name: str
    parent: str | None = None


class Reply(Protocol):
    """An answer whose head has arrived. The body is read once, by `chunks` or `read`; `close` is due in any case."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Headers: ...

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives, content encoding untouched. Raises: UpstreamError when it is cut short."""
        ...

    async def read(self) -> bytes:
        """Return the whole body. Raises: UpstreamError when it is cut short."""
        ...

    def close(self) -> None:
        """Let go of the connection; an unread body is abandoned, which tells the backend to stop."""
        ...


class Engine(Protocol):
    """A backend that serves a policy."""

    @property
    def address(self) -> str:
        """Where it is, for error messages; never with credentials."""
        ...

    async def capabilities(self) -> Capabilities:
        """Ask what it can do. Raises: UpstreamError when it cannot be asked."""
        ...

    async def open(
        self, method: str, path: str, headers: Headers, body: bytes | AsyncIterator[bytes] | None
    ) -> Reply:
        """Send a request and return once the head of the answer is there.

        Args:
            path: absolute, with its query, still percent-encoded, e.g. ``/v1/chat/completions``.

        Raises:
            UpstreamUnreachable: nobody answers there, or it went away before it answered.
            UpstreamTimeout: it took too long.
        """
        ...

    async def models(self) -> tuple[ServedModel, ...]:
        """Return what it serves now. Raises: UpstreamError."""
        ...

    async def load_adapter(self, name: str, path: str) -> None:
        """Load a LoRA folder under an immutable name; harmless when it is loaded. Raises: AdapterError, UpstreamError."""
        ...

    async def unload_adapter(self, name: str) -> None:
        """Unload it; harmless when it is not there. Raises: UpstreamError."""
        ...

    async def is_healthy(self) -> bool:
        """Whether it would serve a request now. Never raises."""
        ...

    async def activity(self) -> Mapping[str, Any]:
        """What it is doing now, for `status`; empty where it does not tell. Raises: UpstreamError."""
        ...

    async def close(self) -> None: ...
