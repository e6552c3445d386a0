"""The migrations and the schema say the same: what alembic builds is what the tables declare."""

import sqlite3
from pathlib import Path

import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from migrations import head, upgrade
from store.record import SCHEMA_REVISION
from store.schema import TRAJECTORY_COLUMNS, metadata, trajectories_view


def test_the_code_knows_the_newest_migration() -> None:
    assert head() == SCHEMA_REVISION


def test_migrating_builds_exactly_the_declared_tables(record_url: str) -> None:
    engine = sa.create_engine(sa.make_url(record_url).set(drivername="sqlite"))
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
    engine.dispose()


def test_the_view_has_the_fixed_columns_in_order_and_the_declared_text(record_url: str) -> None:
    connection = sqlite3.connect(record_url.removeprefix("sqlite+aiosqlite:///"))
    columns = [row[1] for row in connection.execute("PRAGMA table_info(trajectories)")]
    (text,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'trajectories'").fetchone()
    connection.close()
    assert tuple(columns) == TRAJECTORY_COLUMNS
    assert text.split() == trajectories_view("sqlite").split()


def test_migrating_twice_changes_nothing(record_url: str) -> None:
    path = Path(record_url.removeprefix("sqlite+aiosqlite:///"))
    connection = sqlite3.connect(path)
    before = connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
    upgrade(record_url)
    after = connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
    connection.close()
    assert before == after
