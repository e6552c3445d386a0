"""Turns that a trainer died with: fewer at a time after two deaths, and dropped, with the cause, when one was alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from store.errors import ConfigError
from store.lifecycle import DropReason
from trainer import deaths as module
from trainer.deaths import Deaths, RetryDecision, choose, killed_for_memory, oom_kills

_DIES = """
import os, signal, sys
from pathlib import Path
from trainer.deaths import Deaths
deaths = Deaths(Path(sys.argv[1]))
choice = deaths.choose(sys.argv[2:])
print(" ".join(choice.attempt), "|", *choice.drop.items(), flush=True)
if "deadly" in choice.attempt:
    deaths.begin(choice.attempt)
    if "--fill-memory" in sys.argv:
        held = [bytearray(os.urandom(1 << 20)) for _ in range(200)]
    os.kill(os.getpid(), signal.SIGKILL)
"""


def died(path: Path, *turn_ids: str, within: Sequence[str] = ()) -> str:
    """What a trainer attempts and drops that is killed while it holds the turn "deadly"."""
    command = [*within, sys.executable, "-c", _DIES, str(path), *turn_ids]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def test_a_batch_is_halved_after_two_deaths_and_the_turn_that_kills_alone_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "deaths.json"
    batch = ("deadly", "b", "c", "d")
    seen = [died(path, *batch) for _ in range(5)]
    assert seen == [
        "deadly b c d |",
        "deadly b c d |",
        "deadly b |",
        "deadly |",
        "b | ('deadly', <DropReason.TRAINER_DIED: 'trainer_died'>)",
    ]


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group with 64 MB of memory; processes join it by its file `cgroup.procs`."""
    own = next((Path(name.rpartition(":")[0]) for name in oom_kills() if name != "vmstat"), None)
    group = own / f"patina-test-{os.getpid()}" if own else None
    try:
        if group is None:
            raise OSError("this system counts no kills of a control group")
        group.mkdir()
        limit = next(file for file in ("memory.max", "memory.limit_in_bytes") if (group / file).exists())
        (group / limit).write_text(str(64 << 20), encoding="utf-8")
    except (OSError, StopIteration) as error:
        if group is not None and group.exists():
            group.rmdir()
        pytest.skip(f"no control group with a memory limit can be made here: {error}")
    yield group
    group.rmdir()


def test_a_turn_is_blamed_for_memory_only_where_the_kernel_killed_for_memory(
    tmp_path: Path, small_group: Path
) -> None:
    join = ("sh", "-c", f'echo $$ > {small_group}/cgroup.procs && exec "$@"', "sh")
    path, turns = tmp_path / "deaths.json", ("deadly", "--fill-memory")
    seen = [died(path, *turns, within=join) for _ in range(4)]
    assert seen[2] == "deadly |"
    assert "('deadly', <DropReason.OUT_OF_MEMORY: 'out_of_memory'>)" in seen[3]


def test_a_counter_that_is_new_or_did_not_rise_is_no_evidence() -> None:
    assert killed_for_memory({"group": 1, "vmstat": 5}, {"group": 2, "vmstat": 6})
    assert not killed_for_memory({"group": 1, "vmstat": 5}, {"group": 1, "vmstat": 6})  # another group's
    assert killed_for_memory({"group": 1, "vmstat": 5}, {"group made anew": 0, "vmstat": 6})
    assert not killed_for_memory({}, {"vmstat": 6})


def test_a_requested_stop_and_a_reboot_are_no_deaths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deaths.json"
    for _ in range(4):
        stopped = Deaths(path)
        stopped.begin(["a"])
        stopped.stopping()
        stopped.begin(["b"])  # it was about to
    for boot in ("first", "second", "third", "fourth"):
        monkeypatch.setattr(module, "boot_id", lambda boot=boot: boot)
        cut = Deaths(path)
        cut.begin(["a"])
    assert Deaths(path).choose(["a", "b"]) == RetryDecision(attempt=("a", "b"), later=(), drop={})


def test_a_file_of_an_earlier_release_blames_no_turn(tmp_path: Path) -> None:
    path = tmp_path / "deaths.json"
    path.write_text('{"under_way": ["a"], "deaths": {"a": 3}, "fatal": ["b"]}', encoding="utf-8")
    assert Deaths(path).choose(["a", "b"]) == RetryDecision(attempt=("a", "b"), later=(), drop={})


def test_a_step_that_ends_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "deaths.json"
    for _ in range(4):
        deaths = Deaths(path)
        deaths.begin(["a", "b"])
        deaths.end(["a", "b"])
    assert Deaths(path).choose(["a", "b"]) == RetryDecision(attempt=("a", "b"), later=(), drop={})


def test_turns_that_nothing_died_with_are_not_held_back() -> None:
    assert choose(["a", "b"], {"other": 9}, {"other": DropReason.TRAINER_DIED}) == RetryDecision(
        attempt=("a", "b"), later=(), drop={}
    )
    assert choose([], {}, {}) == RetryDecision(attempt=(), later=(), drop={})
    assert choose(["a", "b"], {"b": 2}, {}) == RetryDecision(attempt=("a",), later=("b",), drop={})


def test_a_torn_file_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "deaths.json"
    path.write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match="remove it"):
        Deaths(path)
