"""Turns that clients name by id, and their conversations: what the Responses API reads back."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from store import schema
from store.database import insert_ignore
from store.hashing import exact_json
from store.queries.common import bodies, chain_messages, moment, unindexed, value_of
from store.values import AddedItem, Conversation, Json, NewTurn, RecordedTurn, ReplyOutcome, outcome_of

_COLUMNS = (
    "turn_id", "created_at", "finished_at", "status_code", "preamble_node", "history_node", "request", "completion", "reasoning",
    "tool_calls", "finish_reason", "usage",
)  # fmt: skip
_ITEM_ID = re.compile(r"[\w-]{1,64}", re.ASCII)


def write_api_requests(connection: sa.Connection, turns: Sequence[NewTurn]) -> None:
    """Store what the chat requests of translated turns do not hold."""
    rows = [
        {
            "turn_id": turn.turn_id,
            "api": str(turn.api["name"]),
            "detail": exact_json(turn.api),
            "is_hidden": False,
        }
        for turn in turns
        if turn.api is not None
    ]
    if rows:
        connection.execute(insert_ignore(connection.dialect.name, schema.api_requests), rows)


def recorded_turn(connection: sa.Connection, key_name: str, turn_id: str) -> RecordedTurn | None:
    """Return a turn that a client names; without its API when its response was deleted."""
    t = schema.turns.c
    row = connection.execute(_select().where(t.turn_id == turn_id, t.key_name == key_name)).one_or_none()
    return None if row is None else _recorded(connection, row, row.detail and json.loads(row.detail))


def conversation_turns(connection: sa.Connection, key_name: str, conversation_id: str) -> list[RecordedTurn]:
    """Return the finished turns of a conversation, oldest first; without their requests where their own input is recorded beside them."""
    t, a = schema.turns.c, schema.api_requests.c
    query = (
        _select()
        .where(
            t.session_id == conversation_id,
            unindexed(t.key_name) == key_name,
            t.finish_reason.is_not(None),
            a.is_hidden == sa.false(),
        )
        .order_by(t.created_at)
    )
    found = [(row, json.loads(row.detail)) for row in connection.execute(query).all()]
    return [
        _recorded(connection, row, detail, is_whole="input" not in detail)
        for row, detail in found
        if detail.get("conversation") == conversation_id
        and outcome_of(row.finish_reason) is ReplyOutcome.WHOLE
    ]


def hide_turn(connection: sa.Connection, key_name: str, turn_id: str) -> None:
    """Stop showing a response to its client."""
    mine = sa.select(schema.turns.c.turn_id).where(
        schema.turns.c.turn_id == turn_id, schema.turns.c.key_name == key_name
    )
    a = schema.api_requests
    connection.execute(sa.update(a).where(a.c.turn_id.in_(mine)).values(is_hidden=True))


def _select() -> sa.Select[Any]:
    t, a = schema.turns, schema.api_requests
    columns = [t.c[name] for name in _COLUMNS]
    return sa.select(*columns, a.c.detail, a.c.is_hidden).outerjoin_from(t, a, a.c.turn_id == t.c.turn_id)


def _recorded(
    connection: sa.Connection, row: Row[Any], detail: Json | None, *, is_whole: bool = True
) -> RecordedTurn:
    return value_of(
        RecordedTurn,
        row,
        messages=tuple(chain_messages(connection, row.preamble_node, row.history_node)) if is_whole else (),
        request=bodies(connection, [row.request])[0] if is_whole else {},
        text=row.completion,
        tool_calls=tuple(json.loads(row.tool_calls)),
        usage=None if row.usage is None else json.loads(row.usage),
        api=None if row.is_hidden else detail,
    )


# ---- conversations


def add_conversation(
    connection: sa.Connection, key_name: str, conversation: Conversation, items: Sequence[Json] = ()
) -> None:
    connection.execute(
        sa.insert(schema.conversations),
        {
            "conversation_id": conversation.conversation_id,
            "key_name": key_name,
            "metadata": exact_json(conversation.metadata),
            "created_at": conversation.created_at,
            "deleted_at": None,
        },
    )
    add_items(connection, conversation.conversation_id, items, conversation.created_at)


def conversation(connection: sa.Connection, key_name: str, conversation_id: str) -> Conversation | None:
    """Return a conversation that a client created and did not delete."""
    c, i = schema.conversations.c, schema.conversation_items.c
    row = connection.execute(
        sa.select(schema.conversations).where(
            c.conversation_id == conversation_id, c.key_name == key_name, c.deleted_at.is_(None)
        )
    ).one_or_none()
    if row is None:
        return None
    items = connection.execute(
        sa.select(schema.conversation_items)
        .where(i.conversation_id == conversation_id)
        .order_by(i.added_at, i.position)
    ).all()
    return Conversation(
        conversation_id=row.conversation_id,
        metadata=json.loads(row._mapping["metadata"]),
        created_at=row.created_at,
        added=tuple(
            AddedItem(item_id=one.item_id, at=one.added_at, item=json.loads(one.item))
            for one in items
            if one.item is not None
        ),
        deleted=frozenset(one.item_id for one in items if one.item is None),
    )


def update_conversation(connection: sa.Connection, conversation_id: str, metadata: Json) -> None:
    c = schema.conversations
    connection.execute(
        sa.update(c).where(c.c.conversation_id == conversation_id).values(metadata=exact_json(metadata))
    )


def delete_conversation(connection: sa.Connection, conversation_id: str) -> None:
    c = schema.conversations
    connection.execute(
        sa.update(c).where(c.c.conversation_id == conversation_id).values(deleted_at=time.time())
    )


def add_items(
    connection: sa.Connection, conversation_id: str, items: Sequence[Json], now: float | None = None
) -> list[AddedItem]:
    """Add items to a conversation. Each keeps its id where it has one that no other item of the conversation has."""
    at = moment(now)
    i = schema.conversation_items
    taken = set(
        connection.execute(sa.select(i.c.item_id).where(i.c.conversation_id == conversation_id)).scalars()
    )
    added = []
    for item in items:
        given = item.get("id")
        is_free = isinstance(given, str) and _ITEM_ID.fullmatch(given) and given not in taken
        name = str(given) if is_free else f"item_{uuid.uuid4().hex}"
        taken.add(name)
        added.append(AddedItem(item_id=name, at=at, item=item))
    rows = [
        {
            "conversation_id": conversation_id,
            "item_id": one.item_id,
            "added_at": at,
            "position": position,
            "item": exact_json(one.item),
        }
        for position, one in enumerate(added)
    ]
    if rows:
        connection.execute(sa.insert(i), rows)
    return added


def delete_item(
    connection: sa.Connection, conversation_id: str, item_id: str, now: float | None = None
) -> None:
    """Delete an item that a client added, or stop showing one of a turn."""
    at = moment(now)
    i = schema.conversation_items
    mine = (i.c.conversation_id == conversation_id) & (i.c.item_id == item_id)
    if not connection.execute(sa.delete(i).where(mine, i.c.item.is_not(None))).rowcount:
        row = {
            "conversation_id": conversation_id,
            "item_id": item_id,
            "added_at": at,
            "position": 0,
            "item": None,
        }
        connection.execute(insert_ignore(connection.dialect.name, i), [row])
