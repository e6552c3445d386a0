"""The playbook of a policy as a version's state keeps it: turn ids, no words."""

from __future__ import annotations

from collections.abc import Sequence

from store.values import Json
from trainer.playbook import Playbook
from trainer.protocol import Edit

#: Versions that are made for nothing but withdrawn wishes, at most, after the last one that was withdrawn.
MAX_UNLEARNING_VERSIONS = 4


class WishState:
    """The playbook of one policy between steps."""

    def __init__(self) -> None:
        self._state: Json = Playbook().to_json()
        self._unlearning_versions = 0
        self._edits: dict[str, int] = {}  # of the attempt under way: turn id -> checksum of the owner's words

    def load(self, state: Json | None) -> None:
        """Take the playbook of a version's state; None: nothing was asked for yet.

        Raises:
            AdapterError: it is not a playbook.
        """
        state = state or Playbook().to_json()
        Playbook.from_json(state, {})
        self._state = state
        self._unlearning_versions = int(state.get("unlearning_versions", 0))

    def to_json(self, playbook: Playbook, *, taught: bool) -> Json:
        """The state of the next version.

        Args:
            taught: the version was made of a person's turns, not of withdrawn wishes alone.
        """
        count = 0 if taught or not playbook.withdrawn else self._unlearning_versions + 1
        return {**playbook.to_json(), "unlearning_versions": count, "edits": self._edits}

    @property
    def turn_ids(self) -> tuple[str, ...]:
        """The turns whose words the playbook is made of, and whose prompts withdrawn wishes are unlearnt on."""
        rows = [row for name in ("wishes", "withdrawn", "candidates") for row in self._state.get(name, ())]
        return tuple(dict.fromkeys(turn_id for row in rows for turn_id in row["turns"]))

    def is_unlearning(self, edits: Sequence[Edit] = ()) -> bool:
        """Whether a version is due without a new turn: a wish was withdrawn and the policy still shows it."""
        stated = {turn_id for row in self._state["wishes"] for turn_id in row["turns"]}
        if any(edit.text is None and edit.turn_id in stated for edit in edits):
            return True
        return bool(self._state["withdrawn"]) and self._unlearning_versions < MAX_UNLEARNING_VERSIONS
