"""Reading commands see what was journalled when they began, as far as a recorder runs."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path

import orjson
import pytest

from cli import opened_record
from cli.main import main
from cli.opened_record import open_record
from migrations import upgrade
from recorder.worker import RecorderWorker
from store.catch_up import is_recorder_silent, read_recorder_state, wait_recorded
from store.errors import RecordError
from store.heartbeats import SILENT_S
from store.journal import STATE_FILE, EntryKind, JournalWriter, measure_lag
from store.record import Record
from store.settings import Settings, read_settings
from store.values import Feedback
from tests.recorder.exchanges import make_captured, make_conversation, parents_of
from wire.captured_exchange import dump_exchange


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    found = read_settings({"home": tmp_path})
    upgrade(found.database_url)
    return found


@pytest.fixture
async def writer(settings: Settings) -> AsyncIterator[JournalWriter]:
    made = JournalWriter(settings.journal_folder, "a")
    for i, messages in enumerate(make_conversation(3)):
        payload = dump_exchange(make_captured(str(i), messages, f"answer {i}"), None)
        assert made.append(EntryKind.EXCHANGE, payload) is None
    yield made
    await made.close()


def make_worker(settings: Settings) -> RecorderWorker:
    return RecorderWorker(settings.journal_folder, lambda: Record.open(settings.database_url))


def write_state(settings: Settings, at: float) -> None:
    (settings.journal_folder / STATE_FILE).write_bytes(orjson.dumps({"at": at}))


async def test_a_command_waits_for_what_was_journalled_when_it_began(
    settings: Settings, writer: JournalWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    write_state(settings, time.time() + 60.0)
    reading = asyncio.create_task(read_turns(settings))
    await asyncio.sleep(0.1)
    assert not reading.done()
    worker = make_worker(settings)
    assert await worker.step()
    assert await asyncio.wait_for(reading, 60) == ["turn_0", "turn_1", "turn_2"]
    assert capsys.readouterr().err == ""
    await worker.stop(5.0)


async def read_turns(settings: Settings, *, waits: bool = True) -> list[str]:
    async with open_record(settings, waits=waits) as record:
        return list(await parents_of(record))


async def test_a_command_does_not_wait_for_what_is_journalled_later(
    settings: Settings, writer: JournalWriter
) -> None:
    write_state(settings, time.time() + 60.0)
    worker = make_worker(settings)
    record = await Record.open(settings.database_url)
    waiting = asyncio.create_task(wait_recorded(record, settings.journal_folder, 600.0))
    await asyncio.sleep(0)  # it has read how long the journal is
    assert await worker.step()
    given = Feedback(
        feedback_id="f", turn_id="turn_0", score=1.0, text="", idempotency_key="f", created_at=1.0
    )
    writer.append(EntryKind.FEEDBACK, orjson.dumps(asdict(given)))
    lag = await asyncio.wait_for(waiting, 60)
    assert lag.entries == 0  # what came later does not count
    await record.close()
    await worker.stop(5.0)


async def test_with_no_wait_what_is_not_recorded_is_reported(
    settings: Settings,
    writer: JournalWriter,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_state(settings, time.time() + 60.0)
    monkeypatch.setattr(opened_record, "_RECORDED_WAIT_S", 600.0)
    assert await asyncio.wait_for(read_turns(settings, waits=False), 60) == []
    assert re.search(r"not recorded yet: 3 turns, the oldest for \d+ s", capsys.readouterr().err)


@pytest.mark.parametrize("age_s", [None, SILENT_S + 1.0], ids=["never ran", "ended"])
async def test_where_no_recorder_runs_a_command_does_not_wait(
    settings: Settings,
    writer: JournalWriter,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    age_s: float | None,
) -> None:
    if age_s is not None:
        write_state(settings, time.time() - age_s)
    monkeypatch.setattr(opened_record, "_RECORDED_WAIT_S", 600.0)
    assert await asyncio.wait_for(read_turns(settings), 60) == []
    assert "not recorded yet: 3 turns" in capsys.readouterr().err


async def test_a_recorder_that_cannot_record_is_waited_for_so_long_and_no_longer(
    settings: Settings,
    writer: JournalWriter,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_state(settings, time.time() + 60.0)
    monkeypatch.setattr(opened_record, "_RECORDED_WAIT_S", 0.2)
    began = time.monotonic()
    assert await read_turns(settings) == []
    assert time.monotonic() - began >= 0.2
    assert "not recorded yet: 3 turns" in capsys.readouterr().err


async def test_the_record_is_closed_when_its_journal_cannot_be_compared(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Record] = []

    async def fail(self: Record) -> dict[str, int]:
        opened.append(self)
        raise RecordError("no")

    monkeypatch.setattr(Record, "journal_offsets", fail)
    with pytest.raises(RecordError):
        await read_turns(settings)
    assert len(opened) == 1
    with pytest.raises(ValueError, match="closed"):
        await opened[0].sync()


def test_the_option_no_wait_reads_at_once(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fill() -> None:
        writer = JournalWriter(settings.journal_folder, "a")
        writer.append(EntryKind.EXCHANGE, b"x")
        await writer.close()

    asyncio.run(fill())
    write_state(settings, time.time() + 60.0)
    monkeypatch.setattr(opened_record, "_RECORDED_WAIT_S", 3600.0)  # beyond the time limit of a test
    assert main(["explain", "last", "--no-wait", "--home", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "not recorded yet: 1 turn," in error
    assert measure_lag(settings.journal_folder, {}).entries == 1


@pytest.mark.parametrize("content", [None, b"", b"[]", b"{"])
def test_a_state_that_cannot_be_read_is_that_of_no_recorder(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / STATE_FILE).write_bytes(content)
    assert read_recorder_state(tmp_path) is None
    assert is_recorder_silent(None)
    assert is_recorder_silent({})
    assert not is_recorder_silent({"at": time.time()})
