"""Waiting for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def until(condition: Callable[[], Any], what: str, seconds: float = 120) -> Any:
    """Wait for something to come true; the bound is there to end a broken run, not to measure."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.1)
    raise AssertionError(f"{what} did not happen within {seconds:.0f} s")
