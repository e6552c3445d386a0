"""`run.py compare`: its errors."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cli.main import main
from migrations import upgrade
from store.record import Record
from store.settings import read_settings
from tests.store.queries.test_forget import fill, train


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with two versions."""
    url = read_settings({"home": tmp_path}).database_url
    upgrade(url)

    async def make() -> None:
        record = await Record.open(url)
        await fill(record)
        await train(record, 1, "one")
        await train(record, 2, "same")
        await record.close()

    asyncio.run(make())
    return tmp_path


def run(home: Path, *arguments: str) -> int:
    return main([*arguments, "--home", str(home), "--served-model-name", "patina-tiny"])


def test_a_version_that_is_not_there_is_an_error(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        (["compare", "1", "1"], "two versions or more"),
        (["compare", "0", "7"], "has no version 7"),
    ):
        assert run(home, *arguments) == 2
        assert message in capsys.readouterr().err
