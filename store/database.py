"""The database: how a transaction is run, what is promised about it, and whose fault a failure is.

A query is a plain function of a synchronous `sqlalchemy.Connection`; `Database` runs it as one transaction:

* SQLite: the whole function in one hop to aiosqlite's thread. (One hop for each statement, as SQLAlchemy's dialect for it
  does, costs a turn about 39 hops, three quarters of the cost of recording it.) One thread and one connection write, so that writers of this process never
  wait for each other inside SQLite; others read.
* PostgreSQL: `AsyncConnection.run_sync`; each statement is a round trip to the server anyway.

What a commit promises on SQLite (WAL, ``synchronous=NORMAL``): a committed row survives ``kill -9`` of any process, at any moment.
After a power cut the newest commits since the last checkpoint may be missing; the database is whole all the same.

A file that is removed while it is in use goes on existing for the processes that have it open. The first that writes puts it back
(`_SqliteFile._restore`), so an accidental `rm` costs nothing. After several removals a process that writes rarely may still have an older file
open: each restored file has the next generation (SQLite's ``user_version``), a file beside it holds the newest, and only a process that
has that one open restores it. SQLAlchemy's and the drivers' exceptions are mapped here, once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TypeVar
from urllib.parse import quote

import aiosqlite
import orjson
import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from store.change_notice import ChangeNotice, touch
from store.disk import sync_path
from store.errors import RecordCorrupt, RecordError, RecordUnavailable
from store.version import COMMAND

if TYPE_CHECKING:  # only PostgreSQL needs it, and every command would wait for its import
    from sqlalchemy.ext.asyncio import AsyncEngine

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

#: SQLite waits so long for another writer before it says "locked"; writes here take milliseconds.
BUSY_TIMEOUT_S = 5.0

#: So many pages (16 MB) of new commits are moved into the database at once: each time waits for the disk, and pages that were written
#: many times are moved once.
_CHECKPOINT_PAGES = 4000

_READERS = 3
#: How long `scrub` waits for readers of other processes: its caller tries again.
_SCRUB_WAIT_S = 2.0

#: Device and inode.
FileId = tuple[int, int]


class Database:
    """An open database. Make it with `open`; safe for concurrent tasks of one event loop."""

    def __init__(self, file: _SqliteFile | None, server: AsyncEngine | None) -> None:
        self._file = file
        self._server = server
        if file is not None:
            self._writer = _Writer(file.open)
            self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="record-read")

    @classmethod
    async def open(cls, url: str, busy_timeout_s: float = BUSY_TIMEOUT_S) -> Database:
        """Raises: RecordUnavailable when it is not there, RecordCorrupt, RecordError for a URL of something else."""
        try:
            parsed = sa.make_url(url)
        except SQLAlchemyError as exc:
            raise RecordError(f"{url!r} is not a database URL") from exc
        backend = parsed.get_backend_name()
        if backend == "sqlite":
            if not parsed.database or parsed.database == ":memory:":
                raise RecordError("the record needs a file: memory is not shared between processes")
            file = _SqliteFile(Path(parsed.database), busy_timeout_s)
            database = cls(file, None)
            try:
                await database._writer.start()
            except BaseException:
                await database.close()
                raise
            return database
        if backend != "postgresql":
            raise RecordError(f"the record lives in SQLite or PostgreSQL, not in {backend}")
        from sqlalchemy.ext.asyncio import create_async_engine

        try:
            return cls(None, create_async_engine(parsed, pool_pre_ping=True))
        except ModuleNotFoundError as exc:
            raise RecordError("PostgreSQL needs the extra: pip install 'patina[postgres]'") from exc

    async def close(self) -> None:
        """Close every connection, once what is being read and written has ended; closed again, it does nothing."""
        if self._server is not None:
            await self._server.dispose()
            return
        # In this order: what is being read and written ends before the connections close.
        await asyncio.to_thread(self._readers.shutdown)
        if self._writer.is_alive:
            await self._run(self._file_of().close)
            await self._writer.close()

    async def read(
        self, work: Callable[Concatenate[sa.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run ``work(connection, …)``, which only reads."""
        if self._server is not None:
            with _mapped():
                async with self._server.connect() as connection:
                    return await connection.run_sync(lambda sync: work(sync, *args, **kwargs))
        return await asyncio.get_running_loop().run_in_executor(
            self._readers, self._file_of().read, lambda sync: work(sync, *args, **kwargs)
        )

    async def write(
        self, work: Callable[Concatenate[sa.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run ``work(connection, …)`` as one transaction: all of it, or on any error nothing.

        Once begun it is not stopped by a cancelled task: it commits or fails as a whole.
        """
        if self._server is not None:
            with _mapped():
                async with self._server.begin() as connection:
                    return await connection.run_sync(lambda sync: work(sync, *args, **kwargs))
        file = self._file_of()
        return await self._run(lambda: file.write(lambda sync: work(sync, *args, **kwargs)))

    async def write_unnoticed(
        self, work: Callable[Concatenate[sa.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Like `write`, for what no process waits for: it ends no wait of a `change_notice`."""
        if self._file is None:
            return await self.write(work, *args, **kwargs)
        file = self._file
        return await self._run(lambda: file.write(lambda sync: work(sync, *args, **kwargs), is_noticed=False))

    def change_notice(self, *, poll_s: float, min_interval_s: float) -> ChangeNotice:
        """Return what ends a wait after a `write` of any process. It polls on PostgreSQL, whose writers may be on other machines."""
        return ChangeNotice(
            files=[] if self._file is None else [self._file.change_marker],
            poll_s=poll_s,
            min_interval_s=min_interval_s,
        )

    async def sync(self) -> None:
        """Make every commit so far survive a power cut. PostgreSQL does so at each commit. Raises: RecordUnavailable."""
        if self._file is not None:
            await self._run(self._file.sync)

    async def scrub(self) -> None:
        """Write the database anew, so that nothing is left of deleted rows in its free space and its log.

        On PostgreSQL this is VACUUM FULL; copies in its archived log are its owner's.

        Raises:
            RecordUnavailable: readers of other processes held the log for too long; it may be called again.
        """
        if self._server is not None:
            with _mapped():
                async with self._server.execution_options(
                    isolation_level="AUTOCOMMIT"
                ).connect() as connection:
                    await connection.execute(sa.text("VACUUM FULL"))
            return
        await self._run(self._file_of().scrub)

    async def _run(self, work: Callable[[], T]) -> T:
        """Run it in the one thread that writes."""
        return await self._writer.run(work)

    def _file_of(self) -> _SqliteFile:
        assert self._file is not None  # either a file or a server
        return self._file


class _Writer(aiosqlite.Connection):
    """aiosqlite's connection, whose thread runs a whole transaction in one hop instead of each statement in one."""

    def __init__(self, connector: Callable[[], sqlite3.Connection]) -> None:
        super().__init__(connector, iter_chunk_size=64)
        # A record that is not closed must not keep the program from ending; SQLite needs no close.
        self._thread.daemon = True
        self._thread.name = f"record-write-{self._thread.name}"

    async def start(self) -> None:
        """Open it; raises what the connector raises."""
        try:
            await self
        except BaseException:
            # The thread's last word goes to the event loop, which must not be closed by then.
            await asyncio.to_thread(self._thread.join)
            raise

    @property
    def is_alive(self) -> bool:
        """Whether it was opened and not closed."""
        return self._connection is not None

    async def run(self, work: Callable[[], T]) -> T:
        """Return what ``work`` returns, or raise what it raises."""
        result: T = await self._execute(work)  # type: ignore[no-untyped-call]  # aiosqlite's own way in, for subclasses
        return result


class _SqliteFile:
    """A SQLite file and the connections to it. `write` is called from one thread only."""

    def __init__(self, path: Path, busy_timeout_s: float) -> None:
        self._path = path
        self._wal = path.with_name(path.name + "-wal")
        #: Holds the generation of the newest restored file. Its name begins with a dot, so that `rm patina.db*` leaves it.
        self._generation_file = path.with_name(f".{path.name}.generation")
        self.change_marker = path.with_name(f".{path.name}.changed")
        self._generation = 0  # of what is open
        self._busy_timeout_s = busy_timeout_s
        self._open_file: FileId | None = None
        self._open_wal: FileId | None = None  # stays the same file while a connection is open
        self._engine: sa.Engine | None = None
        self._writing: sa.Connection | None = None
        self._spare: sqlite3.Connection | None = (
            None  # reads the whole of it when the file has to be restored
        )

    def open(self) -> sqlite3.Connection:
        """Open all connections, then close those of before; returns the spare one, which stands for the file.

        If that fails, those of before stay: a file that was removed can still be restored from them.
        """
        with _mapped(), ExitStack() as undo:
            if not self._path.parent.is_dir():
                raise RecordUnavailable(f"the record's folder {self._path.parent} is not there")
            # AUTOCOMMIT: the driver begins no transaction of its own; `write` does, with BEGIN IMMEDIATE.
            engine = sa.create_engine(
                "sqlite://",
                creator=self._connect,
                poolclass=sa.pool.QueuePool,
                pool_size=_READERS + 1,
                isolation_level="AUTOCOMMIT",
            )
            undo.callback(engine.dispose)
            open_file = _file_id(self._path)
            spare = undo.enter_context(closing(self._connect()))
            (generation,) = spare.execute("PRAGMA user_version").fetchone()  # opens the WAL as well
            open_wal = _file_id(self._wal)
            if open_wal is None:
                raise RecordUnavailable(
                    f"the write-ahead log of {self._path} was removed; it is opened again"
                )
            if (self._newest_generation() or 0) != generation:
                self._write_generation(generation)  # it was restored, or an owner put another file there
            writing = undo.enter_context(closing(engine.connect()))
            undo.pop_all()
        # Closed after the file was removed, they leave the log of the new file alone: SQLite compares the files.
        self.close()
        self._engine, self._writing, self._spare = engine, writing, spare
        self._open_file, self._open_wal, self._generation = open_file, open_wal, generation
        return spare

    def close(self) -> None:
        if self._writing is not None:
            self._writing.close()
        if self._engine is not None:
            self._engine.dispose()
        if self._spare is not None:
            self._spare.close()
        self._writing = self._engine = self._spare = self._open_file = self._open_wal = None

    def read(self, work: Callable[[sa.Connection], T]) -> T:
        with _mapped():
            if self._engine is None or _file_id(self._path) not in (self._open_file, None):
                # Opened again by the next write; a reader must not take the connections from under the writer.
                raise RecordUnavailable(f"the record's file {self._path} was replaced by another")
            with self._engine.connect() as connection:
                return work(connection)

    def write(self, work: Callable[[sa.Connection], T], *, is_noticed: bool = True) -> T:
        with _mapped():
            if self._writing is None:
                self.open()
            elif _file_id(self._path) not in (self._open_file, None):
                self._close_replaced()  # before the lock: what is open may be damaged and refuse it
            assert self._writing is not None  # `open` made it or raised
            raw = dbapi(self._writing)
            # Take the write lock at once: a read that later turns into a write fails with SQLITE_BUSY at any timeout.
            raw.execute("BEGIN IMMEDIATE")
            try:
                # Seen under the lock, so that nothing is written to a file that another process is restoring.
                found = _file_id(self._path)
                is_whole = found == self._open_file and _file_id(self._wal) == self._open_wal
                if is_whole:
                    changes = raw.total_changes
                    result = work(self._writing)
                    raw.execute("COMMIT")
                    if is_noticed and raw.total_changes != changes:
                        self._mark_change()
                    return result
                # Where only the log is gone, the file on disk lacks what was in it.
                is_removed = found is None or found == self._open_file
                can_restore = self._newest_generation() in (self._generation, None)
                if is_removed and can_restore:
                    self._restore()
            except BaseException:
                with suppress(
                    sqlite3.Error
                ):  # the first error is the one to tell; a dead connection cannot roll back
                    raw.execute("ROLLBACK")
                raise
            raw.execute("ROLLBACK")
            if is_removed and not can_restore:
                # The connections stay: what they have open can be read until the file is back.
                raise RecordUnavailable(
                    f"the record's file {self._path} was removed; a process with a newer one open restores it"
                )
            if is_removed:
                self.open()  # at once: after a second removal it must be restored from this file
                raise RecordUnavailable(f"the record's file {self._path} was removed; it is restored")
            self._close_replaced()

    def _mark_change(self) -> None:
        """End the waits for a change. The log itself is not watched: heartbeats write to it as well."""
        try:
            touch(self.change_marker)
        except OSError as exc:  # the transaction is committed: others see it when they poll
            log.warning("a change is noticed late: %s", exc)

    def _close_replaced(self) -> NoReturn:
        self.close()
        raise RecordUnavailable(f"the record's file {self._path} was replaced; it is opened again")

    def scrub(self) -> None:
        with _mapped():
            if self._writing is None:
                self.open()
            assert self._writing is not None  # `open` made it or raised
            raw = dbapi(self._writing)
            raw.execute("PRAGMA secure_delete=ON")
            raw.execute("VACUUM")
            deadline = time.monotonic() + _SCRUB_WAIT_S
            # A reader of another process keeps the log from being emptied; reads take milliseconds.
            while raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                if time.monotonic() > deadline:
                    raise RecordUnavailable(
                        "the record's log cannot be emptied: it is being read all the time"
                    )
                time.sleep(0.01)

    def sync(self) -> None:
        """Sync the write-ahead log: what is no longer in it was synced by the checkpoint that moved it."""
        with _mapped():
            # Never the database file itself: to close it would release SQLite's locks on it.
            for path in (self._wal, self._path.parent):
                sync_path(path)

    def _restore(self) -> None:
        """Write what the removed file held back to its place; the caller holds its write lock.

        The first process that has the restored file open makes its generation the newest.
        """
        assert self._spare is not None
        beside = self._path.with_name(f"{self._path.name}.{os.getpid()}.restoring")
        try:
            with closing(sqlite3.connect(beside)) as target:
                self._spare.backup(target)
                target.execute(f"PRAGMA user_version={self._generation + 1}")
        except BaseException:
            beside.unlink(missing_ok=True)  # what is open is damaged, or the disk is full
            raise
        # Leftovers of the old file, which nothing new may be mixed with; all they held is in the copy.
        for suffix in ("-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        if _file_id(self._path) == self._open_file:
            beside.replace(self._path)
            return
        # A backup that was put there meanwhile is the record.
        with suppress(FileExistsError):
            os.link(beside, self._path)
        beside.unlink()

    def _newest_generation(self) -> int | None:
        """Return the generation of the newest file that a process had open; None where none was restored."""
        try:
            return int(self._generation_file.read_text("ascii"))
        except (FileNotFoundError, ValueError):
            return None

    def _write_generation(self, generation: int) -> None:
        beside = self._generation_file.with_name(f"{self._generation_file.name}.{os.getpid()}")
        beside.write_text(str(generation), "ascii")
        beside.replace(self._generation_file)

    def _connect(self) -> sqlite3.Connection:
        # mode=rw: a file that is not there is an error, and not a new, empty record
        connection = sqlite3.connect(
            f"file:{quote(str(self._path.absolute()))}?mode=rw",
            uri=True,
            check_same_thread=False,
            isolation_level=None,
            cached_statements=256,
        )
        connection.execute(f"PRAGMA busy_timeout={round(self._busy_timeout_s * 1000)}")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}")
        return connection


def _file_id(path: Path) -> FileId | None:
    """Return the identity of the file at a path, None where there is none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


# -------------------------------------------------------------------------------------------------- statements


def dbapi(connection: sa.Connection) -> sqlite3.Connection:
    """Return the driver's own connection under a SQLite connection."""
    raw: Any = connection.connection.dbapi_connection
    assert isinstance(raw, sqlite3.Connection)
    return raw


class PreparedStatement:
    """An INSERT or UPDATE put together once, for the statements that run with every turn.

    On SQLite it goes straight to the driver: SQLAlchemy's way to run a statement costs as much again as SQLite's.

    Args:
        build: the statement for a dialect, without constants of its own; its parameters are named ``columns``, and one that
            a row does not name is NULL.
    """

    def __init__(self, build: Callable[[str], sa.Executable], columns: Sequence[str]) -> None:
        self._build = build
        self._columns = list(columns)

    @cached_property
    def _for_sqlite(self) -> tuple[str, tuple[str, ...]]:
        """Return the text and the order of its parameters; made when it is first run, since most commands write no turn."""
        made = self._build("sqlite").compile(dialect=sqlite.dialect(), column_keys=self._columns)  # type: ignore[attr-defined]  # every Executable of Core is a ClauseElement
        return str(made), tuple(made.positiontup or ())

    @cached_property
    def _for_postgresql(self) -> sa.Executable:
        return self._build("postgresql")

    def many(self, connection: sa.Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Run it once for each row."""
        if not rows:
            return
        if connection.dialect.name == "sqlite":
            text, order = self._for_sqlite
            dbapi(connection).executemany(text, [[row.get(name) for name in order] for row in rows])
        else:
            connection.execute(self._for_postgresql, [dict(row) for row in rows])


def present(connection: sa.Connection, column: sa.Column[Any], values: Sequence[str]) -> set[str]:
    """Return those of ``values`` that are in an indexed column."""
    if not values:
        return set()
    if connection.dialect.name == "sqlite":
        # one text for any number of values, so that it is prepared once
        text = f"SELECT {column.name} FROM {column.table.name} WHERE {column.name} IN (SELECT value FROM json_each(?))"
        return {row[0] for row in dbapi(connection).execute(text, (orjson.dumps(list(values)).decode(),))}
    return set(connection.execute(sa.select(column).where(column.in_(list(values)))).scalars())


def insert_ignore(dialect: str, table: sa.Table) -> sa.Insert:
    """Return an INSERT that leaves what is there already."""
    return _insert(dialect, table).on_conflict_do_nothing()


def upsert(connection: sa.Connection, table: sa.Table, values: Mapping[str, Any], key: Sequence[str]) -> None:
    """Insert a row or overwrite the one with the same key."""
    rest = {name: value for name, value in values.items() if name not in key}
    statement = _insert(connection.dialect.name, table).values(**values)
    connection.execute(statement.on_conflict_do_update(index_elements=list(key), set_=rest))


def _insert(dialect: str, table: sa.Table) -> sqlite.Insert:
    """Return the dialect's INSERT; both have the same methods."""
    if dialect != "postgresql":
        return sqlite.insert(table)
    from sqlalchemy.dialects import postgresql

    return postgresql.insert(table)  # type: ignore[return-value]


# ------------------------------------------------------------------------------------------------------ errors

_CORRUPT = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


@contextmanager
def _mapped() -> Iterator[None]:
    """Map SQLAlchemy's and the drivers' exceptions to ours, once."""
    try:
        yield
    except DBAPIError as exc:
        raise _ours(
            exc.orig or exc, isinstance(exc, sa.exc.OperationalError | sa.exc.InterfaceError)
        ) from exc
    except sqlite3.Error as exc:
        raise _ours(exc, isinstance(exc, sqlite3.OperationalError | sqlite3.InterfaceError)) from exc
    except SQLAlchemyError as exc:
        raise RecordUnavailable(f"the record cannot be used: {exc}") from exc
    except OSError as exc:
        raise RecordUnavailable(f"the record cannot be reached: {exc}") from exc


def is_corrupt(error: BaseException) -> bool:
    """Whether SQLite reports a damaged file."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _CORRUPT


def damaged_sentence(error: BaseException) -> str:
    """Return the sentence for a person whose record is damaged."""
    return f"the record's file is damaged: {error}; stop Patina and run `{COMMAND} recover`, which salvages what can be read"


def _ours(error: BaseException, may_pass: bool) -> RecordError:
    if is_corrupt(error):
        return RecordCorrupt(damaged_sentence(error))
    if may_pass:
        return RecordUnavailable(f"the record cannot be used: {error}")
    return RecordError(f"the record refused: {error}")
