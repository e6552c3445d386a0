"""Pauses of the recorder: on a machine whose cores are all in use, replies come before rows.

A nice value is not enough: between two entries the recorder would still take a core from the gateways. Linux's idle priority is enough, but a
process without privileges cannot leave it again. So the recorder pauses itself, for a bounded time, and not while anyone waits for it.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from recorder.journal_reader import MAX_ENTRIES
from store.journal import is_waited_for

#: Usual pause between two looks at the journal. A transaction costs as much as some turns: what comes in the meantime shares one.
POLL_S = 0.02
#: An entry of this age waits for no further pause: below the age at which `status` says "behind".
_MAX_DEFERRAL_S = 1.5
#: Longest pause, and its length in CPU time of the batch before it.
_MAX_PAUSE_S, _PAUSE_FACTOR = 0.5, 9.0
#: The cores are all in use if the recorder waited for one for longer than this share of the time that it ran.
_BUSY_SHARE = 0.05
#: A batch of fewer entries takes little from anyone.
_MIN_ENTRIES = 8
#: Of a thread: nanoseconds that it ran, that it waited for a core, and its time slices.
_SCHEDULING = Path("/proc/thread-self/schedstat")


def pause_s(entries: int, *, age_s: float, ran_s: float, waited_s: float, used_s: float) -> float:
    """Return the pause after a batch, in seconds. Pure.

    Args:
        age_s: of its oldest entry.
        ran_s, waited_s: that the thread ran and waited for a core during the batch.
        used_s: CPU time of the process during the batch.
    """
    left = _MAX_DEFERRAL_S - age_s
    if entries >= _MIN_ENTRIES and waited_s > _BUSY_SHARE * ran_s and left > 0:
        return max(POLL_S, min(_MAX_PAUSE_S, _PAUSE_FACTOR * used_s, left))
    return 0.0 if entries >= MAX_ENTRIES else POLL_S


class Pacing:
    """Measures the batches of one thread and pauses after them.

    Args:
        folder: the journal.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.begin()

    def begin(self) -> None:
        """Note what was used before a batch."""
        self._began = time.time()
        self._ran, self._waited, self._used = time.thread_time(), waited_for_a_core_s(), time.process_time()

    async def pause(self, entries: int, oldest_at: float) -> None:
        """Pause after a batch, at most until someone waits for the recorder; `begin` was called before the batch.

        Args:
            oldest_at: when its oldest entry was appended, seconds since the epoch.
        """
        left = pause_s(
            entries,
            age_s=time.time() - oldest_at,
            ran_s=time.thread_time() - self._ran,
            waited_s=waited_for_a_core_s() - self._waited,
            used_s=time.process_time() - self._used,
        )
        while True:
            await asyncio.sleep(min(left, POLL_S))
            left -= POLL_S
            if left <= 0 or is_waited_for(self._folder, since=self._began):
                return


def waited_for_a_core_s() -> float:
    """Return the seconds that this thread could have run and had no core; 0 where the kernel does not count them."""
    try:
        return int(_SCHEDULING.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
