"""Group commit against a real record: nothing is lost silently."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from proxy.canonical import read_history
from proxy.classify import Kind
from proxy.drafts import Draft, dump_draft, id_of, load_draft
from proxy.journal import Journal
from proxy.ours import Wishes
from proxy.recorder import Recorder
from proxy.wire import Assembler, parse_chat
from store.errors import RecordError, RecordUnavailable
from store.lifecycle import DropReason
from store.record import Record
from store.values import LogprobMode, NewTurn, TurnKind


def draft(name: str, messages: list[dict[str, Any]], answer: str, *, session: str | None = None) -> Draft:
    chat = parse_chat(orjson.dumps({"messages": messages}))
    assembler = Assembler()
    choice = {
        "index": 0, "message": {"content": answer}, "finish_reason": "stop", "token_ids": [1],
        "logprobs": {"content": [{"logprob": -0.5}]},
    }  # fmt: skip
    assembler.take({"id": f"c-{name}", "choices": [choice]}, part="message")
    now = time.time()
    return Draft(
        turn_id=f"turn_{name}", created_at=now, finished_at=now, scope="s", client="test",
        wishes=Wishes(kind=None, session=session, is_session_done=False, is_opted_out=False, user=None),
        kind=Kind(kind=TurnKind.MAIN, reason="conversation"), policy="tiny", adapter_version=0, status_code=200, streamed=False,
        chat=chat, history=read_history(chat.messages, "s"), body_key=name, reply=assembler.close(), fault=None,
        temperature=1.0, logprob_mode=LogprobMode.RAW, size=100,
    )  # fmt: skip


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


class Flaky(Record):
    """A real record whose writes can be made to fail as a locked or refusing database does."""

    refusing: bool
    poison: str
    batches: list[int]
    attempts: int
    tried_twice: asyncio.Event

    async def write_turns(self, turns: Sequence[NewTurn], done: Sequence[tuple[str, str]] = ()) -> None:
        if self.refusing:
            self.attempts += 1
            if self.attempts == 2:
                self.tried_twice.set()
            raise RecordUnavailable("database is locked")
        if any(self.poison and self.poison in t.turn_id for t in turns):
            raise RecordError("no")
        await super().write_turns(turns, done)
        self.batches.append(len(turns))


@asynccontextmanager
async def recording(
    record_url: str, *, refusing: bool = False, **options: Any
) -> AsyncIterator[tuple[Recorder, Flaky]]:
    record = await Flaky.open(record_url)
    assert isinstance(record, Flaky)
    record.refusing, record.poison, record.batches = refusing, "", []
    record.attempts, record.tried_twice = 0, asyncio.Event()

    async def opening() -> Record:
        return record

    recorder = Recorder(opening, **options)
    task = asyncio.create_task(recorder.run())
    try:
        yield recorder, record
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await record.close()


async def test_turns_that_come_together_are_one_transaction_and_link_to_each_other(record_url: str) -> None:
    async with recording(record_url) as (recorder, record):
        first = [user("How do I read a CSV file?")]
        second = [*first, assistant("pandas"), user("without")]
        futures = [
            recorder.submit(draft("a", first, "pandas")),
            recorder.submit(draft("b", second, "csv")),
            recorder.submit(draft("c", [*second, assistant("csv"), user("thanks")], "welcome")),
        ]
        await asyncio.gather(*futures)
        rows = await record.trajectories()
        assert record.batches == [3]
        assert [r["parent_turn_id"] for r in rows] == [None, "turn_a", "turn_b"]
        assert [r["next_text"] for r in rows] == ["without", "thanks", None]
        assert await record.verify() == []


async def test_a_record_that_is_away_makes_turns_late_and_loses_none(record_url: str) -> None:
    async with recording(record_url, wait_s=0.02) as (recorder, record):
        record.refusing = True
        written = recorder.submit(draft("a", [user("hello")], "x"))
        await recorder.settle(written)
        assert not written.done()
        assert recorder.state()["late"] == 1
        await record.tried_twice.wait()
        assert recorder.state()["available"] is False
        record.refusing = False
        await written
        assert recorder.state()["available"] is True
        assert [r["turn_id"] for r in await record.trajectories()] == ["turn_a"]


async def test_a_second_attempt_decides_nothing_anew(record_url: str) -> None:
    async with recording(record_url) as (recorder, record):
        first = [user("How do I read a CSV file?")]
        await recorder.submit(draft("a", first, "pandas"))
        record.refusing = True
        written = recorder.submit(draft("b", [*first, assistant("pandas"), user("without")], "csv"))
        await record.tried_twice.wait()
        record.refusing = False
        await written
        rows = await record.trajectories()
        assert [r["relation"] for r in rows] == ["first", "next"]


async def test_a_turn_that_cannot_be_written_takes_no_other_with_it(record_url: str) -> None:
    async with recording(record_url) as (recorder, record):
        record.poison = "bad"
        first = [user("How do I read a CSV file?")]
        futures = [
            recorder.submit(draft("bad", first, "pandas")),
            recorder.submit(draft("child", [*first, assistant("pandas"), user("without")], "csv")),
            recorder.submit(draft("other", [user("hello")], "x")),
        ]
        await asyncio.gather(*futures)
        rows = await record.trajectories()
        assert {r["turn_id"]: r["parent_turn_id"] for r in rows} == {"turn_child": None, "turn_other": None}
        assert recorder.lost == 1
        assert "turn_bad: it cannot be written: RecordError: no" in (recorder.last_loss or "")


async def test_what_no_longer_fits_into_memory_is_counted(record_url: str) -> None:
    async with recording(record_url, capacity=2) as (recorder, record):
        record.refusing = True
        futures = [recorder.submit(draft(str(i), [user(f"hello {i}")], "x")) for i in range(3)]
        assert recorder.lost == 1
        assert futures[2].done()
        record.refusing = False
        await asyncio.gather(*futures)
        assert len(await record.trajectories()) == 2


async def test_a_closed_session_waits_for_nothing(record_url: str) -> None:
    async with recording(record_url) as (recorder, record):
        await recorder.submit(draft("a", [user("one")], "x", session="s1"))
        last = draft("b", [user("two")], "y", session="s1")
        object.__setattr__(
            last,
            "wishes",
            Wishes(kind=None, session="s1", is_session_done=True, is_opted_out=False, user=None),
        )
        await recorder.submit(last)
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
            await recorder.submit(draft(f"{i:03}", history, f"answer {i}"))
            history = [*history, assistant(f"answer {i}"), user(f"question {i}")]
        await recorder.submit(
            draft("edit", [*history[:1], assistant("answer 0"), user("something else")], "z")
        )
        rows = {r["turn_id"]: r for r in await record.trajectories()}
        for i in range(1, length):
            assert rows[f"turn_{i:03}"]["parent_turn_id"] == f"turn_{i - 1:03}"
        assert rows["turn_edit"]["parent_turn_id"] == "turn_000"
        assert rows["turn_edit"]["relation"] == ("next" if length == 1 else "branch")


async def test_after_a_restart_the_record_alone_links_what_was_said_days_ago(record_url: str) -> None:
    history = [user("How do I read a CSV file?")]
    for step in range(5):
        # a new process for each turn: nothing is remembered
        async with recording(record_url) as (recorder, record):
            await recorder.submit(draft(str(step), history, f"answer {step}"))
            rows = await record.trajectories()
        history = [*history, assistant(f"answer {step}"), user(f"question {step}")]
    assert [r["parent_turn_id"] for r in rows] == [None, "turn_0", "turn_1", "turn_2", "turn_3"]
    assert [r["next_text"] for r in rows] == [*(f"question {i}" for i in range(4)), None]
    async with recording(record_url) as (recorder, record):
        await recorder.submit(draft("again", history[:-2], "another answer"))
        await recorder.submit(draft("edit", [*history[:2], user("something else")], "x"))
        again, edit = (await record.trajectories())[-2:]
        assert await record.verify() == []
    assert (again["relation"], again["parent_turn_id"]) == ("retry", "turn_3")
    assert (edit["relation"], edit["parent_turn_id"]) == ("branch", "turn_0")


async def test_a_record_that_opens_and_cannot_be_read_is_closed_again(record_url: str) -> None:
    opened: list[Record] = []

    class Unreadable(Record):
        async def recollect(self, limit: int) -> Any:
            raise RecordUnavailable("disk I/O error")

    async def opening() -> Record:
        opened.append(await Unreadable.open(record_url))
        return opened[-1]

    recorder = Recorder(opening)
    for _ in range(2):
        with pytest.raises(RecordUnavailable):
            await recorder.opened()
    assert [record._database._writer.is_alive for record in opened] == [False, False]


# ------------------------------------------------------------------------------------------------- the journal


async def test_a_turn_served_without_its_row_survives_the_end_of_the_process(
    record_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "journal"
    history = [user("How do I read a CSV file?")]
    async with recording(record_url, wait_s=2.0, journal=Journal(path), refusing=True) as (recorder, record):
        await recorder.settle(recorder.submit(draft("a", history, "pandas")))
        history = [*history, assistant("pandas"), user("without")]
        await recorder.settle(recorder.submit(draft("b", history, "csv")))
        state = recorder.state()
        assert (state["late"], state["journaled"], state["exposed"]) == (2, 2, 0)
        assert await record.trajectories() == []
    # the process is gone, and with it all that was in its memory
    async with recording(record_url, journal=Journal(path)) as (recorder, record):
        await recorder.submit(draft("c", [*history, assistant("csv"), user("thanks")], "welcome"))
        rows = await record.trajectories()
        assert [r["parent_turn_id"] for r in rows] == [None, "turn_a", "turn_b"]
        assert [r["next_text"] for r in rows] == ["without", "thanks", None]
        assert recorder.state()["recovered"] == 2
        assert await recorder.drain(5.0) == 0
        assert path.stat().st_size == 0
        assert await record.verify() == []


async def test_what_the_journal_holds_and_the_record_has_is_not_written_again(
    record_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "journal"
    one = draft("a", [user("How do I read a CSV file?")], "pandas")
    async with recording(record_url) as (recorder, record):
        await recorder.submit(one)
    path.write_bytes(dump_draft(one) * 2 + b'{"torn": ')
    async with recording(record_url, journal=Journal(path)) as (recorder, record):
        assert await recorder.drain(5.0) == 0
        (row,) = await record.trajectories()
        assert (row["turn_id"], row["relation"]) == ("turn_a", "first")
        assert path.stat().st_size == 0


async def test_what_does_not_fit_into_memory_waits_in_the_journal_in_its_order(
    record_url: str, tmp_path: Path
) -> None:
    async with recording(
        record_url, journal=Journal(tmp_path / "journal"), capacity=2, refusing=True, wait_s=2.0
    ) as (recorder, record):
        history = [user("How do I read a CSV file?")]
        for i in range(6):
            await recorder.settle(recorder.submit(draft(str(i), history, f"answer {i}")))
            history = [*history, assistant(f"answer {i}"), user(f"question {i}")]
        state = recorder.state()
        assert (state["waiting"], state["lost"], state["exposed"]) == (6, 0, 0)
        assert state["state"] == "away"
        now = asyncio.get_running_loop().time()
        for name in ("turn_0", "turn_5", "turn_5.1", "c-0", "c-5", None):
            assert recorder.may_hold(name, now)  # in memory, and in the journal alone
        assert not recorder.may_hold("turn_6", now)  # so that feedback on nothing is told so at once
        record.refusing = False
        assert await recorder.drain(20.0) == 0
        assert not recorder.may_hold("turn_5", now)
        rows = await record.trajectories()
        assert [r["parent_turn_id"] for r in rows] == [None, *(f"turn_{i}" for i in range(5))]
        assert recorder.state()["state"] == "ok"
        assert (tmp_path / "journal").stat().st_size == 0


async def test_what_is_queued_at_the_end_goes_into_the_journal(record_url: str, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    async with recording(record_url, journal=Journal(path), refusing=True) as (recorder, _):
        recorder.submit(draft("a", [user("hello")], "x"))
        assert await recorder.drain(0.05) == 1
        await recorder.stow()
    async with recording(record_url, journal=Journal(path)) as (recorder, record):
        assert await recorder.drain(5.0) == 0
        assert [r["turn_id"] for r in await record.trajectories()] == ["turn_a"]


async def test_neither_record_nor_journal_costs_no_reply_and_is_said(record_url: str, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "nowhere" / "journal")
    async with recording(record_url, journal=journal, wait_s=0.05, refusing=True) as (recorder, record):
        await recorder.settle(recorder.submit(draft("a", [user("hello")], "x")))
        state = recorder.state()
        assert (state["late"], state["exposed"], state["lost"]) == (1, 1, 0)
        assert "No such file" in state["journal_error"]
        record.refusing = False
        assert await recorder.drain(5.0) == 0
        assert [r["turn_id"] for r in await record.trajectories()] == ["turn_a"]


async def test_of_the_journal_only_what_is_not_recorded_is_read_again(
    record_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def counted(line: bytes) -> Draft:
        found = load_draft(line)
        read.append(found.turn_id)
        return found

    monkeypatch.setattr("proxy.recorder.load_draft", counted)
    journal = Journal(tmp_path / "journal")
    async with recording(record_url, journal=journal, wait_s=0.02, capacity=3) as (recorder, record):
        record.refusing = True
        for i in range(8):  # three wait in memory and are in the journal as well, the others there alone
            await recorder.settle(recorder.submit(draft(str(i), [user(f"hello {i}")], "x")))
        assert recorder.state()["waiting"] == 8
        record.refusing = False
        assert await recorder.drain(10.0) == 0
        assert sorted(r["turn_id"] for r in await record.trajectories()) == [f"turn_{i}" for i in range(8)]
    assert sorted(read) == [f"turn_{i}" for i in range(3, 8)]
    journal.close()


async def test_what_is_large_is_read_back_and_written_a_few_at_a_time(
    record_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.recorder._MAX_BATCH_BYTES", 250)  # two drafts and a half
    journal = Journal(tmp_path / "journal")
    async with recording(record_url, journal=journal, wait_s=0.02, capacity=4) as (recorder, record):
        record.refusing = True
        for i in range(10):
            await recorder.settle(recorder.submit(draft(str(i), [user(f"hello {i}")], "x")))
        record.refusing = False
        assert await recorder.drain(10.0) == 0
        assert sum(record.batches) == 10
        assert max(record.batches) <= 4
        assert len(record.batches) >= 7  # lines are longer than drafts say they are: one at a time
    journal.close()


def test_the_id_of_a_line_is_told_without_reading_it() -> None:
    line = dump_draft(draft("a", [user("hello")], "x"))
    assert id_of(line) == "turn_a"
    assert id_of(line[:14]) is None
    assert id_of(b"") is id_of(b'{"x":1}\n') is None


def test_a_draft_comes_back_from_its_line_exactly() -> None:
    made = draft("a", [user("hé 🎉"), assistant("x"), user("y")], "answer", session="s")
    fault = (DropReason.UNFINISHED, "the client left")
    object.__setattr__(made, "fault", fault)
    assert load_draft(dump_draft(made)) == made


def test_a_body_nested_as_deep_as_is_read_comes_back_as_well() -> None:
    made = draft("a", [user("hello")], "answer")
    deep = b'{"messages":[{"role":"user","content":"hello"}],"metadata":' + b"[" * 239 + b"]" * 239 + b"}"
    object.__setattr__(made, "chat", parse_chat(deep))
    assert load_draft(dump_draft(made)) == made
