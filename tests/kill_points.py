"""Ends a process by SIGKILL before its n-th statement, file operation or message: by injection, not by chance."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

#: Audit events of operations that change files, start processes or tell other processes something.
_CHANGES = frozenset(
    {"os.remove", "os.rename", "os.link", "os.symlink", "os.mkdir", "os.rmdir", "os.truncate", "os.utime", "os.chmod",
     "shutil.rmtree", "shutil.move", "subprocess.Popen", "socket.connect", "socket.sendto"}
)  # fmt: skip
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class _Points:
    """Counts the points of this process; at the last one it dies."""

    def __init__(self) -> None:
        self.passed = 0
        self.last = 0  # 0: it does not die
        self.is_on = False
        sys.addaudithook(self._hear)  # stays for the life of the process, so it is made in the child

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if event in _CHANGES or (event == "open" and isinstance(args[2], int) and args[2] & _WRITES):
            self.hit()

    def hit(self) -> None:
        if not self.is_on:
            return
        self.passed += 1
        if self.passed == self.last:
            os.kill(os.getpid(), signal.SIGKILL)


def run_until(work: Callable[[], int], last: int) -> tuple[int | None, int]:
    """Run work in a child process that dies at its ``last`` point, 0: at none.

    Returns:
        (its exit code, None when it died; how many points it passed, -1 when it died).
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        code = 99
        try:
            nothing = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(nothing, number)
            points = _Points()
            points.last = last
            sqlite3.connect = _counting(points)
            _count_postgresql(points)
            points.is_on = True
            code = work()
            points.is_on = False
            os.write(writing, str(points.passed).encode())
        finally:
            os._exit(code)
    os.close(writing)
    passed = os.read(reading, 32)
    os.close(reading)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return None, -1
    return os.WEXITSTATUS(status), int(passed or b"-1")


def _counting(points: _Points) -> Any:
    """Return `sqlite3.connect` with connections whose statements are points."""
    connect = sqlite3.connect

    class Cursor(sqlite3.Cursor):
        def execute(self, *args: Any) -> Any:
            points.hit()
            return super().execute(*args)

        def executemany(self, *args: Any) -> Any:
            points.hit()
            return super().executemany(*args)

    class Connection(sqlite3.Connection):
        def cursor(self, factory: Any = Cursor) -> Any:
            return super().cursor(factory)

        def execute(self, *args: Any) -> Any:
            return self.cursor().execute(*args)

        def executemany(self, *args: Any) -> Any:
            return self.cursor().executemany(*args)

    return lambda *args, **options: connect(*args, **{"factory": Connection, **options})


def die_at_each(attempt: Callable[[int], tuple[int | None, int]], step: int) -> int:
    """Call ``attempt`` (see `run_until`) to its end, then to die at every ``step``-th point; returns the number of points."""
    code, points = attempt(0)
    assert code == 0
    for last in range(1, points + 1, step):
        code, _ = attempt(last)
        assert code is None, f"point {last} of {points} was not reached"
    return points


def _count_postgresql(points: _Points) -> None:
    """Make every statement, commits too, that this process sends to PostgreSQL a point."""
    with suppress(ImportError):
        from asyncpg.connection import Connection
        from asyncpg.prepared_stmt import PreparedStatement

        for owner, name in (
            (Connection, "execute"),
            (Connection, "executemany"),
            (PreparedStatement, "fetch"),
        ):
            setattr(owner, name, _hitting(points, getattr(owner, name)))


def _hitting(points: _Points, call: Callable[..., Any]) -> Callable[..., Any]:
    def hit_and_call(*args: Any, **options: Any) -> Any:
        points.hit()
        return call(*args, **options)

    return hit_and_call


def holding(folder: Path, words: bytes) -> list[str]:
    """Return the files in a folder that hold the words in any byte, whatever their case."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())
    return [str(path.relative_to(folder)) for path in files if words.lower() in path.read_bytes().lower()]
