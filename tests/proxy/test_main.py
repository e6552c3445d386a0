"""The process itself: how it starts, ends, and what is left when it is killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.ports import free_port
from store.catch_up import read_recorder_state
from store.journal import segments
from store.settings import REPOSITORY, Settings, read_settings
from tests.proxy.conftest import KEY
from tests.proxy.upstream import Upstream, free_socket, running


def command(settings: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "proxy", "--settings", str(settings), *more]


def write_settings(tmp_path: Path, port: int, **more: Any) -> Path:
    path = tmp_path / "settings.json"
    read_settings({"home": tmp_path, "proxy_port": port, "api_key": KEY, **more}).dump(path)
    return path


@contextmanager
def process(
    settings: Path, port: int, *more: str, prefix: Sequence[str] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a gateway; ``prefix``: a program that starts it."""
    started = subprocess.Popen([*prefix, *command(settings, *more)], cwd=REPOSITORY, stderr=subprocess.PIPE)
    try:
        for _ in range(1200):
            assert started.poll() is None, started.stderr.read() if started.stderr else b""
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5):
                    break
            except OSError:
                time.sleep(0.05)
        yield started
    finally:
        if started.poll() is None:
            started.kill()
        started.wait()
        if started.stderr:
            started.stderr.close()


@contextmanager
def recording(settings: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a recorder; at the end it records what is in the journal."""
    started = subprocess.Popen(
        [sys.executable, "-m", "recorder", "--settings", str(settings)],
        cwd=REPOSITORY,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield started
        if started.poll() is None:
            started.terminate()
            assert started.wait(60) == 0
    finally:
        if started.poll() is None:
            started.kill()
        started.wait()


def record_all(settings: Path) -> None:
    """Record what is in the journal, and end."""
    folder = Settings.load(settings).journal_folder
    with recording(settings) as recorder:
        while segments(folder):
            assert recorder.poll() is None
            time.sleep(0.02)


def rows(record_file: Path) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(record_file)
    try:
        return connection.execute(
            "SELECT t.turn_id, t.completion, l.stage, l.drop_reason FROM turns t JOIN turn_states l USING (turn_id)"
        ).fetchall()
    finally:
        connection.close()


def client(port: int) -> httpx.Client:
    # no TLS: reading the certificates costs more than the requests
    return httpx.Client(
        base_url=f"http://127.0.0.1:{port}/v1",
        verify=False,
        timeout=60,
        headers={"Authorization": f"Bearer {KEY}"},
    )


def send_requests(port: int, name: str, ended: list[str]) -> None:
    """Stream until the process is killed under it; note the id of each turn whose end was seen."""
    with client(port) as mine:
        for i in range(1000):
            body = {
                "model": "patina",
                "stream": True,
                "messages": [{"role": "user", "content": f"{name} {i}"}],
            }
            try:
                with mine.stream("POST", "/chat/completions", json=body) as response:
                    seen = b"".join(response.iter_raw())
            except httpx.HTTPError:
                return
            if b"[DONE]" in seen:
                ended.append(response.headers["x-patina-turn"])


@pytest.fixture
def port() -> int:
    return free_port()


def test_killed_under_streams_it_loses_no_turn_whose_end_was_seen(
    record_file: Path, tmp_path: Path, port: int
) -> None:
    upstream = Upstream(base="patina-tiny", chunk_delay_s=0.003)
    settings = write_settings(tmp_path, port)
    ended: list[str] = []
    with running(upstream) as url:
        for life in range(3):
            with process(settings, port, "--backend-url", url) as proxy:
                threads = [
                    threading.Thread(target=send_requests, args=(port, f"run {life}, client {k}", ended))
                    for k in range(8)
                ]
                for thread in threads:
                    thread.start()
                while len(ended) < 60 * (life + 1):
                    time.sleep(0.01)
                proxy.send_signal(signal.SIGKILL)
                proxy.wait()
                for thread in threads:
                    thread.join()
    record_all(settings)
    known = {row[0] for row in rows(record_file)}
    assert len(ended) >= 180
    assert set(ended) <= known


def test_sigterm_lets_what_is_in_flight_finish_and_ends_cleanly(
    record_file: Path, tmp_path: Path, port: int
) -> None:
    upstream = Upstream(base="patina-tiny")
    upstream.events["go"] = threading.Event()
    settings = write_settings(tmp_path, port)
    ended: list[str] = []

    def ask() -> None:
        body = {
            "model": "patina", "stream": True, "messages": [{"role": "user", "content": "slow"}],
            "scripted": {"text": "one two three", "hold": "go"},
        }  # fmt: skip
        with httpx.stream(
            "POST", f"http://127.0.0.1:{port}/v1/chat/completions", json=body, timeout=30, headers={"Authorization": f"Bearer {KEY}"}
        ) as response:  # fmt: skip
            ended.append(b"".join(response.iter_raw()).decode())

    with running(upstream) as url, process(settings, port, "--backend-url", url) as proxy:
        thread = threading.Thread(target=ask)
        thread.start()
        assert upstream.held.wait(60)
        proxy.terminate()
        time.sleep(0.3)
        upstream.events["go"].set()
        thread.join()
        assert proxy.wait(timeout=60) == 0
    assert ended[0].endswith("data: [DONE]\n\n")
    record_all(settings)
    ((_, completion, stage, _),) = rows(record_file)
    assert (completion, stage) == ("one two three", "recorded")


def test_a_request_that_sigterm_cuts_gets_a_503_in_openais_shape(
    record_file: Path, tmp_path: Path, port: int
) -> None:
    upstream = Upstream(base="patina-tiny")
    settings = write_settings(tmp_path, port)
    asked = threading.Event()
    responses: list[httpx.Response] = []

    async def never(*_: Any) -> None:
        asked.set()
        await asyncio.sleep(600)

    upstream._chat = never  # type: ignore[assignment, method-assign]

    def ask() -> None:
        with client(port) as mine:
            body = {"model": "patina", "messages": [{"role": "user", "content": "slow"}]}
            responses.append(mine.post("/chat/completions", json=body))

    with running(upstream) as url, process(settings, port, "--backend-url", url) as proxy:
        thread = threading.Thread(target=ask)
        thread.start()
        assert asked.wait(60)
        proxy.terminate()
        thread.join()
        assert proxy.wait(timeout=60) == 0
    (response,) = responses
    assert response.status_code == 503
    assert response.headers["content-type"] == "application/json"
    assert response.headers["retry-after"] == "5"
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("server_error", "stopping")
    assert set(error) == {"message", "type", "param", "code"}


def test_it_writes_a_heartbeat_every_second(record_file: Path, tmp_path: Path, port: int) -> None:
    settings = write_settings(tmp_path, port)

    def beat() -> tuple[Any, ...]:
        connection = sqlite3.connect(record_file)
        try:
            row = connection.execute("SELECT process, pid, state, at, detail FROM heartbeats").fetchone()
        finally:
            connection.close()
        return tuple(row) if row is not None else ("", 0, "", 0.0, "")

    with running(Upstream(base="patina-tiny")) as url, process(settings, port, "--backend-url", url) as proxy:
        while beat()[3] < time.time() - 0.9:
            time.sleep(0.05)
        first = beat()
        assert first[:3] == ("proxy", proxy.pid, "running")
        assert json.loads(first[4])["backend"]["address"] == url
        while beat()[3] == first[3]:
            time.sleep(0.05)
        proxy.terminate()
        assert proxy.wait(timeout=60) == 0
    assert beat()[2] == "stopped"


def refuses(argv: list[str]) -> str:
    """Start a process, expect exit code 2, and return the sentence that it printed."""
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    return done.stderr.strip()


def test_what_cannot_start_says_why_in_one_sentence(record_file: Path, tmp_path: Path) -> None:
    with free_socket() as taken:
        port = taken.getsockname()[1]
        settings = write_settings(tmp_path, port)
        error = refuses(command(settings, "--backend-url", "http://127.0.0.1:9"))
        assert error.startswith(f"proxy: cannot listen on 127.0.0.1:{port}")
    assert "no backend is configured" in refuses(command(settings))
    assert "cannot read the settings" in refuses(command(tmp_path / "missing.json"))


def recorder_command(settings: Path) -> list[str]:
    return [sys.executable, "-m", "recorder", "--settings", str(settings)]


def test_a_record_of_a_newer_patina_is_not_touched(record_file: Path, tmp_path: Path, port: int) -> None:
    with closing(sqlite3.connect(record_file)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.commit()
    error = refuses(recorder_command(write_settings(tmp_path, port)))
    assert error.startswith("recorder: ")
    assert "newer Patina" in error


def test_a_second_recorder_of_a_journal_is_refused(record_file: Path, tmp_path: Path, port: int) -> None:
    settings = write_settings(tmp_path, port)
    with recording(settings) as recorder:
        while read_recorder_state(tmp_path / "journal") is None:
            assert recorder.poll() is None
            time.sleep(0.02)
        assert "another recorder reads the journal" in refuses(recorder_command(settings))


def test_a_recorder_without_its_folder_ends_with_a_sentence_and_is_started_again(
    record_file: Path, tmp_path: Path, port: int
) -> None:
    (tmp_path / "journal").write_bytes(b"a file where the folder belongs")
    done = subprocess.run(
        recorder_command(write_settings(tmp_path, port)),
        cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1  # not 2, which would end the supervisor: a disk may come back
    assert done.stderr.strip().splitlines()[-1].startswith("recorder: the journal cannot be opened")
    assert "Traceback" not in done.stderr


def test_importing_the_proxy_brings_no_heavy_library() -> None:
    code = "import sys, proxy.__main__; print([m for m in ('torch', 'transformers', 'litellm', 'peft') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ},
    )
    assert done.stdout.strip() == "[]"
