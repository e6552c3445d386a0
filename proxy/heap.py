"""Return memory to the system after large bodies (measured: lab/research/2026-11-22-hostile-requests.md).

glibc maps blocks of a megabyte and more separately and unmaps them when they are freed. Smaller blocks that are allocated while a large body
is read stay in the heap as holes between live blocks, and glibc returns those only on request. A request takes some tens of milliseconds
of a thread, so it is made after large bodies and not often.
"""

from __future__ import annotations

import contextlib
import ctypes

#: A body of this many bytes is large.
LARGE_BODY_BYTES = 1 << 20
#: Constants of glibc's malloc.h.
_MMAP_THRESHOLD, _ARENA_MAX = -3, -8


def map_large_blocks() -> None:
    """Make glibc map blocks of a megabyte and more separately, and use few arenas.

    By default glibc raises this threshold as large blocks come and go. A few bodies of ten megabytes then keep hundreds of megabytes.
    """
    # Other C libraries have no such option.
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        for knob, value in ((_MMAP_THRESHOLD, LARGE_BODY_BYTES), (_ARENA_MAX, 2)):
            mallopt(knob, value)


def trim_heap() -> None:
    """Return the holes of the heap to the system. Releases the interpreter's lock, so that other threads continue."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
