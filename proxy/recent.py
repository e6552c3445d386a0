"""What the last few thousand turns looked like, for links that the record's indexes cannot answer. In memory, bounded.

Three things live here: turns of the batch that is being written (the record does not have them yet), the exchanges by which a
conversation is recognised whose beginning was replaced, and which bodies were identical. After a restart the record alone
answers, which is enough for everything but those two.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from proxy.canonical import History, reply_mark
from proxy.drafts import Draft
from proxy.linking import Exchange, exchange_keys, exchanges_of
from store.values import NewTurn, Relation, Tip, TurnKind


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    turn: Tip
    reply_key: str | None
    request_key: str
    exchanges: tuple[str, ...]
    body_key: str
    finished_at: float
    is_whole: bool
    scope: str


class Recent:
    """An index over the newest turns, oldest dropped first."""

    def __init__(self, capacity: int = 5000) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._exchanges: defaultdict[str, list[str]] = defaultdict(list)
        self._extended: OrderedDict[str, set[str]] = OrderedDict()  # parent -> main turns that extend it

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, draft: Draft, turns: Iterable[NewTurn]) -> None:
        """Take in the turns of one exchange, linked but perhaps not written yet."""
        for turn in turns:
            keys: Sequence[Exchange] = ()
            if turn.reply_key is not None:
                own, size = reply_mark(turn.completion)
                marks = draft.history.marks
                keys = exchange_keys(draft.history.root, marks[-1] if marks else None, own, size)
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
            entry = _Entry(
                turn=tip,
                reply_key=turn.reply_key,
                request_key=turn.request_key,
                exchanges=tuple(k.key for k in keys),
                body_key=draft.body_key,
                finished_at=turn.finished_at,
                is_whole=draft.is_whole,
                scope=turn.scope,
            )
            self._entries[turn.turn_id] = entry
            for key in entry.exchanges:
                self._exchanges[key].append(turn.turn_id)
            if (
                turn.parent_turn_id is not None
                and turn.kind is TurnKind.MAIN
                and turn.relation is not Relation.RETRY
            ):
                self._extended.setdefault(turn.parent_turn_id, set()).add(turn.turn_id)
        while len(self._entries) > self._capacity:
            self._forget()
        while len(self._extended) > 2 * self._capacity:
            self._extended.popitem(last=False)

    def remove(self, turn_ids: Iterable[str]) -> None:
        """Forget turns that could not be written: nothing may link to them."""
        for turn_id in turn_ids:
            entry = self._entries.pop(turn_id, None)
            if entry is not None:
                self._drop(turn_id, entry)
                children = self._extended.get(entry.turn.parent_turn_id or "")
                if children is not None:
                    children.discard(turn_id)

    def _forget(self) -> None:
        self._drop(*self._entries.popitem(last=False))

    def _drop(self, turn_id: str, entry: _Entry) -> None:
        for key in entry.exchanges:
            holders = self._exchanges[key]
            holders.remove(turn_id)
            if not holders:
                del self._exchanges[key]

    def today(self, tip: Tip) -> Tip:
        """Return ``tip`` as it stands now: something may have extended it since it was read."""
        if tip.is_newest and self._extended.get(tip.turn_id):
            return replace(tip, is_newest=False)
        return tip

    def exchanges(self, history: History) -> dict[str, list[Tip]]:
        """Return the turns found by the exchanges of a history, newest first."""
        found = {}
        for key in {exchange.key for exchange in exchanges_of(history)}:
            holders = self._exchanges.get(key)
            if holders:
                found[key] = [self.today(self._entries[t].turn) for t in reversed(holders)]
        return found

    def identical(self, draft: Draft, tips: Iterable[Tip]) -> set[str]:
        """Return those of ``tips`` that had the very body of ``draft`` and had ended when it came.

        A request that came while the other was still running is somebody else's with the same words.
        """
        same = set()
        for tip in tips:
            entry = self._entries.get(tip.turn_id)
            if (
                entry is not None
                and entry.body_key == draft.body_key
                and entry.finished_at <= draft.created_at
            ):
                same.add(tip.turn_id)
        return same

    def newest(self, turn_ids: Iterable[str], scope: str, session: str) -> Tip | None:
        """Return the newest main turn of a session among ``turn_ids`` (those not written yet)."""
        for turn_id in reversed(list(turn_ids)):
            entry = self._entries.get(turn_id)
            if entry is None or entry.turn.kind is not TurnKind.MAIN:
                continue
            if (entry.scope, entry.turn.session_id) == (scope, session):
                return self.today(entry.turn)
        return None

    def tips(
        self, turn_ids: Iterable[str], keys: Iterable[str]
    ) -> tuple[dict[str, list[Tip]], dict[str, list[Tip]]]:
        """Return (by reply key, by request key) the tips among ``turn_ids``, newest first: those not written yet."""
        wanted = set(keys)
        replies: defaultdict[str, list[Tip]] = defaultdict(list)
        requests: defaultdict[str, list[Tip]] = defaultdict(list)
        for turn_id in reversed(list(turn_ids)):
            entry = self._entries.get(turn_id)
            if entry is None:
                continue
            tip = self.today(entry.turn)
            if entry.reply_key is not None and entry.reply_key in wanted:
                replies[entry.reply_key].append(tip)
            if entry.request_key in wanted:
                requests[entry.request_key].append(tip)
        return replies, requests
