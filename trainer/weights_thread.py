"""The one thread that uses a trainer's weights."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from trainer.protocol import VersionTrainer

T = TypeVar("T")


class WeightsThread:
    """Runs work on weights beside the event loop, one piece at a time."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="weights")

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
