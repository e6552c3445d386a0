"""The turns that this gateway issued lately, so that feedback about one need not wait until it is recorded. Sans-IO."""

from __future__ import annotations

from collections import OrderedDict

from wire.captured_exchange import CapturedExchange

_MAX_TURNS = 100_000


class IssuedTurns:
    """The newest turns by turn id and by completion id."""

    def __init__(self, capacity: int = _MAX_TURNS) -> None:
        self._capacity = capacity
        self._turns: OrderedDict[str, tuple[str, int, str | None]] = (
            OrderedDict()
        )  # name of the key, choices, completion id
        self._completions: dict[str, str] = {}

    def add(self, captured: CapturedExchange) -> None:
        """Remember an exchange that is handed to the journal."""
        completion = captured.reply.completion_id
        self._turns[captured.turn_id] = (
            captured.key_name,
            max(1, len(captured.reply.completions)),
            completion,
        )
        if completion is not None:
            self._completions[completion] = captured.turn_id
        while len(self._turns) > self._capacity:
            turn_id, (_, _, old) = self._turns.popitem(last=False)
            if old is not None and self._completions.get(old) == turn_id:
                del self._completions[old]

    def find(self, key_name: str, reference: str) -> str | None:
        """Return the id of the turn named by a turn id (``….1``: its second choice) or a completion id; None when unknown."""
        reference = self._completions.get(reference, reference)
        base, dot, index = reference.partition(".")
        known = self._turns.get(base)
        if known is None or known[0] != key_name:
            return None
        if not dot:
            return base
        return reference if index in map(str, range(1, known[1])) else None
