import os
import subprocess
import sys
import time

import pytest

from store import heartbeats
from store.errors import RecordUnavailable
from store.heartbeats import SILENT_S, HeartbeatWriter, is_running
from store.values import Heartbeat


class Beats:
    """Keeps what is written; refuses it while `is_away`."""

    def __init__(self) -> None:
        self.written: list[Heartbeat] = []
        self.is_away = False

    async def heartbeat(self, beat: Heartbeat) -> None:
        if self.is_away:
            raise RecordUnavailable("locked")
        self.written.append(beat)


async def test_a_state_is_written_when_it_changes_and_not_again_while_it_lasts() -> None:
    beats, writer = Beats(), HeartbeatWriter("scorer", clock=lambda: 7.0)
    await writer.write(beats, "running", {"scored": 1, "at": 1.0})
    await writer.write(beats, "running", {"scored": 1, "at": 2.0})  # only its clock went on
    await writer.write(beats, "running", {"scored": 2, "at": 3.0})
    await writer.write(beats, "stopped", {"scored": 2, "at": 3.0})
    found = [(one.process, one.state, one.detail["scored"], one.at) for one in beats.written]
    assert found == [
        ("scorer", "running", 1, 7.0),
        ("scorer", "running", 2, 7.0),
        ("scorer", "stopped", 2, 7.0),
    ]


async def test_a_lasting_state_is_written_often_enough_to_tell_that_the_process_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert 2 * heartbeats.REST_S < SILENT_S  # one may be missed
    beats, writer = Beats(), HeartbeatWriter("scorer")
    await writer.write(beats, "running", {})
    began = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: began + heartbeats.REST_S + 0.1)
    assert writer.is_due("running", {})
    await writer.write(beats, "running", {})
    assert len(beats.written) == 2


async def test_what_could_not_be_written_is_due_again() -> None:
    beats, writer = Beats(), HeartbeatWriter("scorer")
    await writer.write(beats, "running", {})
    beats.is_away = True
    with pytest.raises(RecordUnavailable):
        await writer.write(beats, "failing", {})
    beats.is_away = False
    assert writer.is_due("running", {})
    await writer.write(beats, "running", {})
    assert [one.state for one in beats.written] == ["running", "running"]


def test_a_process_runs_also_while_it_can_write_no_heartbeat() -> None:
    """Row 14 of the second attack: during one long transaction `status` showed every process as not running."""

    def beat(pid: int, at: float, state: str = "running") -> Heartbeat:
        return Heartbeat(process="recorder", pid=pid, state=state, detail={}, at=at)

    now = time.time()
    mine = os.getpid()
    assert is_running(beat(mine, now), now)
    assert is_running(beat(mine, now), now + 3600)  # silent for an hour, and there
    assert not is_running(beat(mine, now, "stopped"), now)
    assert not is_running(beat(mine, now - 1e6), now)  # another process has had this number since
    assert not is_running(beat(2**22 - 1, now), now)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    at = time.time()
    ended.wait()
    assert not is_running(beat(ended.pid, at), at)
