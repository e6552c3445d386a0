"""The one thread that uses a trainer's weights. On a CPU it runs when nothing else wants the core: replies come before training."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from trainer.protocol import VersionTrainer

T = TypeVar("T")

#: Device files of GPU drivers: NVIDIA's, the one of Windows' subsystem for Linux, AMD's.
_GPU_DEVICES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")


def has_gpu_driver() -> bool:
    return any(Path(path).exists() for path in _GPU_DEVICES)


def _yield_cores() -> None:
    """Let this thread, and those that its tensor operations start, run on idle cores only; Linux alone can do that.

    The kernel still gives such threads some time under constant load. A GPU must not wait for its next kernel.
    """
    if hasattr(os, "SCHED_IDLE") and not has_gpu_driver():
        with contextlib.suppress(PermissionError):  # a sandbox that forbids it: the process is nice anyway
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


class WeightsThread:
    """Runs work on weights beside the event loop, one piece at a time."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="weights", initializer=_yield_cores
        )

    async def run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def close(self, beside: asyncio.Task[None], trainer: VersionTrainer | None) -> None:
        """End the task that ran beside the work, close the trainer and end the thread."""
        beside.cancel()
        await asyncio.gather(beside, return_exceptions=True)
        if trainer is not None:
            await self.run(trainer.close)
        self.shutdown()

    def shutdown(self) -> None:
        self._executor.shutdown(wait=True)
