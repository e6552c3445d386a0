"""What a version was asked to be, in the person's words: the playbook in its metrics joined with the words in the record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from store.record import Record
from store.values import BASE_VERSION, Json, StatedHint, WishEdit


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedWish:
    """One wish as it is listed.

    Attributes:
        number: names it in `edit` and `remove`, counted from 1.
        turn_ids: the turns of its wordings, the newest last; those whose words are in the record.
        wordings: the words, one a turn, edits included; "" for a wording that an edit leaves out.
        state: "active", "overruled", "withdrawn" or "unlearnt" in the live version.
        is_removed: the owner removed it, and the live version was made before.
        overruled_by: number of the later wish.
        now, before, best: shares of the replies that follow it: of the live version, its parent, the best version; None: not measured.
        stated: turns in which it was stated in one of its wordings, before any edit; the newest last.
    """

    number: int
    turn_ids: tuple[str, ...]
    wordings: tuple[str, ...]
    state: str
    is_removed: bool
    overruled_by: int | None
    now: float | None
    before: float | None
    best: float | None
    stated: tuple[StatedHint, ...]

    @property
    def text(self) -> str:
        """The newest wording; "" when the record has none of its words any more."""
        return next((text for text in reversed(self.wordings) if text), "")

    @property
    def others(self) -> tuple[str, ...]:
        """Other wordings, the newest first."""
        used = [text for text in reversed(self.wordings) if text]
        return tuple(dict.fromkeys(text for text in used if text != self.text))

    def to_json(self) -> Json:
        last = self.stated[-1] if self.stated else None
        return {
            "number": self.number,
            "text": self.text,
            "other_wordings": list(self.others),
            "state": self.state,
            "removed": self.is_removed,
            "overruled_by": self.overruled_by,
            "now": self.now,
            "before": self.before,
            "best": self.best,
            "stated": len(self.stated),
            "last_stated_at": last.created_at if last else None,
            "last_turn_id": last.turn_id if last else None,
            "turn_ids": list(self.turn_ids),
        }


async def read_wishes(record: Record, policy: str, live: int) -> list[ListedWish]:
    """Return the wishes of a version, in the order of its playbook; none for version 0."""
    adapter = await record.adapter(policy, live) if live != BASE_VERSION else None
    if adapter is None:
        return []
    rows = adapter.metrics.get("wishes", [])
    hints = {
        number: await record.stated_hints(policy, row["turns"]) for number, row in enumerate(rows, start=1)
    }
    return list_wishes(rows, hints, await record.wish_edits(policy))


def list_wishes(
    rows: Sequence[Json], hints: Mapping[int, Sequence[StatedHint]], edits: Sequence[WishEdit]
) -> list[ListedWish]:
    """Join what a version's metrics have of its wishes with the words. Pure.

    Args:
        rows: see `trainer.wish_training.wish_rows`.
        hints: by number of the row, every turn that stated it in one of its wordings, oldest first.
        edits: those that count; see `Record.wish_edits`.
    """
    replaced = {edit.turn_id: edit.text for edit in edits if edit.text is not None}
    removed = {edit.turn_id for edit in edits if edit.text is None}
    number_of = {
        turn_id: number
        for number, row in enumerate(rows, start=1)
        if not row.get("as_stated")
        for turn_id in row["turns"]
    }
    found = []
    for number, row in enumerate(rows, start=1):
        words = {stated.turn_id: stated.hint.strip() for stated in hints[number]}
        turn_ids = tuple(turn_id for turn_id in row["turns"] if turn_id in words)
        is_settled = row["state"] in ("withdrawn", "unlearnt")
        found.append(
            ListedWish(
                number=number,
                turn_ids=turn_ids,
                # A wish that an edit made into another is unlearnt in the words in which it was stated.
                wordings=tuple(
                    words[turn_id] if row.get("as_stated") else replaced.get(turn_id, words[turn_id])
                    for turn_id in turn_ids
                ),
                state=row["state"],
                is_removed=not is_settled and bool(removed & {*turn_ids}),
                overruled_by=number_of.get(row["overruled_by"]),
                now=row["now"],
                before=row["before"],
                best=row["best"],
                stated=tuple(hints[number]),
            )
        )
    return found
