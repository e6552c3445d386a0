"""A row that cannot be read never breaks a page: the others are shown."""

import sqlite3
from contextlib import closing
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from store import schema
from store.record import Record
from tests.dashboard.conftest import OWNER_KEY, sign_in
from tests.making import make_turn

pytestmark = pytest.mark.slow


def damage(folder: Path, statement: str, *values: object) -> None:
    """Run a statement that changes rows of the record in a folder."""
    with closing(sqlite3.connect(folder / "patina.db", isolation_level=None)) as database:
        assert database.execute(statement, values).rowcount


AS_OWNER = {"authorization": f"Bearer {OWNER_KEY}"}

#: (statement that damages rows, page, what is still shown there)
DAMAGES = (
    ("UPDATE steps SET metrics = '{' WHERE step_id = 'step2'", "/dashboard/steps", "step1"),
    ("UPDATE steps SET metrics = '{' WHERE step_id = 'step1'", "/dashboard/steps", "this row cannot be read"),
    ("UPDATE steps SET metrics = '{'", "/dashboard", "Is it learning?"),
    ("UPDATE steps SET metrics = '[1]'", "/dashboard/steps", "step1"),
    ("UPDATE adapters SET metrics = '{'", "/dashboard", "Is it learning?"),
    ("UPDATE adapters SET metrics = '{'", "/dashboard/versions", "base model"),
    ("UPDATE adapters SET metrics = '{'", "/dashboard/versions/1", "this row cannot be read"),
    ("UPDATE adapters SET metrics = '{'", "/dashboard/steps", "step2"),
    ("UPDATE verdicts SET detail = '{'", "/dashboard/steps", "Sample 1/1"),
    ("UPDATE messages SET body = '{'", "/dashboard/conversations", "this row cannot be read"),
    ("UPDATE messages SET body = '{'", "/dashboard/conversations?session=bobs", "bob&#39;s answer"),
    ("UPDATE turns SET tool_calls = '{'", "/dashboard/conversations?session=bobs", "bob&#39;s answer"),
    ("UPDATE verdicts SET wish = 'w', wish_scope = '{'", "/dashboard", "Is it learning?"),
    ("UPDATE verdicts SET wish = 'w', wish_scope = '{'", "/dashboard/versions/1", "1 complaint"),
    ("UPDATE verdicts SET wish = 'w', wish_scope = '{'", "/dashboard/turns/t1", "Verdicts"),
    ("UPDATE wishes SET state = '{', measures = '{'", "/dashboard", "damaged"),
    ("UPDATE wish_statements SET created_at = 1e300", "/dashboard", "where it was said"),
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
    damage(tmp_path, statement)
    found = await page.get(path)
    assert found.status_code == 200
    assert shown in found.text


#: (table, column, value, what a turn's page names)
TURN_DAMAGES = (
    ("messages", "body", "{", "request cannot be read"),
    ("turns", "tool_calls", "{", "tool_calls cannot be read"),
    ("turns", "tool_calls", "[1]", "tool_calls cannot be read"),
    ("turns", "kind_evidence", "{", "kind_evidence cannot be read"),
    ("turns", "first_kind_evidence", "[[1]]", "first_kind_evidence cannot be read"),
    ("turns", "request", "gone", "request cannot be read"),
    ("turns", "link_confidence", "soon", "link_confidence is not a number"),
    ("turns", "adapter_version", "soon", "adapter_version is not a number"),
    ("turns", "created_at", "soon", "created_at is not a number"),
    ("turn_states", "trained_in_version", "soon", "trained_in_version is not a number"),
    ("turn_states", "drop_reason", "soon", "drop_reason soon is unknown"),
    ("verdicts", "confidence", "soon", "verdicts: confidence is not a number"),
    ("verdicts", "value", "soon", "verdicts: value is not a number"),
    ("verdicts", "detail", '{"votes": ["soon"]}', "votes damaged"),
    ("next_states", "created_at", "soon", "next_states: created_at is not a number"),
    ("feedback", "score", "soon", "feedback: score is not a number"),
)


@pytest.mark.parametrize(("table", "column", "value", "named"), TURN_DAMAGES)
async def test_the_page_of_a_damaged_turn_names_what_is_damaged_and_shows_the_rest(
    page: httpx.AsyncClient, tmp_path: Path, table: str, column: str, value: str, named: str
) -> None:
    await sign_in(page)
    damage(tmp_path, "INSERT INTO feedback VALUES ('f', 't1', 1, 'well done', 'key', 5)")
    damage(tmp_path, f"UPDATE {table} SET {column} = ?", value)
    found = await page.get("/dashboard/turns/t1")
    assert (found.status_code, named in found.text) == (200, True)
    assert "What became of it" in found.text


#: (table, column, page of a turn, what it still shows)
ACTION_DAMAGES = (
    ("messages", "body", "/dashboard/turns/t1/forget", "Turns that you named"),
    ("turns", "tool_calls", "/dashboard/turns/t1/forget", "Turns that you named"),
    ("next_states", "messages", "/dashboard/turns/t1/forget", "Turns that you named"),
    ("messages", "body", "/dashboard/turns/t1/tokens", "Tokens"),
    ("turns", "completion_token_ids", "/dashboard/turns/t1/tokens", "Tokens"),
    ("turns", "sampling_logprobs", "/dashboard/turns/t1/tokens", "Tokens"),
)


@pytest.mark.parametrize(("table", "column", "path", "shown"), ACTION_DAMAGES)
async def test_a_damaged_turn_can_be_looked_into_and_forgotten(
    page: httpx.AsyncClient, tmp_path: Path, table: str, column: str, path: str, shown: str
) -> None:
    await sign_in(page)
    damage(tmp_path, f"UPDATE {table} SET {column} = '{{'")
    found = await page.get(path)
    assert (found.status_code, shown in found.text) == (200, True)
    assert ">t1</a>" in found.text or "/tokens" in path


async def test_a_page_that_cannot_be_made_says_so_and_the_others_stand(
    page: httpx.AsyncClient, tmp_path: Path
) -> None:
    await sign_in(page)
    damage(tmp_path, "INSERT INTO controls VALUES ('pins', '{', 1)")
    found = await page.get("/dashboard/versions")
    assert found.status_code == 500
    assert "Something in the record that it shows is damaged." in found.text
    assert (await page.get("/dashboard/people")).status_code == 200


#: (statement that damages rows, metric that is still shown, number of damaged values)
METRICS_DAMAGES = (
    ("UPDATE alias_moves SET version = '{'", "patina_step_seconds{", 1),
    ("UPDATE alias_moves SET moved_at = '{'", "patina_live_version{", 1),
    ("UPDATE next_states SET created_at = '{'", "patina_live_version{", 1),
    ("UPDATE verdicts SET value = '{'", "patina_live_version{", 1),
    ("UPDATE adapters SET metrics = '{'", "patina_live_version{", 1),
    ("UPDATE adapters SET metrics = '{\"gate\": {\"after\": 1}}'", "patina_live_version{", 1),
    ("INSERT INTO heartbeats VALUES ('proxy', 1, '', '{', '{')", "patina_live_version{", 2),
    ("INSERT INTO heartbeats VALUES ('proxy', 1, '', '{\"in_flight\": \"{\"}', 1)", "patina_held 0.0", 1),
    (
        'INSERT INTO heartbeats VALUES (\'proxy\', 1, \'\', \'{"backend": {"load_s": {"tiny@{": 1}}, "journal": 1, "not_captured": {"no": "{"}}\', 1)',
        "patina_held 0.0", 3,
    ),
    (
        'INSERT INTO heartbeats VALUES (\'supervisor\', 1, \'\', \'{"a": {"restarts": "{"}, "b": {"restarts": 3}}\', 1)',
        'patina_process_restarts_total{process="b"} 3.0', 1,
    ),
)  # fmt: skip


@pytest.mark.parametrize(("statement", "shown", "damaged"), METRICS_DAMAGES)
async def test_metrics_leave_damaged_values_out_and_count_them(
    page: httpx.AsyncClient, tmp_path: Path, statement: str, shown: str, damaged: int
) -> None:
    damage(tmp_path, statement)
    found = await page.get("/metrics", headers=AS_OWNER)
    assert (found.status_code, shown in found.text) == (200, True)
    assert f"\npatina_damaged_values {damaged}.0\n" in found.text


#: (table, column, page, what it still shows)
STATES = (
    ("adapters", "state", "/dashboard/versions", "patina-tiny@2"),
    ("adapters", "state", "/dashboard/versions/1", "Made from"),
    ("adapters", "state", "/dashboard/versions/2", "Made from"),
    ("adapters", "state", "/dashboard/steps", "step2"),
    ("adapters", "state", "/dashboard/try", "live version (2)"),
    ("adapters", "state", "/metrics", 'patina_versions{state="soon"} 1.0'),
    ("canary_releases", "stage", "/dashboard/versions", "its row is damaged"),
    ("canary_releases", "stage", "/dashboard/versions/1", "its row is damaged"),
    ("canary_releases", "numbers", "/dashboard", "Is it learning?"),
    ("canary_releases", "numbers", "/dashboard/versions", "patina-tiny@2"),
    ("turn_states", "drop_reason", "/dashboard/unused", "t4 is damaged: drop_reason soon is unknown."),
    ("turn_states", "stage", "/dashboard/conversations?session=session", "soon"),
    ("turns", "kind", "/dashboard/turns/t1", "soon"),
    ("turns", "relation", "/dashboard/turns/t1", "soon"),
)


@pytest.mark.parametrize(("table", "column", "path", "shown"), STATES)
async def test_a_state_that_no_program_wrote_costs_its_row_only(
    page: httpx.AsyncClient, record: Record, tmp_path: Path, table: str, column: str, path: str, shown: str
) -> None:
    for name in ("t3", "t4"):
        await record.write_turns([make_turn(name, [{"role": "user", "content": name}], session_id=name)])
    await sign_in(page)
    where = "turn_id IN ('t1', 't4')" if table.startswith("turn") else "version = 1"
    with closing(sqlite3.connect(tmp_path / "patina.db", isolation_level=None)) as database:
        database.executescript(MORE_ROWS)
        assert database.execute(f"UPDATE {table} SET {column} = 'soon' WHERE {where}").rowcount
    found = await page.get(path, headers=AS_OWNER if path == "/metrics" else {})
    assert (found.status_code, shown in found.text) == (200, True)


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
    ("turns", "turn_id = 't1'", "/dashboard/steps", "Sample 1/1", set()),
    ("turn_states", "turn_id = 't3'", "/dashboard/unused", "/dashboard/turns/t4", {"stage_since"}),
    ("turn_states", "turn_id = 't1'", "/dashboard/conversations?session=session", "/dashboard/turns/t2", {"trained_in_version"}),
    ("turn_states", "turn_id = 't1'", "/dashboard/live", "dropped", set()),
    ("verdicts", "turn_id = 't1'", "/dashboard", "Is it learning?", {"value", "created_at"}),
    ("verdicts", "turn_id = 't1'", "/dashboard/conversations", "session=bobs", set()),
    ("verdicts", "turn_id = 't1'", "/dashboard/conversations?session=session", "/dashboard/turns/t2", {"value"}),
    ("verdicts", "turn_id = 't1'", "/dashboard/steps", "Sample 1/1", set()),
    ("adapters", "version = 1", "/dashboard/versions", "patina-tiny@2", {"version", "parent_version", "created_at"}),
    ("adapters", "version = 1", "/dashboard/versions/2", "Made from", set()),
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
    ("steps", "step_id = 'step1'", "/dashboard/steps?page=1", "step2", {"started_at", "finished_at", "version"}),
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
