"""The items of a conversation: what its client added and what its turns added, without what the client deleted. Sans-IO."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from store.values import AddedItem, Conversation, Json, RecordedTurn
from wire.responses_api.items import input_items, item_id, shown_item, turn_of
from wire.responses_api.reply import ResponseSynthesizer, without_instructions


@dataclass(slots=True)
class ConversationInput:
    """What the next response of a conversation continues.

    Attributes:
        sent: its items, oldest first: what clients sent, and a reference to each reply of which nothing was deleted.
        replies: the turns that references name.
        newest: the newest turn whose reply is there, whole or in part.
    """

    sent: list[Json] = field(default_factory=list)
    replies: dict[str, RecordedTurn] = field(default_factory=dict)
    newest: RecordedTurn | None = None


def conversation_input(known: Conversation, turns: Iterable[RecordedTurn]) -> ConversationInput:
    """Return what the next response continues; ``turns``: the finished turns of the conversation, in any order."""
    found = ConversationInput()
    changed = {turn_of(name) for name in known.deleted}
    for block in _in_order(known, turns):
        if isinstance(block, AddedItem):
            found.sent.append(block.item)
            continue
        own = (block.api or {}).get("input")
        sent = own_items(block) if own is None else own
        # The reply itself, rather than its items: its text and calls exactly as they were sampled.
        reply: list[Json] = [{"type": "item_reference", "id": item_id("resp", block.turn_id)}]
        is_whole = True
        if block.turn_id in changed:
            # Only then are the items of the reply made: that takes as long as the rest of a turn's work.
            pairs = zip(own_items(block), sent, strict=True)
            sent = [as_sent for item, as_sent in pairs if item["id"] not in known.deleted]
            items = _reply_items(block)
            kept = [item for item in items if item["id"] not in known.deleted]
            is_whole = len(kept) == len(items)
            reply = reply if is_whole else kept
        if is_whole:
            found.replies[block.turn_id] = block
        found.sent += [*sent, *reply]
        if reply:
            found.newest = block
    return found


def shown_items(
    known: Conversation, turns: Iterable[RecordedTurn], *, with_logprobs: bool = False
) -> list[Json]:
    """Return the items as their client reads them, oldest first.

    Args:
        turns: the finished turns of the conversation, in any order.
        with_logprobs: texts are shown with the log-probabilities that their requests asked for.
    """
    found: list[Json] = []
    for block in _in_order(known, turns):
        if isinstance(block, AddedItem):
            found.append(shown_item(block.item, block.item_id))
        else:
            items = [*own_items(block), *_reply_items(block, with_logprobs=with_logprobs)]
            found += [item for item in items if item["id"] not in known.deleted]
    return found


def _in_order(known: Conversation, turns: Iterable[RecordedTurn]) -> list[AddedItem | RecordedTurn]:
    return sorted(
        (*known.added, *turns), key=lambda one: one.at if isinstance(one, AddedItem) else one.created_at
    )


def _reply_items(turn: RecordedTurn, *, with_logprobs: bool = False) -> list[Json]:
    synthesizer = ResponseSynthesizer({"logprobs": True}, turn.api or {}, instructions=None)
    found: list[Json] = synthesizer.recorded(turn, with_logprobs=with_logprobs)["output"]
    return found


def own_items(turn: RecordedTurn) -> list[Json]:
    """Return what a turn's request added, as items that are read back."""
    detail = turn.api or {}
    if "input" in detail:
        return [
            shown_item(item, item_id("item", turn.turn_id, number))
            for number, item in enumerate(detail["input"])
        ]
    return input_items(without_instructions(turn)[detail.get("inherited", 0) :], turn.turn_id)
