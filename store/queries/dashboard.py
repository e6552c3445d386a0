"""Queries of the web page. Each reads a bounded number of rows, whatever the record holds."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from store import schema
from store.lifecycle import DropReason, Stage
from store.queries.common import own_turns, read_list, read_message, read_object, step_of, value_of
from store.values import ConversationRow, DroppedTurn, Json, JudgedTurn, StepReport, StepRole, TurnKind

#: Newest turns of a key among which its dropped ones are looked for, and samples of one step.
_OWN_TURNS, STEP_SAMPLES = 4_000, 8


def judged_turns(
    connection: sa.Connection, policy: str, limit: int, key_name: str | None = None
) -> list[JudgedTurn]:
    """Return the newest judged turns of a policy (their last verdict has a value), oldest first.

    Looked for among the newest ``10 * limit`` verdicts of the record, or among the newest turns of a key.

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
        .limit(limit)
    )
    if key_name is None:
        bound = sa.select(sa.func.max(v.verdict_id)).scalar_subquery() - 10 * limit
        query = query.where(v.verdict_id > bound).order_by(v.verdict_id.desc())
    else:
        # The expression keeps SQLite from a scan of everyone's verdicts in their order.
        query = query.where(t.turn_id.in_(own_turns(key_name, _OWN_TURNS))).order_by(
            sa.func.coalesce(v.verdict_id, 0).desc()
        )
    rows = connection.execute(query).all()
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
            t.turn_id, t.session_id, t.turn_index, t.kind, t.client, t.key_name, t.created_at, t.history_node, states.stage,
            states.drop_reason,
        )
        # Each turn has a state: outer, so that SQLite begins with the newest turns, not with all states.
        .outerjoin(schema.turn_states, states.turn_id == t.turn_id)
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
        is_opted_out=all(row.drop_reason == DropReason.OPTED_OUT.value for row in rows),
        last_message=messages.get(newest.history_node),
        first_at=rows[-1].created_at,
        last_at=newest.created_at,
    )


def _last_messages(connection: sa.Connection, nodes: Iterable[str]) -> dict[str, Json]:
    """Return the last message of each history, by its node; of an empty history none."""
    n, m = schema.nodes.c, schema.messages.c
    rows = connection.execute(
        sa.select(n.node, m.body).join(schema.messages, m.hash == n.message).where(n.node.in_({*nodes}))
    )
    return {row.node: read_message(row.body) for row in rows}


def _newest_values(connection: sa.Connection, turn_ids: Sequence[str]) -> dict[str, int | None]:
    v = schema.verdicts.c
    rows = connection.execute(
        sa.select(v.turn_id, v.value).where(v.turn_id.in_(turn_ids)).order_by(v.verdict_id)
    )
    return {row.turn_id: row.value for row in rows}


def _tool_calls(stored: str) -> list[Json]:
    """Return the tool calls of a listed turn; one that says why where they are damaged."""
    try:
        found = json.loads(stored)
    except ValueError as exc:
        return [{"function": {"name": "unreadable", "arguments": str(exc)}}]
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


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
        turn["tool_calls"] = _tool_calls(turn["tool_calls"])
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
    """Return the newest main turns of a policy that were dropped, newest first; of a key, among its newest turns.

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
        .where(sa.func.coalesce(t.kind, "") == TurnKind.MAIN.value)
        .order_by(states.stage_since.desc(), t.turn_id)
        .limit(limit)
    )  # fmt: skip
    if before is not None:
        query = query.where(states.stage_since < before)
    if key_name is None:
        query = query.where(states.stage == Stage.DROPPED.value, states.policy == policy)
    else:
        # The expressions keep SQLite from a scan of everyone's dropped turns.
        wanted = (
            sa.func.coalesce(states.stage, "") == Stage.DROPPED.value,
            sa.func.coalesce(states.policy, "") == policy,
        )
        query = query.where(*wanted, t.turn_id.in_(own_turns(key_name, _OWN_TURNS)))
    rows = connection.execute(query).all()
    messages = _last_messages(connection, (row.history_node for row in rows))
    return [
        value_of(
            DroppedTurn,
            row,
            last_message=messages.get(row.history_node),
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


def step_samples(
    connection: sa.Connection, steps: Sequence[StepReport], key_name: str | None = None
) -> dict[str, list[Json]]:
    """Return the first turns of each step's batch, by step id: prompt, reply, what followed, and the newest verdict.

    Args:
        key_name: only the turns of this key; None: of all.
    """
    ids = {step.step_id: _batch_of(connection, step) for step in steps}
    found = _samples(connection, {one for some in ids.values() for one in some}, key_name)
    return {step_id: [found[one] for one in some if one in found] for step_id, some in ids.items()}


def version_samples(
    connection: sa.Connection, policy: str, version: int, limit: int, key_name: str | None = None
) -> tuple[list[Json], int, int]:
    """Return the first turns that were trained into a version, as `step_samples` does, the number of all that may be seen, and of the others.

    Args:
        key_name: only the turns of this key may be seen; None: all.
    """
    t, states = schema.turns.c, schema.turn_states.c
    # The expression keeps SQLite from the index on stages, which would read what was trained into every version.
    is_trained = sa.func.coalesce(states.stage, "") == Stage.TRAINED.value
    trained = sa.select(states.turn_id).where(
        states.policy == policy, states.trained_in_version == version, is_trained
    )
    own = trained
    if key_name is not None:
        own = trained.join(schema.turns, t.turn_id == states.turn_id).where(t.key_name == key_name)
    counts = [
        connection.execute(sa.select(sa.func.count()).select_from(some.subquery())).scalar_one()
        for some in (own, trained)
    ]
    ids = list(connection.execute(own.order_by(states.stage_since, states.turn_id).limit(limit)).scalars())
    found = _samples(connection, ids, key_name)
    return [found[one] for one in ids if one in found], counts[0], counts[1] - counts[0]


def _samples(connection: sa.Connection, ids: Collection[str], key_name: str | None) -> dict[str, Json]:
    """Return the prompt, the reply, what followed, and the newest verdict of those of the turns that are of the key, by turn."""
    t = schema.turns.c
    query = sa.select(t.turn_id, t.key_name, t.completion, t.history_node).where(t.turn_id.in_(ids))
    rows = [row for row in connection.execute(query) if key_name in (None, row.key_name)]
    known = [row.turn_id for row in rows]
    messages = _last_messages(connection, (row.history_node for row in rows))
    followed = _followed_by(connection, known)
    v = schema.verdicts.c
    columns = (v.turn_id, v.value, v.hint, v.hint_is_reaction, v.source, v.detail)
    verdicts = {
        row.turn_id: {
            "value": row.value, "hint": row.hint, "hint_is_reaction": bool(row.hint_is_reaction), "source": row.source,
            "votes": read_object(row.detail).get("votes", []),
        }
        for row in connection.execute(sa.select(*columns).where(v.turn_id.in_(known)).order_by(v.verdict_id))
    }  # fmt: skip
    return {
        row.turn_id: {
            "turn_id": row.turn_id,
            "last_message": messages.get(row.history_node),
            "completion": row.completion,
            "followed_by": followed.get(row.turn_id, []),
            "verdict": verdicts.get(row.turn_id),
        }
        for row in rows
    }


def _batch_of(connection: sa.Connection, step: StepReport) -> list[str]:
    """Return the first turns of a step's batch; of a step from before the inputs were recorded, those that name its version."""
    s, states = schema.step_turns.c, schema.turn_states.c
    batch = sa.select(s.turn_id).where(s.step_id == step.step_id, s.role == StepRole.BATCH.value)
    found = list(connection.execute(batch.order_by(s.position).limit(STEP_SAMPLES)).scalars())
    if not found and step.version is not None:
        named = sa.select(states.turn_id).where(
            states.policy == step.policy, states.trained_in_version == step.version
        )
        found = list(connection.execute(named.order_by(states.turn_id).limit(STEP_SAMPLES)).scalars())
    return found


def _followed_by(connection: sa.Connection, turn_ids: Sequence[str]) -> dict[str, list[str]]:
    """Return by turn the texts that followed it: next states, then explicit feedback; oldest first."""
    found: dict[str, list[str]] = {}
    n, f = schema.next_states.c, schema.feedback.c
    for query in (
        sa.select(n.turn_id, n.text).where(n.turn_id.in_(turn_ids)).order_by(n.created_at, n.by_turn_id),
        sa.select(f.turn_id, f.text).where(f.turn_id.in_(turn_ids), f.text != "").order_by(f.created_at),
    ):
        for row in connection.execute(query):
            found.setdefault(row.turn_id, []).append(row.text)
    return found


def turn_tokens(connection: sa.Connection, turn_id: str) -> tuple[list[int], list[float]]:
    """Return the token ids of a reply and their log-probabilities; empty where the backend reported none."""
    t = schema.turns.c
    row = connection.execute(
        sa.select(t.completion_token_ids, t.sampling_logprobs).where(t.turn_id == turn_id)
    ).one_or_none()
    return ([], []) if row is None else (read_list(row[0]), read_list(row[1]))


def key_of_turn(connection: sa.Connection, turn_id: str) -> str | None:
    """Return the name of the key that a turn came with; None: there is no such turn."""
    t = schema.turns.c
    return connection.execute(sa.select(t.key_name).where(t.turn_id == turn_id)).scalar_one_or_none()
