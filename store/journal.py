"""The journal: append-only segment files through which the gateways hand exchanges to the recorder.

A gateway appends one entry for each exchange before its client sees the end of the reply. The recorder reads the entries, writes rows, and
removes a segment when all of it is recorded and its writer has closed it. What a client saw the end of therefore survives a crash of any
process; with ``sync="group"`` also a power cut. A writer keeps its segments' files until they are gone: what another program removed before it
was recorded is written again.

* Segment: ``<start, ns>-<writer>-<folder><random>.journal`` in the journal folder. Its writer holds an exclusive ``flock`` on it while it appends.
* Entry: a header (magic with the format version, kind, length and CRC-32 of the payload, time) and the payload.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import fcntl
import logging
import os
import secrets
import struct
import sys
import time
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from store.disk import sync_path
from store.hashing import digest
from store.values import Json

log = logging.getLogger(__name__)

SUFFIX = ".journal"
#: In the journal folder: the recorder's newest state, as JSON.
STATE_FILE = "recorder.json"
#: In the journal folder: segments that were opened before it was written are closed (see `request_rotation`).
ROTATE_FILE = "rotate"
#: In the journal folder: written when someone waits for the recorder (see `ask_recorder`).
WAITED_FILE = "waited"
_MAGIC = b"PJ01"
#: magic, kind, length of the payload, its CRC-32, microseconds since the epoch
_HEADER = struct.Struct("<4sIIIQ")

#: A write that took longer means a busy disk: for a while a thread writes, not the event loop.
_SLOW_WRITE_S, _SLOW_PERIOD_S = 0.05, 5.0
_RETRY_S = 0.2
#: Headers that are read to count what waits.
_MAX_COUNTED = 5000
#: Bytes of one write by the thread.
_WRITE_BYTES = 16 << 20
#: A segment that nothing was added to for so long is closed, and one that is so old: the recorder then removes it.
_IDLE_S, _OLDEST_S = 2.0, 300.0
#: Closed segments whose files are kept, and seconds between two looks at them.
_MAX_KEPT, _LOOK_S = 64, 1.0
#: Shortest time between two warnings that segments were removed: a program that removes them may do so all the time.
_WARN_S = 60.0
#: Before the suffix in the name of a segment that was written again.
_AGAIN = "-again"
#: Mode of a segment that is recorded: set before it is removed.
_RECORDED_MODE = 0o400


class EntryKind(enum.IntEnum):
    EXCHANGE = 1
    FEEDBACK = 2


class JournalFull(OSError):
    """The journal has reached its limit on disk."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a segment.

    Attributes:
        at: when it was appended, seconds since the epoch.
        start, end: byte offsets in its segment.
    """

    kind: int
    at: float
    payload: bytes
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Lag:
    """What is in the journal and not recorded yet.

    Attributes:
        oldest_at: when the oldest such entry was appended, seconds since the epoch; None when there is none.
    """

    entries: int
    bytes: int
    oldest_at: float | None


@dataclass(slots=True, eq=False)
class _Segment:
    """A segment of a writer: the open one, or a closed one whose file is kept."""

    path: Path
    file: int
    size: int = 0
    entries: int = 0

    @property
    def is_removed(self) -> bool:
        return os.fstat(self.file).st_nlink == 0

    @property
    def is_recorded(self) -> bool:
        """Whether the recorder removed it, and no other program."""
        return is_marked_recorded(self.file)


class JournalWriter:
    """Appends entries to segments of its own. Not thread-safe: used by one event loop.

    Args:
        name: of the writer, in the segments' names.
        sync: "none": an entry is handed to the operating system. "group": it is also synced to disk, many entries at a time.
        capacity_bytes: limit of all segments of the folder; beyond it entries wait in memory, as they do on a full disk.
        memory_bytes: limit of what waits in memory; beyond it entries are lost, counted and reported.
        segment_bytes: a segment of this size is closed.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        sync: str = "none",
        capacity_bytes: int = 4 << 30,
        memory_bytes: int = 128 << 20,
        segment_bytes: int = 64 << 20,
    ) -> None:
        self._folder = folder
        self._name = name
        self._syncs = sync == "group"
        self._capacity_bytes = capacity_bytes
        self._memory_bytes = memory_bytes
        self._segment_bytes = segment_bytes
        self._open: _Segment | None = None
        self._closed: deque[_Segment] = deque()
        self._looked_at = 0.0  # when `_closed` was looked through
        self._warned_at = -_WARN_S
        self._opened_at = self._appended_at = 0.0
        self._opened_ns = 0
        self._other_bytes = 0  # of the other segments of the folder
        self._pending: deque[tuple[bytes, asyncio.Future[None]]] = deque()
        self._pending_bytes = 0
        self._flushing: asyncio.Task[None] | None = None
        self._is_closing = False
        self._slow_until = 0.0
        self.appended = 0
        self.lost = 0
        self.rewritten = 0  # entries of segments that another program removed
        self.last_error: str | None = None  # why entries wait in memory at present
        self.last_loss: str | None = None
        self._is_full = False  # the newest entry was lost

    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def refuge(self) -> str | None:
        """Return where entries go while the disk refuses them: "memory", or "lost" where that is full too; None: they are written."""
        if self.last_error is None:
            return None
        return "lost" if self._is_full else "memory"

    def append(self, kind: EntryKind, payload: bytes) -> asyncio.Future[None] | None:
        """Append an entry.

        Returns:
            None when it is written, or lost (see `lost`). Otherwise a future that completes when it is written (and synced).
        """
        entry = (
            _HEADER.pack(_MAGIC, kind, len(payload), zlib.crc32(payload), time.time_ns() // 1000) + payload
        )
        began = time.monotonic()
        if not self._syncs and not self._pending and not self._is_closing and began >= self._slow_until:
            try:
                self._write(entry)
            except OSError as exc:
                self.last_error = str(exc)
            else:
                self.appended += 1
                self.last_error = None
                if time.monotonic() - began > _SLOW_WRITE_S:
                    self._slow_until = began + _SLOW_PERIOD_S
                return None
        if self._pending_bytes + len(entry) > self._memory_bytes:
            self.lost, self._is_full = self.lost + 1, True
            self.last_loss = f"an entry of {len(entry)} bytes: the journal cannot be written ({self.last_error}) and the memory is full"
            return None
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_full = False
        self._pending.append((entry, written))
        self._pending_bytes += len(entry)
        if not self._is_closing and (self._flushing is None or self._flushing.done()):
            self._flushing = asyncio.create_task(self._flush())
        return written

    async def append_written(self, kind: EntryKind, payload: bytes, wait_s: float) -> None:
        """Append an entry and wait until it is written. Raises: OSError: it is lost, or not written in time (it may be later)."""
        lost = self.lost
        written = self.append(kind, payload)
        if written is not None:
            await asyncio.wait((written,), timeout=wait_s)
        if self.lost > lost or (written is not None and not written.done()):
            raise OSError(self.last_error or "the disk does not answer")

    async def _flush(self) -> None:
        """Write what waits in memory, in order, until nothing waits."""
        while self._pending and not self._is_closing:
            batch = self._next_batch()
            try:
                await asyncio.to_thread(self._write, b"".join(entry for entry, _ in batch), len(batch))
            except OSError as exc:
                self.last_error = str(exc)
                await asyncio.sleep(_RETRY_S)
                continue
            self.last_error = None
            self._mark_written(len(batch))

    def _next_batch(self) -> list[tuple[bytes, asyncio.Future[None]]]:
        batch, total = [], 0
        for item in self._pending:
            batch.append(item)
            total += len(item[0])
            if total >= _WRITE_BYTES:
                break
        return batch

    def _mark_written(self, count: int) -> None:
        for _ in range(count):
            entry, written = self._pending.popleft()
            self._pending_bytes -= len(entry)
            self.appended += 1
            if not written.done():
                written.set_result(None)

    def _write(self, data: bytes, count: int = 1) -> None:
        """Append the bytes of ``count`` entries to the segment, all of them or none. Raises: OSError."""
        if time.monotonic() - self._looked_at > _LOOK_S or (self._open is not None and self._open.is_removed):
            self._rewrite_removed()
        segment = self._open
        if (
            self._other_bytes + (segment.size if segment is not None else 0) + len(data)
            > self._capacity_bytes
        ):
            raise JournalFull(f"the journal has reached its limit of {self._capacity_bytes} bytes")
        if segment is None:
            segment = self._open = self._create_segment(f"{time.time_ns():020d}")
            self._opened_at, self._opened_ns = time.monotonic(), time.time_ns()
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(segment.file, rest) :]
            if self._syncs:
                os.fdatasync(segment.file)
        except OSError:
            try:
                os.ftruncate(segment.file, segment.size)
            except OSError:
                self._close_segment()  # the reader skips what was written in part
            raise
        segment.size += len(data)
        segment.entries += count
        self._appended_at = time.monotonic()
        if segment.size >= self._segment_bytes:
            self._close_segment()

    def _create_segment(self, start: str, again: str = "") -> _Segment:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        name = f"{start}-{self._name}-{folder_token(self._folder)}{secrets.token_hex(4)}{again}{SUFFIX}"
        path = self._folder / name
        # Locked before it has its name: a segment that is not locked is closed.
        hidden = path.with_suffix(".new")
        file = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            hidden.rename(path)
            if self._syncs:
                sync_path(self._folder)
        except OSError:
            os.close(file)
            hidden.unlink(missing_ok=True)
            raise
        return _Segment(path, file)

    def _close_segment(self) -> None:
        segment, self._open = self._open, None
        if segment is not None:
            self._keep_closed(segment)

    def _keep_closed(self, segment: _Segment) -> None:
        """Give the lock of a segment back; its file is kept until it is removed."""
        fcntl.flock(segment.file, fcntl.LOCK_UN)
        self._other_bytes += segment.size
        self._closed.append(segment)
        while len(self._closed) > _MAX_KEPT:
            os.close(self._closed.popleft().file)

    def _rewrite_removed(self) -> None:
        """Write segments again that another program removed; the recorder skips those of their entries that it has. Raises: OSError."""
        self._looked_at = 0.0  # until it succeeds
        if self._open is not None and self._open.is_removed:
            self._close_segment()
        lost: list[_Segment] = []
        for segment in [one for one in self._closed if one.is_removed]:
            if segment.size and not segment.is_recorded:
                lost.append(segment)
            else:
                self._drop_closed(segment)
        lost.sort(key=lambda segment: segment.path.name)
        while lost:
            size, count = lost[0].size, 1
            while count < len(lost) and size < self._segment_bytes:
                size += lost[count].size
                count += 1
            copy = self._rewrite(lost[:count])
            for segment in lost[:count]:
                self._drop_closed(segment)
            del lost[:count]
            self._keep_closed(copy)
        self._looked_at = time.monotonic()

    def _drop_closed(self, segment: _Segment) -> None:
        self._closed.remove(segment)
        os.close(segment.file)

    def _rewrite(self, lost: Sequence[_Segment]) -> _Segment:
        """Write segments, oldest first, again as one: files that are removed time and again stay few. Raises: OSError."""
        copy = self._create_segment(lost[0].path.name.partition("-")[0], _AGAIN)
        try:
            for segment in lost:
                with open(f"/proc/self/fd/{segment.file}", "rb") as source:
                    while data := source.read(_WRITE_BYTES):
                        while data:
                            data = data[os.write(copy.file, data) :]
            if self._syncs:
                os.fdatasync(copy.file)
        except OSError:
            copy.path.unlink(missing_ok=True)
            os.close(copy.file)
            raise
        copy.size, copy.entries = sum(one.size for one in lost), sum(one.entries for one in lost)
        self.rewritten += copy.entries
        if time.monotonic() - self._warned_at > _WARN_S:
            self._warned_at = time.monotonic()
            log.warning(
                "%s was removed before it was recorded; entries that were written again so far: %d",
                lost[0].path.name,
                self.rewritten,
            )
        return copy

    def maintain(self) -> None:
        """Close an idle or old segment, and measure the folder. To be called about every second."""
        now = time.monotonic()
        is_busy = self._is_closing or (self._flushing is not None and not self._flushing.done())
        is_due = (
            now - self._appended_at > _IDLE_S or now - self._opened_at > _OLDEST_S or self._should_rotate()
        )
        if self._open is not None and not is_busy and self._open.size and is_due:
            self._close_segment()
        try:
            if not is_busy:
                self._rewrite_removed()
            self._other_bytes = max(
                0, journal_bytes(self._folder) - (self._open.size if self._open is not None else 0)
            )
        except OSError as exc:
            self.last_error = str(exc)  # the next append finds out more

    def _should_rotate(self) -> bool:
        try:
            return (self._folder / ROTATE_FILE).stat().st_mtime_ns >= self._opened_ns
        except OSError:
            return False  # none was requested

    async def close(self) -> int:
        """Write what waits, once more, and close all segments; returns the number of entries that could not be written."""
        self._is_closing = True
        if self._flushing is not None:  # not cancelled: its thread would go on writing
            await asyncio.gather(self._flushing, return_exceptions=True)
        while self._pending:
            batch = self._next_batch()
            try:
                await asyncio.to_thread(self._write, b"".join(entry for entry, _ in batch), len(batch))
            except OSError as exc:
                self.last_error = str(exc)
                break
            self._mark_written(len(batch))
        self._close_segment()
        unwritten = len(self._pending)
        try:
            self._rewrite_removed()
        except OSError as exc:
            self.last_error = str(exc)
            unwritten += sum(one.entries for one in self._closed if one.is_removed and not one.is_recorded)
        while self._closed:
            os.close(self._closed.popleft().file)
        self._is_closing = False
        return unwritten

    def state(self) -> Json:
        """Return counters for `status`."""
        return {
            "appended": self.appended,
            "waiting": len(self._pending),
            "waiting_bytes": self._pending_bytes,
            "lost": self.lost,
            "rewritten": self.rewritten,
            "last_error": self.last_error,
            "last_loss": self.last_loss,
        }


def folder_token(folder: Path) -> str:
    """Return 8 hex digits in the names of a folder's segments, by which hosts that share a record tell their offsets apart."""
    return digest("journal", os.uname().nodename, str(folder.absolute()))[:8]


def request_rotation(folder: Path) -> list[Path]:
    """Let all writers close their present segments, within about a second; returns these segments."""
    (folder / ROTATE_FILE).touch(mode=0o600)
    return segments(folder)


def ask_recorder(folder: Path) -> None:
    """Let the recorder read on at once where it pauses."""
    with contextlib.suppress(OSError):  # then it pauses as it would
        (folder / WAITED_FILE).touch(mode=0o600)


def is_waited_for(folder: Path, *, since: float) -> bool:
    """Whether anyone has waited for the recorder since this time, seconds since the epoch."""
    try:
        return (folder / WAITED_FILE).stat().st_mtime >= since
    except OSError:
        return False


def segments(folder: Path) -> list[Path]:
    """Return the segments of a folder, oldest first."""
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == SUFFIX)
    except FileNotFoundError:
        return []


def is_rewritten(name: str) -> bool:
    """Whether a segment repeats one that was removed: some of its entries may be recorded."""
    return name.endswith(_AGAIN + SUFFIX)


def mark_recorded(file: int) -> None:
    """Mark an open segment as recorded, before it is removed: its writer then does not write it again."""
    os.fchmod(file, _RECORDED_MODE)


def is_marked_recorded(file: int) -> bool:
    return os.fstat(file).st_mode & 0o777 == _RECORDED_MODE


def journal_bytes(folder: Path) -> int:
    """Return the size of all segments of a folder."""
    total = 0
    for path in segments(folder):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue  # recorded and removed meanwhile
    return total


def is_closed(path: Path) -> bool:
    """Whether no writer appends to a segment any more (it closed the segment, or died)."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(file)
    return True


def read_entries(
    path: Path, start: int, most_bytes: int, *, is_final: bool = False, most_entries: int = sys.maxsize
) -> tuple[list[Entry], int, int]:
    """Read whole entries of a segment from an offset on.

    Args:
        most_bytes: about how much is read; one entry is read whatever its size.
        most_entries: how many are returned at most.
        is_final: nothing is appended any more. An entry at ``start`` that is longer than the file is then skipped when a whole entry
            follows it: its length is damaged.

    Returns:
        (entries, offset behind what was read, bytes skipped because they are no entry). An entry that is not complete yet is left.
    """
    with open(path, "rb") as file:
        file.seek(start)
        data = file.read(most_bytes)
        if len(data) >= _HEADER.size and data.startswith(_MAGIC):
            length = _HEADER.size + _HEADER.unpack_from(data)[2]
            if length > len(data):
                data += file.read(length - len(data))
    entries: list[Entry] = []
    at = damaged = 0
    while at + _HEADER.size <= len(data) and len(entries) < most_entries:
        magic, kind, length, checksum, micros = _HEADER.unpack_from(data, at)
        end = at + _HEADER.size + length
        if magic == _MAGIC and end > len(data):
            # Incomplete: still being written, cut off by a crash, or its length is damaged.
            found = _find_entry(data, at + 1) if is_final and at == 0 else -1
            if found < 0:
                break
            damaged += found
            at = found
            continue
        payload = data[at + _HEADER.size : end]
        if magic != _MAGIC or zlib.crc32(payload) != checksum:
            found = data.find(_MAGIC, at + 1)
            skipped_to = found if found >= 0 else len(data) - len(_MAGIC) + 1
            damaged += skipped_to - at
            at = skipped_to
            continue
        entries.append(Entry(kind, micros / 1e6, payload, start + at, start + end))
        at = end
    return entries, start + at, damaged


def _find_entry(data: bytes, start: int) -> int:
    """Return where the next whole entry begins, -1 when there is none."""
    at = data.find(_MAGIC, start)
    while 0 <= at <= len(data) - _HEADER.size:
        _, _, length, checksum, _ = _HEADER.unpack_from(data, at)
        end = at + _HEADER.size + length
        if end <= len(data) and zlib.crc32(memoryview(data)[at + _HEADER.size : end]) == checksum:
            return at
        at = data.find(_MAGIC, at + 1)
    return -1


def _headers(path: Path, start: int) -> Iterator[tuple[float, int]]:
    """Yield time and end of each complete entry from an offset on, without reading payloads."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        at = start
        while at + _HEADER.size <= size:
            magic, _, length, _, micros = _HEADER.unpack(os.pread(file.fileno(), _HEADER.size, at))
            at += _HEADER.size + length
            if magic != _MAGIC or at > size:
                return
            yield micros / 1e6, at


def measure_lag(folder: Path, offsets: Mapping[str, int], ends: Mapping[str, int] | None = None) -> Lag:
    """Return what is in the journal and not recorded.

    Beyond some thousand entries their number is estimated from their size.

    Args:
        offsets: what is recorded of each segment, in bytes, by name.
        ends: up to where each segment counts, see `journal_ends`; default: as it is now.
    """
    entries = counted = total = 0
    oldest: float | None = None
    for name, end in (journal_ends(folder) if ends is None else ends).items():
        start = offsets.get(name, 0)
        total += max(0, end - start)
        try:
            for at, after in _headers(folder / name, start):
                if after > end or entries >= _MAX_COUNTED:
                    break
                entries += 1
                counted += after - start
                start = after
                oldest = at if oldest is None else min(oldest, at)
        except FileNotFoundError:
            total -= max(0, end - start)  # recorded and removed meanwhile
    if entries < _MAX_COUNTED:
        return Lag(entries, counted, oldest)
    return Lag(round(entries * total / counted), total, oldest)


def journal_ends(folder: Path) -> dict[str, int]:
    """Return the present size of each segment, by name: what was journalled up to now."""
    ends = {}
    for path in segments(folder):
        try:
            ends[path.name] = path.stat().st_size
        except FileNotFoundError:
            continue
    return ends


def is_recorded(folder: Path, offsets: Mapping[str, int], ends: Mapping[str, int]) -> bool:
    """Whether everything up to ``ends`` (see `journal_ends`) is recorded: a segment's file is removed before its offset."""
    return all(
        offsets.get(name, 0) >= end or (name not in offsets and not (folder / name).exists())
        for name, end in ends.items()
    )
