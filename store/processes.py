"""Other processes of this machine: whether one lives, children that end with their parent, and the lock of a home."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from store.errors import ConfigError

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


def began_at(pid: int) -> float | None:
    """Return when a process began (Unix time, to about a second); None: there is none, it has ended, or the system does not say."""
    try:
        fields = (
            Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        )
        boot = next(
            line for line in Path("/proc/stat").read_text("ascii").splitlines() if line.startswith("btime")
        )
        if fields[0] in "ZX":
            return None
        return int(boot.split()[1]) + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def die_with_parent(number: int = signal.SIGTERM) -> None:
    """Ask for this signal when the parent dies, even by kill -9. Runs in the child, as ``preexec_fn``; only Linux can do it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


@contextlib.contextmanager
def hold_home(home: Path) -> Iterator[None]:
    """Hold the home's lock. The kernel frees it whatever way we die.

    Raises:
        ConfigError: another Patina runs on this home.
    """
    folder = home / "run"
    folder.mkdir(exist_ok=True, mode=0o700)
    folder.chmod(0o700)  # whatever the umask was that it was made with
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "r+") as file:
        os.fchmod(descriptor, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            raise ConfigError(
                f"another Patina (process {file.read().strip() or 'unknown'}) runs on {home}; "
                "stop it or give another --home"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
