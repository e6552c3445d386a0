"""uvicorn's server without its ten ticks a second: it waits for its end, and tells the date when a response needs it."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate

import uvicorn
from uvicorn.server import ServerState

Headers = list[tuple[bytes, bytes]]


class _DatedState(ServerState):
    """uvicorn's state; its headers of every response are made when they are read."""

    def __init__(self, config: uvicorn.Config) -> None:
        self._config = config
        self._second = -1
        self._headers: Headers = []
        super().__init__()

    @property
    def default_headers(self) -> Headers:
        second = int(time.time())
        if second != self._second:
            date = [(b"date", formatdate(second, usegmt=True).encode())] if self._config.date_header else []
            self._second, self._headers = second, [*date, *self._config.encoded_headers]
        return self._headers

    @default_headers.setter
    def default_headers(self, headers: Headers) -> None:
        """uvicorn's own list is left unused."""


class QuietServer(uvicorn.Server):
    """A server that sleeps while nothing comes. It takes no `limit_max_requests` and no `callback_notify`, which need a tick."""

    def __init__(self, config: uvicorn.Config) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end = asyncio.Event()
        self._should_exit = False
        super().__init__(config)
        self.server_state = _DatedState(config)

    @property
    def should_exit(self) -> bool:
        return self._should_exit

    @should_exit.setter
    def should_exit(self, value: bool) -> None:
        self._should_exit = value
        if value and self._loop is not None:
            self._loop.call_soon_threadsafe(self._end.set)

    async def main_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        if not self._should_exit:  # set since the loop is known, or before
            await self._end.wait()
