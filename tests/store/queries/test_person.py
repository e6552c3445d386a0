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
    large = [step for step in steps if "turns" in step or "lives" in step]
    assert len(large) >= 3
    assert [step for step in large if "COVERING INDEX" not in step] == []
