"""The one thread that uses a trainer's weights. On a CPU it runs when nothing else wants the core: replies come before training.

Where other work keeps the cores busy all the time, training goes on all the same: work that got too little of a core for a few seconds takes the
share of a nice process for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from trainer.protocol import VersionTrainer

T = TypeVar("T")

#: Device files of GPU drivers: NVIDIA's, the one of Windows' subsystem for Linux, AMD's.
_GPU_DEVICES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
#: Work that got less than this share of one core within so many seconds gets no idle core; it is nice for so many seconds then.
_LEAST_SHARE, _WINDOW_S, _NICE_S = 0.25, 5.0, 15.0


def has_gpu_driver() -> bool:
    return any(Path(path).exists() for path in _GPU_DEVICES)


def _schedule(policy: str, threads: Iterable[int] = (0,)) -> None:
    """Give threads a scheduling policy of Linux, by name; 0: this one, and those that its tensor operations start.

    Elsewhere nothing happens, and with a GPU neither: it must not wait for its next kernel.
    """
    if not hasattr(os, policy) or has_gpu_driver():
        return
    for thread in threads:
        # a sandbox that forbids it, in which the process is nice anyway; a thread that has ended
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.sched_setscheduler(thread, getattr(os, policy), os.sched_param(0))


def _idle_threads() -> list[int]:
    """Return the threads of this process that run on idle cores only: the weights' own, and those that it started."""
    folder = Path("/proc/self/task")
    threads = [int(one.name) for one in folder.iterdir()] if folder.is_dir() else []
    return [one for one in threads if os.sched_getscheduler(one) == os.SCHED_IDLE]


async def _keep_share() -> None:
    """Let the work run beside other programs for a while whenever it gets no idle core, until this is cancelled."""
    while True:
        before = time.process_time()
        await asyncio.sleep(_WINDOW_S)
        if time.process_time() - before >= _LEAST_SHARE * _WINDOW_S:
            continue
        threads = _idle_threads()
        _schedule("SCHED_OTHER", threads)
        try:
            await asyncio.sleep(_NICE_S)
        finally:
            _schedule("SCHED_IDLE", threads)


class WeightsThread:
    """Runs work on weights beside the event loop, one piece at a time."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="weights", initializer=_schedule, initargs=("SCHED_IDLE",)
        )

    async def run(self, work: Callable[[], T]) -> T:
        share = asyncio.create_task(_keep_share())
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        finally:
            share.cancel()
            await asyncio.gather(share, return_exceptions=True)

    async def close(self, beside: asyncio.Task[None], trainer: VersionTrainer | None) -> None:
        """End the task that ran beside the work, close the trainer and end the thread."""
        beside.cancel()
        await asyncio.gather(beside, return_exceptions=True)
        if trainer is not None:
            await self.run(trainer.close)
        self.shutdown()

    def shutdown(self) -> None:
        self._executor.shutdown(wait=True)
