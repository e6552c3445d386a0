"""The end of a journal's writer: what waits is written once."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from store.journal import EntryKind, JournalWriter, read_entries, segments


async def test_closed_while_a_thread_writes_an_entry_is_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_go_on = threading.Event(), threading.Event()
    write = JournalWriter._write

    def slow(self: JournalWriter, data: bytes, count: int = 1) -> None:
        began.set()
        assert may_go_on.wait(60)
        write(self, data, count)

    monkeypatch.setattr(JournalWriter, "_write", slow)
    writer = JournalWriter(tmp_path, "gateway", sync="group")
    written = writer.append(EntryKind.EXCHANGE, b"one")
    assert written is not None
    await asyncio.to_thread(began.wait, 20)
    later = writer.append(EntryKind.EXCHANGE, b"two")
    closing = asyncio.create_task(writer.close())
    await asyncio.sleep(0)
    may_go_on.set()
    assert await closing == 0
    assert written.done()
    assert later is not None
    assert later.done()
    (segment,) = segments(tmp_path)
    entries, _, damaged = read_entries(segment, 0, 1 << 20)
    assert ([entry.payload for entry in entries], damaged) == ([b"one", b"two"], 0)
