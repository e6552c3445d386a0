"""A store in trouble under load: replies flow, `run.py status` tells at once, and what can be recovered is.

The proxy and the recorder as processes, eight clients that send without a pause, and a record to which happens what must never happen to one.
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

__all__ = ["empty_record"]  # a fixture

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

Json = dict[str, Any]
CLIENTS = 8


@dataclass
class Talk:
    """What the clients saw."""

    ended: list[str] = field(default_factory=list)  #: turns whose end arrived
    wrong: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    voices: list[threading.Thread] = field(default_factory=list)

    def finish(self) -> None:
        """Let everybody say their last."""
        self.stop.set()
        for voice in self.voices:
            voice.join()

    def one_voice(self, port: int, number: int) -> None:
        with client(port) as mine:
            said = 0
            while not self.stop.is_set():
                said += 1
                body = {
                    "model": "patina-tiny",
                    "messages": [{"role": "user", "content": f"{number}: question {said}"}],
                    "stream": said % 2 == 0,
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
        """Wait until so many replies more have ended: they flow."""
        wanted = len(self.ended) + more
        for _ in range(1200):
            if len(self.ended) >= wanted or self.wrong:
                break
            time.sleep(0.05)
        assert self.wrong == []
        assert len(self.ended) >= wanted


@dataclass
class House:
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
        for _ in range(1200):
            with suppress(httpx.HTTPError):
                self.store()
                return
            time.sleep(0.05)
        raise AssertionError("the proxy did not start")

    def until(self, holds: Callable[[Json], bool]) -> Json:
        for _ in range(1200):
            found = self.store()
            if holds(found):
                return found
            time.sleep(0.05)
        raise AssertionError(found)

    def command(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "run.py", *argv, "--home", str(self.home)],
            cwd=REPOSITORY, env=child_environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip

    def told(self) -> tuple[int, Json, str]:
        """Return what `run.py status` says: its exit code, as JSON, and to a person."""
        code, said = self.command("status", "--json"), self.command("status")
        assert said.returncode == code.returncode
        return code.returncode, json.loads(code.stdout), said.stdout

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
def a_house(home: Path, log: Path, **more: str) -> Iterator[House]:
    """Run the proxy of a home; what it says goes to a file, as under the supervisor."""
    port = free_port()
    path = home / "run" / "settings.json"
    read_settings({"home": home, "proxy_port": port, "api_key": KEY, **more}).dump(path)
    with running(Upstream()) as url, log.open("wb") as said:
        proxy = subprocess.Popen(command(path, "--backend-url", url), cwd=REPOSITORY, stderr=said)
        recorder = subprocess.Popen(
            [sys.executable, "-m", "recorder", "--settings", str(path)], cwd=REPOSITORY, stderr=said
        )
        try:
            house = House(home, port, proxy.pid, recorder.pid)
            house.until_up()
            yield house
        finally:
            for process in (proxy, recorder):
                process.kill()
                process.wait()
    assert "Traceback" not in log.read_text()


@contextmanager
def talking(house: House) -> Iterator[Talk]:
    talk = Talk()
    talk.voices = [threading.Thread(target=talk.one_voice, args=(house.port, i)) for i in range(CLIENTS)]
    for voice in talk.voices:
        voice.start()
    try:
        yield talk
    finally:
        talk.finish()
    assert talk.wrong == []


@pytest.fixture
def home(tmp_path: Path, empty_record: Path) -> Path:
    shutil.copy(empty_record, tmp_path / "patina.db")
    return tmp_path


def test_locked_for_ten_seconds(home: Path, tmp_path: Path) -> None:
    with a_house(home, tmp_path / "log") as house, talking(house) as talk:
        talk.until(20)
        assert house.told()[0] == 0
        with closing(sqlite3.connect(house.record, isolation_level=None)) as locked:
            locked.execute("BEGIN IMMEDIATE")
            began = time.monotonic()
            house.until(lambda found: found["state"] == "away")
            code, found, said = house.told()
            assert (code, found["store"]["state"]) == (1, "away")
            assert "locked" in found["store"]["last_error"]
            assert "store: away" in said
            assert "turns wait, the oldest for" in said
            assert "locked" in said
            assert found["stages"]["recorded"] >= 20  # the record can be read all the while
            while time.monotonic() - began < 10:
                talk.until(5)
            locked.execute("ROLLBACK")
        talk.until(5)
        talk.finish()
        told = house.settled()
        assert (told["lost"], told["rejected"], told["last_error"]) == (0, 0, None)
        assert house.written() == set(talk.ended)
        code, found, said = house.told()
        assert (code, found["store"]["state"]) == (0, "ok")
        assert house.command("verify").returncode == 0


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


def test_disk_full(small_disk: Path, tmp_path: Path) -> None:
    with a_house(small_disk, tmp_path / "log") as house, talking(house) as talk:
        talk.until(20)
        ballast = small_disk / "ballast"
        fill(ballast)
        # Neither record nor journal takes anything: turns wait in memory, which is told as well.
        house.until(lambda found: found["state"] == "away" and found["journal_error"] is not None)
        talk.until(40)
        code, found, said = house.told()
        assert (code, found["store"]["state"]) == (1, "away")
        assert "full" in found["store"]["last_error"]
        assert "No space" in found["store"]["journal_error"]
        assert "the journal cannot be written" in said
        assert found["store"]["in_memory"] > 0
        ballast.unlink()
        talk.until(5)
        talk.finish()
        told = house.settled()
        assert (told["lost"], told["last_error"]) == (0, None)
        assert house.written() == set(talk.ended)


def test_files_may_not_grow(home: Path, tmp_path: Path) -> None:
    """What a quota does, where nobody may mount a disk."""
    with a_house(home, tmp_path / "log") as house, talking(house) as talk:
        talk.until(20)
        unlimited = resource.prlimit(house.pid, resource.RLIMIT_FSIZE)
        for pid in (house.pid, house.recorder_pid):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, unlimited[1]))
        house.until(lambda found: found["journal_error"] is not None and found["in_memory"] > 0)
        talk.until(40)
        code, found, said = house.told()
        assert code == 1
        assert "the journal cannot be written" in said
        assert found["store"]["in_memory"] > 0
        for pid in (house.pid, house.recorder_pid):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)
        talk.until(5)
        talk.finish()
        assert house.settled()["lost"] == 0
        assert house.written() == set(talk.ended)
        assert house.command("verify").returncode == 0


def test_removed_underneath(home: Path, tmp_path: Path) -> None:
    with a_house(home, tmp_path / "log") as house, talking(house) as talk:
        talk.until(20)
        for _ in range(3):
            for suffix in ("", "-wal", "-shm"):
                house.record.with_name(house.record.name + suffix).unlink(missing_ok=True)
            talk.until(20)
        talk.finish()
        assert house.settled()["lost"] == 0
        assert house.written() == set(talk.ended)
        assert house.command("verify").returncode == 0
        assert house.told()[0] == 0


def test_its_folder_moved_away_and_back(home: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "patina.db"
    folder = home / "records"
    folder.mkdir()
    shutil.move(home / "patina.db", folder / "patina.db")
    with a_house(home, home / "log", record_dir=str(folder)) as house, talking(house) as talk:
        talk.until(20)
        folder.rename(elsewhere)
        house.until(lambda found: found["state"] == "away")
        talk.until(20)
        done = house.command("status", "--record-dir", str(folder))
        # The record cannot be read, and the proxy tells all the same.
        assert done.returncode == 1
        assert "the record cannot be read" in done.stdout
        assert "store: away" in done.stdout
        elsewhere.rename(folder)
        talk.until(5)
        talk.finish()
        assert house.settled()["lost"] == 0
        with closing(sqlite3.connect(folder / "patina.db")) as connection:
            found = {row[0] for row in connection.execute("SELECT turn_id FROM turns")}
        assert found == set(talk.ended)


def test_replaced_by_another(home: Path, tmp_path: Path, empty_record: Path) -> None:
    with a_house(home, tmp_path / "log") as house, talking(house) as talk:
        talk.until(20)
        other = Path(shutil.copy(empty_record, home / "other.db"))
        kept = home / "kept.db"
        os.link(house.record, kept)
        seen_before = len(talk.ended)
        os.replace(other, house.record)
        talk.until(20)
        talk.finish()
        assert house.settled()["lost"] == 0
        with closing(sqlite3.connect(kept)) as connection:
            before = {row[0] for row in connection.execute("SELECT turn_id FROM turns")}
        # Each is in the one that lay there when it was written; what ended after the exchange is in the new one.
        assert before | house.written() == set(talk.ended)
        assert set(talk.ended[seen_before + CLIENTS :]) <= house.written()


def test_damaged_underneath(home: Path, tmp_path: Path, empty_record: Path) -> None:
    with a_house(home, tmp_path / "log") as house, talking(house) as talk:
        # Pages that SQLite holds in memory (2 MB a connection) are not read again: a smaller record would not notice until later.
        while house.record.stat().st_size < 6_000_000:
            talk.until(20)
        for suffix in ("", "-wal"):
            file = house.record.with_name(house.record.name + suffix)
            with file.open("r+b") as damaged:
                damaged.write(b"no page of a database " * (file.stat().st_size // 22))
        told = house.until(lambda found: found["state"] == "away")
        assert "damaged" in told["last_error"]
        before = len(talk.ended)
        talk.until(40)
        code, found, said = house.told()
        assert code == 1
        assert "damaged" in found["record_error"]  # nobody else can read it either
        assert found["store"]["state"] == "away"
        assert "store: away" in said
        # Somebody puts a backup in its place, without the damaged log, which is no part of it: what waited is written into it.
        for suffix in ("-wal", "-shm"):
            house.record.with_name(house.record.name + suffix).unlink(missing_ok=True)
        os.replace(shutil.copy(empty_record, home / "backup.db"), house.record)
        talk.until(5)
        talk.finish()
        told = house.settled()
        assert (told["lost"], told["last_error"]) == (0, None)
        assert set(talk.ended[before + CLIENTS :]) <= house.written()
        assert house.told()[0] == 0
