"""What a pattern cannot match without: letters that must stand in a text, looked for before the pattern is run. Sans-IO.

A table of sixty patterns over every request costs more than all the rest of recording it, and hardly any of them has a chance: the
words they are about are not there. Looking for a plain piece of text is a hundred times cheaper than running a pattern. Case is
ignored throughout, which can only let more through.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from re import _constants as ops  # type: ignore[attr-defined]  # private, but how `re` itself reads a pattern
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

#: Shorter pieces are in nearly every text.
_TELLING = 3


def needed(pattern: re.Pattern[str]) -> frozenset[str] | None:
    """Return pieces of lower-case text of which every match holds at least one; None where nothing of the kind can be said."""
    found = _of(parser.parse(pattern.pattern, pattern.flags))
    return None if found is None or _telling(found) < _TELLING else found


def _telling(pieces: frozenset[str]) -> int:
    """Return how much the least telling piece tells: a sign of a script that writes words with one or two counts twice."""
    return min(sum(1 + (letter > "\u2e80") for letter in piece) for piece in pieces)


def _of(items: Iterable[tuple[Any, Any]]) -> frozenset[str] | None:
    """Return the most telling need of a sequence: every part of a sequence has to match, so that any one will do."""
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
            part = _of(value[3])
        elif op is ops.BRANCH:
            parts = [_of(branch) for branch in value[1]]
            known = [p for p in parts if p is not None]
            part = frozenset().union(*known) if len(known) == len(parts) else None
        elif op in (ops.MAX_REPEAT, ops.MIN_REPEAT, ops.POSSESSIVE_REPEAT) and value[0] >= 1:
            part = _of(value[2])
        else:
            part = None
        if part is not None:
            candidates.append(part)
    if run:
        candidates.append(frozenset({run}))
    return max(candidates, key=lambda c: (_telling(c), -len(c))) if candidates else None
