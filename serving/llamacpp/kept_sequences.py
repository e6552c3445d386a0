"""Which sequence numbers of a context are free, and which keep the tokens of an earlier reply for a prompt that begins alike. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import numpy.typing

#: A shorter common beginning is not worth a lookup's copy.
LEAST_COMMON = 16


@dataclass(frozen=True, slots=True, eq=False)
class KeptSequence:
    """The cached tokens of one sequence that has ended, and the adapter that they were computed with."""

    number: int
    adapter: Any
    ids: numpy.typing.NDArray[numpy.int32]


class KeptSequences:
    """Hands out sequence numbers. Kept sequences are given up in the order of their last use.

    Args:
        count: sequence numbers.
        max_tokens: tokens that are kept at most; 0: none are kept.
    """

    def __init__(self, count: int, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._free = list(range(count - 1, -1, -1))
        self._kept: list[KeptSequence] = []

    @property
    def tokens(self) -> int:
        """Return how many tokens are kept; those of a common beginning count for each sequence."""
        return sum(len(one.ids) for one in self._kept)

    def find(self, adapter: Any, ids: Sequence[int]) -> tuple[KeptSequence | None, int]:
        """Return the kept sequence that shares the longest beginning with a prompt, and the length; at least one token is left to compute."""
        best, length = None, LEAST_COMMON - 1
        wanted = numpy.array(ids[:-1], numpy.int32)
        for one in self._kept:
            if one.adapter is adapter:
                common = common_length(one.ids, wanted)
                if common > length:
                    best, length = one, common
        return (best, length) if best is not None else (None, 0)

    def take_over(self, kept: KeptSequence) -> int:
        """Return the number of a kept sequence, which is kept no more."""
        self._kept.remove(kept)
        return kept.number

    def touch(self, kept: KeptSequence) -> None:
        """Note that a kept sequence was used."""
        self._kept.remove(kept)
        self._kept.append(kept)

    def take(self) -> int | None:
        """Return a free number; None: all are in use or kept."""
        return self._free.pop() if self._free else None

    def give_back(self, number: int) -> None:
        """Free a number whose tokens were removed."""
        self._free.append(number)

    def keep(self, number: int, adapter: Any, ids: Sequence[int]) -> list[int]:
        """Keep a sequence that has ended. Returns the numbers of sequences that are kept no more, perhaps its own."""
        new = KeptSequence(number, adapter, numpy.array(ids, numpy.int32))
        if not LEAST_COMMON <= len(ids) <= self._max_tokens:
            return [number]
        gone = [one for one in self._kept if one.adapter is adapter and _begins_with(new.ids, one.ids)]
        self._kept = [*(one for one in self._kept if one not in gone), new]
        while self.tokens > self._max_tokens:
            gone.append(self._kept.pop(0))
        return [one.number for one in gone]

    def evict(self) -> int | None:
        """Give up the sequence that was used longest ago; returns its number, None if none is kept."""
        return self._kept.pop(0).number if self._kept else None

    def drop(self, adapter: Any) -> list[int]:
        """Give up what was computed with an adapter; returns the numbers."""
        gone = [one.number for one in self._kept if one.adapter is adapter]
        self._kept = [one for one in self._kept if one.adapter is not adapter]
        return gone

    def clear(self, count: int) -> None:
        """Free all numbers."""
        self._kept.clear()
        self._free = list(range(count - 1, -1, -1))


def common_length(one: numpy.typing.NDArray[numpy.int32], other: numpy.typing.NDArray[numpy.int32]) -> int:
    """Return how many ids two sequences have in common at their beginning."""
    size = min(len(one), len(other))
    different = numpy.flatnonzero(one[:size] != other[:size])
    return int(different[0]) if len(different) else size


def _begins_with(whole: numpy.typing.NDArray[numpy.int32], part: numpy.typing.NDArray[numpy.int32]) -> bool:
    return len(part) <= len(whole) and common_length(whole, part) == len(part)
