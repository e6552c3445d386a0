"""Records that the newest releases wrote are brought up to date with everything they hold.

`released/VERSION.sql` is the dump of a record of that version: five conversations with complaints and thanks, a title, a tool call, explicit
feedback, and the versions they made, on the test model. The adapters' files are not here.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from cli.main import main
from migrations import upgrade
from store.record import Record
from store.values import AdapterState

RELEASED = sorted((Path(__file__).parent / "released").glob("*.[0-9].sql"))


def rows(path: Path) -> list[dict[str, Any]]:
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    found = [dict(row) for row in connection.execute("SELECT * FROM trajectories ORDER BY turn_id")]
    connection.close()
    return found


@pytest.fixture(params=RELEASED, ids=lambda dump: dump.stem)
def old_record(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return the file of a record as a released version left it."""
    path = tmp_path / "home" / "patina.db"
    path.parent.mkdir(mode=0o700)
    connection = sqlite3.connect(path)
    connection.executescript(request.param.read_text(encoding="utf-8").replace("{home}", str(path.parent)))
    connection.close()
    return path


async def test_nothing_is_lost_and_the_view_reads_the_same(old_record: Path) -> None:
    before = rows(old_record)
    assert len(before) == 18
    assert {row["kind"] for row in before} == {"main", "side"}
    url = f"sqlite+aiosqlite:///{old_record}"
    upgrade(url)
    assert rows(old_record) == before
    record = await Record.open(url)
    try:
        assert await record.verify() == []
        versions = await record.adapters("patina-tiny")
        assert versions
        assert {one.state for one in versions} == {AdapterState.PUBLISHED}
        assert (await record.aliases())["patina-tiny"].version == versions[-1].version
    finally:
        await record.close()


def test_the_commands_read_it(old_record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    upgrade(f"sqlite+aiosqlite:///{old_record}")
    home = ["--home", str(old_record.parent)]
    complained = next(row for row in rows(old_record) if row["verdict"] == -1)
    for words in (
        ["versions"],
        ["wishes"],
        ["trajectories", "--format", "jsonl"],
        ["explain", complained["turn_id"]],
        ["forget", complained["turn_id"], "--dry-run"],
    ):
        assert main([*words, *home]) == 0, words
        assert capsys.readouterr().out
