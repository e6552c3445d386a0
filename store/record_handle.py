"""A record that is opened when it is needed: processes serve while it is unavailable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from store.errors import RecordError
from store.record import Record


class RecordHandle:
    """Opens a record once; ``last_error`` has the reason while that fails."""

    def __init__(self, open_record: Callable[[], Awaitable[Record]]) -> None:
        self._open_record = open_record
        self._lock = asyncio.Lock()
        self.record: Record | None = None
        self.last_error: str | None = None

    async def get(self) -> Record:
        """Return the record, opening it if need be. Raises: RecordError."""
        if self.record is None:
            async with self._lock:
                if self.record is None:
                    try:
                        self.record = await self._open_record()
                    except RecordError as exc:
                        self.last_error = str(exc)
                        raise
        self.last_error = None
        return self.record

    async def close(self) -> None:
        if self.record is not None:
            await self.record.close()
            self.record = None
