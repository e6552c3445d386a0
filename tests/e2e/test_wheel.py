"""`pip install .` in a fresh environment: the command `patina` serves a model, far from any checkout."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from openai import OpenAI

from serving.ports import free_port
from store.settings import REPOSITORY
from store.version import VERSION
from tests.waiting import recorded, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PACKAGES = {
    "cli", "dashboard", "migrations", "plugins", "proxy", "recorder", "scorers", "serving", "store", "telemetry", "trainer", "wire",
}  # fmt: skip


def tracked_files() -> list[str]:
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    return [name for name in done.stdout.splitlines() if (REPOSITORY / name).is_file()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools leaves a `build` folder in its source."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in tracked_files():
        if name.startswith(("tests/", "lab/")):
            continue
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((REPOSITORY / name).read_bytes())
    _run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", out, source)
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def patina(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command in an environment of its own, which finds the dependencies where this one has them."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    python = folder / "bin" / "python"
    _run(python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel)
    return folder / "bin" / "patina"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A working directory that has folders of our packages' names, as a user's project may."""
    for name in ("lab", "proxy", "store"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(
            f"raise SystemExit('the user\\'s {name} was imported')\n"
        )
    return tmp_path


def test_the_wheel_has_every_file_of_its_packages_and_no_others(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    ours = {name for name in tracked_files() if name.partition("/")[0] in PACKAGES}
    assert packed == {
        name for name in ours if not name.endswith(".md")
    }  # those are for readers of the checkout


def test_the_command_prints_its_name_and_version(patina: Path, elsewhere: Path) -> None:
    assert _run(patina, "--help", cwd=elsewhere).startswith("usage: patina ")
    assert _run(patina, "--version", cwd=elsewhere) == f"Patina {VERSION}\n"


def test_it_serves_records_and_verifies_outside_the_checkout(patina: Path, elsewhere: Path) -> None:
    home, log = elsewhere / "home", elsewhere / "log"
    with log.open("wb") as output:
        served = subprocess.Popen(
            [patina, f"--home={home}", f"--proxy-port={free_port()}"],
            cwd=elsewhere,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        base_url, key = _announced(served, log)
        with OpenAI(base_url=base_url, api_key=key, max_retries=8) as client:
            model = client.models.list().data[0].id
            reply = client.chat.completions.create(
                model=model,
                temperature=0,
                messages=[{"role": "user", "content": "What is the capital of France?"}],
            )
        assert "Paris" in (reply.choices[0].message.content or "")
        recorded(home)
        assert "1 turn seen" in _run(patina, "status", f"--home={home}", cwd=elsewhere)
    finally:
        os.killpg(served.pid, signal.SIGINT)
        served.wait(120)
    printed = log.read_text(encoding="utf-8")
    assert "Traceback" not in printed
    assert f"`patina open --home {home}`" in printed
    assert "run.py" not in printed
    assert "run.py" not in _run(patina, "--help", cwd=elsewhere)
    assert _run(patina, "verify", f"--home={home}", cwd=elsewhere)
    for name in ("proxy", "scorer", "trainer", "backend"):
        assert "was imported" not in (home / "logs" / f"{name}.log").read_text(encoding="utf-8")


def _announced(served: subprocess.Popen[bytes], log: Path) -> tuple[str, str]:
    """Return base URL and key, as they are printed when everything has been started."""
    until(
        lambda: served.poll() is not None or "stop with Ctrl-C" in log.read_text(encoding="utf-8"),
        "the start",
    )
    printed = log.read_text(encoding="utf-8")
    assert served.poll() is None, printed
    base_url = re.search(r"http://127\.0\.0\.1:\d+/v1", printed)
    key = re.search(r'api_key="([^"]+)"', printed)
    assert base_url, printed
    assert key, printed
    return base_url[0], key[1]


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def _run(*command: object, cwd: Path | None = None) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
