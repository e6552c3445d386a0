"""Turns that a trainer died with: fewer at a time after two deaths, and dropped when one was alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from store.errors import ConfigError
from trainer.deaths import Choice, Deaths, choose

_DIES = """
import os, signal, sys
from pathlib import Path
from trainer.deaths import Deaths
deaths = Deaths(Path(sys.argv[1]))
choice = deaths.choose(sys.argv[2:])
print(" ".join(choice.attempt), "|", " ".join(choice.drop), flush=True)
if "deadly" in choice.attempt:
    deaths.begin(choice.attempt)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def died(path: Path, *turn_ids: str) -> str:
    """What a trainer attempts and drops that is killed while it holds the turn "deadly"."""
    command = [sys.executable, "-c", _DIES, str(path), *turn_ids]
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
        "b |  deadly".replace("  ", " "),
    ]


def test_a_step_that_ends_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "deaths.json"
    for _ in range(4):
        deaths = Deaths(path)
        deaths.begin(["a", "b"])
        deaths.end(["a", "b"])
    assert Deaths(path).choose(["a", "b"]) == Choice(attempt=("a", "b"), later=(), drop=())


def test_turns_that_nothing_died_with_are_not_held_back() -> None:
    assert choose(["a", "b"], {"other": 9}, frozenset({"other"})) == Choice(
        attempt=("a", "b"), later=(), drop=()
    )
    assert choose([], {}, frozenset()) == Choice(attempt=(), later=(), drop=())
    assert choose(["a", "b"], {"b": 2}, frozenset()) == Choice(attempt=("a",), later=("b",), drop=())


def test_a_torn_file_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "deaths.json"
    path.write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match="remove it"):
        Deaths(path)
