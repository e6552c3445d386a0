"""Literal prefilter for regular expressions: text that every match must contain, searched before the pattern runs. Sans-IO.

Running all word patterns on every request would cost more than everything else in recording it, and most cannot match because their words do
not occur. Searching for a literal is a hundred times cheaper than running a pattern. Case is ignored, which can only
let more patterns through.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from re import _constants as ops  # type: ignore[attr-defined]  # private, but how `re` itself reads a pattern
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, Generic, TypeVar

#: Shorter literals occur in nearly every text.
_MIN_WEIGHT = 3

T = TypeVar("T")


class PatternSet(Generic[T]):
    """Patterns with a value each, of which a text selects those that may match."""

    def __init__(self, patterns: Iterable[tuple[re.Pattern[str], T]]) -> None:
        self._values: list[T] = []
        self._unfiltered: list[int] = []
        by_literal: dict[str, list[int]] = {}
        for number, (pattern, value) in enumerate(patterns):
            self._values.append(value)
            literals = required_literals(pattern)
            if literals is None:
                self._unfiltered.append(number)
            for literal in literals or ():
                by_literal.setdefault(literal, []).append(number)
        self._numbers = list(by_literal.items())

    def candidates(self, text: str) -> list[T]:
        """Return the values of all patterns that match somewhere in ``text``, and of few others, in their order."""
        lowered = text.lower()
        found = {number for literal, numbers in self._numbers if literal in lowered for number in numbers}
        return [self._values[number] for number in sorted(found.union(self._unfiltered))]


def required_literals(pattern: re.Pattern[str]) -> frozenset[str] | None:
    """Return lower-case literals of which every match contains at least one; None where there are none."""
    found = _literals_of(parser.parse(pattern.pattern, pattern.flags))
    return None if found is None or _weight(found) < _MIN_WEIGHT else found


def _weight(pieces: frozenset[str]) -> int:
    """Return the weight of the weakest literal; a character of a script with short words counts twice."""
    return min(sum(1 + (letter > "\u2e80") for letter in piece) for piece in pieces)


def _literals_of(items: Iterable[tuple[Any, Any]]) -> frozenset[str] | None:
    """Return the strongest requirement of a sequence: all its parts must match, so any one of them suffices."""
    candidates: list[frozenset[str]] = []
    run = ""
    for op, value in items:
        if op is ops.LITERAL:
            run += chr(value).lower()
            continue
        if run:
            candidates.append(frozenset({run}))
            run = ""
        if op is ops.SUBPATTERN:
            part = _literals_of(value[3])
        elif op is ops.BRANCH:
            parts = [_literals_of(branch) for branch in value[1]]
            known = [p for p in parts if p is not None]
            part = frozenset().union(*known) if len(known) == len(parts) else None
        elif op in (ops.MAX_REPEAT, ops.MIN_REPEAT, ops.POSSESSIVE_REPEAT) and value[0] >= 1:
            part = _literals_of(value[2])
        else:
            part = None
        if part is not None:
            candidates.append(part)
    if run:
        candidates.append(frozenset({run}))
    return max(candidates, key=lambda c: (_weight(c), -len(c))) if candidates else None
