"""Out of memory: what it looks like, and how work goes on in smaller pieces.

Torch raises `OutOfMemoryError` on an accelerator and a plain RuntimeError on a CPU. Memory that the failed attempt held is free only
when its traceback is gone: nothing here is retried inside an ``except`` block.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from store.errors import OurError

T = TypeVar("T")
R = TypeVar("R")

_CPU_WORDS = ("not enough memory", "DefaultCPUAllocator", "out of memory")


class DoesNotFit(OurError):
    """One text alone takes more memory than there is.

    Attributes:
        index: which of those that were given.
    """

    def __init__(self, index: int, message: str = "") -> None:
        super().__init__(message or "a text alone does not fit the memory")
        self.index = index


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory was not enough."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _CPU_WORDS)


def free_unused() -> None:
    """Free memory without references."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def attempt(work: Callable[[], R]) -> tuple[R | None, bool]:
    """Return the result and True, or None and False where memory was not enough. Other errors pass."""
    try:
        return work(), True
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    free_unused()
    return None, False


def in_halves(items: Sequence[T], work: Callable[[Sequence[T]], Sequence[R]]) -> list[R]:
    """Return one result for each item, worked on together, or in halves, quarters and so on where memory is not enough.

    Raises:
        DoesNotFit: an item alone is too much.
    """
    results, fits = attempt(lambda: work(items))
    if fits:
        assert results is not None
        return list(results)
    if len(items) == 1:
        raise DoesNotFit(0)
    half = (len(items) + 1) // 2
    found: list[R] = []
    for start, part in ((0, items[:half]), (half, items[half:])):
        try:
            found += in_halves(part, work)
        except DoesNotFit as error:
            raise DoesNotFit(start + error.index) from None
    return found
