"""Chat completions as their clients list, read, annotate and delete them: OpenAI's stored completions, over the turns.

The choices of one request are turns of one completion id: `turn_x`, `turn_x.1`, ...
"""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from store import schema
from store.database import upsert
from store.hashing import exact_json
from store.queries.common import moment
from store.queries.forget_jobs import ask
from store.queries.proxy import find_turn
from store.queries.replies import recorded_turn
from store.values import Json, RecordedTurn, Selection, StoredCompletion, StoredQuery, adapter_name

#: Rows that are read at once while those that match are looked for.
_BATCH = 200


def list_completions(
    connection: sa.Connection, key_name: str, wanted: StoredQuery
) -> tuple[list[StoredCompletion], bool] | None:
    """Return a page of a key's chat completions, and whether more follow; None: there is no completion ``after``."""
    t = schema.turns.c
    place = sa.tuple_(t.created_at, t.turn_id)
    at: tuple[float, str] | None = None
    if wanted.after is not None:
        after = _find_row(connection, key_name, wanted.after)
        if after is None:
            return None
        at = (after.created_at, after.turn_id)
    order = (t.created_at, t.turn_id) if wanted.is_oldest_first else (t.created_at.desc(), t.turn_id.desc())
    found: list[StoredCompletion] = []
    while True:
        query = _select(key_name).order_by(*order).limit(_BATCH)
        if at is not None:
            query = query.where(place > at if wanted.is_oldest_first else place < at)
        rows = connection.execute(query).all()
        for row in rows:
            request = json.loads(row.body)
            metadata = _metadata(row, request)
            if not _matches(row, request, metadata, wanted):
                continue
            if len(found) == wanted.limit:
                return found, True
            found.append(_completion(connection, key_name, row, metadata))
        if len(rows) < _BATCH:
            return found, False
        at = (rows[-1].created_at, rows[-1].turn_id)


def find_completion(connection: sa.Connection, key_name: str, reference: str) -> StoredCompletion | None:
    """Return a chat completion by the id that its client saw; None: there is none, or it was deleted."""
    row = _find_row(connection, key_name, reference)
    if row is None:
        return None
    return _completion(connection, key_name, row, _metadata(row, json.loads(row.body)))


def set_metadata(connection: sa.Connection, turn_id: str, metadata: Json) -> None:
    """Replace a completion's metadata."""
    values = {"turn_id": turn_id, "metadata": exact_json(metadata)}
    upsert(connection, schema.stored_completions, values, ["turn_id"])


def delete(connection: sa.Connection, turn_id: str, now: float | None = None) -> None:
    """Hide a completion from its client, and ask for its turn to be forgotten."""
    at, t = moment(now), schema.turns.c
    upsert(connection, schema.stored_completions, {"turn_id": turn_id, "deleted_at": at}, ["turn_id"])
    key_name = connection.execute(sa.select(t.key_name).where(t.turn_id == turn_id)).scalar_one()
    ask(connection, Selection(turn=turn_id), key_name=key_name, now=at)


def _select(key_name: str) -> sa.Select[Any]:
    """Select the first choices of a key's chat completions that can be read back."""
    t, s, a = schema.turns, schema.stored_completions, schema.api_requests
    return (
        sa.select(
            t.c.turn_id,
            t.c.completion_id,
            t.c.created_at,
            t.c.policy,
            t.c.adapter_version,
            schema.messages.c.body,
            s.c.metadata.label("changed"),
        )
        .join(schema.messages, schema.messages.c.hash == t.c.request)
        .outerjoin(s, s.c.turn_id == t.c.turn_id)
        .outerjoin(a, a.c.turn_id == t.c.turn_id)
        .where(
            t.c.key_name == key_name,
            t.c.status_code < 400,
            t.c.finish_reason.is_not(None),
            t.c.turn_id.not_like("%.%"),
            a.c.turn_id.is_(None),  # of another API, whose client saw another id
            sa.func.coalesce(t.c.completion_id, "").not_like("cmpl-%"),
            s.c.deleted_at.is_(None),
        )
    )


def _find_row(connection: sa.Connection, key_name: str, reference: str) -> Row[Any] | None:
    turn_id = find_turn(connection, key_name, reference)
    if turn_id is None:
        return None
    first = turn_id.partition(".")[0]
    return connection.execute(_select(key_name).where(schema.turns.c.turn_id == first)).one_or_none()


def _metadata(row: Row[Any], request: Json) -> Json:
    found = request.get("metadata") if row.changed is None else json.loads(row.changed)
    return found if isinstance(found, dict) else {}


def _matches(row: Row[Any], request: Json, metadata: Json, wanted: StoredQuery) -> bool:
    if request.get("store") is False and not wanted.with_unstored:
        return False
    names = (request.get("model"), row.policy, adapter_name(row.policy, row.adapter_version))
    if wanted.model is not None and wanted.model not in names:
        return False
    return all(metadata.get(name) == value for name, value in wanted.metadata.items())


def _completion(connection: sa.Connection, key_name: str, row: Row[Any], metadata: Json) -> StoredCompletion:
    first = recorded_turn(connection, key_name, row.turn_id)
    assert first is not None  # of this transaction
    choices: list[RecordedTurn] = [first]
    # Only with n > 1 there are siblings: asked for one after the other, by their ids.
    while (other := recorded_turn(connection, key_name, f"{row.turn_id}.{len(choices)}")) is not None:
        choices.append(other)
    return StoredCompletion(
        completion_id=row.completion_id or row.turn_id,
        policy=row.policy,
        adapter_version=row.adapter_version,
        metadata=metadata,
        choices=tuple(choices),
    )
