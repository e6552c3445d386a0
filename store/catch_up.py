"""Waiting for the recorder: what a reader does so that it sees every turn whose end a client has seen."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import orjson

from store.heartbeats import SILENT_S
from store.journal import STATE_FILE, Lag, ask_recorder, is_recorded, journal_ends, measure_lag
from store.record import Record
from store.values import Json

_POLL_S = 0.01


def read_recorder_state(folder: Path) -> Json | None:
    """Return the newest state that the recorder of this journal wrote; None when there is none."""
    try:
        found = orjson.loads((folder / STATE_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def is_recorder_silent(state: Json | None) -> bool:
    """Whether no recorder has written its state lately."""
    return state is None or time.time() - float(state.get("at", 0.0)) > SILENT_S


async def wait_recorded(record: Record, folder: Path, timeout_s: float) -> Lag:
    """Wait until everything that is in the journal now is recorded; not at all where no recorder runs.

    Returns:
        what of it is not recorded yet.

    Raises:
        RecordError: the record cannot be read.
    """
    ends = journal_ends(folder)
    deadline = time.monotonic() + timeout_s
    while True:
        offsets = await record.journal_offsets()
        if (
            is_recorded(folder, offsets, ends)
            or time.monotonic() > deadline
            or is_recorder_silent(read_recorder_state(folder))
        ):
            return measure_lag(folder, offsets, ends)
        ask_recorder(folder)
        await asyncio.sleep(_POLL_S)
