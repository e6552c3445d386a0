"""What the last few thousand turns looked like. In memory, bounded.

A conversation that is being held is found here, without asking the record: this process writes every turn, so what it saw is what
there is (turns of the batch that is being written included). Two things are only here: the exchanges by which a conversation is
recognised whose beginning was replaced, and which bodies were identical. After a restart the record answers for all the rest.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from proxy.canonical import History, reply_mark
from proxy.drafts import Draft
from proxy.linking import exchange_keys, exchanges_of
from store.values import NewTurn, Relation, Tip, TurnKind


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    tip: Tip
    keys: tuple[tuple[str, str], ...]  #: (index, key) under which the turn is found
    finished_at: float


class Recent:
    """An index over the newest turns, oldest dropped first."""

    def __init__(self, capacity: int = 5000) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._index: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        self._extended: OrderedDict[str, set[str]] = OrderedDict()  # parent -> main turns that extend it

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, draft: Draft, turns: Iterable[NewTurn]) -> None:
        """Take in the turns of one exchange, linked but perhaps not written yet."""
        for turn in turns:
            keys = [("request", turn.request_key), ("body", f"{turn.scope}:{draft.body_key}")]
            if turn.kind is TurnKind.MAIN:
                keys.append(("session", f"{turn.scope}:{turn.session_id}"))
            if turn.reply_key is not None:
                own, size = reply_mark(turn.completion)
                marks = draft.history.marks
                found = exchange_keys(draft.history.root, marks[-1] if marks else None, own, size)
                keys += [("reply", turn.reply_key), *(("exchange", exchange.key) for exchange in found)]
            tip = Tip(
                turn_id=turn.turn_id,
                session_id=turn.session_id,
                turn_index=turn.turn_index,
                kind=turn.kind,
                parent_turn_id=turn.parent_turn_id,
                key=turn.reply_key or turn.request_key,
                is_newest=True,
                created_at=turn.created_at,
            )
            self._entries[turn.turn_id] = _Entry(tip=tip, keys=tuple(keys), finished_at=turn.finished_at)
            for key in keys:
                self._index[key].append(turn.turn_id)
            is_extension = turn.kind is TurnKind.MAIN and turn.relation is not Relation.RETRY
            if turn.parent_turn_id is not None and is_extension:
                self._extended.setdefault(turn.parent_turn_id, set()).add(turn.turn_id)
        while len(self._entries) > self._capacity:
            self._unlist(*self._entries.popitem(last=False))
        while len(self._extended) > 2 * self._capacity:
            self._extended.popitem(last=False)

    def remove(self, turn_ids: Iterable[str]) -> None:
        """Forget turns that could not be written: nothing may link to them."""
        for turn_id in turn_ids:
            entry = self._entries.pop(turn_id, None)
            if entry is not None:
                self._unlist(turn_id, entry)
                children = self._extended.get(entry.tip.parent_turn_id or "")
                if children is not None:
                    children.discard(turn_id)

    def _unlist(self, turn_id: str, entry: _Entry) -> None:
        for key in entry.keys:
            holders = self._index[key]
            holders.remove(turn_id)
            if not holders:
                del self._index[key]

    def today(self, tip: Tip) -> Tip:
        """Return ``tip`` as it stands now: something may have extended it since it was read."""
        if tip.is_newest and self._extended.get(tip.turn_id):
            return replace(tip, is_newest=False)
        return tip

    def _find(self, index: str, key: str) -> list[Tip]:
        """Return the turns under a key, newest first."""
        return [self.today(self._entries[t].tip) for t in reversed(self._index.get((index, key), ()))]

    def _find_all(self, index: str, keys: Iterable[str]) -> dict[str, list[Tip]]:
        return {key: tips for key in keys if (tips := self._find(index, key))}

    def replies(self, history: History) -> dict[str, list[Tip]]:
        """Return the turns after whose reply a prefix of the history ends."""
        return self._find_all("reply", history.keys)

    def requests(self, history: History) -> dict[str, list[Tip]]:
        """Return the turns whose prompt is a prefix of the history, or all of it."""
        return self._find_all("request", history.keys)

    def exchanges(self, history: History) -> dict[str, list[Tip]]:
        """Return the turns found by single exchanges of the history."""
        return self._find_all("exchange", {exchange.key for exchange in exchanges_of(history)})

    def identical(self, draft: Draft) -> set[str]:
        """Return the turns that had the very body of ``draft`` and had ended when it came.

        A request that came while the other was still running is somebody else's with the same words.
        """
        holders = self._index.get(("body", f"{draft.scope}:{draft.body_key}"), ())
        return {t for t in holders if self._entries[t].finished_at <= draft.created_at}

    def newest(self, scope: str, session: str) -> Tip | None:
        """Return the newest main turn of a session."""
        found = self._find("session", f"{scope}:{session}")
        return found[0] if found else None
