"""What `status` asks stays quick in a large record."""

import sqlite3

import sqlalchemy as sa

from store.database import Database, dbapi
from store.queries import person
from store.record import Record
from tests.making import make_turn


async def test_status_counts_over_indexes_and_reads_no_turn(record: Record, record_url: str) -> None:
    await record.write_turns([make_turn(f"t{i}", session_id=f"s{i}") for i in range(30)])
    statements: list[str] = []

    def work(connection: sa.Connection) -> None:
        dbapi(connection).set_trace_callback(statements.append)
        assert person.status(connection).turns == 30
        dbapi(connection).set_trace_callback(None)

    database = await Database.open(record_url)
    await database.read(work)
    await database.close()
    plain = sqlite3.connect(record_url.removeprefix("sqlite+aiosqlite:///"))
    steps = [step for text in statements for *_, step in plain.execute(f"EXPLAIN QUERY PLAN {text}")]
    plain.close()
    large = [step for step in steps if "turns" in step or "turn_states" in step]
    assert len(large) >= 3
    assert [step for step in large if "COVERING INDEX" not in step] == []


async def test_the_clients_are_counted_over_the_newest_turns_by_indexes(
    record: Record, record_url: str
) -> None:
    turns = [
        make_turn(f"t{i:02d}", session_id=f"s{i}", client=f"desk/{i % 2}", created_at=1_000.0 + i)
        for i in range(30)
    ]
    await record.write_turns(turns)
    said: list[str] = []

    def work(connection: sa.Connection) -> None:
        dbapi(connection).set_trace_callback(said.append)
        found = person.client_traffic(connection, 5)
        dbapi(connection).set_trace_callback(None)
        assert [(one.client, one.turns, one.last_main_turn) for one in found] == [
            ("desk/1", 3, "t29"),
            ("desk/0", 2, "t28"),
        ]

    database = await Database.open(record_url)
    await database.read(work)
    await database.close()
    plain = sqlite3.connect(record_url.removeprefix("sqlite+aiosqlite:///"))
    steps = {
        step
        for text in said
        if text.startswith("SELECT")
        for *_, step in plain.execute(f"EXPLAIN QUERY PLAN {text}")
    }
    plain.close()
    assert "SCAN turns USING INDEX ix_turns_created_at" in steps
    scans = {step for step in steps if step.startswith("SCAN")}
    assert {step for step in scans if " USING INDEX " not in step and "anon_1" not in step} == set()
    assert [step for step in steps if "SEARCH turn_states USING INDEX sqlite_autoindex_turn_states_1" in step]
    assert [step for step in steps if "SEARCH next_states USING" in step and "(turn_id=?)" in step]
    assert [step for step in steps if "TEMP B-TREE" in step] == []
