"""Says at the start when a first request would be answered, and when to expect a version."""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import time
import urllib.error
import urllib.request

from store.errors import RecordError
from store.record import Record
from store.settings import Settings
from store.training_plan import expectation
from store.values import StepReport

_POLL_S, _TIMEOUT_S = 0.25, 1.0
#: An endpoint that someone else runs is named when it is not ready by then.
_PATIENCE_S = 10.0
#: The gateway is on this machine, whatever proxy the environment names.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_STEPS = 20


async def announce_ready(settings: Settings) -> None:
    """Wait until the gateway reports that backend and record work, then print what to expect; names an --upstream that does not answer."""
    began = time.monotonic()
    named = not settings.upstream
    while True:
        backend, record = await asyncio.to_thread(_state, settings.gateway_url)
        if backend and record:
            break
        if not named and record and time.monotonic() - began > _PATIENCE_S:
            named = True
            print(
                f"{settings.upstream_address} does not answer yet: requests fail until it does.", flush=True
            )
        await asyncio.sleep(_POLL_S)
    took = time.monotonic() - began
    expected = expectation(settings, await _took_s(settings))
    print(f"Ready after {took:.0f} s: ask now. {expected}".rstrip(), flush=True)


def _state(gateway_url: str) -> tuple[bool, bool]:
    """Return whether backend and record work."""
    try:
        with _OPENER.open(f"{gateway_url}/healthz", timeout=_TIMEOUT_S) as reply:
            found = json.load(reply)
    except (urllib.error.URLError, TimeoutError, ConnectionError, ValueError):
        return False, False  # the gateway does not listen yet
    return bool(found["backend"]["ready"]), bool(found["record"]["available"])


async def _took_s(settings: Settings) -> float | None:
    """Return what a version took here; None: not known."""
    steps: list[StepReport] = []
    with contextlib.suppress(RecordError):  # the processes report it
        record = await Record.open(settings.database_url)
        try:
            steps = await record.steps(settings.policy, _STEPS)
        finally:
            await record.close()
    found = [one.finished_at - one.started_at for one in steps if one.finished_at and one.version is not None]
    return statistics.median(found) if found else None
