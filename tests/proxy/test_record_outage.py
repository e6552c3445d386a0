"""A record or a journal in trouble: replies flow, `status` has the reason, and nothing whose end a client saw is lost."""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.ports import free_port
from store.journal import segments
from tests.proxy.test_main import client, process, recording, rows, write_settings
from tests.proxy.upstream import Upstream, running

pytestmark = pytest.mark.slow

Json = dict[str, Any]


def ask(http: httpx.Client, text: str) -> str:
    reply = http.post(
        "/chat/completions", json={"model": "patina-tiny", "messages": [{"role": "user", "content": text}]}
    )
    assert reply.status_code == 200
    return str(reply.headers["x-patina-turn"])


def where_kept(http: httpx.Client, *, stream: bool = False) -> str | None:
    """Return what a reply says of where its turn is while the disk refuses it."""
    messages = [{"role": "user", "content": "where are you kept"}]
    reply = http.post(
        "/chat/completions", json={"model": "patina-tiny", "messages": messages, "stream": stream}
    )
    assert reply.status_code == 200
    kept: str | None = reply.headers.get("x-patina-journal")
    return kept


def store(http: httpx.Client) -> Json:
    found: Json = http.get("/patina/status").json()["store"]
    return found


def until(http: httpx.Client, holds: Callable[[Json], bool]) -> Json:
    for _ in range(1200):
        found = store(http)
        if holds(found):
            return found
        time.sleep(0.05)
    raise AssertionError(found)


def is_settled(found: Json) -> bool:
    return (found["state"], found["lag_turns"], found["in_memory"], found["journal_bytes"]) == ("ok", 0, 0, 0)


@dataclass
class Running:
    """A proxy process in front of a scripted backend, without a recorder."""

    settings: Path
    proxy: subprocess.Popen[bytes]
    http: httpx.Client

    def limit_files(self, size: int) -> None:
        """Let no file of the proxy grow beyond ``size`` bytes, as a quota or a full disk does."""
        _, most = resource.prlimit(self.proxy.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.proxy.pid, resource.RLIMIT_FSIZE, (size, most))

    def stop(self) -> tuple[int, str]:
        """End the proxy; returns its exit code and what it wrote to stderr."""
        self.proxy.terminate()
        _, errors = self.proxy.communicate(timeout=60)
        return self.proxy.returncode, errors.decode()


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Running]:
    port = free_port()
    with running(Upstream()) as url:
        settings = write_settings(tmp_path, port)
        with process(settings, port, "--backend-url", url) as proxy, client(port) as http:
            yield Running(settings, proxy, http)


@contextmanager
def locked(record_file: Path) -> Iterator[None]:
    with closing(sqlite3.connect(record_file, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


def written(record_file: Path) -> set[str]:
    return {row[0] for row in rows(record_file)}


def test_a_record_locked_by_another_program_delays_no_reply_and_loses_none(
    record_file: Path, gateway: Running
) -> None:
    http = gateway.http
    with recording(gateway.settings):
        ids = {ask(http, "before the lock")}
        until(http, is_settled)
        with locked(record_file):
            ids |= {ask(http, f"while it is locked, {i}") for i in range(8)}
            found = until(http, lambda found: found["state"] == "away" and found["lag_turns"] == 8)
            assert "locked" in found["last_error"]
            assert (found["in_memory"], found["lost"], found["journal_error"]) == (0, 0, None)
        found = until(http, is_settled)
        assert (found["last_error"], found["lost"]) == (None, 0)
        assert written(record_file) == ids


def test_feedback_on_a_turn_that_is_not_recorded_yet_is_taken_at_once_and_unknown_turns_are_refused_later(
    record_file: Path, gateway: Running
) -> None:
    http = gateway.http
    with recording(gateway.settings):
        until(http, is_settled)
        with ThreadPoolExecutor() as pool, client(http.base_url.port or 0) as other:
            with locked(record_file):
                turn = ask(http, "while it is locked")
                given = http.post("/feedback", json={"turn_id": turn, "thumbs": "down"})
                assert given.json() == {"status": "recorded", "turn_id": turn}
                again = http.post("/feedback", json={"turn_id": turn, "thumbs": "down"})
                assert again.json() == {"status": "duplicate", "turn_id": turn}
                unknown = pool.submit(other.post, "/feedback", json={"turn_id": "turn_x", "score": 1})
                until(http, lambda found: found["state"] == "away")
                assert not unknown.done()  # another gateway may have issued it
            assert unknown.result().status_code == 404
        until(http, is_settled)
    with closing(sqlite3.connect(record_file)) as connection:
        assert connection.execute("SELECT turn_id, score FROM feedback").fetchall() == [(turn, -1.0)]


def test_replies_need_no_recorder(record_file: Path, gateway: Running) -> None:
    http = gateway.http
    ids = {ask(http, f"question {i}") for i in range(5)}
    found = store(http)
    assert (found["state"], found["lost"], found["in_memory"]) == ("stopped", 0, 0)
    assert found["journal_bytes"] > 0
    assert written(record_file) == set()
    with recording(gateway.settings):
        until(http, is_settled)
    assert written(record_file) == ids


def test_killed_while_the_record_is_locked_everything_a_client_saw_is_recorded_at_the_next_start(
    record_file: Path, gateway: Running
) -> None:
    http = gateway.http
    with recording(gateway.settings) as recorder, locked(record_file):
        ids = {ask(http, f"while it is locked, {i}") for i in range(6)}
        for dead in (gateway.proxy, recorder):
            dead.kill()
            dead.wait()
    assert written(record_file) == set()
    with recording(gateway.settings) as recorder:
        while written(record_file) != ids:
            assert recorder.poll() is None
            time.sleep(0.05)


def test_a_record_removed_while_in_use_is_put_back_with_all_it_held(
    record_file: Path, gateway: Running
) -> None:
    http = gateway.http
    with recording(gateway.settings):
        ids = {ask(http, f"before, {i}") for i in range(3)}
        until(http, is_settled)
        for suffix in ("", "-wal", "-shm"):
            record_file.with_name(record_file.name + suffix).unlink(missing_ok=True)
        ids |= {ask(http, f"after, {i}") for i in range(3)}
        until(http, is_settled)
        assert written(record_file) == ids


def test_a_damaged_record_costs_no_reply_and_what_waited_is_written_into_one_put_in_its_place(
    empty_record: Path, record_file: Path, tmp_path: Path, gateway: Running
) -> None:
    http = gateway.http
    # Overwritten in place: truncated first, it would be an empty database for the gateway that opens it at this moment.
    with record_file.open("r+b", buffering=0) as file:
        file.truncate(file.write(b"not a database at all " * 1000))
    with recording(gateway.settings):
        ids = {ask(http, f"question {i}") for i in range(3)}
        found = until(http, lambda found: found["state"] == "away" and found["lag_turns"] == 3)
        assert "damaged" in found["last_error"]
        assert (found["in_memory"], found["lost"]) == (0, 0)
        good = Path(shutil.copy(empty_record, tmp_path / "good.db"))
        os.replace(good, record_file)
        until(http, is_settled)
        assert written(record_file) == ids


def test_a_journal_that_cannot_be_written_costs_no_reply_and_is_written_later(
    record_file: Path, gateway: Running
) -> None:
    http = gateway.http
    with recording(gateway.settings):
        ids = {ask(http, "before")}
        until(http, is_settled)
        gateway.limit_files(1)
        ids |= {ask(http, f"while it is full, {i}") for i in range(4)}
        found = store(http)
        assert "too large" in found["journal_error"]
        assert (found["in_memory"], found["lost"]) == (4, 0)
        assert where_kept(http) == where_kept(http, stream=True) == "memory"
        given = http.post("/feedback", json={"turn_id": max(ids), "thumbs": "up"})
        assert given.status_code == 503
        gateway.limit_files(resource.RLIM_INFINITY)
        found = until(http, is_settled)
        assert found["journal_error"] is None
        assert written(record_file) >= ids
        assert where_kept(http) is where_kept(http, stream=True) is None
    code, errors = gateway.stop()
    assert (code, "lost" in errors) == (0, False)


#: Without these rights, file permissions bind root as well.
_UNPRIVILEGED = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search") if os.getuid() == 0 else ()


@pytest.mark.skipif(bool(_UNPRIVILEGED) and shutil.which("setpriv") is None, reason="no setpriv here")
def test_a_read_only_journal_folder_costs_no_reply_and_is_written_once_it_is_writable(
    record_file: Path, tmp_path: Path
) -> None:
    port = free_port()
    settings = write_settings(tmp_path, port)
    folder = tmp_path / "journal"
    folder.mkdir(mode=0o500)
    with (
        running(Upstream()) as url,
        process(settings, port, "--backend-url", url, prefix=_UNPRIVILEGED),
        client(port) as http,
    ):
        ids = {ask(http, f"while it is read-only, {i}") for i in range(3)}
        found = store(http)
        assert "Permission denied" in found["journal_error"]
        assert (found["in_memory"], found["lost"]) == (3, 0)
        folder.chmod(0o700)
        ids.add(ask(http, "after"))
        with recording(settings):
            assert until(http, is_settled)["journal_error"] is None
    assert written(record_file) == ids


def test_journal_files_removed_in_bursts_under_load_lose_nothing(record_file: Path, gateway: Running) -> None:
    folder = gateway.settings.parent / "journal"
    is_over = threading.Event()

    def remove() -> None:
        while not is_over.wait(0.03):
            for path in segments(folder):
                path.unlink(missing_ok=True)

    with recording(gateway.settings):
        remover = threading.Thread(target=remove)
        remover.start()
        try:
            with ThreadPoolExecutor(4) as pool:
                ids = set(pool.map(lambda i: ask(gateway.http, f"question {i}"), range(120)))
        finally:
            is_over.set()
            remover.join()
        until(gateway.http, is_settled)
        assert written(record_file) == ids
    with closing(sqlite3.connect(record_file)) as connection:
        (prompts,) = connection.execute("SELECT count(DISTINCT request_key) FROM turns").fetchone()
    assert prompts == len(ids) == 120


def test_what_is_lost_at_the_end_is_reported_with_exit_code_1(record_file: Path, gateway: Running) -> None:
    gateway.limit_files(1)
    for i in range(3):
        ask(gateway.http, f"question {i}")
    code, errors = gateway.stop()
    assert code == 1
    last = errors.strip().splitlines()[-1]
    assert last.startswith("proxy: 3 exchanges were lost: 3 entries: the journal cannot be written (")
    assert "Traceback" not in errors
    assert written(record_file) == set()
