"""The protocol of a serving backend, as the rest of Patina sees it.

Rules: this module imports no library and no transport. Errors are those of `store.errors` (`UpstreamUnreachable`, `UpstreamTimeout`,
`UpstreamError`). A backend's own error *response* (a 400, a 503) is not an exception but a reply with that status.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from store.values import LogprobMode

#: Header fields as they were sent, in order, repeated where repeated.
Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend supports.

    Attributes:
        token_ids: it accepts `return_token_ids` (a vLLM extension).
        logprobs: it reports the sampled tokens' log-probabilities.
        adapters: LoRA adapters can be loaded and unloaded at runtime.
        logprob_mode: which distribution the log-probabilities belong to.
        default_temperature: sampling temperature of a request that sets none.
        engine: name and version, e.g. ``vLLM 0.32.0``; "" if unknown.
        tools: optional tools (`tool_choice` auto) are shown to the model and calls parsed; None: unknown, as of every endpoint that is not queried.
        constrained: a grammar enforces `response_format` and forced calls; None: unknown.
        token_stream: a stream arrives token by token, not from the finished reply.
        adapter_slots: versions that are served at once; None: limited by memory only.
        max_model_len: tokens of prompt and completion; None: unknown.
        notes: limitations, as sentences for the user.
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
    max_model_len: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One entry of the backend's list of models; ``parent`` is the base model's name for an adapter."""

    name: str
    parent: str | None = None
    max_model_len: int | None = None


class BackendReply(Protocol):
    """A response whose head has arrived. The body is read once, by `chunks` or `read`; `close` must be called in any case."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Headers: ...

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives, content encoding untouched. Raises: UpstreamError when it is truncated."""
        ...

    async def read(self) -> bytes:
        """Return the whole body. Raises: UpstreamError when it is truncated."""
        ...

    def close(self) -> None:
        """Release the connection; an unread body is abandoned, which stops the backend."""
        ...


class BackendClient(Protocol):
    """A client of a backend that serves a policy."""

    @property
    def address(self) -> str:
        """The backend's address for error messages, without credentials."""
        ...

    async def capabilities(self) -> Capabilities:
        """Return the backend's capabilities. Raises: UpstreamError when it cannot be queried."""
        ...

    async def open(
        self, method: str, path: str, headers: Headers, body: bytes | AsyncIterator[bytes] | None
    ) -> BackendReply:
        """Send a request and return once the response's head has arrived.

        Args:
            path: absolute, with its query, still percent-encoded, e.g. ``/v1/chat/completions``.

        Raises:
            UpstreamUnreachable: no connection, or the backend closed it before a response.
            UpstreamTimeout: no response in time.
        """
        ...

    async def models(self) -> tuple[ServedModel, ...]:
        """Return the models that are served now. Raises: UpstreamError."""
        ...

    async def load_adapter(self, name: str, path: str) -> str:
        """Load a LoRA folder under an immutable name; a loaded adapter is not an error.

        Returns:
            How it was attested (`serving.attestation`), or why it was not.

        Raises:
            AdapterMismatch: the backend serves other weights than the trainer published; it is unloaded.
            AdapterError: it cannot be loaded.
            UpstreamError: the backend failed.
        """
        ...

    async def unload_adapter(self, name: str) -> None:
        """Unload an adapter; a missing adapter is not an error. Raises: UpstreamError."""
        ...

    async def is_healthy(self) -> bool:
        """Whether the backend would serve a request now. Never raises."""
        ...

    async def activity(self) -> Mapping[str, Any]:
        """Return the backend's current activity for `status`; empty if unknown. Raises: UpstreamError."""
        ...

    async def close(self) -> None: ...
