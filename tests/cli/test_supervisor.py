"""The end of the processes: what the proxy lost is reported by `run.py`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from cli.main import main
from cli.supervisor import _LONGEST_PAUSE_S, Child, _supervise, restart_pause
from migrations import upgrade
from serving.ports import free_port
from store.settings import Settings, child_environment, read_settings
from tests.waiting import until

_ENDS = """
import signal, sys, time
from pathlib import Path

def end(*_):
    with Path({order!r}).open("a") as file:
        file.write({name!r} + "\\n")
    print({last!r}, file=sys.stderr)
    sys.exit({code})

signal.signal(signal.SIGTERM, end)
Path({ready!r}).touch()
time.sleep(600)
"""


def child(folder: Path, name: str, code: int = 0, last: str = "bye") -> Child:
    program = _ENDS.format(
        order=str(folder / "order"), name=name, last=last, code=code, ready=str(folder / f"{name}.ready")
    )
    return Child(
        name=name,
        command=[sys.executable, "-c", program],
        environment=child_environment(),
        log=folder / f"{name}.log",
    )


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    found = read_settings({"home": tmp_path})
    upgrade(found.database_url)
    return found


async def stopped(settings: Settings, children: list[Child], folder: Path) -> int:
    """Run the children, stop the supervisor once they are ready, and return its exit code."""
    running = asyncio.create_task(_supervise(settings, children))
    await asyncio.to_thread(
        until,
        lambda: all((folder / f"{c.name}.ready").exists() for c in children),
        "the children being ready",
    )
    os.kill(os.getpid(), signal.SIGTERM)
    return await running


async def test_a_loss_at_the_end_of_the_proxy_is_printed_with_exit_code_1(
    settings: Settings, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    last = "proxy: 3 exchanges were lost: 3 entries: the journal cannot be written (No space left on device)"
    children = [child(tmp_path, "recorder"), child(tmp_path, "proxy", 1, last), child(tmp_path, "scorer", 1)]
    assert await stopped(settings, children, tmp_path) == 1
    assert capfd.readouterr().err.strip() == "patina: " + last.removeprefix("proxy: ")
    # The recorder ends last: it records what the proxy still appends.
    assert (tmp_path / "order").read_text().split() == ["scorer", "proxy", "recorder"]


async def test_a_clean_end_prints_nothing_with_exit_code_0(
    settings: Settings, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert await stopped(settings, [child(tmp_path, "recorder"), child(tmp_path, "proxy")], tmp_path) == 0
    assert capfd.readouterr().err == ""


def test_a_start_on_a_full_disk_ends_with_one_sentence_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "settings.tmp").symlink_to("/dev/full")
    asked = ["--home", str(tmp_path), "--proxy-port", str(free_port())]
    code = main([*asked, "--upstream", "http://127.0.0.1:9/v1", "--model-name", "tiny"])
    assert (code, capsys.readouterr().err) == (
        2,
        "patina: the disk cannot be written: No space left on device\n",
    )


def pauses(*ends: tuple[int, float]) -> list[float]:
    """Return the pauses after ends, (exit code, seconds lived) each."""
    found = [0.0]
    for exit_code, lived_s in ends:
        found.append(restart_pause(found[-1], exit_code=exit_code, lived_s=lived_s))
    return found[1:]


def test_a_process_that_keeps_ending_by_itself_waits_longer_each_time_up_to_a_bound() -> None:
    found = pauses(*[(1, 0.2)] * 12)
    assert found[:4] == [0.25, 0.5, 1.0, 2.0]
    assert found[-1] == _LONGEST_PAUSE_S
    assert pauses(*[(0, 3.0)] * 3) == [0.25, 0.5, 1.0]  # it should not end at all


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_process_that_is_killed_is_started_at_once_however_often(number: signal.Signals) -> None:
    assert pauses(*[(-number, 1.0)] * 60) == [0.0] * 60
    assert pauses((1, 0.2), (1, 0.2), (-number, 5.0), (1, 0.2)) == [0.25, 0.5, 0.0, 0.25]


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS])
def test_a_process_that_crashes_waits_as_one_that_ends_by_itself(number: signal.Signals) -> None:
    assert pauses(*[(-number, 4.0)] * 3) == [0.25, 0.5, 1.0]


def test_a_process_that_is_killed_at_each_start_waits_too() -> None:
    assert pauses(*[(-signal.SIGKILL, 0.1)] * 3) == [0.25, 0.5, 1.0]


def test_an_end_after_a_long_life_forgets_the_ones_before() -> None:
    assert pauses((1, 1.0), (1, 1.0), (1, 31.0), (1, 1.0)) == [0.25, 0.5, 0.25, 0.5]


async def test_a_child_that_is_killed_again_and_again_runs_again_each_time(
    settings: Settings, tmp_path: Path
) -> None:
    one = child(tmp_path, "recorder")
    ready = tmp_path / "recorder.ready"
    running = asyncio.create_task(_supervise(settings, [one]))
    for number in range(4):
        await asyncio.to_thread(until, ready.exists, "the child being ready")
        ready.unlink()
        assert one.process is not None
        assert one.restarts == number
        await asyncio.sleep(0.6)  # it has lived: this is no death at the start
        one.process.kill()
    await asyncio.to_thread(until, ready.exists, "the child being ready")
    assert one.restarts == 4
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == 0


async def test_a_signal_to_the_whole_group_restarts_nothing(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """systemd sends SIGTERM to every process of a unit: the children may end before this process has read its own."""
    one = child(tmp_path, "recorder")
    running = asyncio.create_task(_supervise(settings, [one]))
    await asyncio.to_thread(until, (tmp_path / "recorder.ready").exists, "the child being ready")
    assert one.process is not None
    one.process.terminate()
    await one.process.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == 0
    assert one.restarts == 0
    assert "starting it again" not in capsys.readouterr().err
