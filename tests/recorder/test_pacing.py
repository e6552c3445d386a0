"""The recorder's pauses: only where entries come fast, the cores are in use, and none has waited for long."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from recorder import pacing
from recorder.journal_reader import MAX_ENTRIES
from recorder.pacing import Pacing

USUAL = 0.02


class Machine:
    """What the kernel says of the recorder's use of the cores."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.used = path, 0.0
        self.show(0, 0)
        monkeypatch.setattr(pacing, "_SCHEDULING", path)
        monkeypatch.setattr(time, "process_time", lambda: self.used)

    def show(self, ran_ms: int, waited_ms: int) -> None:
        self.path.write_text(f"{ran_ms * 1_000_000} {waited_ms * 1_000_000} 7\n")
        self.used = ran_ms / 1000


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path / "schedstat", monkeypatch)


def pause_after(
    machine: Machine, *, ran_ms: int, waited_ms: int, entries: int = 20, age_s: float = 0.1
) -> float:
    machine.show(1000, 1000)  # before this batch: does not count
    paced = Pacing()
    machine.show(1000 + ran_ms, 1000 + waited_ms)
    return paced.pause_s(entries, time.time() - age_s)


def test_on_a_busy_machine_the_recorder_takes_a_tenth_of_a_core(machine: Machine) -> None:
    assert pause_after(machine, ran_ms=10, waited_ms=5) == pytest.approx(0.09)


def test_a_pause_has_a_bound(machine: Machine) -> None:
    assert pause_after(machine, ran_ms=4000, waited_ms=4000) == 0.5
    assert pause_after(machine, ran_ms=1, waited_ms=1) == USUAL


@pytest.mark.parametrize(
    "batch",
    [
        {"ran_ms": 100, "waited_ms": 4},  # there are free cores
        {"ran_ms": 10, "waited_ms": 5, "entries": 7},  # a few turns a second: the model needs the cores
        {"ran_ms": 10, "waited_ms": 5, "age_s": 1.6},  # the bound of what it may be behind
    ],
)
def test_otherwise_it_reads_on_as_usual(machine: Machine, batch: dict[str, float]) -> None:
    assert pause_after(machine, **batch) == USUAL  # type: ignore[arg-type]  # a dict of keyword arguments


def test_a_full_batch_is_followed_by_the_next_at_once_unless_it_pauses(machine: Machine) -> None:
    assert pause_after(machine, ran_ms=100, waited_ms=1, entries=MAX_ENTRIES) == 0.0
    assert pause_after(machine, ran_ms=100, waited_ms=50, entries=MAX_ENTRIES, age_s=60.0) == 0.0
    assert pause_after(machine, ran_ms=100, waited_ms=50, entries=MAX_ENTRIES) == 0.5


def test_without_the_kernels_counts_it_never_pauses(machine: Machine) -> None:
    machine.path.unlink()
    paced = Pacing()
    machine.used = 1.0
    assert paced.pause_s(20, time.time()) == USUAL


@pytest.mark.skipif(not pacing._SCHEDULING.exists(), reason="this kernel counts no waits for a core")
def test_the_kernels_counts_have_the_form_that_is_read() -> None:
    """A busy loop shows up as time that the thread ran."""
    before = Pacing()._read()
    end = time.thread_time() + 0.02
    while time.thread_time() < end:
        pass
    assert Pacing()._read()[0] - before[0] > 0.01
