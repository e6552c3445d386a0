"""Queries of the web page. Each reads a bounded number of rows, whatever the record holds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from store import schema
from store.lifecycle import Stage
from store.queries.common import step_of
from store.values import ConversationRow, DroppedTurn, Json, JudgedTurn, StepReport, TurnKind


def judged_turns(
    connection: sa.Connection, policy: str, limit: int, key_name: str | None = None
) -> list[JudgedTurn]:
    """Return the newest judged turns of a policy (their last verdict has a value), oldest first.

    Args:
        key_name: only the turns of this key; None: of all.
    """
    t, v = schema.turns.c, schema.verdicts.c
    later = schema.verdicts.alias("later")
    newest = (
        ~sa.select(later.c.verdict_id)
        .where(later.c.turn_id == v.turn_id, later.c.verdict_id > v.verdict_id)
        .exists()
    )
    query = (
        sa.select(v.turn_id, v.value, v.created_at, t.adapter_version)
        .join(schema.turns, t.turn_id == v.turn_id)
        .where(v.value.is_not(None), t.policy == policy, newest)
        .order_by(v.verdict_id.desc())
        .limit(limit)
    )
    rows = connection.execute(query if key_name is None else query.where(t.key_name == key_name)).all()
    return [JudgedTurn(**row._mapping) for row in reversed(rows)]


def conversations(
    connection: sa.Connection, limit: int, before: float | None = None, key_name: str | None = None
) -> list[ConversationRow]:
    """Return the sessions of the newest ``limit`` turns, newest first.

    Args:
        before: only turns that were received earlier (Unix time, seconds).
        key_name: only the turns of this key; None: of all.
    """
    t, states = schema.turns.c, schema.turn_states.c
    query = (
        sa.select(
            t.turn_id, t.session_id, t.turn_index, t.kind, t.client, t.key_name, t.created_at, t.completion, t.history_node, states.stage
        )
        .join(schema.turn_states, states.turn_id == t.turn_id)
        .order_by(t.created_at.desc(), t.turn_id)
        .limit(limit)
    )  # fmt: skip
    if before is not None:
        query = query.where(t.created_at < before)
    if key_name is not None:
        query = query.where(t.key_name == key_name)
    found: dict[str, list[Any]] = {}
    for row in connection.execute(query):
        found.setdefault(row.session_id, []).append(row)
    values = _newest_values(connection, [row.turn_id for rows in found.values() for row in rows])
    messages = _last_messages(connection, (rows[0].history_node for rows in found.values()))
    return [_conversation(rows, values, messages) for rows in found.values()]


def _conversation(
    rows: Sequence[Any], values: Mapping[str, int | None], messages: Mapping[str, Json]
) -> ConversationRow:
    newest = rows[0]
    judged = [values.get(row.turn_id) for row in rows]
    return ConversationRow(
        session_id=newest.session_id,
        client=newest.client,
        key_name=newest.key_name,
        turns=len(rows),
        is_side=all(row.kind != TurnKind.MAIN.value for row in rows),
        complaints=judged.count(-1),
        praised=judged.count(1),
        trained=sum(row.stage == Stage.TRAINED.value for row in rows),
        last_message=messages.get(newest.history_node),
        last_reply=newest.completion,
        first_at=rows[-1].created_at,
        last_at=newest.created_at,
    )


def _last_messages(connection: sa.Connection, nodes: Iterable[str]) -> dict[str, Json]:
    """Return the last message of each history, by its node; of an empty history none."""
    n, m = schema.nodes.c, schema.messages.c
    rows = connection.execute(
        sa.select(n.node, m.body).join(schema.messages, m.hash == n.message).where(n.node.in_({*nodes}))
    )
    return {row.node: json.loads(row.body) for row in rows}


def _newest_values(connection: sa.Connection, turn_ids: Sequence[str]) -> dict[str, int | None]:
    v = schema.verdicts.c
    rows = connection.execute(
        sa.select(v.turn_id, v.value).where(v.turn_id.in_(turn_ids)).order_by(v.verdict_id)
    )
    return {row.turn_id: row.value for row in rows}


def session_turns(
    connection: sa.Connection, session_id: str, limit: int, key_name: str | None = None
) -> list[Json]:
    """Return the newest turns of one session, oldest first, each with its last message, reply, verdict and state.

    Args:
        key_name: only the turns of this key; None: of all.
    """
    t, states = schema.turns.c, schema.turn_states.c
    query = (
        sa.select(
            t.turn_id, t.parent_turn_id, t.turn_index, t.kind, t.relation, t.kind_reason, t.link_reason, t.link_confidence, t.policy,
            t.adapter_version, t.client, t.created_at, t.completion, t.tool_calls, t.finish_reason, t.history_node,
            states.stage, states.drop_reason, states.detail, states.trained_in_version,
        )
        .join(schema.turn_states, states.turn_id == t.turn_id)
        .where(t.session_id == session_id)
        .order_by(t.turn_index.desc(), t.created_at.desc(), t.turn_id)
        .limit(limit)
    )  # fmt: skip
    rows = connection.execute(query if key_name is None else query.where(t.key_name == key_name)).all()
    values = _newest_values(connection, [row.turn_id for row in rows])
    messages = _last_messages(connection, (row.history_node for row in rows))
    found = []
    for row in reversed(rows):
        turn: Json = dict(row._mapping)
        turn["last_message"] = messages.get(turn.pop("history_node"))
        turn["tool_calls"] = json.loads(turn["tool_calls"])
        turn["verdict"] = values.get(row.turn_id)
        found.append(turn)
    return found


def dropped_turns(
    connection: sa.Connection,
    policy: str,
    limit: int,
    *,
    before: float | None = None,
    key_name: str | None = None,
) -> list[DroppedTurn]:
    """Return the newest main turns of a policy that were dropped, newest first.

    Args:
        before: only those dropped earlier (Unix time, seconds).
        key_name: only the turns of this key; None: of all.
    """
    t, states = schema.turns.c, schema.turn_states.c
    query = (
        sa.select(
            t.turn_id, t.client, t.created_at, t.completion, t.history_node, states.drop_reason, states.detail, states.stage_since
        )
        .join(schema.turn_states, states.turn_id == t.turn_id)
        .where(states.stage == Stage.DROPPED.value, states.policy == policy, t.kind == TurnKind.MAIN.value)
        .order_by(states.stage_since.desc(), t.turn_id)
        .limit(limit)
    )  # fmt: skip
    if before is not None:
        query = query.where(states.stage_since < before)
    if key_name is not None:
        query = query.where(t.key_name == key_name)
    rows = connection.execute(query).all()
    messages = _last_messages(connection, (row.history_node for row in rows))
    return [
        DroppedTurn(
            turn_id=row.turn_id,
            client=row.client,
            created_at=row.created_at,
            last_message=messages.get(row.history_node),
            completion=row.completion,
            drop_reason=row.drop_reason,
            detail=row.detail or "",
            dropped_at=row.stage_since,
        )
        for row in rows
    ]


def step_page(
    connection: sa.Connection, policy: str, page: int, per_page: int
) -> tuple[int, int, list[StepReport]]:
    """Return how many steps a policy has, the number of the page (clamped, from 1), and its steps, newest first."""
    s = schema.steps.c
    count = connection.execute(sa.select(sa.func.count()).where(s.policy == policy)).scalar_one()
    page = min(max(page, 1), max(1, -(-count // per_page)))
    rows = connection.execute(
        sa.select(schema.steps)
        .where(s.policy == policy)
        .order_by(s.started_at.desc(), s.step_id)
        .limit(per_page)
        .offset((page - 1) * per_page)
    )
    return count, page, [step_of(row) for row in rows]


def turn_tokens(connection: sa.Connection, turn_id: str) -> tuple[list[int], list[float]]:
    """Return the token ids of a reply and their log-probabilities; empty where the backend reported none."""
    t = schema.turns.c
    row = connection.execute(
        sa.select(t.completion_token_ids, t.sampling_logprobs).where(t.turn_id == turn_id)
    ).one_or_none()
    return ([], []) if row is None else (json.loads(row[0]), json.loads(row[1]))


def key_of_turn(connection: sa.Connection, turn_id: str) -> str | None:
    """Return the name of the key that a turn came with; None: there is no such turn."""
    t = schema.turns.c
    return connection.execute(sa.select(t.key_name).where(t.turn_id == turn_id)).scalar_one_or_none()
