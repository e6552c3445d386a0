"""`run.py backup` and `run.py restore`: a home in one file."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from cli.home_files import note_backup, sqlite_file
from cli.restored import leave_out_forgotten
from store.backup import prepare, put_back, read_backup, unpacking_folder, write_backup
from store.errors import ConfigError
from store.processes import hold_home
from store.settings import Settings, make_private
from store.texts import counted

_REFUSAL = "only a home with a SQLite record can be copied"


def backup(settings: Settings, arguments: argparse.Namespace) -> int:
    """Write record, journal, versions and keys to a file, also while Patina runs. Raises: ConfigError."""
    target: Path = arguments.file.expanduser().absolute()
    note_backup(settings.home, target)  # first: one that is noted and not there does no harm
    made = write_backup(settings.home, sqlite_file(settings, _REFUSAL), target)
    print(
        f"{target}: {counted(made.turns, 'turn')}, {counted(made.files, 'file')}, {made.size / 1e6:.1f} MB. It holds your keys."
    )
    return 0


def restore(settings: Settings, arguments: argparse.Namespace) -> int:
    """Put a home back from a backup; what is there now is kept beside it.

    Raises:
        ConfigError: Patina runs, or the file is no complete backup. Nothing is changed then.
        RecordError: its record cannot be brought to the present schema.
    """
    source: Path = arguments.file.expanduser().absolute()
    if not source.is_file():
        raise ConfigError(f"there is no file {source}")
    home, database = settings.home, sqlite_file(settings, _REFUSAL)
    make_private(home)
    with unpacking_folder(home) as folder:
        found = read_backup(source, folder)
        # Also while it is unpacked: what is forgotten now would be back afterwards.
        with hold_home(home):
            forgotten = leave_out_forgotten(settings, source, folder, database)
            prepare(folder, home, database)
            kept = put_back(folder, home, database)
    made_at = time.strftime("%Y-%m-%d %H:%M", time.localtime(found.made_at))
    print(
        f"Restored {home} from {source}, made {made_at}: {counted(found.turns, 'turn')}, {counted(found.files, 'file')}."
    )
    for line in forgotten:
        print(line)
    if kept is not None:
        print(f"What was there is in {kept}.")
    return 0
