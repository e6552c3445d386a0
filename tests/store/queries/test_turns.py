"""What a turn costs: rows, bytes, statements and memory follow what is new in it."""

import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa

from store.database import Database, dbapi
from store.lifecycle import Stage
from store.queries import proxy, replies
from store.queries.turns import TurnWriter
from store.record import Record
from store.values import Completion, Feedback, Json, NewTurn, Relation
from tests.making import make_answer, make_turn, make_verdict


def conversation(length: int, *, name: str = "t", words: int = 60, tokens: int = 120) -> list[NewTurn]:
    """Return the turns of one session whose client re-sends everything, tokens and all."""
    turns: list[NewTurn] = []
    history: list[Json] = [{"role": "system", "content": "be kind"}]
    ids: tuple[int, ...] = (1, 2, 3)
    for i in range(length):
        question: Json = {"role": "user", "content": f"question {i} " + "word " * words}
        reply = f"answer {i} " + "word " * words
        history = [*history, question]
        ids = (*ids, *range(1000 + i, 1000 + i + words))
        completion = Completion(
            text=reply,
            token_ids=tuple(range(5000 + i, 5000 + i + tokens)),
            sampling_logprobs=tuple(-((i + k) % 97 + 1) / 97 for k in range(tokens)),
            finish_reason="stop",
        )
        turn_id, parent = f"{name}{i}", f"{name}{i - 1}" if i else None
        turns.append(
            make_turn(
                turn_id,
                list(history),
                session_id=name,
                parent_turn_id=parent,
                turn_index=i,
                relation=Relation.NEXT if i else Relation.FIRST,
                completion=completion,
                prompt_token_ids=ids,
                created_at=1_000.0 + i,
                next_state=make_answer(parent, turn_id, "x", messages=(question,)) if parent else None,
            )
        )
        history = [*history, {"role": "assistant", "content": reply}]
        ids = (*ids, *completion.token_ids)
    return turns


async def traced(record_url: str, *batches: list[NewTurn], fresh: bool = False) -> list[str]:
    """Write batches and return the statements of the last; ``fresh``: by a writer that remembers nothing."""
    *before, last = batches
    done = [(turn.key_name, turn.session_id) for turn in last]
    database = await Database.open(record_url)
    writer = TurnWriter()
    for batch in before:
        writer.keep(await database.write(writer.write, batch))
    if fresh:
        writer = TurnWriter()
    statements: list[str] = []

    def work(connection: sa.Connection) -> None:
        dbapi(connection).set_trace_callback(statements.append)
        writer.write(connection, last, done)
        dbapi(connection).set_trace_callback(None)

    await database.write(work)
    await database.close()
    return statements


@pytest.mark.parametrize("fresh", [False, True], ids=["remembered", "after a restart"])
async def test_a_turn_late_in_a_session_takes_as_many_statements_as_an_early_one(
    record_url: str, fresh: bool
) -> None:
    turns = conversation(60)
    early = await traced(record_url, turns[:5], turns[5:6], fresh=fresh)
    late = await traced(record_url, turns[6:55], turns[55:56], fresh=fresh)
    assert len(late) <= len(early) + 1  # after a restart: one to see how much of a long history is stored
    assert sum(text.startswith("INSERT INTO messages") for text in late) <= 4  # answer, question, request


async def test_every_statement_of_the_proxy_finds_its_rows_by_an_index(record_url: str) -> None:
    turns = conversation(40)
    statements = await traced(record_url, turns[:38], turns[38:39])
    statements += await traced(record_url, [], turns[39:], fresh=True)
    database = await Database.open(record_url)

    def lookups(connection: sa.Connection) -> None:
        dbapi(connection).set_trace_callback(statements.append)
        keys = [t.request_key for t in turns] + [str(t.reply_key) for t in turns]
        assert proxy.tips_for(connection, "alice", keys).replies
        assert proxy.session_tip(connection, "alice", "t") is not None
        assert proxy.find_turn(connection, "alice", "chatcmpl-t5") == "t5"
        assert proxy.find_exchange(connection, "alice", "nothing like it", turns[3].completion.text) is None
        assert proxy.known_turns(connection, ["t1", "t99"]) == {"t1"}
        assert replies.recorded_turn(connection, "alice", "t1") is not None
        assert replies.conversation_turns(connection, "alice", "t") == []
        replies.hide_turn(connection, "alice", "t39")
        given = Feedback(
            feedback_id="f", turn_id="t39", score=1.0, text="", idempotency_key="k", created_at=1.0
        )
        assert proxy.add_feedback(connection, given)
        dbapi(connection).set_trace_callback(None)

    await database.write(lookups)
    await database.close()
    plain = sqlite3.connect(record_url.removeprefix("sqlite+aiosqlite:///"))
    plans = {
        step: text
        for text in statements
        for *_, step in plain.execute(f"EXPLAIN QUERY PLAN {text}")
        if not text.startswith("--")
    }
    plain.close()
    assert len(statements) > 20
    scans = {step for step in plans if step.startswith("SCAN")}
    # the arguments themselves, and the messages of one chain
    # (the only virtual table is `json_each`)
    assert {s for s in scans if "VIRTUAL TABLE" not in s and "walk" not in s and "CONSTANT" not in s} == set()
    # An index on the key or the kind alone would be a scan: most machines have one key, and most turns are main turns.
    assert {step for step in plans if step.endswith(("(key_name=?)", "(kind=?)"))} == set()


async def test_a_long_session_stores_its_new_content_and_little_more(record: Record, record_url: str) -> None:
    turns = conversation(120, words=60, tokens=120)
    path = Path(record_url.removeprefix("sqlite+aiosqlite:///"))

    def pages() -> int:
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            (count,) = connection.execute("PRAGMA page_count").fetchone()
        connection.close()
        return int(count) * 4096

    before = pages()
    for turn in turns:
        await record.write_turns([turn])
    new = 0
    for i, turn in enumerate(turns):
        fresh = (
            turn.messages if i == 0 else turn.messages[-2:]
        )  # the last answer comes back with the next question
        new += sum(len(str(m["content"])) + 30 for m in fresh) + len(turn.completion.text)
        new += len(str(list(turn.completion.token_ids))) + len(str(list(turn.completion.sampling_logprobs)))
        known = (*turns[i - 1].prompt_token_ids, *turns[i - 1].completion.token_ids) if i else ()
        new += len(str(list(turn.prompt_token_ids[len(known) :])))
    grown = pages() - before
    assert grown <= 1.3 * new, f"{grown / new:.2f}"
    assert await record.verify() == []
    remembered, size = record._turns.remembered
    assert (remembered, size < 700_000) == (1, True)  # the newest turn of the conversation, once


async def test_what_is_remembered_is_bounded(record_url: str) -> None:
    database = await Database.open(record_url)
    writer = TurnWriter(capacity=3, capacity_bytes=1 << 20)
    for i in range(10):
        writer.keep(await database.write(writer.write, [make_turn(f"t{i}")]))
    assert writer.remembered[0] == 3
    small = TurnWriter(capacity_bytes=2000)
    small.keep(await database.write(small.write, conversation(3, name="c")))
    assert small.remembered[1] <= 2000
    await database.close()


async def test_messages_are_kept_as_sent_where_a_client_only_reorders_their_keys(record: Record) -> None:
    first: Json = {"role": "user", "content": "hi"}
    await record.write_turns([make_turn("a", [first])])
    again: Json = {"content": "hi", "role": "user"}
    await record.write_turns([make_turn("b", [again, {"role": "user", "content": "x"}], parent_turn_id="a")])
    rows = await record.trajectories()
    assert list(rows[1]["messages"][0]) == ["content", "role"]
    assert await record.verify() == []


async def test_a_branch_shares_the_messages_and_ids_before_it(record: Record) -> None:
    turns = conversation(6)
    await record.write_turns(turns)
    edited = [*turns[3].messages[:-1], {"role": "user", "content": "something else"}]
    ids = (*turns[3].prompt_token_ids[:-5], 7, 8)
    branch = make_turn("edit", edited, parent_turn_id="t2", turn_index=3, prompt_token_ids=ids)
    await record.write_turns([branch])
    row = next(r for r in await record.trajectories() if r["turn_id"] == "edit")
    assert row["messages"] == edited
    await record.write_turns([make_turn("after", next_state=make_answer("edit", "after", "x"))])
    await record.add_verdict(make_verdict("edit"))
    (scored,) = await record.scored_turns(["edit"])
    assert scored.prompt_token_ids == ids
    assert await record.verify() == []


async def test_a_parent_that_was_deleted_meanwhile_is_not_built_upon(record: Record, record_url: str) -> None:
    turns = conversation(3)
    await record.write_turns(turns[:2])
    with sqlite3.connect(record_url.removeprefix("sqlite+aiosqlite:///")) as other:
        for table in ("next_states", "turn_states", "turns", "nodes", "messages"):
            other.execute(f"DELETE FROM {table}")
    other.close()
    await record.write_turns(turns[2:])
    (row,) = await record.trajectories()
    assert (row["parent_turn_id"], row["messages"]) == (None, list(turns[2].messages))
    assert await record.verify() == []


async def test_a_turn_and_what_follows_it_in_one_transaction(record: Record) -> None:
    turns = conversation(4)
    await record.write_turns(turns, done=[("alice", "t")])
    fates = await record.fates([t.turn_id for t in turns])
    assert [fates[f"t{i}"].stage for i in range(4)] == [Stage.ANSWERED] * 3 + [Stage.DROPPED]
    assert await record.verify() == []
