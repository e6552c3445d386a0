"""Corrections that contradict each other, for `why`: the newest counts (`trainer.playbook`). Pure."""

from __future__ import annotations

import time
from collections.abc import Sequence

from store.texts import clip
from store.values import ScoredTurn
from store.wishes import OPPOSITES

#: (the newer turn, the older one, the older one's labels that the newer one takes back)
Conflict = tuple[ScoredTurn, ScoredTurn, tuple[str, ...]]


def find_conflicts(turns: Sequence[ScoredTurn], all_turns: Sequence[ScoredTurn]) -> list[Conflict]:
    """Return, for each of ``turns``, the newest older turn whose wish it takes back, oldest first.

    Args:
        all_turns: every turn of the policy that was trained, in any order.
    """
    found: list[Conflict] = []
    by_age = sorted(all_turns, key=lambda turn: (turn.verdict.created_at, turn.turn_id))
    for newer in sorted(turns, key=lambda turn: (turn.verdict.created_at, turn.turn_id)):
        opposed = {other for label in newer.verdict.wishes for other in OPPOSITES.get(label, ())}
        before = [one for one in by_age if one.verdict.created_at < newer.verdict.created_at]
        older = next((one for one in reversed(before) if opposed & {*one.verdict.wishes}), None)
        if older is not None:
            labels = tuple(label for label in older.verdict.wishes if label in opposed)
            found.append((newer, older, labels))
    return found


def conflict_lines(conflicts: Sequence[Conflict]) -> list[str]:
    """Return one sentence for each contradiction."""
    return [
        f"“{clip(newer.verdict.hint or '')}” (turn {newer.turn_id[-8:]}, {_day(newer)}) takes back {' and '.join(labels)}, "
        f"asked for with “{clip(older.verdict.hint or '')}” (turn {older.turn_id[-8:]}, {_day(older)}): the newest counts"
        for newer, older, labels in conflicts
    ]


def _day(turn: ScoredTurn) -> str:
    return time.strftime("%m-%d %H:%M", time.localtime(turn.verdict.created_at))
