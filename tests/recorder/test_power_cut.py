"""What a power cut must not take: a segment is removed only when its rows are on disk, and only by the recorder that reads it."""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import pytest

from recorder.worker import RecorderWorker
from store.errors import RecordUnavailable
from store.journal import EntryKind, JournalWriter, segments
from store.record import Record
from store.values import Feedback


class Unsyncable(Record):
    async def sync(self) -> None:
        raise RecordUnavailable("the disk does not answer")


def append(writer: JournalWriter) -> None:
    feedback = Feedback(
        feedback_id="f", turn_id="t", score=1.0, text="", idempotency_key="k", created_at=1_000.0
    )
    assert writer.append(EntryKind.FEEDBACK, orjson.dumps(feedback)) is None


def synced_paths(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the list to which the path of every file and folder that is synced is added."""
    paths: list[Path] = []
    for name in ("fsync", "fdatasync"):
        real = getattr(os, name)

        def sync(descriptor: int, real: object = real) -> None:
            paths.append(Path(f"/proc/self/fd/{descriptor}").readlink())
            assert callable(real)
            real(descriptor)

        monkeypatch.setattr(os, name, sync)
    return paths


async def test_a_recorded_segment_is_removed_only_after_its_rows_are_synced(
    record_url: str, tmp_path: Path
) -> None:
    folder = tmp_path / "journal"
    writer = JournalWriter(folder, "gateway")
    append(writer)
    await writer.close()
    (segment,) = segments(folder)

    await RecorderWorker(folder, lambda: Unsyncable.open(record_url)).stop(5.0)
    assert segments(folder) == [segment]
    record = await Record.open(record_url)
    assert await record.journal_offsets() == {segment.name: segment.stat().st_size}

    await RecorderWorker(folder, lambda: Record.open(record_url)).stop(5.0)
    assert segments(folder) == []
    assert await record.journal_offsets() == {}
    await record.close()


async def test_a_recorder_leaves_the_offsets_of_another_host_alone(record_url: str, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    writer, other = JournalWriter(here, "gateway"), JournalWriter(there, "gateway")
    append(writer)
    append(other)
    await RecorderWorker(there, lambda: Record.open(record_url)).stop(5.0)
    await writer.close()
    await RecorderWorker(here, lambda: Record.open(record_url)).stop(5.0)
    record = await Record.open(record_url)
    assert list(await record.journal_offsets()) == [path.name for path in segments(there)]
    await record.close()
    await other.close()


async def test_a_sync_of_the_record_reaches_its_log_and_its_folder(
    record_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Path(record_url.removeprefix("sqlite+aiosqlite:///"))
    record = await Record.open(record_url)
    paths = synced_paths(monkeypatch)
    await record.sync()
    assert paths == [file.with_name(file.name + "-wal"), file.parent]
    await record.close()


async def test_a_synced_journal_syncs_the_name_of_a_new_segment_and_each_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "journal"
    writer = JournalWriter(folder, "gateway", sync="group")
    paths = synced_paths(monkeypatch)
    written = writer.append(EntryKind.FEEDBACK, b"{}")
    assert written is not None
    await written
    assert paths == [folder, *segments(folder)]
    await writer.close()
