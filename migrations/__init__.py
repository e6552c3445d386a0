"""The record's schema: `upgrade` creates or updates a database. It runs at every start, in-process.

A new database gets the schema that `store.schema` declares; a record of release 0.2.0 is brought to it by `migrations.since_0_2_0`. Later changes
are Alembic's revisions in `versions/`, behind revision 0036. Alembic is imported where one of them has to run.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from migrations import since_0_2_0
from store.database import damaged_sentence, is_corrupt
from store.errors import RecordCorrupt, RecordError, RecordUnavailable
from store.record import SCHEMA_REVISION, check_revision, read_revision
from store.schema import metadata, trajectories_view

#: The first revision in `versions/`.
_FIRST = "0036"
_REVISION = sa.Table(
    "alembic_version", sa.MetaData(), sa.Column("version_num", sa.String(32), primary_key=True)
)


def upgrade(url: str) -> None:
    """Bring the database at ``url`` to the newest schema, creating it when it is new. A no-op when it is current.

    Call it outside an event loop, before the processes start: one process migrates, the others only check.

    Raises:
        RecordTooNew: a newer Patina wrote it; nothing is changed.
        RecordUnavailable: it cannot be reached, or its folder cannot be made.
        RecordCorrupt: its file is damaged.
        RecordError: the migration failed; it was rolled back.
    """
    parsed = sa.make_url(url)
    try:
        if parsed.get_backend_name() == "sqlite":
            if parsed.database and parsed.database != ":memory:":
                Path(parsed.database).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # The driver would commit each change of the schema by itself.
            engine = sa.create_engine(parsed.set(drivername="sqlite"), isolation_level="AUTOCOMMIT")
            try:
                with engine.connect() as connection:
                    connection.exec_driver_sql("PRAGMA busy_timeout=5000")
                    connection.exec_driver_sql("BEGIN IMMEDIATE")
                    _upgrade(connection)
                    connection.exec_driver_sql("COMMIT")
            finally:
                engine.dispose()
        else:
            asyncio.run(_upgrade_async(parsed))
    except OSError as exc:
        raise RecordUnavailable(
            f"the record at {parsed.render_as_string()} cannot be reached: {exc}"
        ) from exc
    except SQLAlchemyError as exc:
        cause = getattr(exc, "orig", None) or exc
        if is_corrupt(cause):
            raise RecordCorrupt(damaged_sentence(cause)) from exc
        raise RecordError(f"the record at {parsed.render_as_string()} cannot be migrated: {cause}") from exc


async def _upgrade_async(url: sa.URL) -> None:
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(url)
    try:
        async with engine.begin() as connection:
            await connection.run_sync(_upgrade)
    finally:
        await engine.dispose()


def _upgrade(connection: sa.Connection) -> None:
    # Asked for first, because a query of a missing table ends PostgreSQL's transaction.
    found = read_revision(connection) if sa.inspect(connection).has_table(_REVISION.name) else None
    if found == SCHEMA_REVISION:
        return
    if found is None:
        create(connection)
    elif found == since_0_2_0.REVISION:
        since_0_2_0.upgrade(connection)
        connection.execute(sa.update(_REVISION).values(version_num=SCHEMA_REVISION))
    elif found < _FIRST:
        raise RecordError(
            f"the record has schema {found} of a Patina older than 0.2.0, or between releases: open it with release 0.2.0 first, or give another --home"
        )
    elif found > SCHEMA_REVISION:
        check_revision(found)  # raises RecordTooNew with the sentence for it
    else:
        _run_revisions(connection)


def create(connection: sa.Connection) -> None:
    """Create everything that `store.schema` declares in an empty database."""
    metadata.create_all(connection)
    connection.execute(sa.text(trajectories_view(connection.dialect.name)))
    _REVISION.create(connection)
    connection.execute(sa.insert(_REVISION).values(version_num=SCHEMA_REVISION))


def _run_revisions(connection: sa.Connection) -> None:
    from alembic import command
    from alembic.config import Config

    made = Config()
    made.set_main_option("script_location", str(Path(__file__).parent))
    made.attributes["connection"] = connection
    command.upgrade(made, "head")
