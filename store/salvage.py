"""Salvage of a damaged SQLite record: every row that can still be read is copied into a fresh file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from store import schema

_CHUNK = 500
#: After an unreadable row, rows further on are tried at doubling distances up to this one.
_MAX_JUMP = 1 << 32
#: Tables that are not copied: without offsets, the journals that are left are read from their beginnings (known turns are skipped).
_LEFT_OUT = frozenset({"gpu_leases", "heartbeats", "journal_offsets"})


def salvage(damaged: Path, fresh: Path) -> dict[str, int]:
    """Copy what can be read of a damaged record into a fresh, migrated one.

    Rows that refer to rows that could not be read are left out.

    Returns:
        rows copied, by table.

    Raises:
        sqlite3.DatabaseError: the fresh file cannot be written.
    """
    copied: dict[str, int] = {}
    with (
        closing(sqlite3.connect(f"file:{quote(str(damaged.absolute()))}?mode=rw", uri=True)) as source,
        closing(sqlite3.connect(fresh)) as target,
    ):
        target.execute("PRAGMA foreign_keys=OFF")
        try:
            source.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.DatabaseError:
            return {}  # not even the schema can be read
        for table in schema.metadata.sorted_tables:
            if table.name in _LEFT_OUT:
                continue
            there = {row[1] for row in source.execute(f"PRAGMA table_info({table.name})")}
            names = [column.name for column in table.columns if column.name in there]
            if not names:
                continue  # it cannot be read, or is of an older schema
            insert = f"INSERT OR REPLACE INTO {table.name} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
            for row in _readable_rows(source, table.name, names):
                target.execute(insert, row)
            copied[table.name] = target.execute(f"SELECT count(*) FROM {table.name}").fetchone()[0]
        target.commit()
        for name in _delete_orphans(target):
            copied[name] = target.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
        target.commit()
    return copied


def _readable_rows(source: sqlite3.Connection, table: str, names: list[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a table that can be read, in the order of their row ids."""
    columns = ", ".join(names)
    at, jump, size = -1, 1, _CHUNK
    while True:
        try:
            rows = source.execute(
                f"SELECT rowid, {columns} FROM {table} WHERE rowid > ? ORDER BY rowid LIMIT ?", (at, size)
            ).fetchall()
        except sqlite3.DatabaseError:
            if size > 1:
                size = 1  # find the row that cannot be read
                continue
            at, jump = at + jump, jump * 2
            if jump > _MAX_JUMP:
                return
            continue
        if not rows:
            return
        for row in rows:
            yield row[1:]
        at, jump, size = rows[-1][0], 1, min(_CHUNK, size * 2)


#: References that are not foreign keys, because "" stands for the beginning of a chain.
_DANGLING = (
    ("nodes", "DELETE FROM nodes WHERE parent != '' AND parent NOT IN (SELECT node FROM nodes)"),
    ("turns", "DELETE FROM turns WHERE history_node != '' AND history_node NOT IN (SELECT node FROM nodes)"),
    (
        "turns",
        "DELETE FROM turns WHERE preamble_node != '' AND preamble_node NOT IN (SELECT node FROM nodes)",
    ),
)


def _delete_orphans(target: sqlite3.Connection) -> set[str]:
    """Delete rows whose parents are missing, until there are none; returns the tables that lost some."""
    touched: set[str] = set()
    while True:
        before = target.total_changes
        for table, rowid, _, _ in target.execute("PRAGMA foreign_key_check").fetchall():
            touched.add(str(table))
            target.execute(f"DELETE FROM {table} WHERE rowid = ?", (rowid,))
        for table, statement in _DANGLING:
            if target.execute(statement).rowcount:
                touched.add(table)
        if target.total_changes == before:
            return touched
