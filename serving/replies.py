"""A reply that tells when it is done with, for engines that stand in front of engines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from serving.protocol import Headers, Reply


class WatchedReply:
    """Another engine's reply (`serving.protocol.Reply`); ``done`` is called once, when it is closed."""

    def __init__(self, reply: Reply, done: Callable[[], None]) -> None:
        self._reply = reply
        self._done: Callable[[], None] | None = done

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
        if self._done is not None:
            self._done()
            self._done = None
