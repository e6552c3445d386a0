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
from store.texts import counted
from store.training_plan import duration, read_plan, wait_s
from store.training_schedule import ALWAYS, MANUAL
from store.version import COMMAND

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
    print(
        f"Ready after {took:.0f} s: ask now.{expectation(settings, await _step_s(settings))}",
        flush=True,
    )


def expectation(settings: Settings, step_s: float | None) -> str:
    """Return what a person can expect of training, as sentences that begin with a space; "" where nothing is trained."""
    if not settings.trains_locally:
        return ""
    mode = settings.schedule.mode
    if mode == MANUAL:
        return f" `{COMMAND} train --now` trains what waits."
    when = "" if mode == ALWAYS else f", as soon as the schedule ({settings.train_when}) allows"
    wait = duration(wait_s(settings.max_wait_s, read_plan(settings.home)))
    takes = (
        "how long that takes here is not known yet"
        if step_s is None
        else f"that takes about {duration(step_s)}"
    )
    return (
        f" A version is trained after {counted(settings.batch_size, 'reaction')} or when a complaint has waited {wait}{when}; {takes}."
    )  # fmt: skip


def _state(gateway_url: str) -> tuple[bool, bool]:
    """Return whether backend and record work."""
    try:
        with _OPENER.open(f"{gateway_url}/healthz", timeout=_TIMEOUT_S) as reply:
            found = json.load(reply)
    except (urllib.error.URLError, TimeoutError, ConnectionError, ValueError):
        return False, False  # the gateway does not listen yet
    return bool(found["backend"]["ready"]), bool(found["record"]["available"])


async def _step_s(settings: Settings) -> float | None:
    """Return what a step took here, or is expected to take; None: not known."""
    found: list[float] = []
    with contextlib.suppress(RecordError):  # the processes report it
        record = await Record.open(settings.database_url)
        try:
            steps = await record.steps(settings.policy, _STEPS)
        finally:
            await record.close()
        found = [
            step.finished_at - step.started_at
            for step in steps
            if step.finished_at and step.version is not None
        ]
    if found:
        return statistics.median(found)
    plan = read_plan(settings.home)
    return plan.total_s if plan is not None else None
