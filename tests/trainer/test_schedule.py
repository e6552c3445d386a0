"""The trainer keeps to its schedule, trains at once what a person asks for, and lets requests interrupt a step in idle mode."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from store.lifecycle import Stage
from store.record import Record
from store.settings import Settings
from store.values import Heartbeat, TurnKind
from store.version import COMMAND
from tests.making import make_turn
from tests.trainer.gates import open_the_gate
from tests.trainer.test_worker import Bench, settings_of
from tests.waiting import until
from trainer.device import ExclusiveDevice, IdleDevice, make_device

DAY_S = 86_400.0


@pytest.fixture
def settings(tiny_model: Path, tmp_path: Path) -> Settings:
    return settings_of(tiny_model, tmp_path / "home", train_when="manual")


async def holds(condition: Callable[[], Any]) -> None:
    await asyncio.to_thread(until, condition, "the device's state", 60)


async def beat(record: Record, in_flight: int, at: float | None = None) -> None:
    detail = {"in_flight": in_flight}
    now = time.time() if at is None else at
    await record.heartbeat(Heartbeat(process="proxy", pid=1, state="running", detail=detail, at=now))


async def test_in_manual_mode_nothing_is_trained_until_a_person_asks(
    record: Record, settings: Settings
) -> None:
    bench = Bench(record, settings)
    open_the_gate(bench.trainer)
    await bench.add("a", "b", "c")
    assert not await bench.worker.work_once()
    assert bench.worker._state == f"waiting for `{COMMAND} train --now`"
    await record.ask_to_train()
    assert await bench.worker.work_once()
    assert await bench.worker.work_once()  # the third, although it is no whole batch
    assert await bench.stages("a", "b", "c") == [Stage.TRAINED] * 3
    await record.ask_to_train(now=1_000.0)  # before the next turns are scored
    await bench.add("d", "e")
    assert not await bench.worker.work_once()
    bench.worker._thread.shutdown()


async def test_in_idle_mode_a_request_in_flight_or_lately_keeps_a_step_from_beginning(
    record: Record, settings: Settings
) -> None:
    bench = Bench(record, settings.model_copy(update={"train_when": "idle", "idle_minutes": 10.0}))
    open_the_gate(bench.trainer)
    await bench.add("a", "b")
    await beat(record, 1)
    assert not await bench.worker.work_once()
    assert bench.worker._state == "waiting until no request came for 10 min"
    await beat(record, 0)
    await record.write_turns([make_turn("new", created_at=time.time() - 60.0, session_id="other")])
    assert not await bench.worker.work_once()
    due = bench.worker._due
    due._settings = due._settings.model_copy(update={"idle_minutes": 0.5})
    assert await bench.worker.work_once()
    bench.worker._thread.shutdown()


async def test_activity_ignores_side_turns_and_heartbeats_of_gateways_that_are_gone(record: Record) -> None:
    await record.write_turns(
        [
            make_turn("main", created_at=1_000.0),
            make_turn("side", created_at=2_000.0, kind=TurnKind.SIDE, session_id="other"),
        ]
    )
    await beat(record, 3, at=time.time() - 60.0)
    found = await record.activity()
    assert (found.in_flight, found.newest_main_at, found.asked_at) == (0, 1_000.0, 0.0)
    assert found.quiet_s(1_010.0) == 10.0


async def test_a_request_interrupts_a_step_at_its_boundary_until_requests_end(record: Record) -> None:
    device = IdleDevice(record, quiet_s=1.0, poll_s=0.01)
    passed = threading.Event()

    def pass_boundary() -> None:
        device.boundary()
        passed.set()

    async with device.lease():
        device.boundary()  # no request is in flight: the step goes on
        await beat(record, 1)
        await holds(lambda: device.state()["is_interrupted"])
        thread = threading.Thread(target=pass_boundary)
        thread.start()
        await holds(lambda: device.state()["interruptions"])
        assert not passed.is_set()
        await beat(record, 0)
        assert await asyncio.to_thread(passed.wait, 30)
        thread.join()
    assert device.state()["interrupted_s"] > 0


async def test_a_step_that_a_person_asked_for_is_not_interrupted(record: Record) -> None:
    device = IdleDevice(record, quiet_s=DAY_S, poll_s=0.01)
    async with device.lease():
        await beat(record, 1)
        await holds(lambda: device.state()["is_interrupted"])
        await record.ask_to_train()
        await holds(lambda: not device.state()["is_interrupted"])


def test_only_idle_mode_watches_requests(record: Record, settings: Settings) -> None:
    assert type(make_device(settings, record)) is ExclusiveDevice
    assert type(make_device(settings.model_copy(update={"train_when": "idle"}), record)) is IdleDevice
