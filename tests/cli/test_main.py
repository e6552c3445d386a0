"""Which model a command is about: the one that was named, or the one that the home's newest start served."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.main import main, with_last_start
from migrations import upgrade
from store.record import Record
from store.settings import Settings, read_settings


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The settings of a start with another model than the default; the environment names none."""
    monkeypatch.delenv("MODEL_NAME", raising=False)
    settings = read_settings({"home": tmp_path, "model_name": "org/model", "served_model_name": "served"})
    (tmp_path / "run").mkdir()
    settings.dump(tmp_path / "run" / "settings.json")
    upgrade(settings.database_url)
    return settings


def test_a_command_is_about_the_model_that_the_home_serves(started: Settings) -> None:
    found = with_last_start(read_settings({"home": started.home}), "why")
    assert (found.model_name, found.policy) == ("org/model", "served")


@pytest.mark.parametrize("command", [None, "demo"])
def test_a_start_serves_the_default_whatever_was_served_before(
    started: Settings, command: str | None
) -> None:
    settings = read_settings({"home": started.home})
    assert with_last_start(settings, command) == settings


def test_a_model_that_is_named_counts(started: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_last_start(read_settings({"home": started.home, "model_name": "a/b"}), "why").policy == "b"
    monkeypatch.setenv("MODEL_NAME", "c/d")
    assert with_last_start(read_settings({"home": started.home}), "why").policy == "d"


def test_a_command_finds_the_folder_of_the_model_that_was_served(started: Settings) -> None:
    started.model_copy(update={"model_folder": "/models/m", "model_gguf": "/models/m.gguf"}).dump(
        started.home / "run" / "settings.json"
    )
    found = with_last_start(read_settings({"home": started.home}), "export")
    assert (found.model_path, found.model_gguf) == ("/models/m", "/models/m.gguf")
    same = with_last_start(read_settings({"home": started.home, "model_name": "org/model"}), "export")
    assert same.model_path == "/models/m"
    other = with_last_start(read_settings({"home": started.home, "model_name": "a/b"}), "export")
    assert other.model_path == "a/b"


def test_a_home_where_nothing_was_started_has_the_default(tmp_path: Path) -> None:
    settings = read_settings({"home": tmp_path})
    assert with_last_start(settings, "why") == settings


def test_a_rollback_as_the_start_prints_it_rolls_back_what_is_served(
    started: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rollback", "0", "--home", str(started.home)]) == 0
    assert "served without adapter" in capsys.readouterr().out

    async def moves() -> int:
        record = await Record.open(started.database_url)
        try:
            return len(await record.alias_moves("served"))
        finally:
            await record.close()

    assert asyncio.run(moves()) == 1


@pytest.mark.parametrize("command", ["status", "versions", "wishes"])
def test_a_command_imports_only_what_it_needs(started: Settings, command: str) -> None:
    code = f"import sys; from cli.main import main; assert main(['{command}']) == 0; print(*sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PATINA_HOME": str(started.home)},
        capture_output=True,
        text=True,
        check=True,
    )
    slow = {"alembic", "sqlalchemy.orm", "sqlalchemy.dialects.postgresql", "numpy", "torch", "litellm"}
    slow |= {"cli.supervisor", "migrations", "scorers", "trainer", "wire"}
    assert slow.isdisjoint(found.stdout.splitlines()[-1].split())
