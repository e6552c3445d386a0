"""The recorder's pauses: only where entries come fast, the cores are in use, none has waited for long, and no reader waits."""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path

import pytest

from recorder import pacing
from recorder.journal_reader import MAX_ENTRIES
from recorder.pacing import pause_s, waited_for_a_core_s
from recorder.worker import RecorderWorker
from store.catch_up import wait_recorded
from store.journal import JournalWriter
from store.record import Record
from tests.recorder.test_worker import append_conversation

USUAL = 0.02


def pause(*, entries: int = 20, age: float = 0.1, ran: float = 0.01, waited: float = 0.005) -> float:
    return pause_s(entries, age_s=age, ran_s=ran, waited_s=waited, used_s=ran)


def test_on_a_busy_machine_the_recorder_takes_a_tenth_of_a_core() -> None:
    assert pause(ran=0.01) == pytest.approx(0.09)


def test_a_pause_is_bounded_by_itself_and_by_what_an_entry_may_wait() -> None:
    assert pause(ran=4.0, waited=4.0) == 0.5
    assert pause(ran=4.0, waited=4.0, age=1.4) == pytest.approx(0.1)
    assert pause(ran=0.0001, waited=0.0001) == USUAL


@pytest.mark.parametrize(
    "batch",
    [
        {"ran": 0.1, "waited": 0.004},  # there are free cores
        {"waited": 0.0},  # the kernel does not count
        {"entries": 7},  # a few turns a second: the model needs the cores
        {"age": 1.6},  # the bound of what it may be behind
        {"age": 1e9},  # entries of a recorder that died
    ],
)
def test_otherwise_it_reads_on_as_usual(batch: dict[str, float]) -> None:
    assert pause(**batch) == USUAL  # type: ignore[arg-type]  # a dict of keyword arguments


def test_a_full_batch_is_followed_by_the_next_at_once_unless_it_pauses() -> None:
    assert pause(entries=MAX_ENTRIES, waited=0.0) == 0.0
    assert pause(entries=MAX_ENTRIES, age=60.0) == 0.0
    assert pause(entries=MAX_ENTRIES, ran=4.0, waited=4.0) == 0.5


def test_a_kernel_that_does_not_count_has_no_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert waited_for_a_core_s() >= 0.0
    monkeypatch.setattr(pacing, "_SCHEDULING", tmp_path / "schedstat")
    assert waited_for_a_core_s() == 0.0
    (tmp_path / "schedstat").write_text("1000 2500000000 7\n")
    assert waited_for_a_core_s() == 2.5


@pytest.fixture
def always_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch waited for a core, and the recorder pauses for a minute."""
    waited = itertools.count()
    monkeypatch.setattr(pacing, "waited_for_a_core_s", lambda: float(next(waited)))
    monkeypatch.setattr(pacing, "_MAX_DEFERRAL_S", 60.0)
    monkeypatch.setattr(pacing, "_MAX_PAUSE_S", 60.0)
    monkeypatch.setattr(pacing, "_PAUSE_FACTOR", 1e6)


@pytest.mark.usefixtures("always_busy")
async def test_a_pause_ends_for_whoever_waits_and_when_the_recorder_stops(
    tmp_path: Path, record_url: str
) -> None:
    folder = tmp_path / "journal"
    writer = JournalWriter(folder, "a")
    worker = RecorderWorker(folder, lambda: Record.open(record_url))
    append_conversation(writer, 20)
    running = asyncio.create_task(worker.run())
    record = await Record.open(record_url)
    while True:
        await asyncio.sleep(USUAL)
        if not worker.state()["lag_turns"]:
            break
    append_conversation(writer, 1)
    await asyncio.sleep(10 * USUAL)
    assert worker.state()["lag_turns"] == 1  # it pauses
    assert (await wait_recorded(record, folder, 30.0)).entries == 0
    append_conversation(writer, 20)
    await wait_recorded(record, folder, 30.0)
    append_conversation(writer, 1)
    began = time.monotonic()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await worker.stop(5.0)
    assert time.monotonic() - began < 30.0
    assert worker.state()["lag_turns"] == 0
    await writer.close()
    await record.close()
