"""Heartbeats: by which `status` knows that a process runs and what it does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Protocol

from store.processes import began_at, is_alive
from store.values import Heartbeat, Json

#: A process looks at its own state so often, and writes it when it changed.
LOOK_S = 2.0
#: A state that stays the same is written so often: each write wakes threads and the disk.
REST_S = 4.0
#: An older heartbeat is of a process that hangs or is gone.
SILENT_S = 10.0
#: Precision of the time at which a process began.
_CLOCK_S = 2.0
#: Parts of a state that change by themselves.
_CLOCKS = frozenset({"at"})


def is_running(beat: Heartbeat, now: float) -> bool:
    """Whether the process of a heartbeat runs, also while it can write none: the record may be locked, or the disk full."""
    if beat.state == "stopped":
        return False
    if now - beat.at < SILENT_S and is_alive(beat.pid):
        return True
    began = began_at(beat.pid)
    return began is not None and began < beat.at + _CLOCK_S  # else another process has its number


class _Beats(Protocol):
    async def heartbeat(self, beat: Heartbeat) -> None: ...


class HeartbeatWriter:
    """Writes the heartbeat of this process when its state changed, and at the latest some seconds after the last one.

    Args:
        clock: seconds since the epoch.
    """

    def __init__(self, process: str, *, clock: Callable[[], float] = time.time) -> None:
        self._process = process
        self._clock = clock
        self._written: tuple[str, Json] | None = None
        self._written_at = 0.0

    def is_due(self, state: str, detail: Json) -> bool:
        """Whether `write` would write it now."""
        is_known = self._written == (state, _lasting(detail))
        return not is_known or time.monotonic() - self._written_at >= REST_S

    async def write(self, record: _Beats, state: str, detail: Json) -> None:
        """Write it if it is due. Raises: RecordError; it is due again then."""
        if not self.is_due(state, detail):
            return
        self._written = None
        await record.heartbeat(
            Heartbeat(process=self._process, pid=os.getpid(), state=state, detail=detail, at=self._clock())
        )
        self._written, self._written_at = (state, _lasting(detail)), time.monotonic()


def _lasting(detail: Json) -> Json:
    return {name: value for name, value in detail.items() if name not in _CLOCKS}
