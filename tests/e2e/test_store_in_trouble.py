"""Failures of the record under load: replies continue, `run.py status` reports the failure at once, and the turns are written afterwards.

Proxy and recorder run as processes, eight clients send without a pause, and each test breaks the record in another way.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.ports import free_port
from store.settings import REPOSITORY, child_environment, read_settings
from tests.proxy.conftest import KEY, empty_record
from tests.proxy.test_main import client, command
from tests.proxy.upstream import Upstream, running
from tests.waiting import until

__all__ = ["empty_record"]  # a fixture

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

Json = dict[str, Any]
CLIENTS = 8


@dataclass
class LoadClients:
    """Clients that send without a pause, and the replies they got."""

    ended: list[str] = field(default_factory=list)  #: turns whose end arrived
    wrong: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    threads: list[threading.Thread] = field(default_factory=list)

    def finish(self) -> None:
        """Stop the clients after their current request."""
        self.stop.set()
        for thread in self.threads:
            thread.join()

    def send_requests(self, port: int, number: int) -> None:
        with client(port) as mine:
            count = 0
            while not self.stop.is_set():
                count += 1
                body = {
                    "model": "patina-tiny",
                    "messages": [{"role": "user", "content": f"{number}: question {count}"}],
                    "stream": count % 2 == 0,
                }
                try:
                    reply = mine.post("/chat/completions", json=body)
                except httpx.HTTPError as exc:
                    self.wrong.append(f"{type(exc).__name__}: {exc}")
                    return
                if reply.status_code != 200 or (body["stream"] and "[DONE]" not in reply.text):
                    self.wrong.append(f"{reply.status_code}: {reply.text[:100]}")
                self.ended.append(reply.headers["x-patina-turn"])

    def until(self, more: int) -> None:
        """Wait until so many more replies have ended."""
        wanted = len(self.ended) + more
        until(lambda: len(self.ended) >= wanted or self.wrong, f"{more} more replies")
        assert self.wrong == []


@dataclass
class RunningStack:
    """A proxy and a recorder as processes, with their record."""

    home: Path
    port: int
    pid: int  #: of the proxy
    recorder_pid: int

    @property
    def record(self) -> Path:
        return self.home / "patina.db"

    def store(self) -> Json:
        with client(self.port) as http:
            found: Json = http.get("/patina/status").json()["store"]
        return found

    def until_up(self) -> None:
        def is_up() -> bool:
            with suppress(httpx.HTTPError):
                self.store()
                return True
            return False

        until(is_up, "the proxy's start")

    def until(self, holds: Callable[[Json], bool]) -> Json:
        """Wait for a state of the store, and return it."""
        found: list[Json] = []

        def is_reached() -> bool:
            found[:] = [self.store()]
            return holds(found[0])

        try:
            until(is_reached, "the state of the store")
        except AssertionError as late:
            raise AssertionError(found) from late
        return found[0]

    def command(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "run.py", *argv, "--home", str(self.home)],
            cwd=REPOSITORY, env=child_environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip

    def reported(self, code: int, state: str = "") -> tuple[Json, str]:
        """Wait until `run.py status` exits with a code (and reports a state) in both forms; return its JSON and its text."""
        found: list[tuple[int, str]] = []

        def is_reported() -> bool:
            both = [self.command("status", *form) for form in (("--json",), ())]
            found[:] = [(done.returncode, done.stdout) for done in both]
            store = json.loads(both[0].stdout)["store"]
            return (
                {done.returncode for done in both} == {code}
                and store is not None
                and store["state"].startswith(state)
                and f"store: {state}" in both[1].stdout
            )

        try:
            until(is_reported, f"status {code} {state}")
        except AssertionError as late:
            raise AssertionError(found) from late
        return json.loads(found[0][1]), found[1][1]

    def written(self) -> set[str]:
        with closing(sqlite3.connect(self.record)) as connection:
            return {row[0] for row in connection.execute("SELECT turn_id FROM turns")}

    def settled(self) -> Json:
        """Wait until nothing waits any more, and return the state."""
        return self.until(
            lambda found: (
                (found["state"], found["lag_turns"], found["in_memory"], found["journal_bytes"])
                == ("ok", 0, 0, 0)
            )
        )


@contextmanager
def running_stack(home: Path, log: Path, **more: str) -> Iterator[RunningStack]:
    """Run proxy and recorder of a home; their output goes to a file, as under the supervisor."""
    port = free_port()
    path = home / "run" / "settings.json"
    read_settings({"home": home, "proxy_port": port, "api_key": KEY, **more}).dump(path)
    with running(Upstream()) as url, log.open("wb") as output:
        proxy = subprocess.Popen(command(path, "--backend-url", url), cwd=REPOSITORY, stderr=output)
        recorder = subprocess.Popen(
            [sys.executable, "-m", "recorder", "--settings", str(path)], cwd=REPOSITORY, stderr=output
        )
        try:
            stack = RunningStack(home, port, proxy.pid, recorder.pid)
            stack.until_up()
            yield stack
        finally:
            for process in (proxy, recorder):
                process.kill()
                process.wait()
    assert "Traceback" not in log.read_text()


@contextmanager
def load_clients(stack: RunningStack) -> Iterator[LoadClients]:
    load = LoadClients()
    load.threads = [threading.Thread(target=load.send_requests, args=(stack.port, i)) for i in range(CLIENTS)]
    for thread in load.threads:
        thread.start()
    try:
        yield load
    finally:
        load.finish()
    assert load.wrong == []


@pytest.fixture
def home(tmp_path: Path, empty_record: Path) -> Path:
    shutil.copy(empty_record, tmp_path / "patina.db")
    return tmp_path


@pytest.mark.long_run
def test_locked_for_ten_seconds(home: Path, tmp_path: Path) -> None:
    with running_stack(home, tmp_path / "log") as stack, load_clients(stack) as load:
        load.until(20)
        stack.reported(0)
        with closing(sqlite3.connect(stack.record, isolation_level=None)) as locked:
            locked.execute("BEGIN IMMEDIATE")
            began = time.monotonic()
            stack.until(lambda found: found["state"] == "away")
            found, text = stack.reported(1, "away")
            assert "locked" in found["store"]["last_error"]
            assert "the oldest for" in text
            assert "locked" in text
            assert found["stages"]["recorded"] >= 20  # the record can be read all the while
            while time.monotonic() - began < 10:
                load.until(5)
            locked.execute("ROLLBACK")
        load.until(5)
        load.finish()
        state = stack.settled()
        assert (state["lost"], state["rejected"], state["last_error"]) == (0, 0, None)
        assert stack.written() == set(load.ended)
        stack.reported(0, "ok")
        assert stack.command("verify").returncode == 0


@pytest.fixture
def small_disk(tmp_path: Path, empty_record: Path) -> Iterator[Path]:
    """A disk of 128 megabytes with a home on it: more than a test writes before and after it is full."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("mounting a small disk is not allowed here")
    try:
        shutil.copy(empty_record, folder / "patina.db")
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(path: Path) -> None:
    """Write a file until its disk is full."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


@pytest.mark.long_run
def test_disk_full(small_disk: Path, tmp_path: Path) -> None:
    with running_stack(small_disk, tmp_path / "log") as stack, load_clients(stack) as load:
        load.until(20)
        ballast = small_disk / "ballast"
        fill(ballast)
        # Neither record nor journal can be written: turns wait in memory, and the status reports it.
        stack.until(lambda found: found["state"] == "away" and found["journal_error"] is not None)
        load.until(40)
        found, text = stack.reported(1, "away")
        assert "full" in found["store"]["last_error"]
        assert "No space" in found["store"]["journal_error"]
        assert "the journal cannot be written" in text
        assert found["store"]["in_memory"] > 0
        ballast.unlink()
        load.until(5)
        load.finish()
        state = stack.settled()
        assert (state["lost"], state["last_error"]) == (0, None)
        assert stack.written() == set(load.ended)


@pytest.mark.long_run
def test_files_may_not_grow(home: Path, tmp_path: Path) -> None:
    """A file size limit, as a quota sets it; needs no mount."""
    with running_stack(home, tmp_path / "log") as stack, load_clients(stack) as load:
        load.until(20)
        unlimited = resource.prlimit(stack.pid, resource.RLIMIT_FSIZE)
        for pid in (stack.pid, stack.recorder_pid):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, unlimited[1]))
        stack.until(lambda found: found["journal_error"] is not None and found["in_memory"] > 0)
        load.until(40)
        found, text = stack.reported(1)
        assert "the journal cannot be written" in text
        assert found["store"]["in_memory"] > 0
        for pid in (stack.pid, stack.recorder_pid):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)
        load.until(5)
        load.finish()
        assert stack.settled()["lost"] == 0
        assert stack.written() == set(load.ended)
        assert stack.command("verify").returncode == 0


def test_removed_underneath(home: Path, tmp_path: Path) -> None:
    with running_stack(home, tmp_path / "log") as stack, load_clients(stack) as load:
        load.until(20)
        for _ in range(3):
            for suffix in ("", "-wal", "-shm"):
                stack.record.with_name(stack.record.name + suffix).unlink(missing_ok=True)
            load.until(20)
        load.finish()
        assert stack.settled()["lost"] == 0
        assert stack.written() == set(load.ended)
        assert stack.command("verify").returncode == 0
        stack.reported(0)


def test_its_folder_moved_away_and_back(home: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "patina.db"
    folder = home / "records"
    folder.mkdir()
    shutil.move(home / "patina.db", folder / "patina.db")
    with running_stack(home, home / "log", record_dir=str(folder)) as stack, load_clients(stack) as load:
        load.until(20)
        folder.rename(elsewhere)
        stack.until(lambda found: found["state"] == "away")
        load.until(20)
        done = stack.command("status", "--record-dir", str(folder))
        # The record cannot be read, but the proxy still reports its state.
        assert done.returncode == 1
        assert "the record cannot be read" in done.stdout
        assert "store: away" in done.stdout
        elsewhere.rename(folder)
        load.until(5)
        load.finish()
        assert stack.settled()["lost"] == 0
        with closing(sqlite3.connect(folder / "patina.db")) as connection:
            found = {row[0] for row in connection.execute("SELECT turn_id FROM turns")}
        assert found == set(load.ended)


def test_replaced_by_another(home: Path, tmp_path: Path, empty_record: Path) -> None:
    with running_stack(home, tmp_path / "log") as stack, load_clients(stack) as load:
        load.until(20)
        other = Path(shutil.copy(empty_record, home / "other.db"))
        kept = home / "kept.db"
        os.link(stack.record, kept)
        seen_before = len(load.ended)
        os.replace(other, stack.record)
        load.until(20)
        load.finish()
        assert stack.settled()["lost"] == 0
        with closing(sqlite3.connect(kept)) as connection:
            before = {row[0] for row in connection.execute("SELECT turn_id FROM turns")}
        # Each is in the one that lay there when it was written; what ended after the exchange is in the new one.
        assert before | stack.written() == set(load.ended)
        assert set(load.ended[seen_before + CLIENTS :]) <= stack.written()


def test_damaged_underneath(home: Path, tmp_path: Path, empty_record: Path) -> None:
    with running_stack(home, tmp_path / "log") as stack, load_clients(stack) as load:
        # Pages that SQLite holds in memory (2 MB a connection) are not read again: a smaller record would not notice until later.
        while stack.record.stat().st_size < 6_000_000:
            load.until(20)
        for suffix in ("", "-wal"):
            file = stack.record.with_name(stack.record.name + suffix)
            with file.open("r+b") as damaged:
                damaged.write(b"no page of a database " * (file.stat().st_size // 22))
        state = stack.until(lambda found: found["state"] == "away")
        assert "damaged" in state["last_error"]
        before = len(load.ended)
        load.until(40)
        found, _ = stack.reported(1, "away")
        assert "damaged" in found["record_error"]  # other processes cannot read it either
        # A backup replaces it, without the damaged log, which does not belong to it: the waiting turns are written into it.
        for suffix in ("-wal", "-shm"):
            stack.record.with_name(stack.record.name + suffix).unlink(missing_ok=True)
        os.replace(shutil.copy(empty_record, home / "backup.db"), stack.record)
        load.until(5)
        load.finish()
        state = stack.settled()
        assert (state["lost"], state["last_error"]) == (0, None)
        assert set(load.ended[before + CLIENTS :]) <= stack.written()
        stack.reported(0)
