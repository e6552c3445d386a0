"""Real clients from their packages, each installed once into a cache; a test skips with the reason where that cannot be done."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from store.settings import child_environment

_CACHE = Path.home() / ".cache" / "patina-tests"
_INSTALL_S = 600
# Written last: a run that was killed while it installed leaves a folder without it, and the next run installs again.
_DONE = ".installed"


def _folder(*packages: str) -> Path:
    name = hashlib.sha256(" ".join(packages).encode()).hexdigest()[:16]
    return _CACHE / f"clients-{name}"


def _install(command: list[str], folder: Path, packages: tuple[str, ...]) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=_INSTALL_S
        )
    except subprocess.TimeoutExpired:
        last = f"not done after {_INSTALL_S} s"
    else:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1] if done.returncode else ""
    if last:
        shutil.rmtree(folder)
        pytest.skip(f"{' '.join(packages)} cannot be installed: {last}")


def npm(*packages: str) -> Path:
    """Return a folder whose ``node_modules`` has these packages."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (apt-get install nodejs npm)")
    folder = _folder(*packages)
    if not (folder / _DONE).exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text('{"private": true}')
        command = ["npm", "install", "--no-save", "--ignore-scripts", "--no-audit", "--no-fund", *packages]
        _install(command, folder, packages)
        (folder / _DONE).touch()
    return folder


def pip(*packages: str) -> Path:
    """Return the Python of an environment that has these packages: their versions are not this project's."""
    folder = _folder(*packages)
    python = folder / "bin" / "python"
    if not (folder / _DONE).exists():
        folder.mkdir(parents=True, exist_ok=True)
        _install([sys.executable, "-m", "venv", "--clear", str(folder)], folder, packages)
        _install([str(python), "-m", "pip", "install", "--quiet", *packages], folder, packages)
        (folder / _DONE).touch()
    return python


def run(command: list[str], folder: Path, typed: str = "", **environment: str) -> str:
    """Run a client, type a text on its terminal, and return what it prints."""
    done = subprocess.run(
        command, cwd=folder, env=child_environment(PYTHONPATH="", **environment), input=typed, capture_output=True, text=True,
        check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout
