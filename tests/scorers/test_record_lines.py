"""``--record-jsonl DIR``: every turn and verdict is a line once, whatever dies or fills up meanwhile."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from migrations import upgrade
from scorers.record_lines import RecordLines
from store.record import Record
from store.record_lines import append_lines, hold_lines, line_files
from store.settings import read_settings
from tests.making import make_answer, make_turn, make_verdict
from tests.waiting import until_async

NOW = 2_000_000_000.0  # behind any start, so that the turns are new


@pytest.fixture
async def record(tmp_path: Path) -> AsyncIterator[Record]:
    url = read_settings({"home": tmp_path}).database_url
    upgrade(url)
    opened = await Record.open(url)
    yield opened
    await opened.close()


def follower(record: Record, home: Path, problems: list[str | None] | None = None) -> RecordLines:
    (home / "lines").mkdir(exist_ok=True)
    return RecordLines(record, home, home / "lines", [] if problems is None else problems.append)  # type: ignore[arg-type]


def lines(home: Path) -> list[tuple[str, Any]]:
    rows = [
        json.loads(line) for path in line_files(home / "lines") for line in path.read_bytes().splitlines()
    ]
    return [(row["type"], row["turn_id"]) for row in rows if row["type"] != "start"]


async def answer(record: Record, turn: str, at: float) -> None:
    state = make_answer(turn, f"to {turn}", "No.", created_at=at)
    await record.write_turns([make_turn(f"to {turn}", created_at=at, parent_turn_id=turn, next_state=state)])


async def test_turns_and_verdicts_of_before_are_not_new_and_later_ones_are_written_once(
    record: Record, tmp_path: Path
) -> None:
    await record.write_turns([make_turn("old", created_at=1.0)])
    await answer(record, "old", 3.0)
    await record.add_verdict(make_verdict("old"))
    follow = follower(record, tmp_path)
    assert await follow.write_new() is False
    assert lines(tmp_path) == []
    await record.write_turns([make_turn("a", created_at=NOW, text="Oslo")])
    await answer(record, "a", NOW + 1)
    await record.add_verdict(make_verdict("a", 1))
    await follow.write_new()
    await follow.write_new()
    assert lines(tmp_path) == [("turn", "a"), ("turn", "to a"), ("verdict", "a")]
    rows = [json.loads(line) for line in line_files(tmp_path / "lines")[0].read_text().splitlines()]
    assert (rows[1]["completion"], rows[1]["next_text"]) == ("Oslo", "No.")
    assert rows[3]["value"] == 1


async def test_a_reply_that_took_longer_than_a_newer_turn_is_not_missed(
    record: Record, tmp_path: Path
) -> None:
    follow = follower(record, tmp_path)
    for turn, at in (("new", NOW), ("slow", NOW - 3000), ("newer", NOW + 9000), ("too late", NOW)):
        await record.write_turns([make_turn(turn, created_at=at)])
        await follow.write_new()
    assert [turn for _, turn in lines(tmp_path)] == ["new", "slow", "newer"]


async def test_a_restart_goes_on_where_the_files_end_and_replaces_a_torn_line(
    record: Record, tmp_path: Path
) -> None:
    await record.write_turns([make_turn("a", created_at=NOW)])
    await follower(record, tmp_path).write_new()
    (path,) = line_files(tmp_path / "lines")
    with path.open("ab") as file:
        file.write(b'{"type":"turn","turn_id":"b","mess')
    await answer(record, "a", NOW + 1)
    await record.add_verdict(make_verdict("a"))
    await follower(record, tmp_path).write_new()
    assert lines(tmp_path) == [("turn", "a"), ("turn", "to a"), ("verdict", "a")]
    assert path.stat().st_mode & 0o777 == 0o600


async def test_what_a_full_disk_refused_is_written_later_and_reported_meanwhile(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scorers.record_lines._AGAIN_S", 0.05)
    problems: list[str | None] = []
    follow = follower(record, tmp_path, problems)
    await record.write_turns([make_turn("a", created_at=NOW)])
    await follow.write_new()
    (path,) = line_files(tmp_path / "lines")
    before = path.read_bytes()
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    await record.write_turns([make_turn("b", created_at=NOW + 1, text="long " * 200_000)])
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 500_000, limits[1]))
    task = asyncio.create_task(follow.run())
    try:
        await until_async(lambda: bool(problems))
        assert path.read_bytes() == before
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    await until_async(lambda: len(problems) == 2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert problems[0] is not None
    assert problems[0].startswith(f"lines cannot be written to {tmp_path / 'lines'}: ")
    assert problems[1] is None
    assert lines(tmp_path) == [("turn", "a"), ("turn", "b")]


async def test_nothing_is_written_while_a_forget_cleans(record: Record, tmp_path: Path) -> None:
    await record.write_turns([make_turn("a", created_at=NOW)])
    follow = follower(record, tmp_path)
    with hold_lines(tmp_path):
        waiting = asyncio.create_task(follow.write_new())
        await asyncio.sleep(0.2)
        assert not waiting.done()
        assert lines(tmp_path) == []
    await waiting
    assert lines(tmp_path) == [("turn", "a")]


def test_lines_longer_than_a_look_back_are_torn_off_whole(tmp_path: Path) -> None:
    path = tmp_path / "2026-12-01.jsonl"
    path.write_bytes(b"{}\n" + b"x" * 200_000)
    append_lines(path, [b"[]\n"])
    assert path.read_bytes() == b"{}\n[]\n"
    path.write_bytes(b"x" * 200_000)
    append_lines(path, [])
    assert path.read_bytes() == b""
