"""Where a transaction runs, and what is done about a file in trouble."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import sqlalchemy as sa

from store.database import Database, dbapi
from store.errors import RecordCorrupt, RecordError, RecordUnavailable
from store.record import Record
from tests.making import make_turn


def file_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite+aiosqlite:///"))


def remove(path: Path, suffixes: Sequence[str] = ("", "-wal", "-shm")) -> None:
    for suffix in suffixes:
        path.with_name(path.name + suffix).unlink(missing_ok=True)


async def test_a_transaction_is_one_hop_to_the_writing_thread(record_url: str) -> None:
    database = await Database.open(record_url)

    def work(connection: sa.Connection) -> tuple[str, bool]:
        return threading.current_thread().name, dbapi(connection).in_transaction

    names = {await database.write(work) for _ in range(3)}
    assert len(names) == 1
    ((name, in_transaction),) = names
    assert (name.startswith("record-write"), in_transaction) == (True, True)
    assert (await database.read(work))[0].startswith("record-read")
    await database.close()


async def test_a_task_that_is_cancelled_does_not_tear_its_transaction(record: Record) -> None:
    turns = [make_turn(f"t{i}", session_id=f"s{i}") for i in range(200)]
    task = asyncio.create_task(record.write_turns(turns))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await record.write_turns([make_turn("last")])  # after it, in the same thread
    assert (await record.status()).turns in (1, 201)
    assert await record.verify() == []


@pytest.mark.parametrize(
    "suffixes",
    [("", "-wal", "-shm"), ("",), ("-wal",), ("-wal", "-shm")],
    ids=["all of it", "but for its log", "its log", "its log and index"],
)
async def test_a_file_that_is_removed_while_in_use_is_restored(
    record_url: str, suffixes: Sequence[str]
) -> None:
    record, other = await Record.open(record_url), await Record.open(record_url)
    await record.write_turns([make_turn(f"t{i}", session_id=f"s{i}") for i in range(50)])
    remove(file_of(record_url), suffixes)
    with pytest.raises(RecordUnavailable, match="it is restored"):
        await record.write_turns([make_turn("after")])
    await record.write_turns([make_turn("after")])
    with pytest.raises(RecordUnavailable, match="it is opened again"):
        await other.write_turns([make_turn("elsewhere")])
    await other.write_turns([make_turn("elsewhere")])
    third = await Record.open(record_url)
    for one in (record, other, third):
        assert (await one.status()).turns == 52
        assert await one.verify() == []
        await one.close()
    assert not list(file_of(record_url).parent.glob("*.restoring"))


async def test_a_process_with_an_older_file_open_does_not_bring_back_an_older_state(record_url: str) -> None:
    record, other = await Record.open(record_url), await Record.open(record_url)
    for number in range(3):
        await record.write_turns([make_turn(f"t{number}")])
        remove(file_of(record_url))
        if number:  # `other` writes rarely: it has the file of before the first removal open
            with pytest.raises(RecordUnavailable, match="a newer one open restores it"):
                await other.write_turns([make_turn("elsewhere")])
            assert (await other.status()).turns == 1
            assert not file_of(record_url).exists()
        with pytest.raises(RecordUnavailable, match="it is restored"):
            await record.write_turns([make_turn("after")])
    assert [row["turn_id"] for row in await record.trajectories()] == ["t0", "t1", "t2"]
    await record.close()
    await other.close()


async def test_any_process_with_the_newest_file_open_restores_it(record_url: str) -> None:
    """The recorder may be about to start."""
    record, other = await Record.open(record_url), await Record.open(record_url)
    await record.write_turns([make_turn("t0")])
    await record.close()
    remove(file_of(record_url))
    with pytest.raises(RecordUnavailable, match="it is restored"):
        await other.write_turns([make_turn("t1")])
    assert (await other.status()).turns == 1
    await other.close()


async def test_a_backup_that_an_owner_puts_in_place_is_restored_like_the_file_before(
    record_url: str, tmp_path: Path
) -> None:
    backup = tmp_path / "backup.db"
    record = await Record.open(record_url)
    await record.write_turns([make_turn("t0")])
    with sqlite3.connect(file_of(record_url)) as source, sqlite3.connect(backup) as target:
        source.backup(target)
    source.close()
    target.close()
    remove(file_of(record_url))
    with pytest.raises(RecordUnavailable):
        await record.write_turns([make_turn("after")])
    remove(file_of(record_url))
    os.rename(backup, file_of(record_url))  # of the generation before
    for expected in ("it is opened again", None, "it is restored"):
        if expected is None:
            await record.write_turns([make_turn("t1")])
            remove(file_of(record_url))
        else:
            with pytest.raises(RecordUnavailable, match=expected):
                await record.write_turns([make_turn("after")])
    assert [row["turn_id"] for row in await record.trajectories()] == ["t0", "t1"]
    await record.close()


async def test_a_file_that_is_removed_again_before_it_is_open_is_restored_once_more(
    record_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = await Record.open(record_url)
    await record.write_turns([make_turn("t0")])
    link = os.link

    def link_and_remove(source: Path, target: Path) -> None:
        link(source, target)
        target.unlink()

    monkeypatch.setattr("os.link", link_and_remove)
    remove(file_of(record_url))
    for _ in range(2):
        with pytest.raises(RecordUnavailable, match="unable to open"):
            await record.write_turns([make_turn("t1")])
        assert not file_of(record_url).exists()
    monkeypatch.undo()
    with pytest.raises(RecordUnavailable, match="it is restored"):
        await record.write_turns([make_turn("t1")])
    await record.write_turns([make_turn("t1")])
    assert [row["turn_id"] for row in await record.trajectories()] == ["t0", "t1"]
    await record.close()


async def test_a_file_that_was_replaced_is_opened_anew(record_url: str, tmp_path: Path) -> None:
    record = await Record.open(record_url)
    await record.write_turns([make_turn("a")])
    copy = tmp_path / "copy.db"
    with sqlite3.connect(file_of(record_url)) as source, sqlite3.connect(copy) as target:
        source.backup(target)
    source.close()
    target.close()
    await record.write_turns([make_turn("b")])
    remove(file_of(record_url))
    os.rename(copy, file_of(record_url))
    with pytest.raises(RecordUnavailable, match="it is opened again"):
        await record.write_turns([make_turn("c")])
    await record.write_turns([make_turn("c")])
    assert [row["turn_id"] for row in await record.trajectories()] == ["a", "c"]
    await record.close()


async def test_a_file_put_in_the_place_of_a_damaged_one_is_opened(record_url: str, tmp_path: Path) -> None:
    path = file_of(record_url)
    good = Path(shutil.copy(path, tmp_path / "good.db"))
    record = await Record.open(record_url)
    turns = [make_turn(f"t{i}", [{"role": "user", "content": str(i) * 3000}]) for i in range(1000)]
    await record.write_turns(turns)
    for damaged in (path, path.with_name(path.name + "-wal")):
        with damaged.open("r+b") as file:
            file.write(b"no page of a database " * (damaged.stat().st_size // 22))
    for _ in range(2):  # from the second on SQLite refuses the lock already
        with pytest.raises(RecordCorrupt, match="damaged"):
            await record.write_turns([make_turn("x", [{"role": "user", "content": "x" * 300_000}])])
    remove(path, ("-wal", "-shm"))
    with pytest.raises(RecordCorrupt, match="damaged"):
        await record.write_turns([make_turn("x")])
    assert not list(path.parent.glob("*.restoring"))
    os.replace(good, path)
    with pytest.raises(RecordUnavailable, match="was replaced; it is opened again"):
        await record.write_turns([make_turn("after")])
    await record.write_turns([make_turn("after")])
    assert [row["turn_id"] for row in await record.trajectories()] == ["after"]
    await record.close()


async def test_a_file_that_is_not_there_is_not_made(record_url: str) -> None:
    remove(file_of(record_url))
    with pytest.raises(RecordUnavailable, match="unable to open"):
        await Record.open(record_url)
    assert not file_of(record_url).exists()


async def test_a_damaged_file_is_distinguished_from_one_that_is_away(record_url: str) -> None:
    record = await Record.open(record_url)
    await record.write_turns([make_turn(f"t{i}", session_id=f"s{i}") for i in range(300)])
    await record.close()
    path = file_of(record_url)
    data = bytearray(path.read_bytes())
    for start in range(4096, len(data), 4096):
        data[start : start + 64] = b"\xff" * 64
    path.write_bytes(data)
    with pytest.raises(RecordCorrupt, match="damaged"):
        await Record.open(record_url)


async def test_memory_and_other_databases_are_refused() -> None:
    for url in ("sqlite+aiosqlite:///:memory:", "mysql://x/y", "not a url"):
        with pytest.raises(RecordError):
            await Record.open(url)


_FULL = """
import asyncio, resource, signal, sys
from store.errors import RecordUnavailable
from store.record import Record
from tests.making import make_turn

async def main(url):
    record = await Record.open(url)
    await record.write_turns([make_turn("before")])
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
    big = [make_turn(f"t{i}", [{"role": "user", "content": str(i) * 5000}]) for i in range(100)]
    try:
        await record.write_turns(big)
    except RecordUnavailable as exc:
        print("error:", exc)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await record.write_turns(big)
    print((await record.status()).turns, await record.verify())
    await record.close()

asyncio.run(main(sys.argv[1]))
"""


def test_a_full_disk_is_reported_and_the_same_write_succeeds_when_there_is_room(record_url: str) -> None:
    # a limit on file sizes is to SQLite what a full disk is: a write that the system refuses
    done = subprocess.run(
        [sys.executable, "-c", _FULL, record_url],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=Path(__file__).parents[2],
    )
    reported, counted = done.stdout.splitlines()
    assert reported.startswith("error: the record cannot be used")
    assert counted == "101 []"
