"""What the pages ask stays quick in a large record, and shows a key only its own turns."""

import sqlite3

import sqlalchemy as sa

from store.database import Database, dbapi
from store.lifecycle import DropReason
from store.queries import dashboard, person, trainer
from store.record import Record
from store.values import AdapterState, AdapterVersion, StepInputs, StepReport, StepRole
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
        turns={StepRole.BATCH: (("t00", 1), ("t01", 0)), StepRole.SERVED: (("t02", 0),)},
        settings={},
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


async def test_a_versions_samples_are_bounded_counted_and_the_keys_own(
    record: Record, record_url: str
) -> None:
    await fill(record)
    for turn_id in ("t01", "t02", "t04"):
        answer = make_turn(
            f"by-{turn_id}",
            session_id=f"s{int(turn_id[1:])}",
            next_state=make_answer(turn_id, f"by-{turn_id}", "No."),
        )
        await record.write_turns([answer])
        await record.add_verdict(make_verdict(turn_id))
    for version, turn_ids in ((1, ["t00", "t01"]), (2, ["t02", "t04"])):
        claimed = await record.claim(POLICY, 2, worker="w", lease_s=60)
        assert sorted(turn.turn_id for turn in claimed) == turn_ids
        adapter = AdapterVersion(
            policy=POLICY, version=version, path="/nowhere", content_hash="0", parent_version=version - 1, state=AdapterState.PUBLISHED,
            reason="", method="rl", metrics={}, created_at=2_000.0,
        )  # fmt: skip
        step = StepReport(
            step_id=f"step{version}", policy=POLICY, method="rl", started_at=1.0, finished_at=2.0, version=version, error=None, metrics={},
        )  # fmt: skip
        await record.publish(adapter, turn_ids, step, worker="w")
    samples, count, others = await record.version_samples(POLICY, 1, 60)
    assert ([one["turn_id"] for one in samples], count, others) == (["t00", "t01"], 2, 0)
    assert (samples[0]["followed_by"], samples[0]["verdict"]["value"]) == (["No."], -1)
    samples, count, others = await record.version_samples(POLICY, 1, 1)
    assert ([one["turn_id"] for one in samples], count, others) == (["t00"], 2, 0)
    samples, count, others = await record.version_samples(POLICY, 1, 60, "bob")
    assert ([one["turn_id"] for one in samples], count, others) == (["t01"], 1, 1)
    assert await record.version_samples(POLICY, 3, 60) == ([], 0, 0)

    statements: list[str] = []

    def work(connection: sa.Connection) -> None:
        dbapi(connection).set_trace_callback(statements.append)
        dashboard.version_samples(connection, POLICY, 1, 60, "bob")
        trainer.trained_turns(connection, POLICY, version=1)
        dbapi(connection).set_trace_callback(None)

    database = await Database.open(record_url)
    await database.read(work)
    await database.close()
    plain = sqlite3.connect(record_url.removeprefix("sqlite+aiosqlite:///"))
    steps = [step for text in statements for *_, step in plain.execute(f"EXPLAIN QUERY PLAN {text}")]
    plain.close()
    used = [step for step in steps if step.startswith("SEARCH turn_states")]
    assert len(used) == 4
    assert all(
        "ix_turn_states_policy_trained_in_version (policy=? AND trained_in_version=?)" in step
        for step in used
    )


async def test_a_conversation_that_its_client_kept_out_of_training_says_so(record: Record) -> None:
    kept_out = make_turn("out", session_id="out", drop_reason=DropReason.OPTED_OUT)
    await record.write_turns([kept_out, make_turn("in", session_id="in")])
    assert {one.session_id: one.is_opted_out for one in await record.conversations(9)} == {
        "out": True,
        "in": False,
    }
