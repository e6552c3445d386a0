"""The journal: where a turn is safe while the record is in trouble.

One file in the home, one line of JSON for each draft that could not be committed in time, appended and flushed to the disk before its
client sees the end. When everything in it is in the record it is emptied; what a crash left is read at the next start. Lines are
drafts, not rows: what a turn continues is decided when it can be written.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path


class JournalFull(OSError):
    """The file has reached its bound."""


class Journal:
    """An append-only file of lines; many appends share one flush.

    Args:
        capacity_bytes: bound on the file.
    """

    def __init__(self, path: Path, *, capacity_bytes: int = 4 << 30) -> None:
        self._path = path
        self._capacity_bytes = capacity_bytes
        self._file: int | None = None
        self._pending: list[tuple[bytes, asyncio.Future[None]]] = []
        self._flushing: asyncio.Task[None] | None = None

    def append(self, line: bytes) -> asyncio.Future[None]:
        """Append a line (with its line end); the future is done when it is on the disk, or failed with an OSError."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.append((line, done))
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._flush())
        return done

    async def settled(self) -> None:
        """Wait until nothing is being appended."""
        while self._flushing is not None and not self._flushing.done():
            await asyncio.wait({self._flushing})

    async def _flush(self) -> None:
        while self._pending:
            batch, self._pending = self._pending, []
            try:
                await asyncio.to_thread(self._write, b"".join(line for line, _ in batch))
            except OSError as exc:
                for _, done in batch:
                    if not done.done():
                        done.set_exception(exc)
                        done.exception()  # seen: who waited may have given up meanwhile
            else:
                for _, done in batch:
                    if not done.done():
                        done.set_result(None)

    def _write(self, data: bytes) -> None:
        if self._file is not None and not self._is_in_place(self._file):
            self.close()  # somebody removed it: what it held is in memory or in the record, or was theirs to remove
        if self._file is None:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        size = os.fstat(self._file).st_size
        if size + len(data) > self._capacity_bytes:
            raise JournalFull(
                f"the journal {self._path} has reached its bound of {self._capacity_bytes} bytes"
            )
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            data = (
                b"\n" + data
            )  # a line was torn by a crash: its client never saw the end, and nothing may join it
        try:
            while data:
                data = data[os.write(self._file, data) :]
            os.fdatasync(self._file)
        except OSError:
            os.ftruncate(self._file, size)
            raise

    def _is_in_place(self, file: int) -> bool:
        try:
            return os.path.samestat(os.fstat(file), os.stat(self._path))
        except FileNotFoundError:
            return False

    @property
    def is_quiet(self) -> bool:
        """Nothing is being appended."""
        return not self._pending and (self._flushing is None or self._flushing.done())

    def size(self) -> int:
        """Return how many bytes it holds."""
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    def lines(self, start: int, end: int) -> Iterator[bytes]:
        """Yield the lines between two sizes that it once had."""
        if not self._path.exists():
            return
        with open(self._path, "rb") as file:
            file.seek(start)
            while file.tell() < end and (line := file.readline()):
                if line.strip():
                    yield line

    def empty(self) -> None:
        """Forget everything: it is in the record."""
        if self._file is not None:
            os.ftruncate(self._file, 0)
        elif self._path.exists():
            os.truncate(self._path, 0)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
