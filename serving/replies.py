"""A reply wrapper that reports its end, for backends that wrap other backends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from serving.protocol import BackendReply, Headers


class NotifyingReply:
    """Wraps a reply (`serving.protocol.BackendReply`); ``on_close`` is called once, when it is closed."""

    def __init__(self, reply: BackendReply, on_close: Callable[[], None]) -> None:
        self._reply = reply
        self._on_close: Callable[[], None] | None = on_close

    @property
    def status(self) -> int:
        return self._reply.status

    @property
    def headers(self) -> Headers:
        return self._reply.headers

    def chunks(self) -> AsyncIterator[bytes]:
        return self._reply.chunks()

    async def read(self) -> bytes:
        return await self._reply.read()

    def close(self) -> None:
        self._reply.close()
        if self._on_close is not None:
            self._on_close()
            self._on_close = None
