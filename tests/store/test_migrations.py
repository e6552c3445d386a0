"""The migrations and the schema say the same: what alembic builds is what the tables declare."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

import migrations
from migrations import since_0_2_0, upgrade
from store.errors import RecordError
from store.record import SCHEMA_REVISION
from store.schema import TRAJECTORY_COLUMNS, metadata, trajectories_view

RELEASED = (Path(__file__).parent / "released" / "0.2.0.sql").read_text(encoding="utf-8")


@pytest.fixture
def old(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection to a record of release 0.2.0 that can be changed before it is upgraded."""
    with closing(sqlite3.connect(tmp_path / "old.db")) as connection:
        connection.executescript(RELEASED)
        yield connection


def upgraded(old: sqlite3.Connection) -> str:
    old.commit()
    (path,) = [row[2] for row in old.execute("PRAGMA database_list")]
    upgrade(f"sqlite+aiosqlite:///{path}")
    return f"sqlite+aiosqlite:///{path}"


def revisions() -> ScriptDirectory:
    folder = Config()
    folder.set_main_option("script_location", str(Path(migrations.__file__).parent))
    return ScriptDirectory.from_config(folder)


def test_the_code_knows_the_newest_revision() -> None:
    assert revisions().get_heads() == [SCHEMA_REVISION]


def differences(url: str) -> list[object]:
    engine = sa.create_engine(sa.make_url(url).set(drivername="sqlite"))
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        found: list[object] = compare_metadata(context, metadata)
    engine.dispose()
    return found


def test_a_new_record_and_one_of_release_0_2_0_have_exactly_the_declared_tables(
    record_url: str, old: sqlite3.Connection
) -> None:
    assert differences(record_url) == []
    assert differences(upgraded(old)) == []


@pytest.mark.parametrize("is_old", [False, True])
def test_the_view_has_the_fixed_columns_in_order_and_the_declared_text(
    record_url: str, old: sqlite3.Connection, is_old: bool
) -> None:
    url = upgraded(old) if is_old else record_url
    connection = sqlite3.connect(url.removeprefix("sqlite+aiosqlite:///"))
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


def test_the_newest_words_of_the_owners_edits_become_wishes(old: sqlite3.Connection) -> None:
    a, b, c = [row[0] for row in old.execute("SELECT turn_id FROM turns ORDER BY turn_id LIMIT 3")]
    old.execute("DELETE FROM wish_edits")
    for turn_id, text, at in (
        (a, "At most ten words.", 1.0),
        (a, "Brief.", 2.0),
        (b, "", 3.0),
        (c, "In French.", 4.0),
        (c, None, 5.0),
    ):
        values = ("p", turn_id, text, at)
        old.execute("INSERT INTO wish_edits (policy, turn_id, text, created_at) VALUES (?, ?, ?, ?)", values)
    upgraded(old)
    columns = "wish_id, policy, state, text, edited, measures, changed_at"
    assert old.execute(f"SELECT {columns} FROM wishes").fetchall() == [
        (1, "p", "prompt", "Brief.", 1, "{}", 2.0)
    ]
    stated = old.execute("SELECT turn_id, wish_id, text FROM wish_statements").fetchall()
    assert stated == [(a, 1, "Brief.")]


def test_values_of_release_0_2_0_have_their_present_names(old: sqlite3.Connection) -> None:
    turn_id, other = [row[0] for row in old.execute("SELECT turn_id FROM turns ORDER BY turn_id LIMIT 2")]
    old.execute("UPDATE turns SET completion_token_ids = '[]' WHERE turn_id = ?", (turn_id,))
    old.execute("UPDATE verdicts SET source = 'nobody'")
    upgraded(old)
    reasons = dict(old.execute("SELECT turn_id, main_drop_reason FROM turns").fetchall())
    assert (reasons[turn_id], reasons[other]) == ("no_tokens", None)
    assert {row[0] for row in old.execute("SELECT source FROM verdicts")} == {"none"}


def test_an_upgrade_that_fails_changes_nothing(
    old: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    old.commit()
    before = list(old.iterdump())
    monkeypatch.setattr(since_0_2_0, "_FILLED", ("UPDATE nothing SET a = 1",))
    with pytest.raises(RecordError, match="cannot be migrated"):
        upgraded(old)
    assert list(old.iterdump()) == before


#: Takes a new record back to the schema of each revision's predecessor.
UNDO = {
    "0037": ("ALTER TABLE turns DROP COLUMN drawn",),
    "0038": ("DROP TABLE forget_jobs",),
    "0039": ("DROP TABLE preview_replies",),
    "0040": ("DROP TABLE tuning_jobs", "DROP TABLE training_files"),
}


def test_every_revision_of_the_chain_leads_to_the_declared_tables(record_url: str) -> None:
    scripts = list(revisions().walk_revisions())
    assert {one.revision for one in scripts} == {"0036", *UNDO}
    with closing(sqlite3.connect(record_url.removeprefix("sqlite+aiosqlite:///"))) as connection:
        connection.execute("DROP VIEW trajectories")  # SQLite checks it when a column goes
        for revision in sorted(UNDO, reverse=True):
            for statement in UNDO[revision]:
                connection.execute(statement)
        connection.execute(trajectories_view("sqlite"))
        connection.execute("UPDATE alembic_version SET version_num = '0036'")
        connection.commit()
    assert differences(record_url) != []
    upgrade(record_url)
    assert differences(record_url) == []


def test_a_record_between_releases_is_named(old: sqlite3.Connection) -> None:
    old.execute("UPDATE alembic_version SET version_num = '0021'")
    with pytest.raises(RecordError, match="schema 0021 of a Patina"):
        upgraded(old)
