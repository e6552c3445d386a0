"""Waiting for what another process does."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from store.catch_up import wait_recorded
from store.record import Record
from store.settings import read_settings


def until(condition: Callable[[], Any], what: str, seconds: float = 120) -> Any:
    """Wait for something to come true; the bound is there to end a broken run, not to measure."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds:.0f} s: {what}")


async def until_async(condition: Callable[[], Any], seconds: float = 60) -> Any:
    """Wait in an event loop for a condition, plain or a coroutine, that another task, a thread or a process makes true."""
    async with asyncio.timeout(seconds):
        while True:
            found = condition()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(0.01)


def stop(process: subprocess.Popen[bytes], seconds: float = 60) -> None:
    """End a process, by force where it does not end by itself."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(seconds)


def recorded(home: Path, seconds: float = 120) -> Path:
    """Wait until what is in the journal now is recorded, and return the record's file. A recorder that is silent or restarts is waited for."""
    settings = read_settings({"home": home})

    async def is_recorded() -> bool:
        record = await Record.open(settings.database_url)
        try:
            return (await wait_recorded(record, settings.journal_folder, seconds)).entries == 0
        finally:
            await record.close()

    until(lambda: asyncio.run(is_recorded()), "what is in the journal being recorded", seconds)
    return home / "patina.db"
