"""When training may begin (`--train-when`), and when a batch is ready. Sans-IO."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from store.values import Waiting
from store.version import COMMAND

ALWAYS, IDLE, MANUAL = "always", "idle", "manual"
#: People complain about several replies in a row; after so many seconds without a complaint they do something else.
_PAUSE_S = 15.0
_WINDOW = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)-([01]?\d|2[0-3]):([0-5]\d)")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSchedule:
    """When a step may begin.

    Attributes:
        mode: "always", "idle", "manual" or "window".
        idle_s: seconds without a main request that count as idle.
        window: of each day, in minutes from midnight, local time: (first, end); it may contain midnight.
    """

    mode: str
    idle_s: float
    window: tuple[int, int] = (0, 0)

    def reason_to_wait(self, now: datetime, quiet_s: float) -> str:
        """Return why no step may begin, or "".

        Args:
            now: local time.
            quiet_s: seconds since the last main request; 0 while one is in flight.
        """
        if self.mode == MANUAL:
            return f"waiting for `{COMMAND} train --now`"
        if self.mode == IDLE and quiet_s < self.idle_s:
            return f"waiting until no request came for {self.idle_s / 60:g} min"
        if self.mode == "window":
            first, end = self.window
            minute = now.hour * 60 + now.minute
            is_inside = first <= minute < end if first < end else minute >= first or minute < end
            if not is_inside:
                return f"waiting until {first // 60:02}:{first % 60:02}"
        return ""


def parse_schedule(text: str, idle_minutes: float) -> TrainingSchedule:
    """Read `--train-when`. Raises: ValueError: it is none of its forms."""
    idle_s = idle_minutes * 60
    if text in (ALWAYS, IDLE, MANUAL):
        return TrainingSchedule(mode=text, idle_s=idle_s)
    found = _WINDOW.fullmatch(text)
    if found is None:
        raise ValueError("must be always, idle, manual or a time of day such as 23:00-07:00")
    first_hour, first_minute, end_hour, end_minute = map(int, found.groups())
    first, end = first_hour * 60 + first_minute, end_hour * 60 + end_minute
    if first == end:
        raise ValueError("its window is empty: begin and end are equal")
    return TrainingSchedule(mode="window", idle_s=idle_s, window=(first, end))


def is_batch_due(waiting: Waiting, batch_size: int, longest_s: float, now: float) -> bool:
    """Whether to train on what waits: so many complaints, or fewer after `longest_s`.

    Thanks start no clock. They fill a batch, unless a complaint came just now: more of them may follow. For the same reason a smaller batch
    waits at most twice as long.
    """
    if waiting.complaint_since is None or waiting.newest_complaint is None:
        return waiting.ready >= batch_size
    waited, quiet = now - waiting.complaint_since, now - waiting.newest_complaint
    return (
        waiting.complaints >= batch_size
        or (waiting.ready >= batch_size and quiet > min(longest_s / 2, _PAUSE_S))
        or (waited > longest_s and (quiet > longest_s / 2 or waited > 2 * longest_s))
    )
