"""The files of ``--record-jsonl DIR``: one a day (UTC), which the scorer appends to and a forget rewrites.

Both hold the lock of the home meanwhile: the scorer from the moment it reads the record, so that no line of a turn whose row a forget
deleted is appended after the forget cleaned the files.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_LOCK = "record_jsonl.lock"
_CHUNK = 64 << 10


@contextmanager
def hold_lines(home: Path) -> Iterator[None]:
    """Hold the lock of the home's files of lines; blocking. Raises: OSError."""
    folder = home / "run"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def line_files(folder: Path) -> list[Path]:
    """Return the files, the oldest first."""
    return sorted(folder.glob("[0-9]*.jsonl"))


def append_lines(path: Path, lines: Sequence[bytes]) -> None:
    """Append lines, each with its line break, and sync them to disk: all of them, or none.

    Raises:
        OSError: the file is as before, or ends in a torn line that the next call removes.
    """
    file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        size = _whole_size(file)
        os.ftruncate(file, size)
        try:
            data = memoryview(b"".join(lines))
            at = size
            while at - size < len(data):
                at += os.pwrite(file, data[at - size :], at)
            os.fsync(file)
        except OSError:
            os.ftruncate(file, size)
            raise
    finally:
        os.close(file)


def drop_torn_line(path: Path) -> None:
    """Remove what follows the last line break: a killed process left it. Raises: OSError."""
    append_lines(path, ())


def _whole_size(file: int) -> int:
    """Return the size of a file up to its last line break, in bytes."""
    end = os.fstat(file).st_size
    while end:
        begin = max(0, end - _CHUNK)
        found = os.pread(file, end - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0
