"""Alembic migrations of the record. `upgrade` creates or updates a database; it runs at every start, in-process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import create_async_engine

from store.database import damaged_sentence, is_corrupt
from store.errors import RecordCorrupt, RecordError, RecordUnavailable
from store.record import check_revision

_FOLDER = Path(__file__).parent


def config() -> Config:
    """Return the alembic configuration; there is no alembic.ini, everything is here."""
    made = Config()
    made.set_main_option("script_location", str(_FOLDER))
    return made


def head() -> str:
    """Return the newest revision in the folder."""
    found = ScriptDirectory.from_config(config()).get_current_head()
    assert found is not None  # the folder ships with at least one
    return found


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
            engine = sa.create_engine(parsed.set(drivername="sqlite"))
            try:
                with engine.connect() as connection:
                    connection.exec_driver_sql("PRAGMA busy_timeout=5000")
                    _upgrade(connection)
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
    engine = create_async_engine(url)
    try:
        async with engine.connect() as connection:
            await connection.run_sync(_upgrade)
            await connection.commit()
    finally:
        await engine.dispose()


def _upgrade(connection: sa.Connection) -> None:
    found = MigrationContext.configure(connection).get_current_revision()
    newest = head()
    if found == newest:
        return
    if found is not None and found > newest:
        check_revision(found)  # raises RecordTooNew with the sentence for it
    made = config()
    made.attributes["connection"] = connection
    command.upgrade(made, "head")
    connection.commit()
