"""The end of the processes: what the proxy lost is reported by `run.py`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from cli.main import main
from cli.supervisor import Child, _supervise
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
