"""The recorder's state file on a full disk: `status` must not report a recorder that does not run."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from recorder.worker import RecorderWorker
from store.catch_up import is_recorder_silent, read_recorder_state
from store.record import Record


def test_the_state_is_overwritten_in_place_where_no_file_can_be_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = RecorderWorker(tmp_path, lambda: Record.open("sqlite+aiosqlite:////nowhere/patina.db"))
    worker._write_state()
    first = read_recorder_state(tmp_path)
    assert first is not None

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    worker.rejected = 1_000_000_000
    worker._write_state()
    second = read_recorder_state(tmp_path)
    assert second is not None
    assert second["at"] > first["at"]
    assert second["rejected"] == 1_000_000_000
    assert not is_recorder_silent(second)
