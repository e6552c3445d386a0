"""Which past feedback is repeated beside the new: half of it from a uniform sample of at most 256 turns, half from the newest.
Sans-IO.

The uniform sample keeps old wishes alive that are not repeated; the newest are there for a person who changes their mind.

Only turn ids are kept. The record has the turns; a copy of a person's words in every version folder would outlive their wish
to have them forgotten.

Rule: a turn's place in the sample is decided by a hash of its id. The 256 smallest hashes of all ids ever seen are a uniform
sample of them, whatever the order they came in, and adding a turn twice changes nothing: a step that ran again after a kill
leaves the same reservoir. (Bottom-k sampling, Cohen and Kaplan 2007.)
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from store.errors import AdapterError

CAPACITY = 256
#: Newest turns that are kept beside the sample.
NEWEST = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservoir:
    """A uniform sample of the turns of one policy that were trained. A value: every change gives a new one.

    Attributes:
        turn_ids: in the order of their hashes, at most ``capacity``.
        newest: the last `NEWEST` that were added, oldest first.
    """

    seed: int = 0
    capacity: int = CAPACITY
    turn_ids: tuple[str, ...] = ()
    newest: tuple[str, ...] = ()

    def add(self, turn_ids: Iterable[str]) -> Reservoir:
        """With these turns seen as well, the newest last."""
        new = tuple(dict.fromkeys(turn_ids))
        ranked = sorted({*self.turn_ids, *new}, key=self._rank)
        newest = (*(i for i in self.newest if i not in new), *new)[-NEWEST:]
        return replace(self, turn_ids=tuple(ranked[: self.capacity]), newest=newest)

    def discard(self, turn_ids: Iterable[str]) -> Reservoir:
        """Without these turns (forgotten, or not usable any more); their places are filled by turns to come."""
        gone = set(turn_ids)
        return replace(
            self,
            turn_ids=tuple(i for i in self.turn_ids if i not in gone),
            newest=tuple(i for i in self.newest if i not in gone),
        )

    def draw(self, count: int, step: int, *, exclude: Collection[str] = ()) -> tuple[str, ...]:
        """Up to ``count`` different turns for a step, none of them in ``exclude``; the same for the same step.

        Half of them, rounded down, are of the newest.
        """
        rng = random.Random(f"{self.seed}/{step}")
        newest = [i for i in self.newest if i not in exclude]
        chosen = rng.sample(newest, min(count // 2, len(newest)))
        pool = [i for i in self.turn_ids if i not in exclude and i not in chosen]
        return (*chosen, *rng.sample(pool, min(count - len(chosen), len(pool))))

    def to_json(self) -> dict[str, Any]:
        """For the version's state."""
        return {
            "seed": self.seed,
            "capacity": self.capacity,
            "turn_ids": list(self.turn_ids),
            "newest": list(self.newest),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Reservoir:
        """What `to_json` gave.

        Raises:
            AdapterError: the version's state holds something else.
        """
        try:
            ids, newest = value["turn_ids"], value.get("newest", [])  # versions from before there were any
            for some in (ids, newest):
                if not isinstance(some, list) or not all(isinstance(i, str) for i in some):
                    raise TypeError("not a list of ids")
            filled = cls(seed=int(value["seed"]), capacity=int(value["capacity"])).add(ids)
            return replace(filled, newest=tuple(newest)[-NEWEST:])
        except (KeyError, TypeError, ValueError) as error:
            raise AdapterError(f"the saved replay reservoir cannot be read: {error}") from error

    def _rank(self, turn_id: str) -> bytes:
        return hashlib.sha256(f"{self.seed}/{turn_id}".encode()).digest()
