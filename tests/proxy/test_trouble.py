"""A store in trouble: locked, full, removed, damaged. Replies flow, `status` tells at once, and nothing whose end a client saw is lost."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx

from serving.ports import free_port
from tests.proxy.test_main import client, process, rows, write_settings
from tests.proxy.upstream import Upstream, running

Json = dict[str, Any]


def ask(http: httpx.Client, text: str) -> str:
    reply = http.post(
        "/chat/completions", json={"model": "patina-tiny", "messages": [{"role": "user", "content": text}]}
    )
    assert reply.status_code == 200
    return str(reply.headers["x-patina-turn"])


def store(http: httpx.Client) -> Json:
    found: Json = http.get("/patina/status").json()["store"]
    return found


def until(http: httpx.Client, holds: Callable[[Json], bool]) -> Json:
    for _ in range(600):
        found = store(http)
        if holds(found):
            return found
        time.sleep(0.05)
    raise AssertionError(found)


def written(record_file: Path) -> set[str]:
    return {row[0] for row in rows(record_file)}


def test_a_record_locked_by_somebody_else_delays_no_reply_beyond_the_bound_and_loses_none(
    record_file: Path, tmp_path: Path
) -> None:
    port = free_port()
    with running(Upstream()) as url:
        settings = write_settings(tmp_path, port)
        with process(settings, port, "--backend-url", url), client(port) as http:
            ids = {ask(http, "before the lock")}
            locked = sqlite3.connect(record_file)
            locked.execute("BEGIN IMMEDIATE")
            ids |= {ask(http, f"while it is locked, {i}") for i in range(8)}
            told = store(http)
            assert told["state"] in ("slow", "away")
            # Whether each was in the journal within the bound is the disk's to say (`exposed`; tests/proxy/test_recorder.py).
            assert (told["late"], told["waiting"], told["lost"]) == (8, 8, 0)
            told = until(http, lambda found: found["state"] == "away")
            assert "locked" in told["last_error"]
            locked.rollback()
            locked.close()
            told = until(http, lambda found: not found["waiting"])
            assert (told["state"], told["last_error"], told["lost"]) == ("ok", None, 0)
            assert written(record_file) == ids
            until(http, lambda found: found["journal_bytes"] == 0)


def test_feedback_on_a_turn_that_waits_is_kept_until_the_turn_is_there(
    record_file: Path, tmp_path: Path
) -> None:
    port = free_port()
    with running(Upstream()) as url:
        settings = write_settings(tmp_path, port)
        with process(settings, port, "--backend-url", url), client(port) as http:
            until(http, lambda found: found["state"] == "ok")
            with closing(sqlite3.connect(record_file)) as locked:
                locked.execute("BEGIN IMMEDIATE")
                turn = ask(http, "while it is locked")
                with ThreadPoolExecutor() as pool, client(port) as other:
                    given = pool.submit(other.post, "/feedback", json={"turn_id": turn, "thumbs": "down"})
                    assert http.post("/feedback", json={"turn_id": "turn_x", "score": 1}).status_code == 404
                    assert not given.done()
                    locked.rollback()
                    assert given.result().json() == {"status": "recorded", "turn_id": turn}


def test_killed_while_the_record_is_locked_everything_a_client_saw_is_written_at_the_next_start(
    record_file: Path, tmp_path: Path
) -> None:
    port = free_port()
    with running(Upstream()) as url:
        settings = write_settings(tmp_path, port)
        locked = sqlite3.connect(record_file)
        with process(settings, port, "--backend-url", url) as proxy, client(port) as http:
            until(http, lambda found: found["state"] == "ok")
            locked.execute("BEGIN IMMEDIATE")
            ids = {ask(http, f"while it is locked, {i}") for i in range(6)}
            proxy.kill()
            proxy.wait()
        locked.rollback()
        locked.close()
        assert written(record_file) == set()
        with process(settings, port, "--backend-url", url), client(port) as http:
            told = until(http, lambda found: not found["waiting"] and found["recovered"] == 6)
            assert told["journal_bytes"] == 0 or until(http, lambda found: found["journal_bytes"] == 0)
        assert written(record_file) == ids


def test_a_record_removed_while_in_use_is_put_back_with_all_it_held(
    record_file: Path, tmp_path: Path
) -> None:
    port = free_port()
    with running(Upstream()) as url:
        settings = write_settings(tmp_path, port)
        with process(settings, port, "--backend-url", url), client(port) as http:
            ids = {ask(http, f"before, {i}") for i in range(3)}
            for suffix in ("", "-wal", "-shm"):
                record_file.with_name(record_file.name + suffix).unlink(missing_ok=True)
            ids |= {ask(http, f"after, {i}") for i in range(3)}
            until(http, lambda found: not found["waiting"] and found["state"] == "ok")
            assert written(record_file) == ids


def test_a_damaged_record_costs_no_reply_and_what_waited_is_written_into_one_put_in_its_place(
    empty_record: Path, record_file: Path, tmp_path: Path
) -> None:
    port = free_port()
    record_file.write_bytes(b"not a database at all " * 1000)
    with running(Upstream()) as url:
        settings = write_settings(tmp_path, port)
        with process(settings, port, "--backend-url", url), client(port) as http:
            ids = {ask(http, f"question {i}") for i in range(3)}
            told = until(http, lambda found: found["state"] == "away")
            assert "damaged" in told["last_error"]
            assert (told["waiting"], told["lost"]) == (3, 0)
            good = Path(shutil.copy(empty_record, tmp_path / "good.db"))
            os.replace(good, record_file)
            until(http, lambda found: not found["waiting"] and found["state"] == "ok")
            assert written(record_file) == ids
