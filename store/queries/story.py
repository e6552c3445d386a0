"""What is told of single turns: all that `explain` shows of one, and what the proxy reads back of the newest when it starts."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa

from store import schema
from store.hashing import ROOT
from store.queries.common import chain_messages
from store.values import Completion, Json, Relation, Remembered, TurnKind

#: Of a long history only its end is read back: what was asked last, and how it was answered before.
TAIL = 12


def story(connection: sa.Connection, reference: str) -> Json | None:
    """Return everything recorded about one turn, or None when there is none; ``reference``: turn id, its end, or completion id."""
    t, lv = schema.turns.c, schema.lives.c
    columns = (
        t.turn_id, t.completion_id, t.session_id, t.parent_turn_id, t.turn_index, t.kind, t.relation, t.link_reason,
        t.link_confidence, t.policy, t.scope, t.adapter_version, t.client, t.user, t.created_at, t.preamble_node, t.history_node,
        t.request, t.completion, t.tool_calls, t.finish_reason, t.drop_detail,
        lv.stage, lv.drop_reason, lv.trained_in_version,
    )  # fmt: skip
    query = sa.select(*columns).join(schema.lives, lv.turn_id == t.turn_id)
    newest = query.order_by(t.created_at.desc()).limit(1)
    row = None
    for condition in (
        t.turn_id == reference,
        t.completion_id == reference,
        t.turn_id.like(f"%{_escaped(reference)}", escape="\\"),
    ):
        row = connection.execute(newest.where(condition)).one_or_none()
        if row is not None:
            break
    if row is None:
        return None
    found: Json = dict(row._mapping)
    found["messages"] = chain_messages(connection, found.pop("preamble_node"), found.pop("history_node"))
    found["request"] = json.loads(_body(connection, found["request"]))
    found["tool_calls"] = json.loads(found["tool_calls"])
    turn_id = found["turn_id"]
    s, f, v = schema.next_states.c, schema.feedback.c, schema.verdicts.c
    found["next_states"] = _rows(
        connection,
        sa.select(s.by_turn_id, s.role, s.text, s.relation, s.created_at)
        .where(s.turn_id == turn_id)
        .order_by(s.created_at, s.by_turn_id),
    )
    found["feedback"] = _rows(
        connection,
        sa.select(f.score, f.text, f.created_at).where(f.turn_id == turn_id).order_by(f.created_at),
    )
    found["verdicts"] = _rows(
        connection,
        sa.select(v.value, v.hint, v.source, v.confidence, v.created_at)
        .where(v.turn_id == turn_id)
        .order_by(v.verdict_id),
    )
    return found


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def _rows(connection: sa.Connection, query: sa.Select[Any]) -> list[Json]:
    return [dict(row._mapping) for row in connection.execute(query)]


def _body(connection: sa.Connection, name: str) -> str:
    body: str = connection.execute(
        sa.select(schema.messages.c.body).where(schema.messages.c.hash == name)
    ).scalar_one()
    return body


def recollect(connection: sa.Connection, limit: int) -> list[Remembered]:
    """Return the newest turns, oldest first, with the end of what each was asked."""
    t = schema.turns.c
    columns = (
        t.turn_id, t.session_id, t.parent_turn_id, t.turn_index, t.kind, t.relation, t.link_reason, t.scope, t.user,
        t.created_at, t.finished_at, t.request_key, t.reply_key, t.preamble_node, t.history_node, t.request, t.completion,
        t.tool_calls,
    )  # fmt: skip
    query = sa.select(*columns).order_by(t.created_at.desc(), t.turn_id.desc()).limit(limit)
    rows = connection.execute(query).all()
    preambles: dict[str, tuple[Json, ...]] = {}
    requests: dict[str, Json] = {}
    found = []
    for row in rows:
        if row.preamble_node not in preambles:
            preambles[row.preamble_node] = tuple(chain_messages(connection, row.preamble_node))
        if row.request not in requests:
            requests[row.request] = json.loads(_body(connection, row.request))
        tail, is_whole = _tail(connection, row.history_node)
        found.append(_remembered(row, preambles[row.preamble_node], tail, is_whole, requests[row.request]))
    found.reverse()
    return found


def _tail(connection: sa.Connection, node: str) -> tuple[tuple[Json, ...], bool]:
    """Return (the last messages of a chain, whether they are all of it)."""
    if node == ROOT:
        return (), True
    n = schema.nodes.c
    top = sa.select(n.depth).where(n.node == node).scalar_subquery()
    walk = sa.select(n.parent, n.message, n.depth).where(n.node == node).cte("walk", recursive=True)
    walk = walk.union_all(
        sa.select(n.parent, n.message, n.depth)
        .join(walk, n.node == walk.c.parent)
        .where(n.depth > top - TAIL)
    )
    rows = connection.execute(
        sa.select(walk.c.depth, schema.messages.c.body)
        .join(walk, schema.messages.c.hash == walk.c.message)
        .order_by(walk.c.depth)
    ).all()
    return tuple(json.loads(row.body) for row in rows), rows[0].depth == 0


def _remembered(
    row: Any, preamble: tuple[Json, ...], tail: tuple[Json, ...], is_whole: bool, request: Json
) -> Remembered:
    return Remembered(
        turn_id=row.turn_id,
        session_id=row.session_id,
        parent_turn_id=row.parent_turn_id,
        turn_index=row.turn_index,
        kind=TurnKind(row.kind),
        relation=Relation(row.relation),
        link_reason=row.link_reason,
        scope=row.scope,
        user=row.user,
        created_at=row.created_at,
        finished_at=row.finished_at,
        request_key=row.request_key,
        reply_key=row.reply_key,
        messages=(*preamble, *tail),
        is_whole=is_whole,
        request=request,
        completion=Completion(text=row.completion, tool_calls=tuple(json.loads(row.tool_calls))),
    )
