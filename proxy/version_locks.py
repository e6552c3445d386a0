"""Which adapter versions the gateways of one home use: a version is unloaded when the last gateway has let it go.

Each gateway holds a shared ``flock`` on one file for each version (``policy@version``) that it serves or leases. Who wants to unload a version needs the exclusive
lock. The kernel frees the locks of a gateway that dies.
"""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)


class VersionLocks:
    """The locks of one gateway. With ``folder`` None there is only one gateway, and every lock is free."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._held: dict[str, int] = {}

    def hold(self, version: str) -> bool:
        """Hold a version; returns False when another gateway is unloading it."""
        if self._folder is None or version in self._held:
            return True
        file = _lock(self._folder, version, fcntl.LOCK_SH)
        if file is None:
            return False
        self._held[version] = file
        return True

    def release_unused(self, used: set[str]) -> None:
        """Release every version that is not in ``used``."""
        for version in [v for v in self._held if v not in used]:
            os.close(self._held.pop(version))

    def claim(self, version: str) -> int | None:
        """Lock a version for unloading; returns what `free` takes, or None while any gateway holds the version."""
        return -1 if self._folder is None else _lock(self._folder, version, fcntl.LOCK_EX)

    def free(self, claim: int) -> None:
        """Give back a lock of `claim`."""
        if claim >= 0:
            os.close(claim)


def _lock(folder: Path, version: str, how: int) -> int | None:
    """Return the locked file of a version, or None when another lock excludes it or it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = os.open(folder / version, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as exc:  # a full disk: the version waits until there is room
        log.warning("%s cannot be locked: %s", version, exc)
        return None
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return None
    return file
