"""A row that cannot be read never breaks a page: the others are shown."""

import sqlite3
from contextlib import closing
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from store import schema
from store.record import Record
from tests.dashboard.conftest import sign_in
from tests.making import make_turn

#: (statement that damages rows, page, what is still shown there)
DAMAGES = (
    ("UPDATE steps SET metrics = '{' WHERE step_id = 'step2'", "/dashboard/steps", "step1"),
    ("UPDATE steps SET metrics = '{' WHERE step_id = 'step1'", "/dashboard/steps", "this row cannot be read"),
    ("UPDATE steps SET metrics = '{'", "/dashboard", "Is it learning?"),
    ("UPDATE steps SET metrics = '[1]'", "/v1/dashboard", "step1"),
    ("UPDATE adapters SET metrics = '{'", "/dashboard", "Is it learning?"),
    ("UPDATE adapters SET metrics = '{'", "/dashboard/versions", "base model"),
    ("UPDATE adapters SET metrics = '{'", "/dashboard/versions/1", "this row cannot be read"),
    ("UPDATE adapters SET metrics = '{'", "/dashboard/steps", "step2"),
    ("UPDATE verdicts SET detail = '{'", "/dashboard/steps", "Sample 1/1"),
    ("UPDATE messages SET body = '{'", "/dashboard/conversations", "this row cannot be read"),
    ("UPDATE messages SET body = '{'", "/dashboard/conversations?session=bobs", "bob&#39;s answer"),
    ("UPDATE turns SET tool_calls = '{'", "/dashboard/conversations?session=bobs", "bob&#39;s answer"),
    ("UPDATE verdicts SET wishes = '{'", "/dashboard", "Is it learning?"),
    ("UPDATE verdicts SET wishes = '{'", "/dashboard/versions/1", "1 complaint"),
    ("UPDATE verdicts SET wishes = '{'", "/dashboard/turns/t1", "Verdicts"),
    ("UPDATE verdicts SET detail = '1e300'", "/dashboard/turns/t1", "Verdicts"),
    ("UPDATE verdicts SET created_at = 1e300", "/dashboard", "at no time"),
    ("UPDATE steps SET finished_at = 1e300", "/dashboard/steps", "step2"),
    ("UPDATE turn_states SET drop_reason = 'sale'", "/dashboard/unused", "What was not used"),
    ("INSERT INTO heartbeats VALUES ('proxy', 1, 'running', '{', 9e9)", "/dashboard/live", "<td>proxy</td>"),
)


@pytest.mark.parametrize(("statement", "path", "shown"), DAMAGES)
async def test_a_damaged_row_leaves_the_page_standing(
    page: httpx.AsyncClient, tmp_path: Path, statement: str, path: str, shown: str
) -> None:
    await sign_in(page)
    with closing(sqlite3.connect(tmp_path / "patina.db")) as database:
        assert database.execute(statement).rowcount
        database.commit()
    found = await page.get(path)
    assert found.status_code == 200
    assert shown in found.text


async def test_the_page_of_a_damaged_turn_says_so(page: httpx.AsyncClient, tmp_path: Path) -> None:
    await sign_in(page)
    with closing(sqlite3.connect(tmp_path / "patina.db")) as database:
        database.execute("UPDATE messages SET body = '{'")
        database.commit()
    found = await page.get("/dashboard/turns/b1")
    assert found.status_code == 500
    assert "Something in the record that it shows is damaged." in found.text
    assert (await page.get("/dashboard")).status_code == 200


async def test_whatever_a_damaged_row_raises_is_answered_with_a_page_or_a_sentence(
    page: httpx.AsyncClient, tmp_path: Path
) -> None:
    await sign_in(page)
    with closing(sqlite3.connect(tmp_path / "patina.db")) as database:
        database.execute("UPDATE alias_moves SET moved_at = '{', version = '{'")
        database.execute("UPDATE turns SET link_confidence = '{'")
        database.commit()
    for path in ("/metrics", "/dashboard/turns/t1"):
        found = await page.get(path)
        assert (found.status_code, "damaged" in found.text) == (500, True), path


#: (table, row, page, what it still shows, columns of the table by whose damage it shows the row as damaged)
NUMBERS: tuple[tuple[str, str, str, str, set[str]], ...] = (
    ("turns", "turn_id = 't1'", "/dashboard/conversations", "session=bobs", {"created_at"}),
    (
        "turns", "turn_id = 't1'", "/dashboard/conversations?session=session", "/dashboard/turns/t2",
        {"turn_index", "link_confidence", "adapter_version", "created_at"},
    ),
    ("turns", "turn_id = 't3'", "/dashboard/unused", "/dashboard/turns/t4", {"created_at"}),
    ("turns", "turn_id = 't1'", "/dashboard", "Is it learning?", {"adapter_version"}),
    ("turns", "turn_id = 't1'", "/dashboard/versions/1", "1 complaint", set()),
    ("turns", "turn_id = 't1'", "/v1/dashboard", "Sample 1/1", set()),
    ("turn_states", "turn_id = 't3'", "/dashboard/unused", "/dashboard/turns/t4", {"stage_since"}),
    ("turn_states", "turn_id = 't1'", "/dashboard/conversations?session=session", "/dashboard/turns/t2", {"trained_in_version"}),
    ("turn_states", "turn_id = 't1'", "/dashboard/live", "dropped", set()),
    ("verdicts", "turn_id = 't1'", "/dashboard", "Is it learning?", {"value", "created_at"}),
    ("verdicts", "turn_id = 't1'", "/dashboard/conversations", "session=bobs", set()),
    ("verdicts", "turn_id = 't1'", "/dashboard/conversations?session=session", "/dashboard/turns/t2", {"value"}),
    ("verdicts", "turn_id = 't1'", "/dashboard/steps", "Sample 1/1", set()),
    ("adapters", "version = 1", "/dashboard/versions", "patina-tiny@2", {"version", "parent_version", "created_at"}),
    ("adapters", "version = 1", "/dashboard/versions/2", "Lineage", set()),
    ("adapters", "version = 1", "/dashboard/steps", "step2", set()),
    ("adapters", "version = 1", "/dashboard/try", "live version (2)", set()),
    ("alias_moves", "version = 1", "/dashboard/versions", "by owner", {"version", "moved_at"}),
    ("alias_moves", "version = 2", "/dashboard/people", "default (owner)", {"version", "moved_at"}),
    (
        "canary_releases", "version = 1", "/dashboard/versions", "on trial with 50%",
        {"version", "baseline_version", "share", "started_at", "stage_since"},
    ),
    ("canary_releases", "version = 1", "/dashboard", "Is it learning?", {"version", "baseline_version", "share", "started_at", "stage_since"}),
    ("canary_releases", "version = 1", "/dashboard/versions/2", "on trial with 50%", set()),
    ("steps", "step_id = 'step1'", "/dashboard/steps", "step2", {"started_at", "finished_at", "version"}),
    ("steps", "step_id = 'step1'", "/v1/dashboard?page=1", "step2", {"started_at", "finished_at", "version"}),
    ("steps", "step_id = 'step1'", "/dashboard", "Is it learning?", set()),
    ("step_turns", "step_id = 'step1'", "/dashboard/steps", "step2", set()),
    ("next_states", "turn_id = 't1'", "/dashboard/steps", "Sample 1/1", set()),
    ("heartbeats", "process = 'proxy'", "/dashboard/live", "<td>recorder</td>", {"pid", "at"}),
    ("heartbeats", "process = 'trainer'", "/dashboard/running", "", set()),
    ("heartbeats", "process = 'trainer'", "/dashboard", "Is it learning?", set()),
)  # fmt: skip
#: Rows beside those of the fixture, so that each list has a sound one too.
MORE_ROWS = """
    INSERT INTO heartbeats VALUES ('proxy', 1, 'running', '{}', 9e9), ('recorder', 1, 'running', '{}', 9e9), ('trainer', 1, 'running', '{}', 9e9);
    INSERT INTO adapters (policy, version, path, content_hash, parent_version, state, reason, method, metrics, created_at)
        SELECT policy, 2, path, content_hash, 1, state, reason, method, '{}', created_at FROM adapters;
    INSERT INTO canary_releases VALUES ('patina-tiny', 1, 0, 0.5, 'running', 1, 1, '', '{}'), ('patina-tiny', 2, 0, 0.5, 'running', 2, 2, '', '{}');
    INSERT INTO alias_moves (policy, version, moved_at, actor) VALUES ('patina-tiny', 2, 2000, 'owner');
    INSERT INTO step_turns SELECT 'step1', 'batch', 0, 't1', max(verdict_id) FROM verdicts WHERE true ON CONFLICT DO NOTHING;
    UPDATE turn_states SET stage = 'dropped', drop_reason = 'opted_out' WHERE turn_id IN ('t3', 't4');
"""
TEXT, BLOB, INFINITE = "'soon'", "x'ff'", "9e999"


@pytest.mark.parametrize("table", sorted({case[0] for case in NUMBERS}))
async def test_a_text_in_a_column_of_numbers_costs_its_row_only(
    page: httpx.AsyncClient, record: Record, tmp_path: Path, table: str
) -> None:
    for name in ("t3", "t4"):
        await record.write_turns([make_turn(name, [{"role": "user", "content": name}], session_id=name)])
    await sign_in(page)
    numbers = [
        one.name
        for one in schema.metadata.tables[table].columns
        if isinstance(one.type, sa.Integer | sa.Float | sa.Boolean) and one.autoincrement is not True
    ]
    with closing(sqlite3.connect(tmp_path / "patina.db", isolation_level=None)) as database:
        database.executescript(MORE_ROWS)
        for _, row, path, shown, listed in (case for case in NUMBERS if case[0] == table):
            before = await page.get(path)
            assert (before.status_code, "damaged" in before.text) == (200, False), path
            (rowid,) = database.execute(f"SELECT rowid FROM {table} WHERE {row}").fetchone()
            for column in numbers:
                where = f"FROM {table} WHERE rowid = {rowid}"
                (saved,) = database.execute(f"SELECT {column} {where}").fetchone()
                for value in (TEXT, BLOB, INFINITE) if column in listed else (TEXT,):
                    database.execute(f"UPDATE {table} SET {column} = {value} WHERE rowid = {rowid}")
                    found = await page.get(path)
                    what = (path, column, value)
                    assert (what, found.status_code, shown in found.text) == (what, 200, True)
                    assert (what, "damaged" in found.text) == (what, column in listed)
                database.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = {rowid}", (saved,))
