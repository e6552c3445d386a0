"""The trainer at rest: a process without weights that starts the one with them, dies with its signal and takes it along."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from migrations import upgrade
from store.processes import is_alive
from store.record import Record
from store.settings import Settings
from store.training_plan import read_plan, write_plan
from store.values import Heartbeat
from tests.making import make_answer, make_turn, make_verdict
from tests.trainer.test_worker import Bench, settings_of
from tests.trainer.turns import as_recorded, sampled_turn
from tests.waiting import until_async
from trainer.due import DueFinder, Rebuild
from trainer.watcher import Watcher
from trainer.worker import TrainerWorker


@pytest.fixture
def settings(tiny_model: Path, tmp_path: Path) -> Settings:
    made = settings_of(tiny_model, tmp_path / "home", threads=1)
    made.home.mkdir()
    upgrade(made.database_url)
    made.dump(made.home / "settings.json")
    return made


@pytest_asyncio.fixture
async def own(settings: Settings) -> AsyncIterator[Record]:
    """The record of the home that the processes use."""
    record = await Record.open(settings.database_url)
    yield record
    await record.close()


@contextmanager
def trainer_process(settings: Settings) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "trainer", "--settings", str(settings.home / "settings.json")]
    process = subprocess.Popen(command)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def has_torch(pid: int) -> bool:
    return "libtorch" in Path(f"/proc/{pid}/maps").read_text()


async def beat_of(record: Record) -> Heartbeat | None:
    return await record.beat_of("trainer")


async def test_at_rest_it_has_no_torch_and_with_work_it_starts_the_process_with_the_weights(
    settings: Settings, own: Record
) -> None:
    bench = Bench(own, settings)
    write_plan(settings.home, bench.trainer.cost)  # this model is measured
    turns = [sampled_turn(bench.trainer._policy, name, f"Question {name}?") for name in "ab"]
    bench.worker._thread.shutdown()
    with trainer_process(settings) as process:

        async def rests() -> bool:
            beat = await beat_of(own)
            return beat is not None and (beat.pid, beat.state) == (process.pid, "waiting")

        await until_async(rests, seconds=60)
        beat = await beat_of(own)
        assert beat is not None
        assert beat.detail["notes"][0].startswith("A version takes about ")
        assert not has_torch(process.pid)
        for turn in turns:
            await own.write_turns(as_recorded(turn))
            await own.add_verdict(turn.verdict)

        async def trained() -> bool:
            beat = await beat_of(own)
            return beat is not None and beat.pid != process.pid and beat.detail["steps"] > 0

        await until_async(trained, seconds=120)
        beat = await beat_of(own)
        assert beat is not None
        assert has_torch(beat.pid)
        plan = read_plan(settings.home)
        assert plan is not None
        assert set(plan.ratios) == {"teach", "step", "gate"}
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
        await until_async(lambda: not is_alive(beat.pid), seconds=60)


async def test_it_ends_by_the_signal_that_ended_the_process_with_the_weights(
    settings: Settings, own: Record
) -> None:
    with trainer_process(settings) as process:  # nothing is measured yet: it starts one at once
        await until_async(lambda: children_of(process.pid), seconds=60)
        os.kill(children_of(process.pid)[0], signal.SIGKILL)
        assert await asyncio.to_thread(process.wait, 60) == -signal.SIGKILL


def children_of(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def test_a_measured_model_is_not_measured_again(settings: Settings, own: Record) -> None:
    watcher = Watcher(own, settings, settings.home / "settings.json")
    stop = asyncio.Event()
    assert await watcher._measure(stop) == 0
    plan = read_plan(settings.home)
    assert plan is not None
    assert min(plan.speed.values()) >= 0
    write_plan(settings.home, replace(plan, budget_s=1.0))
    assert await watcher._measure(stop) == 0
    assert read_plan(settings.home) == replace(plan, budget_s=1.0)


async def test_the_process_with_the_weights_ends_when_nothing_is_to_do_but_not_while_a_complaint_waits(
    record: Record, settings: Settings
) -> None:
    bench = Bench(record, settings)
    await bench.add("a")  # no whole batch: it waits
    bench.worker._due._settings = settings.model_copy(update={"max_wait_s": 1e12})
    worker = bench.worker
    worker._idle_s = 0.3
    stop = asyncio.Event()
    task = asyncio.create_task(worker.run(stop))
    await asyncio.sleep(3.0)
    assert not task.done()
    await record.claim(settings.policy, 1, worker="another", lease_s=60.0)
    await asyncio.wait_for(task, 60)


async def test_counters_go_on_in_the_next_process(record: Record, settings: Settings) -> None:
    earlier = {"steps": 5, "published": 3, "rejected": 2, "failed": 0, "dropped": {"stale": 4}, "pid": 1}
    worker = TrainerWorker(record, settings, earlier=earlier)
    shown = worker._counters.to_json()
    assert {name: shown[name] for name in ("steps", "published", "dropped")} == {
        "steps": 5,
        "published": 3,
        "dropped": {"stale": 4},
    }
    worker._thread.shutdown()


async def test_only_what_comes_due_by_time_is_looked_for_while_the_record_rests(
    record: Record, settings: Settings
) -> None:
    finder = DueFinder(record, settings)
    assert await finder.find(0) is None
    assert not finder.waits_for_time
    for turn_id, value in (("thanks", 1), ("complaint", -1)):
        answer = make_answer(turn_id, f"{turn_id}-next", "Well.")
        turns = [make_turn(turn_id, policy=settings.policy), make_turn(f"{turn_id}-next", next_state=answer)]
        for turn in turns:
            await record.write_turns([turn])
        await record.add_verdict(make_verdict(turn_id, value=value, created_at=time.time()))
        assert await finder.find(0) is None
        assert finder.waits_for_time is (value < 0)  # a complaint waits for others, but not for ever
    await record.set_paused(True)
    assert await finder.find(0) is None
    assert (finder.state, finder.waits_for_time) == ("paused", False)
    await record.set_paused(False)
    finder._settings = settings.model_copy(update={"batch_size": 1, "train_when": "manual"})
    assert await finder.find(0) is None
    assert "train --now" in finder.state
    assert finder.waits_for_time


async def test_attempts_without_new_turns_are_bounded_for_the_watcher_too(
    record: Record, settings: Settings
) -> None:
    finder = DueFinder(record, settings)
    finder.rebuilds["p"] = Rebuild(basis=(1, ()))
    assert finder.rebuilds["p"].may_begin()
    finder.rebuilds["p"].begin()
    assert not finder.rebuilds["p"].may_begin()  # until the pause is over
    assert finder.rebuilds["p"].after > time.monotonic() + 30.0
