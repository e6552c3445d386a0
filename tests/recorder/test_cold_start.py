"""A recorder that starts on a journal that nothing was recorded of for long."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from store.journal import EntryKind, JournalWriter, journal_bytes, segments
from store.settings import REPOSITORY, read_settings
from tests.recorder.exchanges import make_captured, user
from wire.captured_exchange import dump_exchange

_ENTRIES, _JOURNAL_BYTES, _MEMORY_KB = 2000, 200 << 20, 400 << 10


@pytest.mark.slow
def test_a_journal_of_200_mb_is_recorded_in_order_in_memory_that_does_not_depend_on_it(
    record_url: str, tmp_path: Path
) -> None:
    settings = read_settings({"home": tmp_path, "database": record_url})
    settings.dump(tmp_path / "settings.json")
    folder = settings.journal_folder
    writer = JournalWriter(folder, "proxy")
    system = {"role": "system", "content": "Follow each of these rules with care. " * 2800}
    for i in range(_ENTRIES):
        captured = make_captured(f"{i:06d}", [system, user(f"question {i}")], f"answer {i}")
        assert writer.append(EntryKind.EXCHANGE, dump_exchange(captured, None)) is None
    assert asyncio.run(writer.close()) == 0
    assert journal_bytes(folder) > _JOURNAL_BYTES
    recorder = subprocess.Popen(
        [sys.executable, "-m", "recorder", "--settings", str(tmp_path / "settings.json")],
        cwd=REPOSITORY,
        stderr=subprocess.DEVNULL,
    )
    try:
        while segments(folder):
            assert recorder.poll() is None
            time.sleep(0.05)
        status = Path(f"/proc/{recorder.pid}/status").read_text()
    finally:
        recorder.terminate()
        recorder.wait()
    assert int(status.partition("VmHWM:")[2].split()[0]) < _MEMORY_KB
    with closing(sqlite3.connect(record_url.removeprefix("sqlite+aiosqlite:///"))) as connection:
        recorded = [row[0] for row in connection.execute("SELECT turn_id FROM turns ORDER BY rowid")]
    assert recorded == [f"turn_{i:06d}" for i in range(_ENTRIES)]
