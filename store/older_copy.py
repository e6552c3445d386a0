"""Deletion from an older copy of a record of what the newer one has had forgotten: for a restore. SQLite only."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import sqlalchemy as sa

from store import schema
from store.errors import RecordError
from store.queries.forget_jobs import delete_again
from store.queries.person import adapters
from store.values import AdapterVersion, Closure, Json


def delete_forgotten(
    record: Path, jobs: Sequence[Json], gone: Mapping[str, float], reactions: Collection[str]
) -> tuple[Closure | None, list[AdapterVersion]]:
    """Delete it, add the newer record's forgets, and write the file anew; returns what was deleted, and all versions of the copy.

    Args:
        record: the copy, of the present schema.
        jobs: rows of `forget_jobs`.
        gone, reactions: as `store.queries.forget_jobs.delete_again`.

    Raises:
        RecordError: the copy cannot be read or written.
    """
    engine = sa.create_engine(f"sqlite:///{record}")
    try:
        with engine.begin() as connection:
            for job in jobs:
                connection.execute(sa.insert(schema.forget_jobs).prefix_with("OR REPLACE"), job)
            done = delete_again(connection, gone, reactions)
            versions = adapters(connection)
    except sa.exc.SQLAlchemyError as exc:
        raise RecordError(f"what was forgotten cannot be left out of the backup: {exc}") from exc
    finally:
        engine.dispose()
    with closing(sqlite3.connect(record, isolation_level=None)) as connection:
        connection.execute("VACUUM")
        connection.execute("PRAGMA journal_mode=DELETE")
    return done, versions
