"""What `/health` says about the trainer."""

import os
import time
from dataclasses import replace

import pytest

from proxy.store_state import LAST_STEP_FAILED, describe_trainer
from store.values import Heartbeat, Json

NOW = 1_000.0


def beat(process: str, at: float, detail: Json | None = None) -> Heartbeat:
    return Heartbeat(process=process, pid=1, state="idle", detail=detail or {}, at=at)


def supervisor(restarts: int = 0) -> Heartbeat:
    return beat("supervisor", NOW, {"trainer": {"started_at": 900.0, "restarts": restarts}})


SILENT = "the trainer sends no heartbeat"


@pytest.mark.parametrize(
    ("trainer", "runs", "found"),
    [
        (None, None, ("none", None, False)),
        (beat("trainer", NOW), beat("supervisor", NOW, {"proxy": {}}), ("none", None, False)),
        (None, supervisor(), ("starting", None, False)),
        (beat("trainer", 500.0), supervisor(), ("starting", None, False)),
        (beat("trainer", 500.0), supervisor(restarts=1), ("stopped", SILENT, True)),
        (beat("trainer", 950.0), supervisor(), ("stopped", SILENT, True)),
        (beat("trainer", 950.0), None, ("stopped", SILENT, True)),
        (beat("trainer", NOW, {"last_error": "x"}), supervisor(), ("idle", LAST_STEP_FAILED, False)),
    ],
)
def test_a_trainer_that_starts_is_neither_missing_nor_down(
    trainer: Heartbeat | None, runs: Heartbeat | None, found: tuple[str, str | None, bool]
) -> None:
    assert describe_trainer(trainer, runs, NOW) == found


def test_a_trainer_that_runs_is_not_down_because_its_heartbeats_cannot_be_written() -> None:
    now = time.time()
    runs = Heartbeat(
        process="supervisor", pid=1, state="running", detail={"trainer": {"started_at": now}}, at=now
    )
    trainer = Heartbeat(process="trainer", pid=os.getpid(), state="idle", detail={}, at=now)
    assert describe_trainer(trainer, runs, now + 3600) == ("idle", None, False)
    gone = replace(trainer, pid=2**22 - 1)
    assert describe_trainer(gone, runs, now + 3600) == ("stopped", SILENT, True)
