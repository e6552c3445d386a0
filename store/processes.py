"""Checks on other processes of this machine."""

from __future__ import annotations

import os


def is_alive(pid: int) -> bool:
    """Whether a process of that id exists, of any user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
