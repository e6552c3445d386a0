"""What the processes of a house ask about each other."""

from __future__ import annotations

import os


def is_alive(pid: int) -> bool:
    """Whether there is a process of that id, whoever's it is."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
