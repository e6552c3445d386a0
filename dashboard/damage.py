"""Rows of the record whose numbers are none: a list shows each of them as damaged, and the others as they are.

SQLite keeps a text in a column of any type, so a damaged file or a foreign program can leave one where a number belongs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

T = TypeVar("T")


def sort_out(rows: Iterable[T], name: Callable[[T], object]) -> tuple[list[T], list[str]]:
    """Return the rows, which are dataclasses, without the damaged ones, and a sentence about each of those.

    Args:
        name: what the sentence calls a row.
    """
    sound, damaged = [], []
    for row in rows:
        if no_numbers := damage_of(
            {
                field: getattr(row, field)
                for field in _number_fields(type(row))  # type: ignore[arg-type]  # mypy takes a class for unhashable
            }
        ):
            damaged.append(f"{name(row)} is damaged: {no_numbers}.")
        else:
            sound.append(row)
    return sound, damaged


def damage_of(values: Mapping[str, Any], names: Collection[str] | None = None) -> str:
    """Return which values (of ``names`` only) are neither None nor a finite number; "" where all are sound."""
    found = [
        name for name, value in values.items() if (names is None or name in names) and not _is_sound(value)
    ]
    return ", ".join(f"{name} is not a number" for name in found)


def _is_sound(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and math.isfinite(value))


@cache
def _number_fields(kind: type[Any]) -> tuple[str, ...]:
    return tuple(
        name
        for name, hint in get_type_hints(kind).items()
        if {*(get_args(hint) or (hint,))} <= {int, float, NoneType}
    )
