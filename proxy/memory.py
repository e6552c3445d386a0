"""What large bodies leave behind in glibc's heap, and how it is given back to the system (measured: docs/log.md).

Blocks of a megabyte and more are mapped on their own and go back at once when they are freed. Smaller ones that are taken while a large
body is being read stay in the heap as holes between what lives on, and are only given back when somebody asks for it: that takes some
tens of milliseconds of a thread, so it is done after large bodies and not often.
"""

from __future__ import annotations

import contextlib
import ctypes

#: A body of so many bytes is large.
LARGE = 1 << 20
#: Of glibc's malloc.h.
_MMAP_THRESHOLD, _ARENA_MAX = -3, -8


def map_large_blocks() -> None:
    """Have blocks of a megabyte and more mapped on their own, and few arenas.

    glibc raises that bound as large blocks come and go, and then a few bodies of ten megabytes leave hundreds of megabytes behind.
    """
    # another C library has no such knob, and another habit
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        for knob, value in ((_MMAP_THRESHOLD, LARGE), (_ARENA_MAX, 2)):
            mallopt(knob, value)


def give_back() -> None:
    """Return the holes of the heap to the system. Leaves the interpreter's lock alone, so that others go on."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
