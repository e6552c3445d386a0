"""Other processes of this machine: whether one lives, and children that end with their parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def is_alive(pid: int) -> bool:
    """Whether a process of that id exists, of any user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def die_with_parent(number: int = signal.SIGTERM) -> None:
    """Ask for this signal when the parent dies, even by kill -9. Runs in the child, as ``preexec_fn``; only Linux can do it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
