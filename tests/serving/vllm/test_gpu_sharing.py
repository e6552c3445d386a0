"""Engine and trainer sharing one GPU through a real record, with an engine that checks that it is never used asleep."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

import pytest
import pytest_asyncio

from serving.protocol import Capabilities, Headers, ServedModel
from serving.vllm.gpu_sharing import DEVICE_PROCESS, LEASE_S, GpuSharingBackend
from store.errors import RecordUnavailable, UpstreamUnreachable
from store.record import Record
from store.values import GpuLease, GpuRole, Heartbeat
from tests.waiting import until_async
from trainer.device import SharedDevice


class ScriptedReply:
    status = 200
    headers: Headers = ()

    def __init__(self, engine: ScriptedBackend) -> None:
        self._engine = engine
        engine.in_flight += 1

    async def chunks(self) -> AsyncIterator[bytes]:
        yield b"done"

    async def read(self) -> bytes:
        return b"done"

    def close(self) -> None:
        self._engine.in_flight -= 1


class ScriptedBackend:
    """An engine with the rules of a GPU: no request while it sleeps, and the trainer runs only then."""

    address = "scripted"

    def __init__(self) -> None:
        self.is_asleep = False
        self.is_dead = False
        self.refuses_to_sleep = False
        self.is_training = False
        self.in_flight = 0
        self.commands: list[str] = []

    def _require_awake(self) -> None:
        if self.is_dead:
            raise UpstreamUnreachable("no server answers at scripted")
        assert not self.is_asleep
        assert not self.is_training

    async def sleep(self) -> None:
        if self.is_dead or self.refuses_to_sleep:
            raise UpstreamUnreachable("no server answers at scripted")
        assert not self.in_flight
        self.is_asleep = True
        self.commands.append("sleep")

    async def wake_up(self) -> None:
        if self.is_dead:
            raise UpstreamUnreachable("no server answers at scripted")
        assert not self.is_training
        self.is_asleep = False
        self.commands.append("wake")

    async def open(self, method: str, path: str, headers: Headers, body: Any) -> ScriptedReply:
        self._require_awake()
        return ScriptedReply(self)

    async def capabilities(self) -> Capabilities:
        self._require_awake()
        return Capabilities(token_ids=True, logprobs=True, adapters=True)

    async def models(self) -> tuple[ServedModel, ...]:
        if self.is_dead:
            raise UpstreamUnreachable("no server answers at scripted")
        return (ServedModel(name="m"),)

    async def load_adapter(self, name: str, path: str) -> str:
        self._require_awake()
        self.commands.append(f"load {name}")
        return ""

    async def unload_adapter(self, name: str) -> None:
        self._require_awake()
        self.commands.append(f"unload {name}")

    async def is_healthy(self) -> bool:
        return not self.is_dead

    async def activity(self) -> Mapping[str, Any]:
        return {"running": self.in_flight}

    async def close(self) -> None: ...


@pytest.fixture
def scripted() -> ScriptedBackend:
    return ScriptedBackend()


@pytest_asyncio.fixture
async def engine(scripted: ScriptedBackend, record: Record) -> AsyncIterator[GpuSharingBackend]:
    made = GpuSharingBackend(scripted, max_hold_s=0.3)
    running = asyncio.create_task(made.run(lambda: record))
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def ask(engine: GpuSharingBackend) -> bytes:
    reply = await engine.open("POST", "/v1/chat/completions", (), b"{}")
    try:
        return await reply.read()
    finally:
        reply.close()


class Trainer:
    """A trainer that passes step boundaries until it is stopped."""

    def __init__(self, record: Record, scripted: ScriptedBackend) -> None:
        self._scripted = scripted
        self.device = SharedDevice(record)
        self.device.enter, self.device.leave = self._enter, self._end_request
        self.done = threading.Event()
        self.boundaries = 0

    def _enter(self) -> None:
        assert self._scripted.is_asleep
        self._scripted.is_training = True

    def _end_request(self) -> None:
        self._scripted.is_training = False  # from here on another process may hold the device

    def _work(self) -> None:
        while not self.done.is_set():
            self.device.boundary()
            assert self._scripted.is_training
            self.boundaries += 1
            time.sleep(0.005)

    async def attempt(self) -> None:
        async with self.device.lease():
            await asyncio.to_thread(self._work)


async def test_a_step_has_the_device_and_a_request_that_waits_too_long_is_let_through(
    engine: GpuSharingBackend, scripted: ScriptedBackend, record: Record
) -> None:
    assert await ask(engine) == b"done"
    before = engine.state()["held_requests"]  # it may have waited for the start
    trainer = Trainer(record, scripted)
    attempt = asyncio.create_task(trainer.attempt())
    await until_async(lambda: trainer.boundaries)
    assert await ask(engine) == b"done"  # the step is not over: it stopped for this one
    await until_async(lambda: scripted.is_training)  # and goes on
    trainer.done.set()
    await attempt
    await until_async(lambda: engine.state()["phase"] == "serving")
    state = engine.state()
    assert (state["holder"], state["leases"], state["yields"]) == ("engine", 2, 1)
    assert (state["held_requests"] - before, state["held_now"]) == (1, 0)
    assert state["longest_s"] >= 0.3
    assert trainer.device.state()["device_yields"] == 1
    heartbeat = await record.beat_of(DEVICE_PROCESS)
    assert heartbeat is not None
    assert heartbeat.detail["held_requests"] == before + 1
    assert scripted.commands == ["wake", "sleep", "wake", "sleep", "wake"]


async def test_many_clients_and_alternating_steps_lose_no_request(
    engine: GpuSharingBackend, scripted: ScriptedBackend, record: Record
) -> None:
    """`ScriptedBackend` asserts throughout that the device has one user."""
    trainer = Trainer(record, scripted)
    answers = 0

    async def client(number: int) -> None:
        nonlocal answers
        for i in range(6):
            reply = await engine.open("POST", "/v1/chat/completions", (), b"{}")
            await asyncio.sleep(0.01 * ((number + i) % 5))
            reply.close()
            answers += 1

    def passed(count: int) -> bool:
        return trainer.boundaries >= count

    async def steps() -> None:
        for _ in range(2):
            trainer.done.clear()
            attempt = asyncio.create_task(trainer.attempt())
            enough = trainer.boundaries + 10
            await until_async(partial(passed, enough))
            trainer.done.set()
            await attempt

    await asyncio.gather(steps(), *(client(i) for i in range(12)))
    assert answers == 72
    assert scripted.in_flight == 0


async def test_an_adapter_is_loaded_when_the_engine_is_awake(
    engine: GpuSharingBackend, scripted: ScriptedBackend, record: Record
) -> None:
    trainer = Trainer(record, scripted)
    attempt = asyncio.create_task(trainer.attempt())
    await until_async(lambda: trainer.boundaries)
    await engine.load_adapter("m@1", "/somewhere")  # a person rolls back in the middle of a step
    await engine.unload_adapter("m@1")
    assert "load m@1" in scripted.commands
    trainer.done.set()
    await attempt


async def test_a_client_that_leaves_while_it_is_held_is_forgotten(
    engine: GpuSharingBackend, scripted: ScriptedBackend, record: Record
) -> None:
    trainer = Trainer(record, scripted)
    attempt = asyncio.create_task(trainer.attempt())
    await until_async(lambda: trainer.boundaries)
    wait_statistics = asyncio.create_task(ask(engine))
    await until_async(lambda: engine.state()["held_now"])
    wait_statistics.cancel()
    await asyncio.gather(wait_statistics, return_exceptions=True)
    assert engine.state()["held_now"] == 0
    trainer.done.set()
    await attempt
    assert await ask(engine) == b"done"


async def request_lease(record: Record, pid: int, lease: str | None, *, age_s: float = 0.0) -> None:
    await record.write_gpu_lease(GpuLease(role=GpuRole.TRAINER, pid=pid, lease=lease, at=time.time() - age_s))


async def test_a_trainer_that_is_killed_under_a_lease_releases_the_device(
    engine: GpuSharingBackend, scripted: ScriptedBackend, record: Record
) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(600)")
    try:
        await request_lease(record, process.pid, "t1")
        await until_async(lambda: engine.state()["holder"] == "trainer")
        assert scripted.is_asleep
    finally:
        process.kill()
        await process.wait()
    assert await ask(engine) == b"done"  # the dead trainer writes no more heartbeats
    assert not scripted.is_asleep


async def test_a_lease_that_ran_out_gives_the_device_back(
    engine: GpuSharingBackend, scripted: ScriptedBackend, record: Record
) -> None:
    await request_lease(record, os.getpid(), "t1")
    await until_async(lambda: engine.state()["holder"] == "trainer")
    await request_lease(record, os.getpid(), "t1", age_s=LEASE_S + 1)
    assert await ask(engine) == b"done"


async def test_a_proxy_that_is_started_in_the_middle_of_a_step_continues_the_lease(
    scripted: ScriptedBackend, record: Record
) -> None:
    backends = [GpuSharingBackend(scripted, max_hold_s=0.2) for _ in range(2)]
    first = asyncio.create_task(backends[0].run(lambda: record))
    trainer = Trainer(record, scripted)
    attempt = asyncio.create_task(trainer.attempt())
    await until_async(lambda: trainer.boundaries)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    second = asyncio.create_task(backends[1].run(lambda: record))
    await until_async(lambda: backends[1].state()["holder"] == "trainer")
    assert (
        scripted.commands.count("wake") == 1
    )  # from the first run; no wake-up while the trainer held the device
    assert await ask(backends[1]) == b"done"
    trainer.done.set()
    await attempt
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)


async def test_a_proxy_that_finds_no_step_wakes_an_engine_that_was_left_asleep(
    scripted: ScriptedBackend, record: Record
) -> None:
    scripted.is_asleep = True
    engine = GpuSharingBackend(scripted, max_hold_s=0.2)
    running = asyncio.create_task(engine.run(lambda: record))
    assert await ask(engine) == b"done"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_an_engine_that_dies_asleep_gets_the_device_back_at_the_next_boundary(
    engine: GpuSharingBackend, scripted: ScriptedBackend, record: Record
) -> None:
    trainer = Trainer(record, scripted)
    attempt = asyncio.create_task(trainer.attempt())
    await until_async(lambda: trainer.boundaries)
    scripted.is_dead = True
    await until_async(lambda: engine.state()["yields"] == 1)
    await until_async(lambda: not scripted.is_training)  # no request waits; it stops all the same
    assert "died" in engine.state()["problem"] or "woken" in engine.state()["problem"]
    wait_statistics = asyncio.create_task(ask(engine))
    scripted.is_dead, scripted.is_asleep = False, False  # another one is there
    assert await wait_statistics == b"done"
    await until_async(lambda: scripted.is_training)
    trainer.done.set()
    await attempt
    assert "problem" not in engine.state()


async def test_an_engine_that_cannot_sleep_is_reported_and_keeps_serving(
    engine: GpuSharingBackend, scripted: ScriptedBackend, record: Record
) -> None:
    scripted.refuses_to_sleep = True
    trainer = Trainer(record, scripted)
    attempt = asyncio.create_task(trainer.attempt())
    await until_async(lambda: "did not fall asleep" in str(engine.state().get("problem")))
    assert await ask(engine) == b"done"
    assert trainer.boundaries == 0
    scripted.refuses_to_sleep = False
    await until_async(lambda: trainer.boundaries)
    trainer.done.set()
    await attempt


async def test_an_unavailable_record_changes_no_lease(scripted: ScriptedBackend, record: Record) -> None:
    class UnreliableRecord:
        is_away = False

        async def gpu_lease(self, role: GpuRole) -> GpuLease | None:
            if self.is_away:
                raise RecordUnavailable("locked")
            return await record.gpu_lease(role)

        async def write_gpu_lease(self, lease: GpuLease) -> None:
            if self.is_away:
                raise RecordUnavailable("locked")
            await record.write_gpu_lease(lease)

        async def heartbeat(self, beat: Heartbeat) -> None:
            if self.is_away:
                raise RecordUnavailable("locked")
            await record.heartbeat(beat)

    unreliable: Any = UnreliableRecord()
    engine = GpuSharingBackend(scripted, max_hold_s=5.0)
    running = asyncio.create_task(engine.run(lambda: unreliable))
    trainer = Trainer(unreliable, scripted)
    attempt = asyncio.create_task(trainer.attempt())
    await until_async(lambda: trainer.boundaries)
    unreliable.is_away = True
    before = trainer.boundaries
    await until_async(lambda: trainer.boundaries > before + 20)
    assert scripted.is_asleep
    trainer.done.set()
    await asyncio.sleep(0.1)
    unreliable.is_away = False
    await attempt
    assert await ask(engine) == b"done"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
