"""Pauses of the recorder: on a machine whose cores are all in use, replies come before rows.

A nice value is not enough: between two entries the recorder would still take a core from the gateways. Linux's idle priority is enough, but a
process without privileges cannot leave it again. So the recorder pauses itself, and its backlog has a bound.
"""

from __future__ import annotations

import time
from pathlib import Path

from recorder.journal_reader import MAX_ENTRIES

#: Usual pause between two looks at the journal. A transaction costs as much as some turns: what comes in the meantime shares one.
_POLL_S = 0.02
#: Age of the oldest unrecorded entry from which on the recorder no longer pauses: below that at which `status` says "behind".
_MAX_DEFERRAL_S = 1.5
#: Longest pause, and its length in CPU time of the batch before it.
_MAX_PAUSE_S, _PAUSE_FACTOR = 0.5, 9.0
#: The cores are all in use if the recorder waited for one for longer than this share of the time that it ran.
_BUSY_SHARE = 0.05
#: A batch of fewer entries takes little from anyone.
_MIN_ENTRIES = 8
#: Of a thread: nanoseconds that it ran, that it waited for a core, and its time slices.
_SCHEDULING = Path("/proc/thread-self/schedstat")


class Pacing:
    """Decides how long the recorder pauses after a batch. Used by one thread."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Note what the process has used before a batch."""
        self._before = self._read()

    def pause_s(self, entries: int, oldest_at: float) -> float:
        """Return the pause after a batch, in seconds; `begin` was called before it.

        Args:
            entries: of the batch.
            oldest_at: when its oldest entry was appended, seconds since the epoch.
        """
        ran, waited, used = (after - before for after, before in zip(self._read(), self._before, strict=True))
        is_busy = waited > _BUSY_SHARE * ran
        if entries >= _MIN_ENTRIES and is_busy and time.time() - oldest_at < _MAX_DEFERRAL_S:
            return max(_POLL_S, min(_MAX_PAUSE_S, _PAUSE_FACTOR * used))
        return 0.0 if entries >= MAX_ENTRIES else _POLL_S

    def _read(self) -> tuple[float, float, float]:
        """Return the seconds that this thread ran and waited for a core, and the CPU seconds of the process."""
        try:
            ran, waited, _ = _SCHEDULING.read_text().split()
        except (OSError, ValueError):  # another system, or a kernel that does not count: no pauses
            ran = waited = "0"
        return int(ran) / 1e9, int(waited) / 1e9, time.process_time()
