"""From the journal to the record: each entry once, in order, wherever the recorder dies."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
import pytest

from recorder import journal_reader
from recorder.journal_reader import JournalReader
from recorder.worker import REJECTED, RecorderWorker
from store import journal as journal_module
from store.catch_up import read_recorder_state
from store.errors import RecordUnavailable
from store.journal import EntryKind, JournalWriter, folder_token, journal_ends, measure_lag, segments
from store.record import Record
from store.values import Feedback, Heartbeat
from tests.recorder.exchanges import (
    FaultyRecord,
    make_captured,
    make_conversation,
    open_faulty,
    parents_of,
    user,
)
from tests.waiting import until_async
from wire.captured_exchange import dump_exchange


def append(writer: JournalWriter, name: str, messages: Sequence[Any], answer: str, **more: Any) -> None:
    payload = dump_exchange(make_captured(name, messages, answer, **more), None)
    assert writer.append(EntryKind.EXCHANGE, payload) is None


def append_feedback(writer: JournalWriter, name: str, turn_id: str) -> None:
    given = Feedback(
        feedback_id=name, turn_id=turn_id, score=-1.0, text="", idempotency_key=name, created_at=1.0
    )
    assert writer.append(EntryKind.FEEDBACK, orjson.dumps(asdict(given))) is None


def append_conversation(writer: JournalWriter, length: int) -> None:
    for i, messages in enumerate(make_conversation(length)):
        append(writer, str(i), messages, f"answer {i}")


class Setup:
    """A journal folder with one writer, and recorders that run in it one after the other."""

    def __init__(self, folder: Path, record_url: str) -> None:
        self.folder = folder
        self.record_url = record_url
        self.writer = JournalWriter(folder, "a")
        self.records: list[FaultyRecord] = []

    async def open_record(self) -> Record:
        self.records.append(await open_faulty(self.record_url))
        return self.records[-1]

    def start_worker(self) -> RecorderWorker:
        return RecorderWorker(self.folder, self.open_record)

    @property
    def record(self) -> FaultyRecord:
        return self.records[-1]


async def record_all(worker: RecorderWorker) -> None:
    while await worker.step():
        pass


@pytest.fixture
async def setup(tmp_path: Path, record_url: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(journal_module, "_SLOW_WRITE_S", 60.0)  # on a busy machine no write counts as slow
    made = Setup(tmp_path / "journal", record_url)
    yield made
    await made.writer.close()
    for record in made.records:
        await record.close()


# ------------------------------------------------------------------------------------------------ exactly once


class Died(BaseException):
    """The end of a process."""


class MortalRecord(Record):
    """A record whose user dies at the call with this number, before or after it takes effect."""

    calls_left: int
    dies_after: bool


def _mortal(name: str) -> Any:
    async def call(self: MortalRecord, *args: Any, **named: Any) -> Any:
        self.calls_left -= 1
        if self.calls_left == 0 and not self.dies_after:
            raise Died
        result = await getattr(super(MortalRecord, self), name)(*args, **named)
        if self.calls_left == 0:
            raise Died
        return result

    return call


for _name in (
    "recollect", "journal_offsets", "known_turns", "tips_for", "session_tip", "write_turns", "forget_segments",
):  # fmt: skip
    setattr(MortalRecord, _name, _mortal(_name))


async def run_until_death(folder: Path, url: str, calls: int, dies_after: bool) -> bool:
    """Record what is in the journal and clean up; returns whether the recorder died of it."""
    record = await MortalRecord.open(url)
    assert isinstance(record, MortalRecord)
    record.calls_left, record.dies_after = calls, dies_after

    async def open_record() -> Record:
        return record

    worker = RecorderWorker(folder, open_record)
    try:
        await record_all(worker)
        await worker._remove_recorded()
    except Died:
        return True
    finally:
        await record.close()
    return False


async def rows_of(url: str) -> list[tuple[Any, ...]]:
    record = await Record.open(url)
    names = ("turn_id", "parent_turn_id", "session_id", "turn_index", "relation", "next_text", "stage")
    try:
        assert await record.verify() == []
        assert await record.journal_offsets() == {}
        return [tuple(row[name] for name in names) for row in await record.trajectories()]
    finally:
        await record.close()


@pytest.mark.parametrize("dies_after", [False, True], ids=["before", "after"])
async def test_each_entry_is_recorded_once_wherever_the_recorder_dies(
    tmp_path: Path, record_url: str, monkeypatch: pytest.MonkeyPatch, dies_after: bool
) -> None:
    monkeypatch.setattr(journal_reader, "MAX_ENTRIES", 2)
    writer = JournalWriter(tmp_path / "written", "a", segment_bytes=3000)
    requests = make_conversation(4)
    for i, messages in enumerate(requests):
        append(writer, str(i), messages, f"answer {i}")
    append_feedback(writer, "f", "turn_1")
    append(writer, "retry", requests[3], "another answer")
    append(writer, "s0", [user("one")], "x", session="s")
    append(writer, "s1", [user("two")], "y", session="s", is_session_done=True)
    await writer.close()
    entries = {path.name: path.read_bytes() for path in segments(tmp_path / "written")}
    assert len(entries) > 1
    empty = (tmp_path / "patina.db").read_bytes()
    expected: list[tuple[Any, ...]] = []
    for calls in range(200):  # 0: undisturbed
        folder = tmp_path / f"journal-{calls}"
        folder.mkdir()
        for name, data in entries.items():
            (folder / name.replace(folder_token(tmp_path / "written"), folder_token(folder))).write_bytes(
                data
            )
        path = tmp_path / f"{calls}.db"
        path.write_bytes(empty)
        url = f"sqlite+aiosqlite:///{path}"
        has_died = await run_until_death(folder, url, calls, dies_after)
        assert not await run_until_death(folder, url, 0, dies_after)
        rows = await rows_of(url)
        with contextlib.closing(sqlite3.connect(path)) as database:
            assert database.execute("select feedback_id, turn_id from feedback").fetchall() == [
                ("f", "turn_1")
            ]
        assert segments(folder) == []
        expected = expected or rows
        assert rows == expected, calls
        if calls and not has_died:
            break
    assert calls > 8
    assert [row[0] for row in expected] == [
        *(f"turn_{i}" for i in range(4)),
        "turn_retry",
        "turn_s0",
        "turn_s1",
    ]
    assert [row[1] for row in expected] == [None, "turn_0", "turn_1", "turn_2", "turn_2", None, "turn_s0"]


async def test_turns_that_were_recorded_without_their_offset_are_not_written_again(setup: Setup) -> None:
    append_conversation(setup.writer, 1)
    await record_all(setup.start_worker())
    await setup.record.forget_segments(list(journal_ends(setup.folder)))
    append(setup.writer, "later", [user("hello")], "x")
    await record_all(setup.start_worker())
    assert setup.record.batches == [1]
    assert await parents_of(setup.record) == {"turn_0": None, "turn_later": None}


async def test_a_recorder_that_is_stopped_during_a_write_records_the_rest_once(setup: Setup) -> None:
    append_conversation(setup.writer, 3)
    worker = setup.start_worker()
    running = asyncio.create_task(worker.run())
    await until_async(lambda: setup.records)
    setup.record.is_locked = True
    await until_async(lambda: setup.record.attempts >= 1 or worker.state()["written"] == 3)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    setup.record.is_locked = False
    await worker.stop(20.0)
    async with open_for_test(setup) as record:
        assert await parents_of(record) == {"turn_0": None, "turn_1": "turn_0", "turn_2": "turn_1"}
        beat = await record.beat_of("recorder")
        assert beat is not None
        assert (beat.state, beat.pid, beat.detail["lag_turns"]) == ("stopped", os.getpid(), 0)


@contextlib.asynccontextmanager
async def open_for_test(setup: Setup) -> Any:
    record = await Record.open(setup.record_url)
    try:
        yield record
    finally:
        await record.close()


# ------------------------------------------------------------------------------------------------ faults


async def test_while_the_record_is_locked_entries_stay_and_are_recorded_after(setup: Setup) -> None:
    append_conversation(setup.writer, 2)
    worker = setup.start_worker()
    await worker._read_offsets()
    setup.record.is_locked = True
    recording = asyncio.create_task(record_all(worker))
    await until_async(lambda: setup.record.attempts >= 2)
    state = worker.state()
    assert (state["available"], state["last_error"]) == (False, "database is locked")
    assert (state["lag_turns"], state["written"], state["rejected"]) == (2, 0, 0)
    assert state["lag_bytes"] == measure_lag(setup.folder, {}).bytes
    assert state["failed_writes"] >= 1
    setup.record.is_locked = False
    await recording
    state = worker.state()
    assert (state["available"], state["last_error"], state["lag_turns"], state["written"]) == (
        True,
        None,
        0,
        2,
    )
    assert state["lag_s"] == 0.0
    assert await parents_of(setup.record) == {"turn_0": None, "turn_1": "turn_0"}


async def test_entries_wait_for_a_record_that_cannot_be_opened(setup: Setup) -> None:
    append_conversation(setup.writer, 1)
    is_missing = True

    async def open_record() -> Record:
        if is_missing:
            raise RecordUnavailable("unable to open database file")
        return await setup.open_record()

    worker = RecorderWorker(setup.folder, open_record)
    running = asyncio.create_task(worker.run())
    await until_async(lambda: worker.state()["last_error"] is not None)
    assert worker.state()["last_error"] == "unable to open database file"
    assert worker.state()["lag_turns"] == 1
    is_missing = False
    await until_async(lambda: worker.state()["written"] == 1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert await parents_of(setup.record) == {"turn_0": None}


async def test_an_entry_that_cannot_be_read_is_kept_and_the_others_are_recorded(setup: Setup) -> None:
    setup.writer.append(EntryKind.EXCHANGE, b"no exchange")
    append_conversation(setup.writer, 2)
    setup.writer.append(EntryKind.FEEDBACK, b'{"unknown": 1}')
    setup.writer.append(9, b"of a later version")  # type: ignore[arg-type]
    worker = setup.start_worker()
    await record_all(worker)
    assert await parents_of(setup.record) == {"turn_0": None, "turn_1": "turn_0"}
    kept = {path.read_bytes(): path for path in (setup.folder / REJECTED).iterdir()}
    assert set(kept) == {b"no exchange", b'{"unknown": 1}', b"of a later version"}
    assert kept[b"of a later version"].name.endswith("-9.entry")
    state = worker.state()
    assert (state["rejected"], state["written"], state["lag_turns"]) == (3, 2, 0)
    assert "unknown kind of entry: 9" in state["last_rejected"]
    assert str(kept[b"of a later version"]) in state["last_rejected"]


async def test_entries_that_cannot_be_written_are_kept_and_the_others_are_recorded(setup: Setup) -> None:
    worker = setup.start_worker()
    await worker._read_offsets()
    setup.record.rejected_id = "bad"
    append(setup.writer, "bad", [user("a question")], "x")
    append_conversation(setup.writer, 2)
    append_feedback(setup.writer, "bad", "turn_0")
    append_feedback(setup.writer, "good", "turn_0")
    await record_all(worker)
    assert await parents_of(setup.record) == {"turn_0": None, "turn_1": "turn_0"}
    assert await setup.record.has_feedback("good")
    assert worker.state()["rejected"] == 2
    kept = sorted(path.name.rpartition("-")[2] for path in (setup.folder / REJECTED).iterdir())
    assert kept == ["1.entry", "2.entry"]
    assert await setup.record.journal_offsets() == journal_ends(setup.folder)


async def test_damaged_bytes_are_counted_and_what_follows_is_recorded(setup: Setup) -> None:
    append_conversation(setup.writer, 3)
    await setup.writer.close()
    (path,) = segments(setup.folder)
    _, second, _ = journal_module.read_entries(path, 0, 1 << 20)[0]
    data = bytearray(path.read_bytes())
    data[second.start + 11] ^= 0xFF  # its length: longer than the file
    path.write_bytes(data)
    worker = setup.start_worker()
    await record_all(worker)
    assert list(await parents_of(setup.record)) == ["turn_0", "turn_2"]
    assert worker.state()["damaged_bytes"] == second.end - second.start
    await worker._remove_recorded()
    assert segments(setup.folder) == []


# ------------------------------------------------------------------------------------------------ feedback


async def test_feedback_is_recorded_behind_its_turn_and_unmatched_feedback_is_counted(setup: Setup) -> None:
    append_conversation(setup.writer, 1)
    append_feedback(setup.writer, "f", "turn_0")
    append_feedback(setup.writer, "lost", "turn_absent")
    worker = setup.start_worker()
    await record_all(worker)
    assert await setup.record.has_feedback("f")
    assert not await setup.record.has_feedback("lost")
    assert worker.state()["unmatched_feedback"] == 1
    assert worker.state()["rejected"] == 0


# ------------------------------------------------------------------------------------------------ order


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The wall clock, to be set by the test: [seconds since the epoch]."""
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    monkeypatch.setattr(time, "time_ns", lambda: round(now[0] * 1e9))
    return now


def texts(reader: JournalReader) -> list[str]:
    """Return the entries of one batch, which is then recorded."""
    batch = reader.poll()
    reader.commit(batch)
    return [entry.payload.decode().strip("-") for _, entry in batch.entries]


async def test_entries_of_two_writers_are_read_in_arrival_order(tmp_path: Path, clock: list[float]) -> None:
    writers = [JournalWriter(tmp_path, "b"), JournalWriter(tmp_path, "a")]
    for i in range(10):
        clock[0] += 1
        writers[i % 2].append(EntryKind.EXCHANGE, b"%d" % i)
    assert texts(JournalReader(tmp_path, {})) == [str(i) for i in range(10)]
    for writer in writers:
        await writer.close()


@pytest.mark.parametrize("limits", [(3, 1 << 20), (1000, 100), (1000, 250)])
async def test_a_backlog_of_two_writers_is_read_in_order_in_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: list[float], limits: tuple[int, int]
) -> None:
    """Also where a segment is larger than what is read of it at a time."""
    monkeypatch.setattr(journal_reader, "MAX_ENTRIES", limits[0])
    monkeypatch.setattr(journal_reader, "_MAX_BYTES", limits[1])
    writers = [JournalWriter(tmp_path, name, segment_bytes=1500) for name in "ab"]
    for i in range(80):
        clock[0] += 1
        writers[i // 3 % 2].append(EntryKind.EXCHANGE, b"%d" % i + b"-" * 40)
    for writer in writers:
        await writer.close()
    reader, found = JournalReader(tmp_path, {}), []
    while batch := texts(reader):
        assert len(batch) <= limits[0]
        assert len(batch) == 1 or 42 * len(batch) <= limits[1]
        found += batch
    assert found == [str(i) for i in range(80)]
    assert dict(reader.offsets) == journal_ends(tmp_path)


@pytest.mark.parametrize("hit", [0, 1, 7, 37])
async def test_damage_in_a_backlog_is_counted_once_when_it_is_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: list[float], hit: int
) -> None:
    monkeypatch.setattr(journal_reader, "MAX_ENTRIES", 4)
    writers = [JournalWriter(tmp_path, name) for name in "ab"]
    for i in range(40):
        clock[0] += 1
        writers[i % 2].append(EntryKind.EXCHANGE, b"%02d" % i)
    for writer in writers:
        await writer.close()
    path = segments(tmp_path)[hit % 2]
    entry = journal_module.read_entries(path, 0, 1 << 20)[0][hit // 2]
    with path.open("r+b") as file:
        file.seek(entry.end - 1)
        file.write(b"?")
    reader, damaged, found = JournalReader(tmp_path, {}), 0, []
    while True:
        batch = reader.poll()
        if not batch.offsets:
            break
        reader.commit(batch)
        damaged += batch.damaged_bytes
        found += [one.payload.decode() for _, one in batch.entries]
    assert damaged == entry.end - entry.start
    assert found == [f"{i:02d}" for i in range(40) if i != hit]


async def test_of_a_backlog_only_the_segments_of_the_batch_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    monkeypatch.setattr(journal_reader, "MAX_ENTRIES", 5)
    writer = JournalWriter(tmp_path, "a", segment_bytes=200)
    for i in range(60):
        clock[0] += 1
        writer.append(EntryKind.EXCHANGE, b"%d" % i)
    await writer.close()
    read: list[Path] = []
    read_entries = journal_module.read_entries

    def note(path: Path, *args: Any, **named: Any) -> Any:
        read.append(path)
        return read_entries(path, *args, **named)

    monkeypatch.setattr(journal_reader, "read_entries", note)
    assert texts(JournalReader(tmp_path, {})) == [str(i) for i in range(5)]
    assert len(segments(tmp_path)) > 5
    assert len(read) <= 2


async def test_a_segment_that_ends_with_damage_stays_until_the_damage_is_counted(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, "a")
    writer.append(EntryKind.EXCHANGE, b"first")
    await writer.close()
    (path,) = segments(tmp_path)
    end = path.stat().st_size
    with path.open("ab") as file:
        file.write(b"x" * 100)
    reader = JournalReader(tmp_path, {path.name: end})
    assert reader.remove_recorded() == []
    assert path.exists()
    batch = reader.poll()
    assert batch.damaged_bytes > 0
    reader.commit(batch)
    assert reader.remove_recorded() == [path.name]
    reader.close()


async def test_a_segment_that_the_recorder_removed_is_not_written_again(setup: Setup) -> None:
    writer = JournalWriter(setup.folder, "b", segment_bytes=1)
    append(writer, "first", [user("one")], "reply")
    worker = setup.start_worker()
    await record_all(worker)
    await worker._remove_recorded()
    assert segments(setup.folder) == []
    writer.maintain()
    assert (segments(setup.folder), writer.rewritten) == ([], 0)
    assert await writer.close() == 0


async def test_of_many_segments_a_few_are_open_at_a_time_the_oldest_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_reader, "_MAX_FILES", 2)
    writer = JournalWriter(tmp_path, "a", segment_bytes=1)
    for i in range(7):
        writer.append(EntryKind.EXCHANGE, b"%d" % i)
    await writer.close()
    files = len(os.listdir("/proc/self/fd"))
    reader = JournalReader(tmp_path, {})
    found: list[bytes] = []
    while (batch := reader.poll()).entries:
        assert len(os.listdir("/proc/self/fd")) <= files + 2
        found += [entry.payload for _, entry in batch.entries]
        reader.commit(batch)
        reader.remove_recorded()
    assert found == [b"%d" % i for i in range(7)]
    assert (segments(tmp_path), dict(reader.offsets)) == ([], {})
    reader.close()
    assert len(os.listdir("/proc/self/fd")) == files


async def test_an_entry_that_is_appended_after_poll_began_is_left(tmp_path: Path, clock: list[float]) -> None:
    writer = JournalWriter(tmp_path, "a")
    writer.append(EntryKind.EXCHANGE, b"first")
    clock[0] += 0.5
    writer.append(EntryKind.EXCHANGE, b"second")
    clock[0] -= 0.25  # poll begins between the two
    reader = JournalReader(tmp_path, {})
    assert texts(reader) == ["first"]
    assert texts(reader) == []
    clock[0] += 0.5
    assert texts(reader) == ["second"]
    await writer.close()


async def test_a_clock_that_is_set_back_delays_nothing_and_keeps_each_writers_order(
    tmp_path: Path, clock: list[float]
) -> None:
    writer = JournalWriter(tmp_path, "a")
    writer.append(EntryKind.EXCHANGE, b"first")
    clock[0] -= 500.0
    writer.append(EntryKind.EXCHANGE, b"second")
    assert texts(JournalReader(tmp_path, {})) == ["first", "second"]
    await writer.close()


# ------------------------------------------------------------------------------------------------ removal and state


async def test_recorded_closed_segments_are_removed_and_their_offsets_forgotten(setup: Setup) -> None:
    append_conversation(setup.writer, 2)
    worker = setup.start_worker()
    await record_all(worker)
    await worker._remove_recorded()
    (path,) = segments(setup.folder)  # recorded, and open
    assert await setup.record.journal_offsets() == {path.name: path.stat().st_size}
    await setup.writer.close()
    await worker._remove_recorded()
    assert segments(setup.folder) == []
    assert await setup.record.journal_offsets() == {}
    assert worker.state()["lag_turns"] == 0


async def test_a_closed_segment_that_is_not_recorded_stays(setup: Setup) -> None:
    append_conversation(setup.writer, 2)
    worker = setup.start_worker()
    await record_all(worker)
    append(setup.writer, "later", [user("hello")], "x")
    await setup.writer.close()
    await worker._remove_recorded()
    assert len(segments(setup.folder)) == 1
    await record_all(worker)
    await worker._remove_recorded()
    assert segments(setup.folder) == []
    assert "turn_later" in await parents_of(setup.record)


async def test_a_segment_that_another_process_removes_meanwhile_is_forgotten(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_conversation(setup.writer, 1)
    worker = setup.start_worker()
    await record_all(worker)

    def remove(_: Path) -> bool:
        for path in segments(setup.folder):
            path.unlink()
        return True

    monkeypatch.setattr(journal_reader, "is_closed", remove)
    await worker._remove_recorded()
    assert await setup.record.journal_offsets() == {}


async def test_a_segment_that_is_removed_before_it_is_read_to_its_end_is_recorded_all_the_same(
    setup: Setup,
) -> None:
    writer = setup.writer
    worker = setup.start_worker()
    append(writer, "first", [user("one")], "reply")
    await record_all(worker)
    append(writer, "second", [user("two")], "reply")
    for path in segments(setup.folder):
        path.unlink()
    append(writer, "third", [user("three")], "reply")  # into a new segment
    await record_all(worker)
    assert set(await parents_of(setup.record)) == {"turn_first", "turn_second", "turn_third"}
    assert worker.state()["written"] == 3  # of what was written again, nothing is written twice
    await writer.close()
    await worker._remove_recorded()
    assert (segments(setup.folder), await setup.record.journal_offsets()) == ([], {})


@pytest.mark.parametrize("batch", [256, 1])
async def test_segments_that_are_removed_in_bursts_before_they_were_opened_are_recorded_once(
    setup: Setup, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = setup.start_worker()
    requests = make_conversation(12)
    for i, messages in enumerate(requests):
        append(setup.writer, str(i), messages, f"answer {i}")
        append_feedback(setup.writer, f"f{i}", f"turn_{i}")
        if i % 4 == 1:
            await record_all(worker)
        if i % 4 >= 2:
            for path in segments(setup.folder):
                path.unlink()
    await setup.writer.close()
    # With 1, an entry and its copy come in two batches.
    monkeypatch.setattr(journal_reader, "MAX_ENTRIES", batch)
    await record_all(worker)
    assert await parents_of(setup.record) == {f"turn_{i}": f"turn_{i - 1}" if i else None for i in range(12)}
    state = worker.state()
    assert (state["written"], state["rejected"], state["unmatched_feedback"]) == (12, 0, 0)
    with contextlib.closing(
        sqlite3.connect(setup.record_url.removeprefix("sqlite+aiosqlite:///"))
    ) as database:
        assert database.execute("SELECT count(*) FROM feedback").fetchone() == (12,)
    await worker._remove_recorded()
    assert segments(setup.folder) == []


async def test_a_journal_that_is_read_only_is_recorded_and_reported(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_conversation(setup.writer, 2)
    await setup.writer.close()
    worker = setup.start_worker()
    worker._write_state()
    with monkeypatch.context() as patch:

        def refusing(change: Callable[..., Any]) -> Callable[..., Any]:
            def refuse(path: Path | int, *more: object, **options: object) -> Any:
                if isinstance(path, int) or path.is_relative_to(setup.folder):
                    raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
                return change(path, *more, **options)

            return refuse

        for name in ("unlink", "write_bytes", "replace", "open"):
            patch.setattr(Path, name, refusing(getattr(Path, name)))
        patch.setattr(os, "fchmod", refusing(os.fchmod))
        running = asyncio.create_task(worker.run())
        await until_async(lambda: "Read-only" in str(worker.state()["last_error"]))
        assert not running.done()
        assert worker.state()["written"] == 2
        assert len(segments(setup.folder)) == 1
    await until_async(lambda: worker.state()["last_error"] is None)
    assert segments(setup.folder) == []
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert await parents_of(setup.record) == {"turn_0": None, "turn_1": "turn_0"}


async def test_an_incomplete_last_entry_of_a_dead_writer_keeps_no_segment(setup: Setup) -> None:
    append_conversation(setup.writer, 2)
    await setup.writer.close()
    (path,) = segments(setup.folder)
    os.truncate(path, path.stat().st_size - 1)
    worker = setup.start_worker()
    await record_all(worker)
    assert list(await parents_of(setup.record)) == ["turn_0"]
    await worker._remove_recorded()
    assert segments(setup.folder) == []
    assert worker.state()["damaged_bytes"] == 0


async def test_segments_are_removed_while_the_recorder_is_catching_up(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal at its limit takes nothing until a segment is removed."""
    monkeypatch.setattr(journal_reader, "MAX_ENTRIES", 1)
    monkeypatch.setattr("recorder.worker._CLEANING_S", 0.0)
    setup.writer = JournalWriter(setup.folder, "a", segment_bytes=1)
    append_conversation(setup.writer, 6)
    counts: list[int] = []
    worker = setup.start_worker()
    step = worker.step

    async def count() -> int:
        counts.append(len(segments(setup.folder)))
        return await step()

    monkeypatch.setattr(worker, "step", count)
    running = asyncio.create_task(worker.run())
    await until_async(lambda: not segments(setup.folder))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert counts[:6] == [6, 5, 4, 3, 2, 1]


async def test_state_file_and_heartbeat_of_a_running_recorder(setup: Setup) -> None:
    began = time.time()
    append_conversation(setup.writer, 2)
    worker = setup.start_worker()
    running = asyncio.create_task(worker.run())

    def is_written() -> bool:
        state = read_recorder_state(setup.folder)
        return state is not None and state["written"] == 2 and state["lag_turns"] == 0

    await until_async(is_written)
    state = read_recorder_state(setup.folder)
    assert state is not None
    assert set(state) == set(worker.state())
    assert (state["pid"], state["available"], state["last_error"]) == (os.getpid(), True, None)
    assert began <= state["started_at"] <= state["at"] <= time.time()

    async def latest_beat() -> Heartbeat | None:
        beat: Heartbeat | None = await setup.record.beat_of("recorder")
        return beat if beat is not None and beat.detail["written"] >= 2 else None

    beat = await until_async(latest_beat)  # it is written before the file, and may be a second older
    assert (beat.state, beat.pid) == ("running", os.getpid())
    assert set(beat.detail) == set(state)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
