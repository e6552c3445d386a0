"""The journal: an entry that `append` accepted is read back after any end of the writer, in order, whole or not at all."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from store import journal as journal_module
from store.journal import (
    Entry,
    EntryKind,
    JournalWriter,
    Lag,
    is_closed,
    is_recorded,
    is_rewritten,
    journal_bytes,
    journal_ends,
    mark_recorded,
    measure_lag,
    read_entries,
    segments,
)
from tests.waiting import until_async

EXCHANGE = EntryKind.EXCHANGE


def entries_of(folder: Path) -> list[Entry]:
    return [entry for path in segments(folder) for entry in read_entries(path, 0, 1 << 20)[0]]


def payloads_of(folder: Path) -> list[bytes]:
    return [entry.payload for entry in entries_of(folder)]


@pytest.fixture(autouse=True)
def retry_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "_RETRY_S", 0.01)
    monkeypatch.setattr(journal_module, "_SLOW_WRITE_S", 60.0)  # on a busy machine no write counts as slow


def fail_writes(patch: pytest.MonkeyPatch) -> None:
    """Write half of what is given, then fail as a full disk does."""
    write, has_written = os.write, [False]

    def write_half(file: int, data: bytes) -> int:
        has_written[0] = not has_written[0]
        if has_written[0]:
            return write(file, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    patch.setattr(os, "write", write_half)


# ------------------------------------------------------------------------------------------------ appending


async def test_an_entry_is_in_the_file_when_append_returns_none(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "journal", "a")
    assert writer.append(EXCHANGE, b"first") is None
    assert writer.append(EntryKind.FEEDBACK, b"") is None
    first, second = entries_of(tmp_path / "journal")
    assert (first.kind, first.payload, first.start) == (EXCHANGE, b"first", 0)
    assert (second.kind, second.payload, second.start) == (EntryKind.FEEDBACK, b"", first.end)
    assert 0.0 <= second.at - first.at < 60.0
    (path,) = segments(tmp_path / "journal")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert await writer.close() == 0


WRITER = """
import sys, time
from pathlib import Path
from store import journal
from store.journal import EntryKind, JournalWriter
journal._SLOW_WRITE_S = 60.0
writer = JournalWriter(Path(sys.argv[1]), "a")
for i in range(50):
    assert writer.append(EntryKind.EXCHANGE, b"%d" % i) is None
print("appended", flush=True)
time.sleep(600)
"""


def test_entries_survive_a_killed_writer_and_its_segment_counts_as_closed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        (path,) = segments(tmp_path)
        was_closed = is_closed(path)
        process.send_signal(signal.SIGKILL)
    assert (line, was_closed) == (b"appended\n", False)
    assert is_closed(path)
    assert payloads_of(tmp_path) == [b"%d" % i for i in range(50)]


async def test_two_writers_append_to_segments_of_their_own(tmp_path: Path) -> None:
    writers = [JournalWriter(tmp_path, "same"), JournalWriter(tmp_path, "same")]
    for i in range(6):
        writers[i % 2].append(EXCHANGE, b"%d" % i)
    assert len(segments(tmp_path)) == 2
    assert sorted(payloads_of(tmp_path)) == [b"%d" % i for i in range(6)]
    await writers[0].close()
    assert [is_closed(path) for path in segments(tmp_path)] == [True, False]
    await writers[1].close()


async def test_a_segment_that_another_program_removed_is_written_again(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, "a")
    writer.append(EXCHANGE, b"first")
    (removed,) = segments(tmp_path)
    removed.unlink()
    assert writer.append(EXCHANGE, b"second") is None
    again, new = segments(tmp_path)
    assert [is_rewritten(path.name) for path in (again, new)] == [True, False]
    assert again.name[:20] == removed.name[:20]  # its place in the order stays
    assert (is_closed(again), is_closed(new)) == (True, False)
    assert payloads_of(tmp_path) == [b"first", b"second"]
    again.unlink()
    for path in segments(tmp_path):
        path.unlink()
    writer.maintain()  # an idle writer looks as well
    assert sorted(payloads_of(tmp_path)) == [b"first", b"second"]
    assert (writer.rewritten, writer.state()["rewritten"], writer.lost) == (3, 3, 0)
    assert await writer.close() == 0


async def test_closed_segments_that_were_removed_in_a_burst_are_written_again_and_recorded_ones_are_not(
    tmp_path: Path,
) -> None:
    writer = JournalWriter(tmp_path, "a", segment_bytes=1)
    for i in range(6):
        writer.append(EXCHANGE, b"%d" % i)
    recorded, *removed = segments(tmp_path)
    with recorded.open("rb") as file:
        mark_recorded(file.fileno())  # as the recorder does
        recorded.unlink()
    for path in removed:
        path.unlink()
    writer.maintain()
    assert payloads_of(tmp_path) == [b"1", b"2", b"3", b"4", b"5"]
    for path in segments(tmp_path)[:2]:
        path.unlink()
    assert await writer.close() == 0  # at the end as well
    assert payloads_of(tmp_path) == [b"1", b"2", b"3", b"4", b"5"]
    assert writer.rewritten == 7


async def test_segments_that_are_removed_more_often_than_files_are_kept_lose_nothing(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, "a")
    written = [b"%d" % i for i in range(3 * journal_module._MAX_KEPT)]
    for payload in written:
        writer.append(EXCHANGE, payload)
        for path in segments(tmp_path):
            path.unlink()
    assert await writer.close() == 0
    assert payloads_of(tmp_path) == written
    assert len(segments(tmp_path)) == 1


async def test_removed_entries_that_cannot_be_written_again_wait_and_are_reported_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = JournalWriter(tmp_path, "a")
    for i in range(3):
        writer.append(EXCHANGE, b"%d" % i)
    with monkeypatch.context() as patch:
        fail_writes(patch)
        segments(tmp_path)[0].unlink()
        writer.maintain()
        assert writer.last_error is not None
        assert "No space left" in writer.last_error
        assert os.listdir(tmp_path) == []
        waiting = writer.append(EXCHANGE, b"3")
        assert waiting is not None
    await asyncio.wait_for(waiting, 60)
    assert payloads_of(tmp_path) == [b"0", b"1", b"2", b"3"]
    with monkeypatch.context() as patch:
        fail_writes(patch)
        for path in segments(tmp_path):
            path.unlink()
        assert await writer.close() == 4


async def test_only_the_newest_closed_segments_are_kept_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "_MAX_KEPT", 3)
    files = len(os.listdir("/proc/self/fd"))
    writer = JournalWriter(tmp_path, "a", segment_bytes=1)
    for i in range(8):
        writer.append(EXCHANGE, b"%d" % i)
    assert len(os.listdir("/proc/self/fd")) == files + 3
    for path in segments(tmp_path):
        path.unlink()
    writer.maintain()
    assert payloads_of(tmp_path) == [b"5", b"6", b"7"]
    await writer.close()
    assert len(os.listdir("/proc/self/fd")) == files


async def test_a_segment_that_cannot_be_opened_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = JournalWriter(tmp_path, "a")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail)
        waiting = writer.append(EXCHANGE, b"first")
        assert waiting is not None
        assert os.listdir(tmp_path) == []
    await asyncio.wait_for(waiting, 60)
    assert payloads_of(tmp_path) == [b"first"]
    await writer.close()


# ------------------------------------------------------------------------------------------------ rotation


async def test_a_disk_that_is_full_when_a_new_segment_begins_delays_entries_and_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = JournalWriter(tmp_path, "a", segment_bytes=100)
    for i in range(2):
        assert writer.append(EXCHANGE, b"%d" % i * 40) is None
    create = os.open

    def refuse(path: Path, flags: int, *more: int, **options: int) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return create(path, flags, *more, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        waiting = [writer.append(EXCHANGE, b"%d" % i * 40) for i in range(2, 5)]
        assert all(future is not None for future in waiting)
        await asyncio.sleep(0.05)
        assert (writer.state()["waiting"], writer.lost) == (3, 0)
        assert "No space left" in str(writer.last_error)
    for future in waiting:
        assert future is not None
        await asyncio.wait_for(future, 60)
    assert payloads_of(tmp_path) == [b"%d" % i * 40 for i in range(5)]
    assert writer.last_error is None
    await writer.close()


async def test_a_segment_is_locked_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment that is not locked is closed: a reader would take it away before its first entry."""
    rename, closed = Path.rename, []

    def look(path: Path, target: Path) -> Path:
        closed.append(is_closed(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", look)
    writer = JournalWriter(tmp_path, "w")
    writer.append(EntryKind.FEEDBACK, b"{}")
    await writer.close()
    assert closed == [False]


async def test_a_segment_of_full_size_is_closed(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, "a", segment_bytes=100)
    for i in range(5):
        writer.append(EXCHANGE, b"%d" % i * 40)  # 64 bytes with the header
    assert [is_closed(path) for path in segments(tmp_path)] == [True, True, False]
    assert payloads_of(tmp_path) == [b"%d" % i * 40 for i in range(5)]
    await writer.close()


@pytest.mark.parametrize("reason", ["_IDLE_S", "_OLDEST_S"])
async def test_an_idle_or_old_segment_is_closed_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    writer = JournalWriter(tmp_path, "a")
    writer.append(EXCHANGE, b"first")
    writer.maintain()
    (path,) = segments(tmp_path)
    assert not is_closed(path)
    monkeypatch.setattr(journal_module, reason, -1.0)
    writer.maintain()
    assert is_closed(path)
    writer.append(EXCHANGE, b"second")
    assert len(segments(tmp_path)) == 2
    assert payloads_of(tmp_path) == [b"first", b"second"]
    await writer.close()


# ------------------------------------------------------------------------------------------------ damage


async def written(folder: Path, *payloads: bytes) -> tuple[Path, list[Entry]]:
    writer = JournalWriter(folder, "a")
    for payload in payloads:
        writer.append(EXCHANGE, payload)
    await writer.close()
    (path,) = segments(folder)
    return path, entries_of(folder)


async def test_an_entry_is_read_once_it_is_whole(tmp_path: Path) -> None:
    path, (first, second) = await written(tmp_path, b"first", b"second")
    whole = path.read_bytes()
    for size in range(first.end, second.end):
        path.write_bytes(whole[:size])
        assert read_entries(path, 0, 1 << 20) == ([first], first.end, 0)
        assert read_entries(path, first.end, 1 << 20, is_final=True) == ([], first.end, 0)
    path.write_bytes(whole)
    assert read_entries(path, first.end, 1 << 20) == ([second], second.end, 0)


@pytest.mark.parametrize("place", [0, 5, 12, 26], ids=["magic", "kind", "checksum", "payload"])
async def test_damaged_bytes_are_skipped_and_counted_and_the_rest_is_read(tmp_path: Path, place: int) -> None:
    path, (first, second, third) = await written(tmp_path, b"first", b"second", b"third")
    data = bytearray(path.read_bytes())
    data[second.start + place] ^= 0xFF
    path.write_bytes(data)
    found, end, damaged = read_entries(path, 0, 1 << 20)
    assert end == third.end
    if place == 5:  # the kind is not covered by the checksum: an unknown kind is rejected by the recorder
        assert [entry.payload for entry in found] == [b"first", b"second", b"third"]
        assert found[1].kind not in list(EntryKind)
    else:
        assert found == [first, third]
        assert damaged == second.end - second.start


async def test_a_length_that_is_damaged_costs_that_entry_alone_once_the_segment_is_closed(
    tmp_path: Path,
) -> None:
    path, (first, second, third) = await written(tmp_path, b"first", b"second", b"third PJ01")
    data = bytearray(path.read_bytes())
    data[second.start + 11] ^= 0xFF  # longer than the file by gigabytes
    path.write_bytes(data)
    assert read_entries(path, 0, 1 << 20) == ([first], first.end, 0)
    assert read_entries(path, first.end, 1 << 20) == ([], first.end, 0)
    assert read_entries(path, first.end, 1 << 20, is_final=True) == (
        [third],
        third.end,
        third.start - second.start,
    )


async def test_bytes_behind_the_last_entry_that_are_no_entry_are_skipped(tmp_path: Path) -> None:
    path, (first,) = await written(tmp_path, b"first")
    with path.open("ab") as file:
        file.write(b"x" * 100)
    found, end, damaged = read_entries(path, 0, 1 << 20)
    assert found == [first]
    assert 0 < damaged <= 100
    assert end <= path.stat().st_size


async def test_about_so_many_bytes_are_read_and_one_entry_whatever_its_size(tmp_path: Path) -> None:
    path, (first, second, third) = await written(tmp_path, b"a" * 1000, b"b" * 10, b"c" * 10)
    assert read_entries(path, 0, 100) == ([first], first.end, 0)
    assert read_entries(path, first.end, 50) == ([second], second.end, 0)
    assert read_entries(path, first.end, 1000) == ([second, third], third.end, 0)


async def test_no_more_entries_are_read_than_asked_for(tmp_path: Path) -> None:
    path, (first, second, third) = await written(tmp_path, b"a", b"b", b"c")
    assert read_entries(path, 0, 1 << 20, most_entries=2) == ([first, second], second.end, 0)
    assert read_entries(path, second.end, 1 << 20, is_final=True, most_entries=1) == ([third], third.end, 0)


# ------------------------------------------------------------------------------------------------ no space


async def test_on_a_full_disk_entries_wait_and_are_written_in_order_and_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = JournalWriter(tmp_path, "a")
    writer.append(EXCHANGE, b"first")
    (path,) = segments(tmp_path)
    size = path.stat().st_size
    with monkeypatch.context() as patch:
        fail_writes(patch)
        waiting = [writer.append(EXCHANGE, b"%d" % i * 10) for i in range(4)]
        state = writer.state()
        assert (state["appended"], state["waiting"], state["lost"]) == (1, 4, 0)
        assert state["waiting_bytes"] == 4 * (10 + 24)
        assert "No space left" in state["last_error"]
        await asyncio.sleep(0.05)  # several attempts
        assert not any(one is None or one.done() for one in waiting)
    waiting.append(writer.append(EXCHANGE, b"4" * 10))
    await asyncio.wait_for(asyncio.gather(*(one for one in waiting if one is not None)), 60)
    assert payloads_of(tmp_path) == [
        b"first",
        *(b"%d" % i * 10 for i in range(5)),
    ]  # the last: there was space again
    assert path.stat().st_size == size + 5 * (10 + 24)
    state = writer.state()
    assert (state["appended"], state["waiting"], state["waiting_bytes"]) == (6, 0, 0)
    assert state["last_error"] is None
    assert writer.append(EXCHANGE, b"last") is None
    await writer.close()


async def test_after_a_write_that_cannot_be_taken_back_a_new_segment_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = JournalWriter(tmp_path, "a")
    writer.append(EXCHANGE, b"first")

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", refuse)
        fail_writes(patch)
        waiting = writer.append(EXCHANGE, b"second")
        assert waiting is not None
        (path,) = segments(tmp_path)
        assert is_closed(path)
    await asyncio.wait_for(waiting, 60)
    assert payloads_of(tmp_path) == [b"first", b"second"]
    assert len(segments(tmp_path)) > 1
    await writer.close()


async def test_a_write_that_fails_half_way_leaves_nothing_of_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = JournalWriter(tmp_path, "a")
    writer.append(EXCHANGE, b"first")
    whole = segments(tmp_path)[0].read_bytes()
    with monkeypatch.context() as patch:
        fail_writes(patch)
        assert writer.append(EXCHANGE, b"second" * 100) is not None
        assert segments(tmp_path)[0].read_bytes() == whole
        assert await writer.close() == 1
    assert segments(tmp_path)[0].read_bytes() == whole


FULL_DISK = """
import asyncio, resource, signal, sys
from pathlib import Path
from store.journal import EntryKind, JournalWriter

async def main():
    writer = JournalWriter(Path(sys.argv[1]), "a")
    assert writer.append(EntryKind.EXCHANGE, b"a" * 1000) is None
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, resource.RLIM_INFINITY))
    waiting = [writer.append(EntryKind.EXCHANGE, name * 1000) for name in (b"b", b"c")]
    await asyncio.sleep(0.3)
    assert not any(one.done() for one in waiting)
    print(next(Path(sys.argv[1]).iterdir()).stat().st_size)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await asyncio.wait_for(asyncio.gather(*waiting), 60)
    assert await writer.close() == 0

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
asyncio.run(main())
"""


def test_a_file_that_the_system_refuses_to_extend_is_extended_later(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)],
        capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 1024
    assert payloads_of(tmp_path) == [name * 1000 for name in (b"a", b"b", b"c")]


async def test_at_the_limit_of_the_folder_entries_wait_until_segments_are_removed(tmp_path: Path) -> None:
    (tmp_path / "0-other.journal").write_bytes(b"x" * 300)
    writer = JournalWriter(tmp_path, "a", capacity_bytes=400)
    writer.maintain()
    assert writer.append(EXCHANGE, b"a" * 76) is None  # 400 bytes with its header
    waiting = writer.append(EXCHANGE, b"b")
    assert waiting is not None
    assert "limit of 400 bytes" in str(writer.last_error)
    assert journal_bytes(tmp_path) == 400
    (tmp_path / "0-other.journal").unlink()
    await asyncio.sleep(0.05)
    assert not waiting.done()  # measured by `maintain` alone
    writer.maintain()
    await asyncio.wait_for(waiting, 60)
    assert payloads_of(tmp_path) == [b"a" * 76, b"b"]
    await writer.close()


async def test_closed_segments_of_its_own_count_towards_the_limit(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, "a", capacity_bytes=110, segment_bytes=50)
    assert writer.append(EXCHANGE, b"a" * 30) is None
    assert writer.append(EXCHANGE, b"b" * 30) is None
    assert writer.append(EXCHANGE, b"c") is not None
    assert await writer.close() == 1
    assert payloads_of(tmp_path) == [b"a" * 30, b"b" * 30]


async def test_what_does_not_fit_into_memory_is_lost_counted_and_reported(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, "a", capacity_bytes=0, memory_bytes=100)
    assert writer.append(EXCHANGE, b"a" * 50) is not None
    assert writer.append(EXCHANGE, b"b" * 50) is None
    state = writer.state()
    assert (state["lost"], state["waiting"], state["waiting_bytes"]) == (1, 1, 74)
    assert "an entry of 74 bytes" in state["last_loss"]
    assert "limit of 0 bytes" in state["last_loss"]
    assert writer.append(EXCHANGE, b"c") is not None  # a smaller one still fits
    assert await writer.close() == 2


async def test_what_waits_is_written_once_when_the_writer_closes_during_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = JournalWriter(tmp_path, "a", sync="group")
    began = asyncio.Event()
    loop, sync = asyncio.get_running_loop(), os.fdatasync

    def slow_sync(file: int) -> None:
        loop.call_soon_threadsafe(began.set)
        sync(file)
        time.sleep(0.05)  # the write is still under way when `close` begins

    monkeypatch.setattr(os, "fdatasync", slow_sync)
    writer.append(EXCHANGE, b"first")
    await asyncio.wait_for(began.wait(), 60)
    writer.append(EXCHANGE, b"second")
    assert await writer.close() == 0
    assert payloads_of(tmp_path) == [b"first", b"second"]


# ------------------------------------------------------------------------------------------------ sync


async def test_synced_entries_share_a_call_and_are_whole_in_the_file_when_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    sync = os.fdatasync

    def count(file: int) -> None:
        sync(file)
        synced.append(os.fstat(file).st_size)

    monkeypatch.setattr(os, "fdatasync", count)
    writer = JournalWriter(tmp_path, "a", sync="group")
    waiting = [writer.append(EXCHANGE, b"%03d" % i) for i in range(100)]
    assert not any(one is None or one.done() for one in waiting)
    await asyncio.wait_for(asyncio.gather(*(one for one in waiting if one is not None)), 60)
    assert 1 <= len(synced) <= 2
    assert synced[-1] == 100 * (3 + 24)
    assert payloads_of(tmp_path) == [b"%03d" % i for i in range(100)]
    await writer.close()


async def test_an_entry_that_cannot_be_synced_is_taken_back_and_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = JournalWriter(tmp_path, "a", sync="group")

    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        waiting = writer.append(EXCHANGE, b"first")
        assert waiting is not None
        await until_async(lambda: writer.last_error is not None)
        assert not waiting.done()
    await asyncio.wait_for(waiting, 60)
    assert payloads_of(tmp_path) == [b"first"]
    await writer.close()


async def test_without_sync_nothing_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise AssertionError("synced")

    monkeypatch.setattr(os, "fdatasync", fail)
    writer = JournalWriter(tmp_path, "a")
    assert writer.append(EXCHANGE, b"first") is None
    await writer.close()


async def test_after_a_slow_write_a_thread_writes_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "_SLOW_WRITE_S", -1.0)
    writer = JournalWriter(tmp_path, "a")
    assert writer.append(EXCHANGE, b"first") is None
    waiting = writer.append(EXCHANGE, b"second")
    assert waiting is not None
    await asyncio.wait_for(waiting, 60)
    assert payloads_of(tmp_path) == [b"first", b"second"]
    await writer.close()


# ------------------------------------------------------------------------------------------------ lag


async def test_lag_counts_what_lies_behind_the_offsets(tmp_path: Path) -> None:
    assert measure_lag(tmp_path / "absent", {}) == Lag(0, 0, None)
    path, (first, second, third) = await written(tmp_path, b"first", b"second", b"third")
    assert measure_lag(tmp_path, {}) == Lag(3, third.end, first.at)
    assert measure_lag(tmp_path, {path.name: first.end}) == Lag(2, third.end - first.end, second.at)
    assert measure_lag(tmp_path, {path.name: third.end}) == Lag(0, 0, None)
    assert measure_lag(tmp_path, {}, {path.name: second.end}) == Lag(2, second.end, first.at)
    path.write_bytes(path.read_bytes()[:-1])
    assert measure_lag(tmp_path, {}) == Lag(2, second.end, first.at)
    ends = {path.name: third.end}  # measured before the file was cut off
    assert measure_lag(tmp_path, {}, ends) == Lag(2, second.end, first.at)


async def test_the_number_of_a_long_lag_is_estimated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "_MAX_COUNTED", 10)
    _, entries = await written(tmp_path, *[b"the same size"] * 40)
    assert measure_lag(tmp_path, {}) == Lag(40, entries[-1].end, entries[0].at)
    ends = {"0-gone.journal": 1 << 20, **journal_ends(tmp_path)}  # recorded and removed meanwhile
    assert measure_lag(tmp_path, {}, ends) == measure_lag(tmp_path, {})


async def test_everything_is_recorded_when_the_offsets_reach_the_ends_or_the_segment_is_gone(
    tmp_path: Path,
) -> None:
    assert is_recorded(tmp_path / "absent", {}, journal_ends(tmp_path / "absent"))
    path, (first, second) = await written(tmp_path, b"first", b"second")
    ends = journal_ends(tmp_path)
    assert ends == {path.name: second.end}
    assert not is_recorded(tmp_path, {}, ends)
    assert not is_recorded(tmp_path, {path.name: first.end}, ends)
    assert is_recorded(tmp_path, {path.name: second.end}, ends)
    path.unlink()  # recorded and removed; the offset is deleted later
    assert is_recorded(tmp_path, {path.name: second.end}, ends)
    assert is_recorded(tmp_path, {}, ends)
    assert not is_recorded(tmp_path, {path.name: first.end}, ends)
    assert journal_ends(tmp_path) == {}
