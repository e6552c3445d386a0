"""Syncing to disk."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path


def sync_path(path: Path) -> None:
    """Write what the system holds of a file, or of a folder's list of names, to the disk. Raises: OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, body: bytes, *, once: bool = False) -> None:
    """Write a file that only its owner may read: whole or not at all, and synced.

    Args:
        once: a file that is there stays, also one that another process writes meanwhile.

    Raises:
        OSError: it cannot be written.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    beside = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        if once:
            with suppress(FileExistsError):
                os.link(beside, path)
        else:
            beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    with suppress(OSError):  # some network file systems cannot sync a folder
        sync_path(path.parent)
