"""The migrations and the schema say the same: what alembic builds is what the tables declare."""

import sqlite3
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from migrations import config, head, upgrade
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
    # SQLite quotes the name of a table that a migration renamed.
    assert text.replace('"turn_states"', "turn_states").split() == trajectories_view("sqlite").split()


def test_migrating_twice_changes_nothing(record_url: str) -> None:
    path = Path(record_url.removeprefix("sqlite+aiosqlite:///"))
    connection = sqlite3.connect(path)
    before = connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
    upgrade(record_url)
    after = connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
    connection.close()
    assert before == after


def test_a_record_of_the_first_schema_is_brought_up_to_date_with_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        made = config()
        made.attributes["connection"] = connection
        command.upgrade(made, "0001")
        connection.commit()
    engine.dispose()
    old = sqlite3.connect(path)
    columns = [row[1] for row in old.execute("PRAGMA table_info(turns)")]
    for turn_id, reason, detail, link in (
        ("kept", None, "", "the beginning was replaced; a recorded exchange remains; main: conversation"),
        ("broken", "token_mismatch", "3 token ids but 2 logprobs", "opening; side: said by the client"),
    ):
        values = {
            "turn_id": turn_id,
            "drop_detail": detail,
            "link_reason": link,
            "prompt_base_turn_id": None,
            "completion_id": None,
        }
        row = [values.get(name, 0) for name in columns]
        old.execute(f"INSERT INTO turns VALUES ({', '.join('?' * len(columns))})", row)
        stage = "dropped" if reason else "recorded"
        old.execute(
            "INSERT INTO lives (turn_id, policy, stage, drop_reason, since) VALUES (?, 'p', ?, ?, 1.0)",
            (turn_id, stage, reason),
        )
    old.execute(
        "INSERT INTO verdicts (turn_id, value, hint, hint_is_reaction, source, confidence, detail, created_at)"
        " VALUES ('kept', -1, 'shorter', 1, 'rule', 1.0, '{}', 1.0), ('broken', 0, NULL, 0, 'nobody', 0.0, '{}', 1.0)"
    )
    old.commit()
    upgrade(f"sqlite+aiosqlite:///{path}")
    rows = old.execute("SELECT turn_id, stage, detail FROM turn_states ORDER BY turn_id").fetchall()
    verdicts = old.execute("SELECT turn_id, hint, wish, wish_scope, source FROM verdicts").fetchall()
    reasons = old.execute("SELECT link_reason, kind_reason FROM turns ORDER BY turn_id").fetchall()
    old.close()
    assert verdicts == [("kept", "shorter", None, None, "rule"), ("broken", None, None, None, "none")]
    assert reasons == [("opening", "client_header"), ("beginning_replaced", "conversation")]
    assert rows == [("broken", "dropped", "3 token ids but 2 logprobs"), ("kept", "recorded", None)]


def test_a_conversation_keeps_the_items_that_it_began_with(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        made = config()
        made.attributes["connection"] = connection
        command.upgrade(made, "0033")
        connection.execute(
            sa.text(
                "INSERT INTO conversations (conversation_id, key_name, metadata, items, created_at)"
                " VALUES ('conv_1', 'default', '{}', :items, 1.0)"
            ),
            {"items": '[{"role": "user", "content": "é"}, {"role": "user"}]'},
        )
        connection.commit()
    engine.dispose()
    upgrade(f"sqlite+aiosqlite:///{path}")
    new = sqlite3.connect(path)
    rows = new.execute("SELECT item_id, added_at, item FROM conversation_items ORDER BY position").fetchall()
    new.close()
    assert rows == [
        ("item_1_0", 1.0, '{"role": "user", "content": "é"}'),
        ("item_1_1", 1.0, '{"role": "user"}'),
    ]


def test_the_newest_words_of_the_owners_edits_become_wishes(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        made = config()
        made.attributes["connection"] = connection
        command.upgrade(made, "0035")
        for turn_id, text, at in (
            ("a", "At most ten words.", 1.0),
            ("a", "Brief.", 2.0),
            ("b", "", 3.0),
            ("c", "In French.", 4.0),
            ("c", None, 5.0),
        ):
            connection.execute(
                sa.text(
                    "INSERT INTO wish_edits (policy, turn_id, text, created_at) VALUES ('p', :turn, :text, :at)"
                ),
                {"turn": turn_id, "text": text, "at": at},
            )
        connection.commit()
    engine.dispose()
    upgrade(f"sqlite+aiosqlite:///{path}")
    new = sqlite3.connect(path)
    wishes = new.execute(
        "SELECT wish_id, policy, state, text, edited, measures, changed_at FROM wishes"
    ).fetchall()
    stated = new.execute("SELECT turn_id, wish_id, text FROM wish_statements").fetchall()
    new.close()
    assert wishes == [(1, "p", "prompt", "Brief.", 1, "{}", 2.0)]
    assert stated == [("a", 1, "Brief.")]
