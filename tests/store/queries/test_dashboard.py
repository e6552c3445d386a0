"""What the pages ask stays quick in a large record, and shows a key only its own turns."""

import sqlite3

import sqlalchemy as sa

from store.database import Database, dbapi
from store.queries import dashboard, person
from store.record import Record
from store.values import StepInputs, StepReport, StepRole
from tests.making import make_answer, make_turn, make_verdict

POLICY = "patina-tiny"


async def fill(record: Record) -> None:
    turns = [
        make_turn(f"t{i:02d}", session_id=f"s{i}", key_name=("alice", "bob")[i % 2], created_at=1_000.0 + i)
        for i in range(40)
    ]
    turns.append(
        make_turn("last", session_id="s0", key_name="alice", next_state=make_answer("t00", "last", "No."))
    )
    await record.write_turns(turns)
    await record.add_verdict(make_verdict("t00", detail={"votes": [-1, -1, 0]}))


async def test_the_queries_of_a_key_read_its_newest_turns_by_indexes(record: Record, record_url: str) -> None:
    await fill(record)
    statements: list[str] = []

    def work(connection: sa.Connection) -> None:
        dbapi(connection).set_trace_callback(statements.append)
        for key_name in ("alice", None):
            assert [one.turn_id for one in dashboard.judged_turns(connection, POLICY, 5, key_name)] == ["t00"]
            assert dashboard.dropped_turns(connection, POLICY, 5, key_name=key_name) == []
            assert len(dashboard.conversations(connection, 5, None, key_name)) == 5
        assert dashboard.judged_turns(connection, POLICY, 5, "bob") == []
        assert person.status(connection, policy=POLICY, key_name="bob").stages == {"recorded": 20}
        dbapi(connection).set_trace_callback(None)

    database = await Database.open(record_url)
    await database.read(work)
    await database.close()
    plain = sqlite3.connect(record_url.removeprefix("sqlite+aiosqlite:///"))
    steps = {step for text in statements for *_, step in plain.execute(f"EXPLAIN QUERY PLAN {text}")}
    plain.close()
    assert any("ix_turns_key_name_created_at (key_name=?)" in step for step in steps)
    tables = ("turns", "turn_states", "verdicts", "next_states")
    scans = [step for step in steps if step.startswith("SCAN") and step.split()[1] in tables]
    # Conversations and verdicts are read newest first, as many as are shown.
    allowed = {"SCAN turns USING INDEX ix_turns_created_at"}
    assert [step for step in scans if step not in allowed] == []
    # An index on a kind, a stage or a policy alone would read the turns of everyone.
    assert [step for step in steps if step.endswith(("(kind=?)", "(stage=?)", "(policy=?)"))] == [
        step for step in steps if "adapters" in step or "steps USING" in step
    ]


async def test_a_steps_samples_have_what_followed_and_the_votes_and_are_the_keys_own(
    record: Record,
) -> None:
    await fill(record)
    inputs = StepInputs(
        turns={StepRole.BATCH: (("t00", 1), ("t01", 0)), StepRole.REPLAY: (("t02", 0),)},
        edit_id=0, state={}, settings={},
    )  # fmt: skip
    step = StepReport(
        step_id="step", policy=POLICY, method="rl", started_at=1.0, finished_at=2.0, version=None, error="out of memory",
        metrics={}, inputs=inputs,
    )  # fmt: skip
    await record.write_step(step)
    first, second = (await record.step_samples([step]))["step"]
    assert (first["turn_id"], first["followed_by"]) == ("t00", ["No."])
    assert (first["verdict"]["value"], first["verdict"]["votes"]) == (-1, [-1, -1, 0])
    assert (second["turn_id"], second["verdict"]) == ("t01", None)
    (own,) = (await record.step_samples([step], "bob"))["step"]
    assert own["turn_id"] == "t01"
