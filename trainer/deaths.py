"""Turns that a trainer died with: counted in a small file of the home, since a killed process reports nothing.

An operating system out of memory kills the trainer in the middle of a step; the claim runs out, the next trainer takes the same turns
and dies with them, for ever. So the turns of a step are written down before it and crossed out after it. Those that are still there at
the next start are the ones that the trainer died with. After `PATIENCE` deaths a batch is attempted in halves, then in quarters, and so
on; a turn that the trainer died with alone is dropped.

A trainer that was stopped with SIGKILL for other reasons counts as dead, too: that costs a smaller batch, and nothing else.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from store.errors import ConfigError

#: Deaths with a batch before it is attempted in smaller ones.
PATIENCE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What becomes of claimed turns: each id is in exactly one."""

    attempt: tuple[str, ...]
    later: tuple[str, ...]
    drop: tuple[str, ...]


def choose(turn_ids: Sequence[str], deaths: dict[str, int], fatal: frozenset[str]) -> Choice:
    """Decide which of the claimed turns to attempt now.

    Args:
        deaths: how often a trainer died with a turn in its batch.
        fatal: turns that one died with while they were alone.
    """
    drop = tuple(one for one in turn_ids if one in fatal)
    rest = [one for one in turn_ids if one not in fatal]
    worst = max((deaths.get(one, 0) for one in rest), default=0)
    count = max(1, len(rest) >> max(0, worst - PATIENCE + 1)) if rest else 0
    return Choice(attempt=tuple(rest[:count]), later=tuple(rest[count:]), drop=drop)


class Deaths:
    """The file. What it says is read once, when this is made.

    Raises:
        ConfigError: it is there and cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._deaths: dict[str, int] = {}
        self._fatal: set[str] = set()
        if not path.exists():
            return
        try:
            saved = json.loads(path.read_text(encoding="utf-8"))
            self._deaths = {str(one): int(count) for one, count in saved["deaths"].items()}
            self._fatal = set(map(str, saved["fatal"]))
            under_way = [str(one) for one in saved["under_way"]]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path} cannot be read ({error}); remove it") from error
        for one in under_way:
            self._deaths[one] = self._deaths.get(one, 0) + 1
        if len(under_way) == 1 and self._deaths[under_way[0]] > PATIENCE:
            self._fatal.add(under_way[0])
        self._write(())

    def choose(self, turn_ids: Sequence[str]) -> Choice:
        """See `choose`."""
        return choose(turn_ids, self._deaths, frozenset(self._fatal))

    def begin(self, turn_ids: Sequence[str]) -> None:
        """A step with these turns begins."""
        self._write(turn_ids)

    def end(self, turn_ids: Sequence[str]) -> None:
        """It ended, however it ended: the trainer is alive."""
        for one in turn_ids:
            self._deaths.pop(one, None)
            self._fatal.discard(one)
        self._write(())

    def _write(self, under_way: Sequence[str]) -> None:
        text = json.dumps(
            {"under_way": list(under_way), "deaths": self._deaths, "fatal": sorted(self._fatal)}
        )
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_suffix(".new")
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._path)
