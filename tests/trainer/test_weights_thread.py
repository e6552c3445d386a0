"""The weights' thread yields its core to everything else, until the work gets too little."""

from __future__ import annotations

import os
import threading
import time
from itertools import pairwise

import pytest

from trainer import weights_thread
from trainer.weights_thread import WeightsThread, has_gpu_driver

pytestmark = pytest.mark.skipif(
    not hasattr(os, "SCHED_IDLE") or has_gpu_driver(), reason="Linux without a GPU alone has idle threads"
)


def policy_of(thread: int) -> int:
    return os.sched_getscheduler(thread)


async def test_work_and_the_threads_that_it_starts_run_on_idle_cores_and_the_main_thread_does_not() -> None:
    thread = WeightsThread()
    found: list[int] = []

    def work() -> int:
        child = threading.Thread(target=lambda: found.append(policy_of(0)))
        child.start()
        child.join()
        return policy_of(0)

    assert await thread.run(work) == os.SCHED_IDLE
    assert found == [os.SCHED_IDLE]
    assert policy_of(0) == os.SCHED_OTHER
    thread.shutdown()


async def test_work_that_gets_no_idle_core_is_nice_for_a_while_and_yields_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(weights_thread, "_WINDOW_S", 0.1)
    monkeypatch.setattr(weights_thread, "_NICE_S", 0.2)
    thread = WeightsThread()
    seen: list[int] = []

    def work() -> None:
        until = time.monotonic() + 1.0
        while time.monotonic() < until:  # asleep: it gets no processor time
            seen.append(policy_of(0))
            time.sleep(0.02)

    await thread.run(work)
    changes = [seen[0], *(after for before, after in pairwise(seen) if before != after)]
    assert changes[:3] == [os.SCHED_IDLE, os.SCHED_OTHER, os.SCHED_IDLE]
    assert await thread.run(lambda: policy_of(0)) == os.SCHED_IDLE
    thread.shutdown()


async def test_work_on_an_idle_core_keeps_yielding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_thread, "_WINDOW_S", 0.2)
    monkeypatch.setattr(weights_thread, "_LEAST_SHARE", 0.0)
    thread = WeightsThread()
    seen: set[int] = set()

    def work() -> None:
        until = time.monotonic() + 0.6
        while time.monotonic() < until:
            seen.add(policy_of(0))

    await thread.run(work)
    assert seen == {os.SCHED_IDLE}
    thread.shutdown()
