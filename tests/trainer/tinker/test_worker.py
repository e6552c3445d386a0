"""The worker with its weights on a Tinker server: published, rolled back, and whatever is killed meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from serving.tinker.version import read_version
from store.errors import UpstreamError
from store.lifecycle import Stage
from store.record import Record
from store.settings import REPOSITORY, Settings, child_environment
from tests import waiting
from tests.tinker.running import TinkerServer
from tests.trainer.gates import open_the_gate, quick_calibration
from tests.trainer.tinker.conftest import settings_of
from tests.trainer.turns import as_recorded, sampled_turn
from trainer.policy import LocalPolicy
from trainer.tinker.version_trainer import TinkerVersionTrainer
from trainer.worker import MAX_FAILURES, TrainerWorker

pytestmark = pytest.mark.slow

POLICY = "patina-tiny"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.version_trainer.calibrate", quick_calibration)


@pytest.fixture
def own_server(tiny_model: Path, tmp_path: Path) -> Iterator[TinkerServer]:
    """One to kill."""
    made = TinkerServer(tiny_model, tmp_path, more=["--logprobs", "raw"])
    yield made.start()
    made.stop()


@pytest.fixture
def speaker(tiny_model: Path) -> LocalPolicy:
    """Completes with the served policy's greedy reply."""
    return LocalPolicy(str(tiny_model), rank=4, seed=3, device="cpu", learning_rate=1e-4)


class Bench:
    """A worker that runs its loop body once for each call."""

    def __init__(self, record: Record, settings: Settings, speaker: LocalPolicy) -> None:
        self.record, self.speaker = record, speaker
        self.worker = TrainerWorker(record, settings)
        self.trainer = TinkerVersionTrainer(settings)
        open_the_gate(self.trainer)  # random weights know no facts
        self.worker._trainer = self.trainer

    async def add(self, *turn_ids: str) -> None:
        await add(self.record, self.speaker, *turn_ids)

    async def stages(self, *turn_ids: str) -> list[Stage]:
        fates = await self.record.fates(turn_ids)
        return [fates[turn_id].stage for turn_id in turn_ids]


async def add(record: Record, speaker: LocalPolicy, *turn_ids: str) -> None:
    for turn_id in turn_ids:
        turn = sampled_turn(speaker, turn_id, f"Question {turn_id}?", verdict={"value": -1, "hint": None})
        await record.write_turns(as_recorded(turn))
        await record.add_verdict(turn.verdict)


def settings(server: TinkerServer, home: Path) -> Settings:
    # The verdicts are from long ago: without a longer patience one of them alone would be due for training at once.
    return settings_of(
        server, home, method="rl", anchors=0, batch_size=2, lora_rank=4, learning_rate=1e-3,
        max_wait_s=1e12, passes=1,
    )  # fmt: skip


@asynccontextmanager
async def working(
    record: Record, server: TinkerServer, speaker: LocalPolicy, home: Path
) -> AsyncIterator[Bench]:
    made = await asyncio.to_thread(lambda: Bench(record, settings(server, home), speaker))
    yield made
    await asyncio.to_thread(made.trainer.close)
    made.worker._thread.shutdown()


@pytest_asyncio.fixture
async def bench(
    record: Record, server: TinkerServer, speaker: LocalPolicy, tmp_path: Path
) -> AsyncIterator[Bench]:
    async with working(record, server, speaker, tmp_path / "home") as made:
        yield made


@pytest_asyncio.fixture
async def own_bench(
    record: Record, own_server: TinkerServer, speaker: LocalPolicy, tmp_path: Path
) -> AsyncIterator[Bench]:
    async with working(record, own_server, speaker, tmp_path / "home") as made:
        yield made


async def test_feedback_becomes_a_version_and_training_follows_a_rollback(bench: Bench) -> None:
    await bench.add("a", "b")
    assert await bench.worker.work_once()
    assert await bench.stages("a", "b") == [Stage.TRAINED, Stage.TRAINED]
    (first,) = await bench.record.adapters(POLICY)
    assert first.metrics["tinker"]["sampler_path"] == read_version(Path(first.path)).sampler_path
    assert (await bench.record.aliases())[POLICY].version == 1
    await bench.add("c", "d")
    await bench.worker.work_once()
    await bench.record.rollback(POLICY, 1)
    await bench.add("e", "f")
    await bench.worker.work_once()
    third = await bench.record.adapter(POLICY, 3)
    assert third is not None
    assert third.parent_version == 1
    assert await bench.record.verify() == []


async def test_a_server_that_is_away_takes_no_turn_and_drops_none(
    own_bench: Bench, own_server: TinkerServer
) -> None:
    await own_bench.add("a", "b")
    own_server.kill()
    for _ in range(MAX_FAILURES + 1):
        with pytest.raises(UpstreamError, match="no Tinker server answers at"):
            await own_bench.worker.work_once()
    assert await own_bench.stages("a", "b") == [Stage.SCORED, Stage.SCORED]
    own_server.start()
    assert await own_bench.worker.work_once()
    assert await own_bench.stages("a", "b") == [Stage.TRAINED, Stage.TRAINED]


async def test_a_server_that_dies_in_the_middle_of_a_step_costs_the_step_and_nothing_else(
    own_bench: Bench, own_server: TinkerServer
) -> None:
    await own_bench.add("a", "b")
    assert await own_bench.worker.work_once()
    await own_bench.add("c", "d")
    training = own_bench.trainer.policy.training()
    optim_step = training.optim_step
    restarted = threading.Event()

    def back() -> None:
        own_server.start()
        restarted.set()

    def dies(*given: Any, **named: Any) -> Any:
        own_server.kill()
        threading.Thread(target=back).start()
        return optim_step(*given, **named)

    training.optim_step = dies
    with pytest.raises(UpstreamError, match="Tinker server"):
        await own_bench.worker.work_once()
    assert await asyncio.to_thread(restarted.wait, 120)
    assert (await own_bench.record.aliases())[POLICY].version == 1
    assert await own_bench.stages("c", "d") == [Stage.SCORED, Stage.SCORED]
    (newest, *_) = await own_bench.record.steps(POLICY)
    assert newest.error is not None
    assert "Tinker server" in newest.error
    assert await own_bench.worker.work_once()
    assert await own_bench.stages("c", "d") == [Stage.TRAINED, Stage.TRAINED]
    second = await own_bench.record.adapter(POLICY, 2)
    assert second is not None
    assert second.parent_version == 1
    assert second.metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-4)


# -- the trainer's own process


until = partial(waiting.until, seconds=240)  # the engine starts on a crowded machine as well


def one(home: Path, question: str) -> Any:
    with sqlite3.connect(home / "patina.db") as connection:
        found = connection.execute(question).fetchone()
    return found and found[0]


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_a_trainer_that_is_killed_in_the_middle_of_a_step_trains_no_turn_twice(
    own_server: TinkerServer, speaker: LocalPolicy, tmp_path: Path
) -> None:
    """Its lease is let run out by hand: two minutes are long in a test."""
    from migrations import upgrade

    home = tmp_path / "home"
    home.mkdir()
    given = settings(own_server, home)
    upgrade(given.database_url)
    given.dump(home / "settings.json")
    record = await Record.open(given.database_url)
    command = [sys.executable, "-m", "tests.trainer.gates", "--settings", str(home / "settings.json")]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, cwd=REPOSITORY, env=child_environment(OMP_NUM_THREADS="1"))

    own_server.kill()
    process = start()
    try:
        query = "SELECT detail FROM heartbeats WHERE process = 'trainer'"
        until(lambda: "no Tinker server answers at" in (one(home, query) or ""), "the trainer saying so")
        own_server.start()
        until(lambda: one(home, "SELECT state FROM heartbeats") == "waiting", "the trainer being ready")
        await add(record, speaker, "a", "b")
        claimed = "SELECT count(*) FROM turn_states WHERE stage = 'claimed'"
        until(lambda: one(home, claimed) == 2, "the claim")
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        assert one(home, "SELECT count(*) FROM adapters") == 0
        assert await record.release_expired(now=time.time() + 10_000) == 2
        process = start()
        published = "SELECT count(*) FROM adapters WHERE state = 'published'"
        until(lambda: one(home, published) == 1, "the step's end", seconds=800)
        assert one(home, "SELECT count(*) FROM turn_states WHERE stage = 'trained'") == 2
        assert one(home, "SELECT count(*) FROM adapters") == 1
        assert not [path for path in (home / "adapters").iterdir() if path.name.startswith(".writing-")]
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGTERM)
            process.wait(60)
        await record.close()
