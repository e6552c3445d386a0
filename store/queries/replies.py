"""Turns that clients name by id, and their conversations: what the Responses API reads back."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from store import schema
from store.database import insert_ignore
from store.hashing import exact_json
from store.queries.common import bodies, chain_messages
from store.values import Conversation, Json, NewTurn, RecordedTurn

_COLUMNS = (
    "turn_id", "created_at", "finished_at", "status_code", "preamble_node", "history_node", "request", "completion", "reasoning",
    "tool_calls", "finish_reason", "usage",
)  # fmt: skip


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
    """Return a turn of a key; without its API when its client deleted the response."""
    t = schema.turns.c
    row = connection.execute(_select().where(t.turn_id == turn_id, t.key_name == key_name)).one_or_none()
    return None if row is None else _recorded(connection, row)


def newest_turn(connection: sa.Connection, key_name: str, session_id: str) -> RecordedTurn | None:
    """Return the newest finished turn of a conversation."""
    t, a = schema.turns.c, schema.api_requests.c
    query = (
        _select()
        .where(
            t.session_id == session_id,
            t.key_name == key_name,
            t.finish_reason.is_not(None),
            a.is_hidden == sa.false(),
        )
        .order_by(t.created_at.desc())
        .limit(1)
    )
    row = connection.execute(query).one_or_none()
    return None if row is None else _recorded(connection, row)


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


def _recorded(connection: sa.Connection, row: Row[Any]) -> RecordedTurn:
    return RecordedTurn(
        turn_id=row.turn_id,
        created_at=row.created_at,
        finished_at=row.finished_at,
        status_code=row.status_code,
        messages=tuple(chain_messages(connection, row.preamble_node, row.history_node)),
        request=bodies(connection, [row.request])[0],
        text=row.completion,
        reasoning=row.reasoning,
        tool_calls=tuple(json.loads(row.tool_calls)),
        finish_reason=row.finish_reason,
        usage=None if row.usage is None else json.loads(row.usage),
        api=None if row.detail is None or row.is_hidden else json.loads(row.detail),
    )


# ---- conversations


def add_conversation(connection: sa.Connection, key_name: str, conversation: Conversation) -> None:
    connection.execute(
        sa.insert(schema.conversations),
        {
            "conversation_id": conversation.conversation_id,
            "key_name": key_name,
            "metadata": exact_json(conversation.metadata),
            "items": exact_json(conversation.items),
            "created_at": conversation.created_at,
            "deleted_at": None,
        },
    )


def conversation(connection: sa.Connection, key_name: str, conversation_id: str) -> Conversation | None:
    """Return a conversation of a key that was not deleted."""
    c = schema.conversations.c
    row = connection.execute(
        sa.select(schema.conversations).where(
            c.conversation_id == conversation_id, c.key_name == key_name, c.deleted_at.is_(None)
        )
    ).one_or_none()
    if row is None:
        return None
    return Conversation(
        conversation_id=row.conversation_id,
        metadata=json.loads(row._mapping["metadata"]),
        items=json.loads(row._mapping["items"]),
        created_at=row.created_at,
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
