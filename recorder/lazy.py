"""Values that are computed when they are first read. Sans-IO.

Most links are decided by a key. What only the other links need (quotes, echoes, answer keys) costs more than the rest of the request, and is
therefore handed to the linker unread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar, overload

T = TypeVar("T")
V = TypeVar("V")


class LazySequence(Sequence[T], Generic[T]):
    """A sequence of which no more is computed than was read."""

    def __init__(self, make: Callable[[], Iterable[T]]) -> None:
        self._make: Callable[[], Iterable[T]] | None = make
        self._rest: Iterator[T] = iter(())
        self._known: list[T] = []

    def __iter__(self) -> Iterator[T]:
        position = 0
        while position < len(self._known) or self._read_one():
            yield self._known[position]
            position += 1

    def __bool__(self) -> bool:
        return bool(self._known) or self._read_one()

    def __len__(self) -> int:
        while self._read_one():
            pass
        return len(self._known)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...

    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        len(self)
        return self._known[index]

    def _read_one(self) -> bool:
        if self._make is not None:
            self._rest, self._make = iter(self._make()), None
        for value in self._rest:
            self._known.append(value)
            return True
        return False


class LazyMapping(Mapping[str, V], Generic[V]):
    """A mapping that is computed as a whole."""

    def __init__(self, make: Callable[[], Mapping[str, V]]) -> None:
        self._make = make
        self._known: Mapping[str, V] | None = None

    def _values(self) -> Mapping[str, V]:
        if self._known is None:
            self._known = self._make()
        return self._known

    def __getitem__(self, key: str) -> V:
        return self._values()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values())

    def __len__(self) -> int:
        return len(self._values())
