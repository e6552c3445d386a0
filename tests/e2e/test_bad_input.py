"""A start-up error prints one sentence, exits with code 2, and loses nothing."""

from __future__ import annotations

import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from migrations import upgrade
from serving.ports import free_port
from store.settings import REPOSITORY, child_environment, read_settings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def start(home: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run Patina until it exits by itself; every case here makes it exit."""
    return subprocess.run(
        [sys.executable, "run.py", "--home", str(home), *argv],
        cwd=REPOSITORY,
        env=child_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    """The one sentence, after whatever was announced before it."""
    assert done.returncode == 2, done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert lines[-1].startswith("patina: ")
    assert "Traceback" not in done.stderr
    return lines[-1]


def test_an_unknown_method(tmp_path: Path) -> None:
    assert "--method 'ppo': must be 'rl', 'opd', 'combine' or 'sdpo'" in error_of(
        start(tmp_path, "--method", "ppo")
    )


def test_a_missing_model_folder(tmp_path: Path) -> None:
    done = start(tmp_path, "--model-name", str(tmp_path / "no-model"), "--proxy-port", str(free_port()))
    assert str(tmp_path / "no-model") in error_of(done)


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert f"cannot listen on 127.0.0.1:{port}" in error_of(start(tmp_path, "--proxy-port", port))


def test_a_database_newer_than_the_code_is_left_alone(tmp_path: Path) -> None:
    upgrade(read_settings({"home": tmp_path}).database_url)
    connection = sqlite3.connect(tmp_path / "patina.db")
    connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.commit()
    connection.close()
    before = (tmp_path / "patina.db").read_bytes()
    assert "written by a newer Patina" in error_of(start(tmp_path, "--proxy-port", str(free_port())))
    assert (tmp_path / "patina.db").read_bytes() == before


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "patina.db").write_bytes(b"my diary" * 1000)
    assert "not a database" in error_of(start(tmp_path, "--proxy-port", str(free_port())))
    assert (tmp_path / "patina.db").read_bytes() == b"my diary" * 1000


def test_a_custom_reward_that_is_not_there(tmp_path: Path) -> None:
    done = start(tmp_path, "--custom-rm-path", "no_such_module:reward", "--proxy-port", str(free_port()))
    assert "no_such_module" in error_of(done)


def test_a_rubric_that_is_not_there(tmp_path: Path) -> None:
    done = start(
        tmp_path, "--rubric", str(tmp_path / "none.txt"), "--judge", "self", "--proxy-port", str(free_port())
    )
    assert "none.txt" in error_of(done)


def test_a_corrupt_adapter_to_resume_from(tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(b"torn")
    done = start(tmp_path / "home", "--resume-from-ckpt", str(folder), "--proxy-port", str(free_port()))
    assert "adapter" in error_of(done)
