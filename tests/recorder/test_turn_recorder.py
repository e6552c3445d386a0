"""Linking and writing against a real record: each exchange once, or reported."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson
import pytest

from recorder.canonical import body_key
from recorder.turn_recorder import TurnRecorder
from recorder.turns import ClassifiedExchange, request_parameters
from scorers.rules import read_edit, read_retry
from store.errors import RecordUnavailable
from store.record import Record
from store.values import Feedback, Tips
from tests.recorder.exchanges import (
    assistant,
    make_conversation,
    make_exchange,
    parents_of,
    recording,
    user,
)
from tests.waiting import until_async
from wire.chat_request import parse_chat

CSV = [user("How do I read a CSV file?")]


def make_feedback(name: str, turn_id: str) -> Feedback:
    return Feedback(
        feedback_id=name, turn_id=turn_id, score=1.0, text="", idempotency_key=name, created_at=time.time()
    )


def forget(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a new recorder remember nothing of this record: it knows what it queries."""

    async def recollect(limit: int) -> list[Any]:
        return []

    monkeypatch.setattr(record, "recollect", recollect)


async def test_exchanges_of_one_call_are_one_transaction_and_link_to_each_other(record_url: str) -> None:
    async with recording(record_url) as (recorder, record):
        await recorder.write(
            [make_exchange(str(i), asked, f"answer {i}") for i, asked in enumerate(make_conversation(3))],
            offsets={"a.journal": 70},
        )
        rows = await record.trajectories()
        assert record.batches == [3]
        assert [r["parent_turn_id"] for r in rows] == [None, "turn_0", "turn_1"]
        assert [r["next_text"] for r in rows] == ["question 0", "question 1", None]
        assert await record.journal_offsets() == {"a.journal": 70}
        assert (recorder.written, recorder.failed_writes) == (3, 0)
        assert await record.verify() == []


async def test_a_reminder_from_the_system_prompt_is_no_part_of_what_a_person_said(record_url: str) -> None:
    rules = "You MUST answer with a *file listing* and nothing else.\n\nEvery *file listing* MUST name its path on the first line."
    system = {"role": "system", "content": f"Act as an expert.\n\n{rules}"}
    first = [system, user(f"Write a greeting.\n\n{rules}")]
    second = [system, user("Write a greeting."), assistant("hello.py"), user(f"No, shorter.\n\n{rules}")]
    async with recording(record_url) as (recorder, record):
        await recorder.write([make_exchange("a", first, "hello.py"), make_exchange("b", second, "hi.py")])
        before, after = await record.trajectories()
        assert (before["next_role"], before["next_text"]) == ("user", "No, shorter.")
        assert (after["relation"], after["parent_turn_id"]) == ("next", "turn_a")


async def test_a_conversation_inside_one_batch_is_linked_without_a_query(
    record_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with recording(record_url) as (recorder, record):
        asked: list[list[str]] = []
        query = record.tips_for

        async def tips_for(scope: str, keys: Sequence[str]) -> Tips:
            asked.append(list(keys))
            return await query(scope, keys)

        monkeypatch.setattr(record, "tips_for", tips_for)
        await recorder.write(
            [make_exchange(str(i), m, f"answer {i}") for i, m in enumerate(make_conversation(4))]
        )
        assert list((await parents_of(record)).values()) == [None, "turn_0", "turn_1", "turn_2"]
        assert asked == []
        unknown = [user("never recorded"), assistant("nor this"), user("and now?")]
        await recorder.write([make_exchange("4", unknown, "well")])
        assert len(asked) == 1


async def test_while_the_record_is_locked_exchanges_wait_and_their_links_stay(record_url: str) -> None:
    async with recording(record_url) as (recorder, record):
        await recorder.write([make_exchange("a", CSV, "pandas")])
        record.is_locked = True
        child = make_exchange("b", [*CSV, assistant("pandas"), user("without")], "csv")
        writing = asyncio.create_task(recorder.write([child], offsets={"a.journal": 7}))
        await until_async(lambda: record.attempts >= 3)
        assert not writing.done()
        errors = [recorder.last_error]
        assert recorder.failed_writes >= 1
        record.is_locked = False
        await writing
        assert [*errors, recorder.last_error] == ["database is locked", None]
        assert recorder.unwritable == 0
        assert [r["relation"] for r in await record.trajectories()] == ["first", "next"]
        assert await record.journal_offsets() == {"a.journal": 7}


async def test_exchanges_that_are_recorded_already_are_skipped(record_url: str) -> None:
    first, second = (
        make_exchange(str(i), asked, f"answer {i}") for i, asked in enumerate(make_conversation(2))
    )
    async with recording(record_url) as (recorder, record):
        await recorder.write([first])
    async with recording(record_url) as (recorder, record):
        await recorder.write([first, second], offsets={"a.journal": 9}, may_be_known=True)
        assert record.batches == [1]
        rows = await record.trajectories()
        assert [(r["turn_id"], r["relation"]) for r in rows] == [("turn_0", "first"), ("turn_1", "next")]
        assert await record.journal_offsets() == {"a.journal": 9}


# ------------------------------------------------------------------------------------------------ what cannot be written


async def test_an_exchange_that_cannot_be_written_is_reported_and_takes_no_other_with_it(
    record_url: str,
) -> None:
    reported: list[str] = []
    async with recording(record_url) as (recorder, record):
        recorder._on_unwritable = lambda item, why: reported.append(why)
        record.rejected_id = "bad"
        await recorder.write(
            [
                make_exchange("bad", CSV, "pandas"),
                make_exchange("child", [*CSV, assistant("pandas"), user("without")], "csv"),
                make_exchange("other", [user("hello")], "x"),
            ],
            offsets={"a.journal": 5},
        )
        rows = {row["turn_id"]: row for row in await record.trajectories()}
        assert set(rows) == {"turn_child", "turn_other"}
        child = rows["turn_child"]  # linked again, without the exchange that is not there
        assert (child["parent_turn_id"], child["relation"], child["turn_index"]) == (None, "first", 0)
        assert child["session_id"] == "session_child"
        assert recorder.unwritable == 1
        assert reported == ["turn turn_bad: RecordError: no"]
        assert await record.journal_offsets() == {"a.journal": 5}
        assert recorder._linked == {}
        await recorder.write([make_exchange("again", CSV, "pandas")])
        assert (await record.trajectories())[-1]["relation"] == "first"


async def test_feedback_that_cannot_be_written_is_reported_and_takes_nothing_with_it(record_url: str) -> None:
    reported: list[Any] = []
    async with recording(record_url) as (recorder, record):
        recorder._on_unwritable = lambda item, why: reported.append(item)
        record.rejected_id = "bad"
        bad, good, lost = (
            make_feedback("bad", "turn_a"),
            make_feedback("good", "turn_a"),
            make_feedback("lost", "turn_absent"),
        )
        unmatched = await recorder.write(
            [make_exchange("a", CSV, "pandas")], feedback=[bad, good, lost], offsets={"a.journal": 5}
        )
        assert (unmatched, reported) == ([lost], [bad])
        assert await record.has_feedback("good")
        assert not await record.has_feedback("bad")
        assert await record.journal_offsets() == {"a.journal": 5}


# ------------------------------------------------------------------------------------------------ queries


async def test_each_scope_of_a_batch_gets_the_answers_of_its_own_query(
    record_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = [*CSV, assistant("pandas"), user("without")]
    async with recording(record_url) as (recorder, record):
        await recorder.write(
            [make_exchange(key_name, CSV, "pandas", key_name=key_name) for key_name in ("alice", "bob")]
        )
    async with recording(record_url) as (recorder, record):
        forget(record, monkeypatch)
        await recorder.write(
            [make_exchange(f"{key_name}2", later, "csv", key_name=key_name) for key_name in ("alice", "bob")]
        )
        assert record.batches == [2]
        found = await parents_of(record)
        assert (found["turn_alice2"], found["turn_bob2"]) == ("turn_alice", "turn_bob")


@pytest.mark.parametrize("first", ["alice", "bob"])
async def test_a_turn_never_continues_one_of_another_scope_of_the_same_batch(
    record_url: str, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Not even where the keys of two scopes' histories are equal."""
    later = [*CSV, assistant("pandas")]
    async with recording(record_url) as (recorder, record):
        await recorder.write([make_exchange("a", CSV, "pandas", key_name="alice", root="both")])
    async with recording(record_url) as (recorder, record):
        forget(record, monkeypatch)
        captures = [
            make_exchange("alice", [*later, user("without")], "csv", key_name="alice", root="both"),
            make_exchange("bob", [*later, user("in Rust")], "serde", key_name="bob", root="both"),
        ]
        captures.sort(key=lambda one: one.key_name != first)
        await recorder.write(captures)
        found = await parents_of(record)
        assert (found["turn_alice"], found["turn_bob"]) == ("turn_a", None)


async def test_a_conversation_whose_newest_messages_are_unknown_is_found_by_its_older_ones(
    record_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with recording(record_url) as (recorder, record):
        await recorder.write([make_exchange("a", CSV, "pandas")])
    elsewhere = [part for i in range(6) for part in (user(f"question {i}"), assistant(f"answer {i}"))]
    async with recording(record_url) as (recorder, record):
        forget(record, monkeypatch)
        messages = [*CSV, assistant("pandas"), *elsewhere, user("thanks")]
        await recorder.write([make_exchange("b", messages, "welcome")])
        assert (await parents_of(record))["turn_b"] == "turn_a"


async def test_a_closed_session_waits_for_nothing(record_url: str) -> None:
    async with recording(record_url) as (recorder, record):
        await recorder.write([make_exchange("a", [user("one")], "x", session="s1")])
        await recorder.write([make_exchange("b", [user("two")], "y", session="s1", is_session_done=True)])
        rows = await record.trajectories()
        assert [(r["stage"], r["drop_reason"]) for r in rows] == [
            ("answered", None),
            ("dropped", "no_next_state"),
        ]


@pytest.mark.parametrize("length", [1, 40])
async def test_a_long_history_links_as_a_short_one_does(record_url: str, length: int) -> None:
    async with recording(record_url) as (recorder, record):
        history = [user("a question to begin with")]
        for i in range(length):
            await recorder.write([make_exchange(f"{i:03}", history, f"answer {i}")])
            history = [*history, assistant(f"answer {i}"), user(f"question {i}")]
        await recorder.write(
            [make_exchange("edit", [*history[:1], assistant("answer 0"), user("something else")], "z")]
        )
        rows = {r["turn_id"]: r for r in await record.trajectories()}
        for i in range(1, length):
            assert rows[f"turn_{i:03}"]["parent_turn_id"] == f"turn_{i - 1:03}"
        assert rows["turn_edit"]["parent_turn_id"] == "turn_000"
        assert rows["turn_edit"]["relation"] == ("next" if length == 1 else "branch")


async def test_after_a_restart_the_record_alone_links_older_conversations(record_url: str) -> None:
    history = [user("How do I read a CSV file?")]
    for step in range(5):
        # a new process for each turn: nothing is remembered
        async with recording(record_url) as (recorder, record):
            await recorder.write([make_exchange(str(step), history, f"answer {step}")])
            rows = await record.trajectories()
        history = [*history, assistant(f"answer {step}"), user(f"question {step}")]
    assert [r["parent_turn_id"] for r in rows] == [None, "turn_0", "turn_1", "turn_2", "turn_3"]
    assert [r["next_text"] for r in rows] == [*(f"question {i}" for i in range(4)), None]
    async with recording(record_url) as (recorder, record):
        later = time.time() + 5.0
        await recorder.write(
            [make_exchange("again", history[:-2], "another answer", created_at=later, finished_at=later)]
        )
        edited = [*history[:2], user("something else")]
        later += 5.0
        await recorder.write([make_exchange("edit", edited, "x", created_at=later, finished_at=later)])
        again, edit = (await record.trajectories())[-2:]
        assert await record.verify() == []
    assert (again["relation"], again["parent_turn_id"]) == ("retry", "turn_3")
    assert (edit["relation"], edit["parent_turn_id"]) == ("branch", "turn_0")


async def test_a_turn_that_only_the_record_knows_is_continued_once_and_then_branched(
    record_url: str,
) -> None:
    async with recording(record_url) as (recorder, record):
        await recorder.write([make_exchange("first", CSV, "answer")])
        restarted = TurnRecorder(lambda: Record.open(record_url))
        await restarted.get_record()
        restarted._turn_index.remove(["turn_first"])
        history = [*CSV, assistant("answer")]
        await restarted.write(
            [make_exchange(name, [*history, user(name)], f"{name} too") for name in ("one", "other")]
        )
        rows = {r["turn_id"]: r for r in await record.trajectories()}
        await (await restarted.get_record()).close()
    assert [rows[f"turn_{name}"]["relation"] for name in ("one", "other")] == ["next", "branch"]
    assert {rows[f"turn_{name}"]["parent_turn_id"] for name in ("one", "other")} == {"turn_first"}


#: Two requests with the same messages, by name: other fields of each, seconds between the first reply and the second request, and
#: whether the second is a retry.
REPEATS: dict[str, tuple[dict[str, Any], dict[str, Any], float, bool]] = {
    "again": ({}, {}, 5.0, True),
    "same-seed": ({"seed": 1}, {"seed": 1}, 5.0, True),
    "other-seed": ({"seed": 1}, {"seed": 2}, 5.0, False),
    "several": ({"n": 2}, {"n": 2}, 5.0, False),
    "one-after-several": ({"n": 2}, {}, 5.0, False),
    "parallel": ({}, {}, -0.5, False),
}


@pytest.mark.parametrize("restarts", [False, True], ids=["one process", "restarted"])
@pytest.mark.parametrize(
    ("is_named", "is_opening"), [(False, True), (False, False), (True, True), (True, False)]
)
async def test_only_a_prompt_that_is_asked_again_after_its_reply_is_a_complaint(
    record_url: str, restarts: bool, is_named: bool, is_opening: bool
) -> None:
    def request(case: str, part: str, body: dict[str, Any], begins_at: float) -> ClassifiedExchange:
        messages = [user(f"{case}: how do I read a CSV file in Python?")]
        if part != "opening" and not is_opening:
            messages += [assistant(f"answer {case}-opening"), user("without pandas please")]
        if part == "c":
            messages += [assistant(f"answer {case}-b"), user("And how do I write one?")]
        name = f"{case}-{part}"
        found = make_exchange(name, messages, f"answer {name}", session=case if is_named else None)
        chat = parse_chat(orjson.dumps({"messages": messages, **body}))
        key = body_key(found.history, request_parameters(chat))
        return replace(found, chat=chat, body_key=key, created_at=begins_at, finished_at=begins_at + 1.0)

    now = time.time()
    before, after, then = [], [], []
    for case, (first, second, pause_s, _) in REPEATS.items():
        before += [] if is_opening else [request(case, "opening", {}, now - 9.0)]
        before.append(request(case, "a", first, now))
        after.append(request(case, "b", second, now + 1.0 + pause_s))
        then.append(request(case, "c", {}, now + 30.0))
    processes = [before, after, then] if restarts else [before + after, then]
    for requests in processes:
        async with recording(record_url) as (recorder, record):
            for captured_request in requests:
                await recorder.write([captured_request])
            relations = {r["turn_id"]: r["relation"] for r in await record.trajectories()}
            answered = await record.answered(100)
            assert await record.verify() == []
            if requests is not processes[-1]:
                assert not any(map(read_retry, answered)), "a verdict before the newer reply is continued"
    for case, (*_, is_retry) in REPEATS.items():
        # An opening joins no session by its text alone: the body must be the same, and the reply complete.
        is_new = is_opening and not is_named and case in ("one-after-several", "parallel")
        expected = "retry" if is_retry else "first" if is_new else "branch"
        assert relations[f"turn_{case}-b"] == expected, case
    retried = {f"turn_{case}-a" for case, (*_, is_retry) in REPEATS.items() if is_retry}
    assert {t.turn_id for t in answered if read_retry(t)} == retried
    assert [t.turn_id for t in answered if read_edit(t)] == []


async def test_a_record_that_opens_and_cannot_be_read_is_closed_again(record_url: str) -> None:
    opened: list[Record] = []

    class UnreadableRecord(Record):
        async def recollect(self, limit: int) -> Any:
            raise RecordUnavailable("disk I/O error")

    async def open_record() -> Record:
        opened.append(await UnreadableRecord.open(record_url))
        return opened[-1]

    recorder = TurnRecorder(open_record)
    for _ in range(2):
        with pytest.raises(RecordUnavailable):
            await recorder.get_record()
    assert len(opened) == 2
    for record in opened:
        with pytest.raises(ValueError, match="closed"):
            await record.sync()
