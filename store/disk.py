"""Syncing to disk."""

from __future__ import annotations

import os
from pathlib import Path


def sync_path(path: Path) -> None:
    """Write what the system holds of a file, or of a folder's list of names, to the disk. Raises: OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
