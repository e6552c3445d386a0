"""The keeper of vLLM's processes, as a process: whatever dies, nothing is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.ports import free_port
from serving.vllm.__main__ import find_error_line
from store.settings import REPOSITORY, child_environment
from tests.waiting import until


class Keeper:
    """A keeper of a fake vLLM in a folder; several in a row are restarts in the same run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.pids_file = folder / "pids"
        self.process: subprocess.Popen[bytes] | None = None
        self.seen: set[int] = set()
        python = folder / "python"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).parent / "fake.py"} "$@"\n')
        python.chmod(0o755)

    def start(self, *more: str, run_id: str = "one", mode: str = "ok") -> None:
        self.pids_file.unlink(missing_ok=True)
        url = f"http://127.0.0.1:{self.port}"
        command = [
            sys.executable, "-m", "serving.vllm", "--python", str(self.folder / "python"), "--url", url, "--run-id", run_id,
            "--state", str(self.folder / "vllm.json"), *more, "--set=PYTHONPATH=", f"--set=FAKE={mode}",
            f"--set=FAKE_PIDS={self.pids_file}", "--", "--port", str(self.port),
        ]  # fmt: skip
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=REPOSITORY, env=child_environment(), stdout=log, stderr=subprocess.STDOUT
            )

    def pids(self) -> tuple[int, int]:
        """Return the process ids of the listener and its worker, once vLLM is up and the keeper knows it."""
        until(self.is_up, "vLLM is up")
        listener, worker, *_ = self.pids_file.read_text().split()
        self.seen |= {int(listener), int(worker)}
        return int(listener), int(worker)

    def is_up(self) -> bool:
        """Whether the keeper says so of the vLLM that it started last: what it stored about an earlier one stays until then."""
        path = self.folder / "vllm.json"
        if not (self.pids_file.exists() and path.exists()):
            return False
        state = json.loads(path.read_text())
        return bool(state["is_up"]) and state["group"] == int(self.pids_file.read_text().split()[0])

    def ends(self) -> int:
        assert self.process is not None
        return self.process.wait(60)

    def output_tail(self) -> str:
        return (self.folder / "log").read_text().strip().splitlines()[-1]


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    made = Keeper(tmp_path)
    yield made
    if made.process is not None:
        made.process.kill()
        made.process.wait()
    for pid in made.seen:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def is_gone(pid: int) -> bool:
    try:
        # a zombie process counts as dead
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[-1].split()[0] == "Z"
    except OSError:
        return True


def test_a_killed_engine_leaves_nothing_behind_and_may_be_started_again(keeper: Keeper) -> None:
    keeper.start()
    listener, worker = keeper.pids()
    assert keeper.pids_file.read_text().split()[2:] in ([], ["none"])  # our PYTHONPATH is not its
    os.kill(listener, signal.SIGKILL)
    assert keeper.ends() == 1
    assert is_gone(worker)
    assert keeper.output_tail() == "serving.vllm: vLLM ended with code -9"
    keeper.start()
    assert keeper.pids() != (listener, worker)


def test_a_terminated_keeper_stops_all_its_processes(keeper: Keeper) -> None:
    keeper.start()
    pids = keeper.pids()
    assert keeper.process is not None
    keeper.process.send_signal(signal.SIGTERM)
    assert keeper.ends() == 0
    assert all(is_gone(pid) for pid in pids)


def test_what_a_killed_keeper_leaves_is_ended_by_the_next(keeper: Keeper) -> None:
    keeper.start()
    listener, worker = keeper.pids()
    assert keeper.process is not None
    keeper.process.kill()
    keeper.ends()
    until(lambda: is_gone(listener), "the keeper's death reaching the listener")
    assert not is_gone(worker)
    keeper.start()
    until(lambda: is_gone(worker), "the next keeper ends what was left")
    keeper.pids()


@pytest.mark.parametrize("way", ["die", "deaf"])
def test_an_engine_that_is_dead_and_stays_is_ended(keeper: Keeper, way: str) -> None:
    keeper.start("--dead-s=1")
    pids = keeper.pids()
    with urllib.request.urlopen(f"http://127.0.0.1:{keeper.port}/{way}"):
        pass
    assert keeper.ends() == 1
    assert all(is_gone(pid) for pid in pids)


@pytest.mark.parametrize(
    ("mode", "sentence"),
    [
        ("refuses", "vLLM says: ValueError: No available memory for the cache blocks."),
        ("wrong", "vLLM says: api_server.py: error: unrecognized arguments: --no-such-flag"),
    ],
)
def test_one_that_never_came_up_is_a_set_up_that_is_wrong(keeper: Keeper, mode: str, sentence: str) -> None:
    keeper.start(mode=mode)
    assert keeper.ends() == 2
    assert keeper.output_tail() == sentence


def test_a_vllm_that_was_up_in_this_run_is_restarted(keeper: Keeper) -> None:
    keeper.start()
    listener, _ = keeper.pids()
    os.kill(listener, signal.SIGKILL)
    assert keeper.ends() == 1
    keeper.start(mode="refuses")  # the memory of the dead one may not be free yet
    assert keeper.ends() == 1
    keeper.start(mode="refuses", run_id="two")
    assert keeper.ends() == 2


def test_the_cause_is_the_first_error_and_not_those_who_could_not_go_on() -> None:
    assert (
        find_error_line(
            "hello\nKeyError: 'x'\nRuntimeError: Engine core initialization failed. See root cause above"
        )
        == "KeyError: 'x'"
    )
    assert (
        find_error_line("RuntimeError: Engine core initialization failed.")
        == "RuntimeError: Engine core initialization failed."
    )
    assert find_error_line("Killed\n") == "Killed"
    assert find_error_line("") == ""


def test_vllm_gets_its_key_where_other_users_of_the_machine_cannot_read_it(keeper: Keeper) -> None:
    key = keeper.folder / "key"
    key.write_text("secret-of-this-start")
    keeper.start("--api-key-file", str(key))
    listener, _ = keeper.pids()
    assert b"VLLM_API_KEY=secret-of-this-start" in Path(f"/proc/{listener}/environ").read_bytes()
    for pid in (listener, keeper.process.pid if keeper.process else 0):
        assert b"secret-of-this-start" not in Path(f"/proc/{pid}/cmdline").read_bytes()
