"""Waiting for changes of files and folders without polling: Linux' inotify, a slow poll where it is not available.

A `ChangeNotice` watches from the moment it is made, so nothing is lost between a look and the wait behind it: what changes during the look ends
the next wait at once. However many changes there were, they end one wait. The loop of a process is::

    notice = ChangeNotice(folders=[folder])
    while True:
        look(folder)
        await notice.wait(timeout_s=10)

A look that writes into a watched folder would end its own next wait: such files are named in `ignored`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import struct
import time
import weakref
from collections.abc import Collection, Iterable
from enum import IntFlag
from pathlib import Path

log = logging.getLogger(__name__)

#: Pause between two looks where inotify is not available.
FALLBACK_POLL_S = 1.0
#: wd, mask, cookie, length of the name that follows.
_EVENT = struct.Struct("iIII")
_READ_BYTES = 1 << 16


class _Mask(IntFlag):
    """Events of <sys/inotify.h>."""

    MODIFY = 0x2
    ATTRIB = 0x4
    CLOSE_WRITE = 0x8
    MOVED_FROM = 0x40
    MOVED_TO = 0x80
    CREATE = 0x100
    DELETE = 0x200
    MOVE_SELF = 0x800
    Q_OVERFLOW = 0x4000
    IGNORED = 0x8000
    ONLYDIR = 0x1000000


#: Of a folder with single files that count. Not MODIFY: SQLite's log beside them grows with every write of every process.
_FILE = _Mask.CREATE | _Mask.MOVED_TO | _Mask.CLOSE_WRITE | _Mask.ATTRIB | _Mask.MOVE_SELF
_FOLDER = _FILE | _Mask.MODIFY | _Mask.MOVED_FROM | _Mask.DELETE


class ChangeNotice:
    """Ends a wait when something in these files or folders changed; needs `close`. One task at a time waits.

    Args:
        folders: in which every file counts.
        files: single files, which count when they are put in place, closed after writing, or touched.
        ignored: names whose changes end no wait.
        poll_s: longest wait while the paths cannot be watched.
        min_interval_s: shortest time between the ends of two waits, so that a row of changes shares one look. The first
            change after a quiet time is noticed at once.
    """

    def __init__(
        self,
        *,
        folders: Iterable[Path] = (),
        files: Iterable[Path] = (),
        ignored: Collection[str] = (),
        poll_s: float = FALLBACK_POLL_S,
        min_interval_s: float = 0.0,
    ) -> None:
        self._ignored = frozenset(ignored)
        self._poll_s = poll_s
        self._min_interval_s = min_interval_s
        self._ended_at = -min_interval_s
        self._signal = asyncio.Event()
        self._is_woken = False
        #: folder -> the names in it that count; None: all.
        self._names: dict[Path, set[str] | None] = dict.fromkeys(folders)
        for file in files:
            if (names := self._names.setdefault(file.parent, set())) is not None:
                names.add(file.name)
        self._watches: dict[int, Path] = {}
        self._inotify = _open_inotify() if self._names else None
        # A user has 128 of them: one that is forgotten is given back with its owner.
        self._release = weakref.finalize(self, os.close, self._inotify) if self._inotify is not None else None
        self._watch()

    @property
    def is_armed(self) -> bool:
        """Whether changes end a wait at once; otherwise it ends after `poll_s`."""
        return self._inotify is not None and len(self._watches) == len(self._names)

    def close(self) -> None:
        """Stop watching; a later wait polls. Not while one runs."""
        if self._release is not None:
            self._release()
            self._release = self._inotify = None
        self._watches.clear()

    def wake(self) -> None:
        """End the wait, or the next one, at once: this process itself has a reason to look."""
        self._is_woken = True
        self._signal.set()

    async def wake_at(self, event: asyncio.Event) -> None:
        """Wait until the event is set, then `wake`."""
        await event.wait()
        self.wake()

    async def wait(self, timeout_s: float) -> bool:
        """Wait until something changed since the end of the last wait; False: the time is over, and nothing is known to have changed."""
        try:
            return await self._wait(timeout_s)
        finally:
            self._is_woken = False
            self._signal.clear()
            self._ended_at = time.monotonic()

    async def _wait(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        if not self.is_armed and self._watch():
            return True  # a folder is there again: what happened in it before is not known
        while not (self._is_woken or self._take()):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if not self.is_armed:
                await self._sleep(min(left, self._poll_s))
                return self._is_woken
            await self._sleep_until_events(left)
        early = min(deadline, self._ended_at + self._min_interval_s) - time.monotonic()
        if early > 0 and self.is_armed and not self._is_woken:
            await self._sleep(early)
            self._take()  # the changes meanwhile share the look
        return True

    async def _sleep(self, timeout_s: float) -> None:
        """Sleep until the signal is set."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._signal.wait()

    async def _sleep_until_events(self, timeout_s: float) -> None:
        assert self._inotify is not None  # it is armed
        loop = asyncio.get_running_loop()
        # Only while a wait runs: events in between must not wake the loop.
        loop.add_reader(self._inotify, self._signal.set)
        try:
            await self._sleep(timeout_s)
        finally:
            loop.remove_reader(self._inotify)
            if not self._is_woken:
                self._signal.clear()

    def _watch(self) -> bool:
        """Watch the folders that are there and not watched yet; returns whether all are watched now."""
        if self._inotify is None:
            return False
        for folder in self._names.keys() - set(self._watches.values()):
            mask = _FOLDER if self._names[folder] is None else _FILE
            number = _libc().inotify_add_watch(self._inotify, os.fsencode(folder), mask | _Mask.ONLYDIR)
            if number >= 0:
                self._watches[number] = folder
        return self.is_armed

    def _take(self) -> bool:
        """Take all events from the kernel; returns whether one of them counts."""
        changed = False
        while self._inotify is not None:
            try:
                events = os.read(self._inotify, _READ_BYTES)
            except BlockingIOError:
                break
            start = 0
            while start < len(events):
                number, mask, _, length = _EVENT.unpack_from(events, start)
                name = events[start + _EVENT.size :][:length].rstrip(b"\0")
                start += _EVENT.size + length
                changed |= self._counts(number, mask, os.fsdecode(name))
        return changed

    def _counts(self, number: int, mask: int, name: str) -> bool:
        if mask & _Mask.Q_OVERFLOW:
            return True
        if mask & _Mask.MOVE_SELF and self._inotify is not None:
            _libc().inotify_rm_watch(self._inotify, number)
        if mask & (
            _Mask.IGNORED | _Mask.MOVE_SELF
        ):  # the folder is gone; watched again when it is there again
            return self._watches.pop(number, None) is not None
        folder = self._watches.get(number)
        names = self._names.get(folder) if folder is not None else set()
        return name not in self._ignored and (names is None or name in names)


def touch(path: Path) -> None:
    """Change a file's time, so that it ends the waits for it; it is made where it is missing."""
    try:
        os.utime(path)
    except FileNotFoundError:
        path.touch(mode=0o600)


def _open_inotify() -> int | None:
    """Return the descriptor of a new inotify instance; None where there is none, or the user has used up theirs."""
    with contextlib.suppress(AttributeError):  # another system's C library
        file = _libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if file >= 0:
            return int(file)
        log.warning("files are polled: inotify is not available: %s", os.strerror(ctypes.get_errno()))
    return None


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
