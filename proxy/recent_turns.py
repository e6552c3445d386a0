"""The newest turns of clients that continue a turn by its id, until the recorder has written them. Sans-IO."""

from __future__ import annotations

from collections import OrderedDict

from store.values import Completion, RecordedTurn, ReplyOutcome, outcome_of
from wire.captured_exchange import CapturedExchange

_MAX_TURNS, _MAX_BYTES = 10_000, 64 << 20


class RecentTurns:
    """Turns by id, bounded in number and size."""

    def __init__(self, max_turns: int = _MAX_TURNS, max_bytes: int = _MAX_BYTES) -> None:
        self._max_turns = max_turns
        self._max_bytes = max_bytes
        self._turns: OrderedDict[str, tuple[str, RecordedTurn, int]] = OrderedDict()  # key name, turn, bytes
        self._size = 0

    def add(self, captured: CapturedExchange) -> None:
        """Remember an exchange that is handed to the journal."""
        turn = recorded_turn(captured)
        self._turns[turn.turn_id] = (captured.key_name, turn, captured.size)
        self._size += captured.size
        while self._turns and (len(self._turns) > self._max_turns or self._size > self._max_bytes):
            _, (_, _, size) = self._turns.popitem(last=False)
            self._size -= size

    def find(self, key_name: str, turn_id: str) -> RecordedTurn | None:
        found = self._turns.get(turn_id)
        return found[1] if found is not None and found[0] == key_name else None

    def of_conversation(self, key_name: str, conversation: str) -> list[RecordedTurn]:
        """Return the finished turns of a conversation, oldest first."""
        return [
            turn
            for key, turn, _ in self._turns.values()
            if key == key_name
            and outcome_of(turn.finish_reason) is ReplyOutcome.WHOLE
            and (turn.api or {}).get("conversation") == conversation
        ]

    def remove(self, turn_id: str) -> None:
        found = self._turns.pop(turn_id, None)
        if found is not None:
            self._size -= found[2]


def recorded_turn(captured: CapturedExchange) -> RecordedTurn:
    """Return an exchange as it will be read from the record."""
    completion = captured.reply.completions[0] if captured.reply.completions else Completion()
    return RecordedTurn(
        turn_id=captured.turn_id,
        created_at=captured.created_at,
        finished_at=captured.finished_at,
        status_code=captured.status_code,
        messages=captured.chat.messages,
        request={name: value for name, value in captured.chat.body.items() if name != "messages"},
        text=completion.text,
        reasoning=completion.reasoning,
        tool_calls=completion.tool_calls,
        finish_reason=completion.finish_reason,
        usage=captured.reply.usage,
        api=captured.api,
    )
