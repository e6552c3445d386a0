"""`run.py recover`: salvage a damaged record into a fresh file."""

from __future__ import annotations

import argparse
import os
import shutil
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path

from cli.home_files import sqlite_file
from migrations import upgrade
from store.disk import sync_path
from store.errors import ConfigError, RecordError
from store.journal import measure_lag
from store.processes import hold_home
from store.salvage import salvage
from store.settings import Settings
from store.texts import counted

_SUFFIXES = ("", "-wal", "-shm")


def recover(settings: Settings, _: argparse.Namespace) -> int:
    """Put a fresh record with everything that can be read in the place of the damaged one, which is kept beside it.

    What is in the journal and not in the fresh record is recorded at the next start.

    Raises:
        ConfigError: Patina runs, or the record is not a SQLite file.
        RecordError: the fresh record cannot be written.
    """
    path = sqlite_file(settings, "only a SQLite record can be recovered")
    if not path.exists():
        raise ConfigError(f"there is no record {path}")
    with hold_home(settings.home):
        fresh = path.with_name(f"{path.name}.recovering")
        for suffix in _SUFFIXES:
            fresh.with_name(fresh.name + suffix).unlink(missing_ok=True)
        try:
            upgrade(f"sqlite+aiosqlite:///{fresh}")
            copied = salvage(path, fresh)
        except (sqlite3.Error, OSError) as exc:
            raise RecordError(f"the fresh record {fresh} cannot be written: {exc}") from exc
        kept = _exchange(path, fresh)
    rows = ", ".join(f"{count} {name}" for name, count in copied.items() if count)
    print(f"Recovered: {rows or 'nothing could be read'}. The damaged file is kept as {kept}.")
    waiting = measure_lag(settings.journal_folder, {}).entries
    if waiting:
        print(
            f"In the journal: {counted(waiting, 'entry', 'entries')}; what is missing is recorded at the next start."
        )
    return 0


def _exchange(path: Path, fresh: Path) -> Path:
    """Put the fresh file in the place of the damaged one; returns the name under which that one is kept.

    Whenever this is killed, ``path`` is one of the two files, whole.

    Raises:
        RecordError: the disk is full or broken; ``path`` is the damaged file.
    """
    kept = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
    while kept.exists():
        kept = kept.with_name(f"{kept.name}+")
    log, kept_log = (one.with_name(f"{one.name}-wal") for one in (path, kept))
    # SQLite would read the log of the damaged file into the fresh one: the log is emptied first. One that cannot be is moved away.
    with suppress(sqlite3.Error), closing(sqlite3.connect(path)) as damaged:
        damaged.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    try:
        _link(path, kept)
        if log.exists() and log.stat().st_size:
            _link(log, kept_log)
        sync_path(fresh)
        sync_path(path.parent)
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        fresh.replace(path)
        sync_path(path.parent)
    except OSError as exc:
        raise RecordError(f"the fresh record {fresh} cannot be put in its place: {exc}") from exc
    return kept


def _link(path: Path, name: Path) -> None:
    """Give a file a second name; a copy where the file system has no hard links."""
    try:
        os.link(path, name)
    except OSError:
        shutil.copy2(path, name)
        sync_path(name)
