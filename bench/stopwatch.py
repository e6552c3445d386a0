"""How long does a newcomer wait? `python -m bench.stopwatch [--source REPOSITORY] [--python python3]`.

In an empty folder, with an empty package cache: a clone, its packages as `make run` installs them, the first reply, and the first version after four
complaints (docs/quickstart.md); then `pip install .` in another environment, and the first reply of the command `patina`. The time of the packages is the
network's and the index's, which pip's settings choose.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from serving.ports import free_port
from store.settings import REPOSITORY, child_environment

_QUESTIONS = ("What is the capital of France?", "What is the capital of Peru?", "What is the opposite of hot?", "How many legs has a spider?")  # fmt: skip
_COMPLAINT = "Shorter please, and no emoji."
_POLL_S = 0.25
_PATIENCE_S = 600.0


class Laps:
    """Seconds of each part, in order."""

    def __init__(self) -> None:
        self.found: list[tuple[str, float]] = []
        self._at = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.found.append((name, now - self._at))
        self._at = now


class Patina:
    """A Patina that was started by its command line."""

    def __init__(self, port: int, key: str) -> None:
        self._base = f"http://127.0.0.1:{port}/v1"
        self._key = key

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return a JSON answer. Raises: OSError."""
        headers = {"authorization": f"Bearer {self._key}", "content-type": "application/json"}
        data = json.dumps(body).encode() if body is not None else None
        with urllib.request.urlopen(urllib.request.Request(self._base + path, data, headers)) as answer:
            return json.load(answer)

    def chat(self, messages: Sequence[Mapping[str, str]]) -> dict[str, str]:
        """Return the reply, as soon as the backend gives one."""
        body = {"model": "patina-tiny", "messages": messages}
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                found: dict[str, str] = self.ask("/chat/completions", body)["choices"][0]["message"]
            except urllib.error.HTTPError as error:
                if error.code != 503 or time.monotonic() > deadline:  # 503: it starts
                    raise
                time.sleep(_POLL_S)
            else:
                return {"role": "assistant", "content": found["content"]}

    def complain(self) -> None:
        """Ask four questions, and say about each reply what is wrong with it."""
        for question in _QUESTIONS:
            messages = [{"role": "user", "content": question}]
            messages += [self.chat(messages), {"role": "user", "content": _COMPLAINT}]
            self.chat(messages)

    def wait_for_version(self) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not self.ask("/patina/status")["live"].get("patina-tiny"):
            if time.monotonic() > deadline:
                raise SystemExit("no version went live; see the logs in its home")
            time.sleep(_POLL_S)


@contextmanager
def started(command: Sequence[str], home: Path, cwd: Path) -> Iterator[Patina]:
    """Run Patina until the block ends; it begins when the key is printed."""
    port, log = free_port(), home.parent / f"{home.name}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, f"--home={home}", f"--proxy-port={port}"],
            cwd=cwd, env=_environment(), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        while not (key := re.search(r'api_key="([^"]+)"', log.read_text())):
            if process.poll() is not None:
                raise SystemExit(f"it ended: {log.read_text()[-1000:]}")
            time.sleep(_POLL_S)
        patina = Patina(port, key[1])
        while True:
            try:
                patina.ask("/models")
                break
            except OSError:
                if process.poll() is not None:
                    raise SystemExit(f"it ended: {log.read_text()[-1000:]}") from None
                time.sleep(_POLL_S)
        yield patina
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(120)


def _environment() -> dict[str, str]:
    return child_environment(PYTHONPATH="", PYTHONSAFEPATH="", VIRTUAL_ENV="", PIP_NO_CACHE_DIR="1")


def _run(*command: object, cwd: Path) -> None:
    subprocess.run([str(part) for part in command], cwd=cwd, env=_environment(), check=True, stdout=subprocess.DEVNULL)  # fmt: skip


def from_a_clone(source: str, python: str, folder: Path) -> list[tuple[str, float]]:
    """Time a clone until its first version is live."""
    laps, checkout = Laps(), folder / "checkout"
    _run("git", "clone", "--quiet", source, checkout, cwd=folder)
    laps.lap("clone")
    _run(python, "-m", "venv", ".venv", cwd=checkout)
    own = checkout / ".venv" / "bin" / "python"
    _run(own, "scripts/install.py", cwd=checkout)
    laps.lap("packages (make)")
    with started([str(own), "run.py"], folder / "home", checkout) as patina:
        patina.chat([{"role": "user", "content": _QUESTIONS[0]}])
        laps.lap("start and first reply")
        patina.complain()
        laps.lap("four conversations with a complaint")
        patina.wait_for_version()
        laps.lap("first version live")
    with started([str(own), "run.py"], folder / "home-2", checkout) as patina:
        laps.lap("stop, second start on an empty home")
        patina.chat([{"role": "user", "content": _QUESTIONS[0]}])
        laps.lap("its first reply")
    return laps.found


def from_pip(python: str, folder: Path) -> list[tuple[str, float]]:
    """Time `pip install .` of the clone until the command's first reply."""
    laps, environment = Laps(), folder / "environment"
    _run(python, "-m", "venv", environment, cwd=folder)
    _run(environment / "bin" / "pip", "install", "--quiet", folder / "checkout", cwd=folder)
    laps.lap("pip install .")
    with started([str(environment / "bin" / "patina")], folder / "home-pip", folder) as patina:
        patina.chat([{"role": "user", "content": _QUESTIONS[0]}])
        laps.lap("start and first reply")
    return laps.found


def main() -> int:
    parser = argparse.ArgumentParser(description="Seconds from a clone to a first reply and a first version.")
    parser.add_argument("--source", default=str(REPOSITORY), help="what is cloned (default: this checkout)")
    parser.add_argument("--python", default="python3")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        runs = {
            "clone": from_a_clone(arguments.source, arguments.python, folder),
            "pip": from_pip(arguments.python, folder),
        }
    for name, laps in runs.items():
        table = Table("part", "seconds", "since the beginning", title=name)
        total = 0.0
        for part, seconds in laps:
            total += seconds
            table.add_row(part, f"{seconds:.1f}", f"{total:.1f}")
        Console(width=100).print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
