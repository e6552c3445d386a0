"""Queries about single turns: all that `explain` shows of one, and the newest ones for the recorder when it starts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import sqlalchemy as sa

from store import schema
from store.hashing import ROOT
from store.lifecycle import DropReason
from store.queries.common import chain_messages, read_json, read_message, read_object, value_of
from store.values import Completion, Json, Relation, Remembered, TurnKind

#: Of a long history only its end is read back: what was asked last, and how it was answered before.
TAIL = 6


def _is_evidence(item: object) -> bool:
    return isinstance(item, list) and len(item) == 2 and isinstance(item[1], int | float)


#: Lists of a turn, and what an item of each must be.
_LISTS: Mapping[str, Callable[[object], bool]] = {
    "tool_calls": lambda item: isinstance(item, dict),
    "kind_evidence": _is_evidence,
    "first_kind_evidence": _is_evidence,
}


def story(connection: sa.Connection, reference: str) -> Json | None:
    """Return everything recorded about one turn, or None when there is none; ``unreadable`` names what was damaged and is left out.

    Args:
        reference: turn id, the end of it, completion id, or "last" for the newest main turn.
    """
    t, lv = schema.turns.c, schema.turn_states.c
    columns = (
        t.turn_id, t.completion_id, t.session_id, t.parent_turn_id, t.turn_index, t.kind, t.relation, t.link_reason, t.kind_reason,
        t.kind_evidence, t.first_kind, t.first_kind_reason, t.first_kind_evidence, t.link_confidence, t.policy, t.key_name, t.adapter_version, t.client, t.user, t.created_at, t.preamble_node, t.history_node,
        t.request, t.completion, t.tool_calls, t.finish_reason, t.drop_detail, t.wish_text, t.wish_place,
        lv.stage, lv.drop_reason, lv.trained_in_version,
    )  # fmt: skip
    query = sa.select(*columns).join(schema.turn_states, lv.turn_id == t.turn_id)
    newest = query.order_by(t.created_at.desc()).limit(1)
    row = None
    conditions: tuple[sa.ColumnElement[bool], ...] = (
        t.turn_id == reference,
        t.completion_id == reference,
        t.turn_id.like(f"%{_escaped(reference)}", escape="\\"),
    )
    for condition in (t.kind == TurnKind.MAIN.value,) if reference == "last" else conditions:
        row = connection.execute(newest.where(condition)).one_or_none()
        if row is not None:
            break
    if row is None:
        return None
    found: Json = dict(row._mapping)
    tips = found.pop("preamble_node"), found.pop("history_node")
    found["messages"] = chain_messages(connection, *tips, read=read_message)
    found["request"] = read_object(_body(connection, found["request"]))
    found["unreadable"] = ["request"] if "unreadable" in found["request"] else []
    for name, is_sound in _LISTS.items():
        items = read_json(found[name] or "[]")
        found[name] = [one for one in items if is_sound(one)] if isinstance(items, list) else []
        if found[name] != items:
            found["unreadable"].append(name)
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
    verdicts = _rows(
        connection,
        sa.select(v.value, v.hint, v.wish, v.wish_scope, v.source, v.confidence, v.detail, v.created_at)
        .where(v.turn_id == turn_id)
        .order_by(v.verdict_id),
    )
    found["verdicts"] = [{**verdict, "detail": read_object(verdict["detail"])} for verdict in verdicts]
    return found


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def _rows(connection: sa.Connection, query: sa.Select[Any]) -> list[Json]:
    return [dict(row._mapping) for row in connection.execute(query)]


def _body(connection: sa.Connection, name: str) -> str:
    """Return a stored text; "" where there is none."""
    body: str | None = connection.execute(
        sa.select(schema.messages.c.body).where(schema.messages.c.hash == name)
    ).scalar_one_or_none()
    return body or ""


def recollect(connection: sa.Connection, limit: int) -> list[Remembered]:
    """Return the newest turns, oldest first, with the end of what each was asked: what a proxy that starts should know."""
    t = schema.turns.c
    columns = (
        t.turn_id, t.session_id, t.parent_turn_id, t.turn_index, t.kind, t.relation, t.link_reason, t.kind_reason, t.kind_evidence, t.key_name, t.client, t.user,
        t.created_at, t.finished_at, t.request_key, t.reply_key, t.finish_reason, t.preamble_node, t.history_node, t.request, t.completion,
        t.tool_calls, t.main_drop_reason,
    )  # fmt: skip
    query = sa.select(*columns).order_by(t.created_at.desc(), t.turn_id.desc()).limit(limit)
    rows = connection.execute(query).all()
    tails = _tails(connection, {row.history_node for row in rows} | {row.preamble_node for row in rows})
    bodies = _bodies(connection, {row.request for row in rows})
    found = []
    for row in rows:
        preamble, _ = tails[row.preamble_node]
        tail, is_whole = tails[row.history_node]
        found.append(_remembered(row, preamble, tail, is_whole, json.loads(bodies[row.request])))
    found.reverse()
    return found


def _tails(connection: sa.Connection, tips: set[str]) -> dict[str, tuple[tuple[Json, ...], bool]]:
    """Return for each chain (its last messages, whether they are all of it). One question a level, not one a chain."""
    n = schema.nodes.c
    links: dict[str, tuple[str, str]] = {}  # node -> (parent, message)
    level = tips - {ROOT}
    for _ in range(TAIL):
        for some in _chunks(level):
            for node, parent, message in connection.execute(
                sa.select(n.node, n.parent, n.message).where(n.node.in_(some))
            ):
                links[node] = (parent, message)
        level = {links[node][0] for node in level if node in links} - links.keys() - {ROOT}
    bodies = _bodies(connection, {message for _, message in links.values()})
    parsed = {name: json.loads(body) for name, body in bodies.items()}
    found = {}
    for tip in tips:
        messages: list[Json] = []
        node = tip
        while node in links and len(messages) < TAIL:
            node, message = links[node]
            messages.append(parsed[message])
        found[tip] = tuple(reversed(messages)), node == ROOT
    return found


def _bodies(connection: sa.Connection, names: set[str]) -> dict[str, str]:
    m = schema.messages.c
    found: dict[str, str] = {}
    for some in _chunks(names):
        found.update(
            (row.hash, row.body)
            for row in connection.execute(sa.select(m.hash, m.body).where(m.hash.in_(some)))
        )
    return found


def _chunks(names: set[str], size: int = 500) -> Iterator[list[str]]:
    ordered = sorted(names)
    for start in range(0, len(ordered), size):
        yield ordered[start : start + size]


def _remembered(
    row: Any, preamble: tuple[Json, ...], tail: tuple[Json, ...], is_whole: bool, request: Json
) -> Remembered:
    return value_of(
        Remembered,
        row,
        kind=TurnKind(row.kind),
        relation=Relation(row.relation),
        evidence=tuple((str(code), float(weight)) for code, weight in json.loads(row.kind_evidence)),
        messages=(*preamble, *tail),
        is_whole=is_whole,
        request=request,
        completion=Completion(
            text=row.completion, tool_calls=tuple(json.loads(row.tool_calls)), finish_reason=row.finish_reason
        ),
        main_drop_reason=None if row.main_drop_reason is None else DropReason(row.main_drop_reason),
    )
