"""Plant single faults in a copy of the repository and run the fast tests that should notice each: ``python -m lab.faults [WORD ...]``.

`lab/faults.toml` is the list. A fault that no test notices is printed; the exit code is 1 then, or where a fault's text is no longer in its file.
Words choose the faults whose file contains one of them.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LIST = ROOT / "lab" / "faults.toml"
_TIMEOUT_S = 300.0
#: What takes long to import, and is not ours.
_LIBRARIES = (
    "aiohttp",
    "openai",
    "peft",
    "sqlalchemy",
    "starlette",
    "torch",
    "transformers",
    "uvicorn",
)


def main(words: list[str]) -> int:
    """Plant each fault of the list; returns 1 when one stays unnoticed."""
    groups = tomllib.loads(LIST.read_text(encoding="utf-8"))["group"]
    chosen = [
        (one["file"], one["tests"], *fault)
        for one in groups
        if not words or any(word in one["file"] for word in words)
        for fault in one["faults"]
    ]
    outcomes: Counter[str] = Counter()
    for library in _LIBRARIES:
        import_module(library)
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        copy = Path(folder)
        _copy_to(copy)
        for number, (file, tests, what, old, new) in enumerate(chosen, 1):
            began = time.monotonic()
            outcome = _plant(copy, copy / file, tests, old, new)
            outcomes[outcome] += 1
            took = time.monotonic() - began
            print(f"{number}/{len(chosen)} {outcome}: {file}: {what} ({took:.0f} s)", flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items())))
    return 0 if set(outcomes) == {"noticed"} else 1


def _copy_to(folder: Path) -> None:
    """Copy what git tracks, as it is in the working tree."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in os.fsdecode(listed).split("\0"):
        if name and (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def _plant(copy: Path, path: Path, tests: Sequence[str], old: str, new: str) -> str:
    """Return what became of a fault: "noticed", "unnoticed", "stale" where its text does not occur once, "broken" where no test ran."""
    sound = path.read_text(encoding="utf-8")
    if sound.count(old) != 1:
        return "stale"
    path.write_text(sound.replace(old, new), encoding="utf-8")
    try:
        code = _run_tests(copy, tests)
    finally:
        path.write_text(sound, encoding="utf-8")
    if code not in (0, 1):
        return "broken"
    return "noticed" if code else "unnoticed"


def _run_tests(copy: Path, tests: Sequence[str]) -> int:
    """Return pytest's exit code; 1 too where a test hangs. It runs in a fork, which has the libraries, and none of our modules, imported."""
    child = os.fork()
    if not child:
        code = 2
        try:
            os.chdir(copy)
            sys.path[0], sys.dont_write_bytecode = str(copy), True
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, 1)
            os.dup2(nothing, 2)
            quiet = ("-q", "-x", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")
            code = int(pytest.main([*quiet, "-m", "not slow", *tests]))
        finally:
            os._exit(code)
    ends = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < ends:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
