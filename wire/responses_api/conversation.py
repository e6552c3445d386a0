"""The items of a conversation: what its client added and what its turns added, without what the client deleted. Sans-IO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from store.values import AddedItem, Conversation, Json, RecordedTurn
from wire.responses_api.items import input_items, item_id, shown_item
from wire.responses_api.reply import ResponseSynthesizer, without_instructions


@dataclass(slots=True)
class ConversationItems:
    """The items of a conversation, oldest first.

    Attributes:
        shown: as its client reads them.
        sent: as input of its next response: what clients sent, and a reference to each reply of which nothing was deleted.
        replies: the turns that references name.
        newest: the newest turn whose reply is there, whole or in part.
    """

    shown: list[Json] = field(default_factory=list)
    sent: list[Json] = field(default_factory=list)
    replies: dict[str, RecordedTurn] = field(default_factory=dict)
    newest: RecordedTurn | None = None


def conversation_items(
    known: Conversation, turns: Sequence[RecordedTurn], *, with_logprobs: bool = False
) -> ConversationItems:
    """Return the items of a conversation.

    Args:
        turns: its finished turns, in any order.
        with_logprobs: texts are shown with the log-probabilities that their requests asked for.
    """
    found = ConversationItems()
    blocks: list[tuple[float, AddedItem | RecordedTurn]] = [
        *((added.at, added) for added in known.added),
        *((turn.created_at, turn) for turn in turns),
    ]
    for _, block in sorted(blocks, key=lambda one: one[0]):
        if isinstance(block, AddedItem):
            found.shown.append(shown_item(block.item, block.item_id))
            found.sent.append(block.item)
        else:
            _add_turn(found, block, known.deleted, with_logprobs)
    return found


def _add_turn(
    found: ConversationItems, turn: RecordedTurn, deleted: frozenset[str], with_logprobs: bool
) -> None:
    shown = own_items(turn)
    sent = (turn.api or {}).get("input") or shown
    for item, as_sent in zip(shown, sent, strict=True):
        if item["id"] not in deleted:
            found.shown.append(item)
            found.sent.append(as_sent)
    synthesizer = ResponseSynthesizer({"logprobs": True}, turn.api or {}, instructions=None)
    reply: list[Json] = synthesizer.recorded(turn, with_logprobs=with_logprobs)["output"]
    kept = [item for item in reply if item["id"] not in deleted]
    found.shown += kept
    if len(kept) == len(reply):
        # The reply itself, rather than its items: its text and calls exactly as they were sampled.
        found.replies[turn.turn_id] = turn
        kept = [{"type": "item_reference", "id": item_id("resp", turn.turn_id)}]
    found.sent += kept
    if kept:
        found.newest = turn


def own_items(turn: RecordedTurn) -> list[Json]:
    """Return what a turn's request added, as items that are read back."""
    detail = turn.api or {}
    if "input" in detail:
        return [
            shown_item(item, item_id("item", turn.turn_id, number))
            for number, item in enumerate(detail["input"])
        ]
    return input_items(without_instructions(turn)[detail.get("inherited", 0) :], turn.turn_id)
