"""Which request fields name a conversation, of clients that send no histories. Sans-IO.

A client that sends histories shows by them what continues; its fields may name a process, or every request. Of a client that never sent one, a
field whose name means a conversation is trusted.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence

#: Names that mean a conversation in any client.
NAMES_CONVERSATION = re.compile(
    r"(?:session|conversation|thread|chat|dialog)[-_]?(?:id|key|uuid|affinity)?$", re.IGNORECASE
)
#: Values, and clients that send histories, that are remembered.
_MAX_VALUES, _MAX_CLIENTS = 8192, 512


class LearnedIdentifiers:
    """The newest main turn under each name of a conversation."""

    def __init__(self) -> None:
        self._newest: OrderedDict[tuple[str, ...], str] = OrderedDict()
        self._with_history: OrderedDict[tuple[str, str], None] = OrderedDict()

    def note(
        self,
        root: str,
        client: str,
        identifiers: Sequence[tuple[str, str]],
        turn_id: str,
        *,
        is_opening: bool,
    ) -> None:
        """Learn from a main turn; ``root`` is of its key and user (`History.root`)."""
        if not is_opening:
            self._with_history[root, client] = None
            if len(self._with_history) > _MAX_CLIENTS:
                self._with_history.popitem(last=False)
        for name, value in identifiers:
            if NAMES_CONVERSATION.search(name):
                self._newest[root, client, name, value] = turn_id
                self._newest.move_to_end((root, client, name, value))
                if len(self._newest) > _MAX_VALUES:
                    self._newest.popitem(last=False)

    def find(self, root: str, client: str, identifiers: Sequence[tuple[str, str]]) -> str | None:
        """Return the newest main turn of the conversation that a fresh request names, or None."""
        if (root, client) in self._with_history:
            return None
        return next((t for i in identifiers if (t := self._newest.get((root, client, *i))) is not None), None)
