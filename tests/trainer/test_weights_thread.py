"""The weights' thread yields its core to everything else, until a step has waited long."""

from __future__ import annotations

import os
import threading

import pytest

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


async def test_work_that_hurries_has_its_share_again_until_it_yields() -> None:
    thread = WeightsThread()
    assert await thread.run(lambda: policy_of(0)) == os.SCHED_IDLE
    thread.hurry()
    assert await thread.run(lambda: policy_of(0)) == os.SCHED_OTHER
    thread.yield_cores()
    assert await thread.run(lambda: policy_of(0)) == os.SCHED_IDLE
    thread.shutdown()
