"""Reading the journal: the entries of all segments in arrival order, and what is recorded of each segment."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from store.journal import (
    SUFFIX,
    Entry,
    folder_token,
    is_closed,
    is_rewritten,
    mark_recorded,
    read_entries,
    segments,
)

#: Entries and bytes of one batch: it becomes one transaction.
MAX_ENTRIES, _MAX_BYTES = 256, 16 << 20
#: Segments that are open at a time, the oldest ones.
_MAX_FILES = 256
#: An entry from further in the future than this is not waited for: the clock was set back.
_CLOCK_JUMP_S = 1.0


@dataclass(frozen=True, slots=True)
class EntryBatch:
    """Entries to record together.

    Attributes:
        entries: in arrival order, with their segments' names.
        offsets: segment name -> byte offset up to which it is recorded with these entries.
        damaged_bytes: bytes of the segments that are no entry.
    """

    entries: Sequence[tuple[str, Entry]]
    offsets: Mapping[str, int]
    damaged_bytes: int = 0


class JournalReader:
    """The recorder's position in each segment of a folder.

    Args:
        offsets: what is recorded of each segment, in bytes, by name; also of the journals of other hosts that share the record.
    """

    def __init__(self, folder: Path, offsets: Mapping[str, int]) -> None:
        self._folder = folder
        token, there = f"-{folder_token(folder)}", {path.name for path in segments(folder)}
        self._offsets = {name: offset for name, offset in offsets.items() if token in name or name in there}
        self._files: dict[str, int] = {}  # segments are kept open: a removed one is still read

    def close(self) -> None:
        """Close the segments."""
        while self._files:
            os.close(self._files.popitem()[1])

    def _readable(self) -> list[tuple[str, Path]]:
        """Return the names of the segments, oldest first, also of removed ones, each with a path that reads it."""
        for path in segments(self._folder):
            if path.name not in self._files and len(self._files) < _MAX_FILES:
                try:
                    self._files[path.name] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                except FileNotFoundError:
                    continue
        return [(name, Path(f"/proc/self/fd/{file}")) for name, file in sorted(self._files.items())]

    def _forget_file(self, name: str) -> None:
        file = self._files.pop(name, None)
        if file is not None:
            os.close(file)

    @property
    def offsets(self) -> Mapping[str, int]:
        return self._offsets

    def poll(self) -> EntryBatch:
        """Return what was appended and is not recorded yet, oldest first; at most one batch of it.

        An entry of one writer may answer an entry of another. Whatever was appended after this call began is therefore left for the
        next one: otherwise an answer could be read before what it answers.
        """
        cutoff = time.time()
        found: list[tuple[float, str, Entry]] = []
        offsets: dict[str, int] = {}
        total = 0
        # Later entries are not taken: a segment that was read in part has entries that come before them.
        horizon = math.inf
        for name, path in self._readable():
            if _started_at(name) > horizon:
                break  # nor is anything in this segment or behind it
            start = self._offsets.get(name, 0)
            size = path.stat().st_size
            if size <= start:
                continue
            entries, end, _ = read_entries(path, start, _MAX_BYTES, most_entries=MAX_ENTRIES)
            if end == start and is_closed(path):
                entries, end, _ = read_entries(
                    path, start, _MAX_BYTES, is_final=True, most_entries=MAX_ENTRIES
                )
            late = next(
                (i for i, entry in enumerate(entries) if cutoff < entry.at < cutoff + _CLOCK_JUMP_S),
                len(entries),
            )
            if late < len(entries):
                end = entries[late].start
            if end > start:
                offsets[name] = end
            newest = 0.0
            for entry in entries[:late]:
                newest = max(newest, entry.at)  # order within a segment stays when the clock was set back
                found.append((newest, name, entry))
                total += len(entry.payload)
            is_partly_read = bool(entries) and late == len(entries) and end < size
            if is_partly_read:
                horizon = min(horizon, newest)
            elif len(found) >= MAX_ENTRIES or total >= _MAX_BYTES:
                horizon = min(horizon, max(at for at, _, _ in found))
        # A removed segment comes before its copy, whose entries are looked up in the record.
        found.sort(key=lambda one: (one[0], is_rewritten(one[1])))
        return self._cut(found, horizon, offsets)

    def _cut(
        self, found: list[tuple[float, str, Entry]], horizon: float, offsets: dict[str, int]
    ) -> EntryBatch:
        """Return the batch of the oldest entries; the segments' offsets end before the first entry that is left."""
        taken = total = 0
        for at, _, entry in found:
            is_full = taken >= MAX_ENTRIES or total + len(entry.payload) > _MAX_BYTES
            if taken and (is_full or at > horizon):
                break
            taken += 1
            total += len(entry.payload)
        for _, name, entry in reversed(found[taken:]):
            offsets[name] = min(offsets[name], entry.start)
        passed = sum(end - self._offsets.get(name, 0) for name, end in offsets.items())
        damaged = passed - sum(entry.end - entry.start for _, _, entry in found[:taken])
        return EntryBatch([(name, entry) for _, name, entry in found[:taken]], offsets, damaged)

    def commit(self, batch: EntryBatch) -> None:
        """Advance past a batch that is recorded."""
        self._offsets.update(batch.offsets)

    @property
    def has_segments(self) -> bool:
        """Whether a segment was there at the last look."""
        return bool(self._files)

    def has_recorded(self) -> bool:
        """Whether `remove_recorded` finds something to remove or to forget."""
        found = self._readable()
        is_gone = not self._offsets.keys() <= self._files.keys() | {p.name for p in segments(self._folder)}
        return is_gone or any(self._is_recorded(name, path) for name, path in found)

    def _is_recorded(self, name: str, path: Path) -> bool:
        """Whether a segment is closed and recorded to its end."""
        if not is_closed(path):
            return False
        # Read after the check: nothing is appended any more.
        offset = self._offsets.get(name, 0)
        entries, end, _ = read_entries(path, offset, 1 << 16, is_final=True)
        return not entries and end == offset

    def remove_recorded(self) -> list[str]:
        """Remove segments that are closed and recorded; returns the names of all segments that are gone.

        Of a segment that ends with an incomplete entry, everything before it counts: its writer died while it appended, and no
        client saw the end of that reply.
        """
        for name, path in self._readable():
            if self._is_recorded(name, path):
                mark_recorded(self._files[name])
                (self._folder / name).unlink(missing_ok=True)
                self._forget_file(name)
        there = self._files.keys() | {path.name for path in segments(self._folder)}
        gone = [name for name in self._offsets if name not in there]
        for name in gone:
            del self._offsets[name]
        return gone


def _started_at(name: str) -> float:
    """Return when a segment was begun, seconds since the epoch; 0 when its name does not say so."""
    start = name.removesuffix(SUFFIX).partition("-")[0]
    return int(start) / 1e9 if start.isascii() and start.isdigit() else 0.0
