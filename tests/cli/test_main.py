"""Which model a command is about: the one that was named, or the one that the home's newest start served."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cli.main import main, with_served_model
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
    found = with_served_model(read_settings({"home": started.home}), "why")
    assert (found.model_name, found.policy) == ("org/model", "served")


@pytest.mark.parametrize("command", [None, "demo"])
def test_a_start_serves_the_default_whatever_was_served_before(
    started: Settings, command: str | None
) -> None:
    settings = read_settings({"home": started.home})
    assert with_served_model(settings, command) == settings


def test_a_model_that_is_named_counts(started: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_served_model(read_settings({"home": started.home, "model_name": "a/b"}), "why").policy == "b"
    monkeypatch.setenv("MODEL_NAME", "c/d")
    assert with_served_model(read_settings({"home": started.home}), "why").policy == "d"


def test_a_home_where_nothing_was_started_has_the_default(tmp_path: Path) -> None:
    settings = read_settings({"home": tmp_path})
    assert with_served_model(settings, "why") == settings


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
