"""Which request fields name a conversation: learned for each client from its own traffic. Sans-IO.

A field names the conversation if its value stays while histories continue and differs between histories that do not. One value per process, or per
request, fails one of the two. A client that sends no histories at all gives no such evidence: then a field whose name means a conversation
(`NAMES_CONVERSATION`) is trusted.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

#: Names that mean a conversation in any client.
NAMES_CONVERSATION = re.compile(
    r"(?:session|conversation|thread|chat|dialog)[-_]?(?:id|key|uuid|affinity)?$", re.IGNORECASE
)
#: Continued histories with one value, and fresh histories with a new one, from which on a field is trusted.
_MIN_STAYED, _MIN_FRESH = 2, 2
#: Fields of clients, and values of one field, that are remembered.
_MAX_FIELDS, _MAX_VALUES = 512, 2048


@dataclass(slots=True)
class _Field:
    """What was seen of one field of one client.

    Attributes:
        newest: value -> newest main turn that carried it, oldest use first.
        stayed, changed: continued histories with the parent's value, with another one.
        fresh, reused: fresh histories with a new value, with one that an earlier history had.
    """

    newest: OrderedDict[str, str] = field(default_factory=OrderedDict)
    stayed: int = 0
    changed: int = 0
    fresh: int = 0
    reused: int = 0

    @property
    def is_trusted(self) -> bool:
        return (
            self.stayed >= _MIN_STAYED and self.fresh >= _MIN_FRESH and not self.changed and not self.reused
        )


class LearnedIdentifiers:
    """The fields of each client that name its conversations."""

    def __init__(self) -> None:
        self._fields: OrderedDict[tuple[str, str, str], _Field] = OrderedDict()
        self._with_history: OrderedDict[tuple[str, str], None] = OrderedDict()

    def note(
        self,
        root: str,
        client: str,
        identifiers: Sequence[tuple[str, str]],
        turn_id: str,
        *,
        is_opening: bool,
        parent: Sequence[tuple[str, str]] | None,
        was_named: bool = False,
    ) -> None:
        """Learn from a main turn.

        Args:
            root: key and user (`History.root`).
            parent: identifiers of the turn whose history this one continues; None for a history that continues none.
            was_named: the turn was linked by an identifier, which is no evidence for it.
        """
        if not is_opening:
            self._with_history[root, client] = None
            if len(self._with_history) > _MAX_FIELDS:
                self._with_history.popitem(last=False)
        before = dict(parent) if parent is not None else None
        for name, value in identifiers:
            found = self._fields.setdefault((root, client, name), _Field())
            self._fields.move_to_end((root, client, name))
            if before is not None and name in before:
                found.stayed += before[name] == value
                found.changed += before[name] != value
            elif before is None and is_opening and not was_named:
                found.reused += value in found.newest
                found.fresh += value not in found.newest
            found.newest[value] = turn_id
            found.newest.move_to_end(value)
            if len(found.newest) > _MAX_VALUES:
                found.newest.popitem(last=False)
        while len(self._fields) > _MAX_FIELDS:
            self._fields.popitem(last=False)

    def find(
        self, root: str, client: str, identifiers: Sequence[tuple[str, str]], *, is_opening: bool
    ) -> str | None:
        """Return the newest main turn of the conversation that a request names, or None.

        An opening of a client that sends histories begins a conversation, whatever value a process sends with it.
        """
        sends_histories = (root, client) in self._with_history
        if sends_histories and is_opening:
            return None
        for name, value in identifiers:
            seen = self._fields.get((root, client, name))
            if seen is None or value not in seen.newest:
                continue
            if seen.is_trusted if sends_histories else is_opening and NAMES_CONVERSATION.search(name):
                return seen.newest[value]
        return None
