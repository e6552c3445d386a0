"""The record as a command reads it: with everything that was in the journal when the command began."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from store.backup import check_whole
from store.catch_up import wait_recorded
from store.errors import ConfigError
from store.record import Record
from store.settings import Settings
from store.texts import counted
from store.version import COMMAND

#: How long a command waits for the recorder.
_RECORDED_WAIT_S = 10.0


@asynccontextmanager
async def open_record(settings: Settings, *, waits: bool = True) -> AsyncIterator[Record]:
    """Open the record; what is not recorded yet is waited for, or reported on stderr.

    Raises:
        ConfigError: no Patina was ever started on this home.
        RecordError: the record cannot be opened.
    """
    _check_started(settings)
    record = await Record.open(settings.database_url)
    try:
        lag = await wait_recorded(record, settings.journal_folder, _RECORDED_WAIT_S if waits else 0.0)
        if lag.oldest_at is not None:
            behind = max(0.0, time.time() - lag.oldest_at)
            print(
                f"patina: not recorded yet: {counted(lag.entries, 'turn')}, the oldest for {behind:.0f} s",
                file=sys.stderr,
            )
        yield record
    finally:
        await record.close()


def _check_started(settings: Settings) -> None:
    home, file = settings.home, settings.database_url.partition(":///")[2]
    if home.exists() and not home.is_dir():
        raise ConfigError(f"the home {home} is a file: give --home a folder")
    is_sqlite = settings.database_url.startswith("sqlite")
    if is_sqlite:
        check_whole(home, Path(file))
    if is_sqlite and not Path(file).exists() and not (home / "run" / "settings.json").exists():
        raise ConfigError(
            f"no Patina was started on the home {home}: `{COMMAND} --home {shlex.quote(str(home))}` starts one"
        )
