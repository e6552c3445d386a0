"""What a restore leaves out of an older backup: whatever the present home has had forgotten since."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from cli.home_files import byte_pattern, keep_lists, remove_copies
from migrations import upgrade
from store.backup import unpacked_record
from store.older_copy import delete_forgotten
from store.receipts import FOLDER as RECEIPTS
from store.receipts import KEY_FILE
from store.settings import Settings
from store.signing import PRIVATE_FILE, PUBLIC_FILE
from store.texts import counted
from store.values import adapter_name
from store.version_folders import leftovers

_TABLES = ("forgotten_turns", "forget_jobs")


def leave_out_forgotten(settings: Settings, source: Path, folder: Path, database: Path) -> list[str]:
    """Delete from an unpacked archive what the present home has had forgotten; its receipts and open forgets go along.

    The present record may be damaged, or its forgotten turns only be known by receipts.

    Args:
        source: the archive.
        folder: of `store.backup.read_backup`.
        database: the present record.

    Returns:
        what there is to say about it.

    Raises:
        RecordError: the record in the archive cannot be brought to the present schema.
    """
    home, unpacked, record = settings.home, folder / "home", unpacked_record(folder)
    upgrade(f"sqlite+aiosqlite:///{record}")
    lines: list[str] = []
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in _TABLES}
    try:
        rows = _present_rows(database)
    except sqlite3.DatabaseError as exc:
        lines.append(
            f"The present record cannot be read ({exc}): what was forgotten is known by receipts alone."
        )
    gone = {str(row["turn_id"]): float(row["at"]) for row in rows["forgotten_turns"]}
    reactions = {one for row in rows["forget_jobs"] for one in json.loads(row["detail"]).get("reactions", ())}
    for receipt in _receipts(home):
        gone.update(dict.fromkeys(map(str, receipt.get("turns", ())), float(receipt.get("at", 0.0))))
        reactions.update(map(str, receipt.get("reactions", ())))
    _keep_receipts(home, unpacked)
    keep_lists(home, unpacked, source)
    done, versions = delete_forgotten(record, rows["forget_jobs"], gone, reactions)
    if done is None:
        return lines
    for path in leftovers(unpacked / "adapters", versions):
        shutil.rmtree(path)
    remove_copies([unpacked], byte_pattern(done.turns), None, None)
    tainted = [adapter_name(policy, one) for policy, some in done.tainted.items() for one in some]
    what = ", ".join([counted(len(done.turns), "turn"), *tainted])
    return [*lines, f"Left out, since it was forgotten after the backup: {what}."]


def _present_rows(database: Path) -> dict[str, list[dict[str, Any]]]:
    if not database.exists():
        return {name: [] for name in _TABLES}
    with closing(sqlite3.connect(f"file:{database}?mode=rw", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        there = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        return {
            name: [dict(row) for row in connection.execute(f"SELECT * FROM {name}")] if name in there else []
            for name in _TABLES
        }


def _receipts(home: Path) -> list[dict[str, Any]]:
    found = []
    for path in sorted((home / RECEIPTS).glob("*.json")):
        try:
            receipt = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # `verify` says so; the record has its turns too
        if isinstance(receipt, dict):
            found.append(receipt)
    return found


def _keep_receipts(home: Path, unpacked: Path) -> None:
    """Let the present home's receipts stand, with their keys."""
    own = [name for name in (KEY_FILE, PRIVATE_FILE, PUBLIC_FILE) if (home / name).exists()]
    for name in own:
        theirs = unpacked / name
        if theirs.exists() and theirs.read_bytes() != (home / name).read_bytes():
            return  # a backup of another home: its receipts and versions are signed with its own keys
    for name in own:
        shutil.copy2(home / name, unpacked / name)
    if (home / RECEIPTS).is_dir():
        shutil.copytree(home / RECEIPTS, unpacked / RECEIPTS, dirs_exist_ok=True)
