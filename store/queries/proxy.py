"""What recorder and proxy ask: which recorded turns a request may continue, and which turn a client's feedback is about.

What the recorder writes with every turn is in `store.queries.turns`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from store import schema
from store.database import insert_ignore, present, upsert
from store.hashing import ROOT, digest, exact_json, text_key, visible_text
from store.lifecycle import Event
from store.queries.common import answer, chain_messages, heartbeat_of, move, teach_again, unindexed
from store.texts import last_user_text
from store.values import (
    Feedback,
    GpuLease,
    GpuRole,
    Heartbeat,
    Json,
    Relation,
    Tip,
    Tips,
    TurnKind,
    may_hold_hint,
)

#: Turns that are returned under one key: a key of more identifies none of them.
MAX_TIPS_PER_KEY = 64


def tips_for(connection: sa.Connection, key_name: str, keys: Sequence[str]) -> Tips:
    """Return the stored turns of a key whose request or reply key is among ``keys``: under each key the newest ones."""
    if not keys:
        return Tips(replies={}, requests={})
    found = []
    for statement in _tips_statements(connection.dialect.name):
        tips: dict[str, list[Tip]] = {}
        for row in connection.execute(statement, {"key_name": key_name, "keys": json.dumps(keys)}):
            tips.setdefault(row.key, []).append(_tip(row))
        found.append({key: tuple(some) for key, some in tips.items()})
    return Tips(replies=found[0], requests=found[1])


def session_tip(connection: sa.Connection, key_name: str, session_id: str) -> Tip | None:
    """Return the newest main turn of an explicitly named session."""
    row = (
        connection.execute(_session_tip_statement(), {"key_name": key_name, "session_id": session_id})
    ).one_or_none()
    return None if row is None else _tip(row)


def find_turn(connection: sa.Connection, key_name: str, reference: str) -> str | None:
    """Return the id of the turn named by a turn id or by a completion id that its client saw."""
    c = schema.turns.c
    for column in (c.turn_id, c.completion_id):  # two questions, each with an index of its own
        found: str | None = connection.execute(
            sa.select(c.turn_id)
            .where(column == reference, unindexed(c.key_name) == key_name)
            .order_by(c.created_at.desc())
            .limit(1)
        ).scalar_one_or_none()
        if found is not None:
            return found
    return None


def find_exchange(connection: sa.Connection, key_name: str, prompt: str, response: str) -> str | None:
    """Return the newest turn that answered ``response`` to a last user text ``prompt`` (CLaaS's feedback body)."""
    answering = _turns_answering(connection, key_name, response)
    return next(
        (
            turn_id
            for turn_id, _, messages in answering
            if visible_text(last_user_text(messages)) == visible_text(prompt)
        ),
        None,
    )


def turns_answering(
    connection: sa.Connection, key_name: str, response: str
) -> list[tuple[str, float, list[Json]]]:
    """Return the newest turns of a key that answered ``response``: id, time, messages of the prompt."""
    return list(_turns_answering(connection, key_name, response))


def _turns_answering(
    connection: sa.Connection, key_name: str, response: str
) -> Iterator[tuple[str, float, list[Json]]]:
    c = schema.turns.c
    earlier = digest(response.strip())  # what earlier versions stored
    for key in dict.fromkeys((text_key(response), earlier)):
        rows = connection.execute(
            sa.select(c.turn_id, c.created_at, c.history_node)
            .where(c.key_name == key_name, c.completion_key == key)
            .order_by(c.created_at.desc())
            .limit(50)
        ).all()
        for row in rows:
            yield row.turn_id, row.created_at, chain_messages(connection, ROOT, row.history_node)


def feedback_keys(connection: sa.Connection, prefix: str) -> list[tuple[str, str]]:
    """Return idempotency key and turn of the feedback whose key begins so, oldest first."""
    f = schema.feedback.c
    rows = connection.execute(
        sa.select(f.idempotency_key, f.turn_id)
        .where(f.idempotency_key.startswith(prefix, autoescape=True))
        .order_by(f.created_at, f.feedback_id)
    )
    return [(row.idempotency_key, row.turn_id) for row in rows]


def add_feedback(connection: sa.Connection, feedback: Feedback) -> bool:
    """Store explicit feedback; a turn that waited for an answer (or had none) is up for scoring, with words also a trained or stale one.

    Returns:
        False when this idempotency key is known already; nothing changed.
    """
    inserted = connection.execute(
        insert_ignore(connection.dialect.name, schema.feedback),
        {
            "feedback_id": feedback.feedback_id,
            "turn_id": feedback.turn_id,
            "score": feedback.score,
            "text": feedback.text,
            "idempotency_key": feedback.idempotency_key,
            "created_at": feedback.created_at,
        },
    )
    if inserted.rowcount == 0:
        return False
    answer(connection, feedback.turn_id, feedback.created_at)
    if may_hold_hint(feedback.text, feedback.score):
        teach_again(connection, feedback.turn_id, feedback.created_at)
    # Scored already but not yet claimed: what a person says outweighs what was guessed, so score again.
    move(connection, [feedback.turn_id], Event.RECONSIDER, feedback.created_at)
    return True


def feedback_turns(connection: sa.Connection, feedback_ids: Sequence[str]) -> list[str]:
    """Return the turns that recorded feedback is about, in the order of its ids."""
    f = schema.feedback.c
    rows = connection.execute(
        sa.select(f.turn_id).where(f.feedback_id.in_(feedback_ids)).order_by(f.feedback_id)
    )
    return list(rows.scalars())


def heartbeat(connection: sa.Connection, beat: Heartbeat) -> None:
    """Say that a process lives and what it does; its row is its own."""
    values = {
        "process": beat.process,
        "pid": beat.pid,
        "state": beat.state,
        "detail": exact_json(beat.detail),
        "at": beat.at,
    }
    upsert(connection, schema.heartbeats, values, ["process"])


def write_gpu_lease(connection: sa.Connection, lease: GpuLease) -> None:
    """Store what one side of a shared GPU requests or grants."""
    values = {
        "role": lease.role.value,
        "pid": lease.pid,
        "lease": lease.lease,
        "should_yield": lease.should_yield,
        "at": lease.at,
    }
    upsert(connection, schema.gpu_leases, values, ["role"])


def gpu_lease(connection: sa.Connection, role: GpuRole) -> GpuLease | None:
    """Return what that side wrote last, or None."""
    row = connection.execute(
        sa.select(schema.gpu_leases).where(schema.gpu_leases.c.role == role.value)
    ).one_or_none()
    if row is None:
        return None
    return GpuLease(role=role, pid=row.pid, lease=row.lease, should_yield=row.should_yield, at=row.at)


def beat_of(connection: sa.Connection, process: str) -> Heartbeat | None:
    """Return the newest heartbeat of a process, or None."""
    row = connection.execute(
        sa.select(schema.heartbeats).where(schema.heartbeats.c.process == process)
    ).one_or_none()
    return None if row is None else heartbeat_of(row)


def known_turns(connection: sa.Connection, turn_ids: Sequence[str]) -> set[str]:
    """Return those of ``turn_ids`` that are recorded."""
    return present(connection, schema.turns.c.turn_id, turn_ids)


def _tip_select(key: sa.ColumnElement[Any]) -> sa.Select[Any]:
    c = schema.turns.c
    child = schema.turns.alias("child")
    extended = (
        sa.exists()
        .where(
            # the index is over these two: a long session costs no more than a short one
            child.c.session_id == c.session_id,
            child.c.turn_index == c.turn_index + 1,
            child.c.parent_turn_id == c.turn_id,
            unindexed(child.c.kind) == TurnKind.MAIN.value,
            child.c.relation != Relation.RETRY.value,
        )
        .correlate(schema.turns)
    )
    return sa.select(
        c.turn_id,
        c.session_id,
        c.turn_index,
        c.kind,
        c.parent_turn_id,
        key.label("key"),
        (~extended).label("is_newest"),
        c.created_at,
    )


def _tips_by(column: sa.Column[Any], dialect: str) -> sa.Select[Any]:
    """Return the select of the newest turns under each of several keys (a JSON list): a prompt may have been sent a million times."""
    c = schema.turns.c
    is_sqlite = dialect == "sqlite"
    each = sa.func.json_each if is_sqlite else sa.func.json_array_elements_text
    argument = sa.bindparam("keys") if is_sqlite else sa.cast(sa.bindparam("keys"), sa.JSON)
    keys = each(argument).table_valued("value", name="wanted", joins_implicitly=True)
    holder = schema.turns.alias("holder")
    newest = (
        sa.select(holder.c.turn_id)
        .where(holder.c.key_name == sa.bindparam("key_name"), holder.c[column.key] == keys.c.value)
        .order_by(holder.c.created_at.desc())
        .limit(MAX_TIPS_PER_KEY)
    )
    if is_sqlite:
        select = _tip_select(column).where(c.turn_id.in_(newest.correlate(keys)))
    else:
        lateral = newest.correlate(keys).lateral("newest")
        select = _tip_select(column).where(c.turn_id == lateral.c.turn_id)
    return select.select_from(keys).order_by(c.created_at.desc(), c.turn_id.desc())


# Built once, when it is first needed: putting such a statement together costs as much as running it, and these run for every request.
@cache
def _tips_statements(dialect: str) -> tuple[sa.Select[Any], ...]:
    return tuple(
        _tips_by(column, dialect) for column in (schema.turns.c.reply_key, schema.turns.c.request_key)
    )


@cache
def _session_tip_statement() -> sa.Select[Any]:
    t = schema.turns.c
    return (
        _tip_select(sa.func.coalesce(t.reply_key, t.request_key))
        .where(
            t.key_name == sa.bindparam("key_name"),
            t.session_id == sa.bindparam("session_id"),
            unindexed(t.kind) == TurnKind.MAIN.value,
        )
        .order_by(t.turn_index.desc(), t.created_at.desc())
        .limit(1)
    )


def _tip(row: Row[Any]) -> Tip:
    return Tip(
        turn_id=row.turn_id,
        session_id=row.session_id,
        turn_index=row.turn_index,
        kind=TurnKind(row.kind),
        parent_turn_id=row.parent_turn_id,
        key=row.key,
        is_newest=bool(row.is_newest),
        created_at=row.created_at,
    )
