"""What `status` says about the journal and the recorder, also while the record cannot be read; and `/health` about the trainer."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from store.catch_up import is_recorder_silent
from store.heartbeats import SILENT_S, is_running
from store.journal import JournalWriter, Lag, journal_bytes
from store.values import Heartbeat, Json

_BEHIND_S = 2.0
LAST_STEP_FAILED = "the newest step made no version: `status` says why"


def describe_store(journal: JournalWriter, recorder: Json | None, lag: Lag | None = None) -> Json:
    """Return the state of journal and recorder.

    ``state`` is "ok", "behind" (entries wait to be recorded), "away" (the record cannot be written: ``last_error``) or "stopped" (no
    recorder runs; it is started again, and nothing is lost meanwhile).

    Args:
        recorder: its newest state, up to a second old.
        lag: measured now, where the record can be read.
    """
    mine = journal.state()
    known = dict(recorder or {})
    if lag is not None:
        age = 0.0 if lag.oldest_at is None else max(0.0, time.time() - lag.oldest_at)
        known |= {"lag_turns": lag.entries, "lag_s": round(age, 3)}
    if is_recorder_silent(recorder):
        state = "stopped"
    elif known.get("last_error"):
        state = "away"
    else:
        state = "behind" if known.get("lag_s", 0.0) > _BEHIND_S else "ok"
    return {
        "state": state,
        "available": state in ("ok", "behind"),
        "written": known.get("written", 0),
        "lag_turns": known.get("lag_turns", 0),
        "lag_s": known.get("lag_s", 0.0),
        "journal_bytes": journal_bytes(journal.folder),
        "in_memory": mine["waiting"],
        "in_memory_bytes": mine["waiting_bytes"],
        "lost": mine["lost"],
        "rejected": known.get("rejected", 0),
        "failed_writes": known.get("failed_writes", 0),
        "last_error": known.get("last_error"),
        "journal_error": mine["last_error"],
        "last_loss": mine["last_loss"],
        "last_rejected": known.get("last_rejected"),
    }


def describe_trainer(
    beat: Heartbeat | None, supervisor: Heartbeat | None, now: float
) -> tuple[str, str | None, bool]:
    """Return the trainer's state, its error, and whether it is down.

    Args:
        beat: its newest, which may be of an earlier start.
        supervisor: the newest of the process that starts it; None: it runs elsewhere, or not at all.
    """
    if supervisor is None and beat is None:
        return "none", None, False
    child = {} if supervisor is None else supervisor.detail.get("trainer")
    if child is None:
        return "none", None, False  # a backend that only serves
    if beat is None or (not child.get("restarts") and beat.at < child.get("started_at", 0.0)):
        return "starting", None, False
    if now - beat.at > SILENT_S and not is_running(beat, now):
        return "stopped", "the trainer sends no heartbeat", True
    # The error itself may quote people, and no key is needed to ask.
    return beat.state, LAST_STEP_FAILED if beat.detail.get("last_error") else None, False


#: Counters of a gateway that add up over the gateways of one port.
_COUNTERS = (
    "in_flight", "requests", "passed_through", "unfinished", "unrecorded", "busy", "requests_refused", "upstream_errors", "heartbeat_errors",
)  # fmt: skip


_COUNTERS_BY_NAME = ("not_captured", "recorded_by_api", "unrecorded_by_path", "tools_left_out")


def add_up(gateways: Sequence[Json]) -> Json:
    """Return the state of the first gateway with the counters of all."""
    total = dict(gateways[0])
    for name in _COUNTERS:
        total[name] = sum(one.get(name, 0) for one in gateways)
    for name in _COUNTERS_BY_NAME:
        added: Counter[str] = Counter()
        for one in gateways:
            added.update(one.get(name, {}))
        total[name] = dict(added)
    journals = [one["journal"] for one in gateways if "journal" in one]
    total["journal"] = {
        **total["journal"],
        **{
            name: sum(one[name] for one in journals)
            for name in ("appended", "waiting", "waiting_bytes", "lost", "rewritten")
        },
    }
    return total
