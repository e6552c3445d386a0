"""`run.py recover`: salvage a damaged record into a fresh file."""

from __future__ import annotations

import argparse
import sqlite3
import time

from cli.home_files import sqlite_file
from cli.supervisor import hold_home
from migrations import upgrade
from store.errors import ConfigError, RecordError
from store.journal import measure_lag
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
        kept = f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}"
        for suffix in _SUFFIXES:
            old = path.with_name(path.name + suffix)
            if old.exists():
                old.rename(path.with_name(kept + suffix))
        fresh.rename(path)
    rows = ", ".join(f"{count} {name}" for name, count in copied.items() if count)
    print(
        f"Recovered: {rows or 'nothing could be read'}. The damaged file is kept as {path.with_name(kept)}."
    )
    waiting = measure_lag(settings.journal_folder, {}).entries
    if waiting:
        print(
            f"In the journal: {counted(waiting, 'entry', 'entries')}; what is missing is recorded at the next start."
        )
    return 0
