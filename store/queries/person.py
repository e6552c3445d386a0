"""What a person (or a program for one) asks and sets: status, versions, rollback, pause, trajectories."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from store import schema
from store.database import upsert
from store.errors import RecordError
from store.lifecycle import DropReason, Stage
from store.queries.common import adapter, adapter_of, aliases, control, lock_aliases, step_of
from store.values import (
    BASE_VERSION,
    AdapterState,
    AdapterVersion,
    AliasMove,
    Heartbeat,
    Json,
    RecordStatus,
    TurnFate,
)


def status(connection: sa.Connection) -> RecordStatus:
    """Return the counts and states that `status` shows."""
    t, lv, s, a = schema.turns.c, schema.lives.c, schema.steps.c, schema.adapters.c

    def counts(column: sa.ColumnElement[Any], *where: sa.ColumnElement[bool]) -> dict[str, int]:
        rows = connection.execute(
            sa.select(column, sa.func.count()).where(*where).group_by(column).order_by(column)
        )
        return {str(name): int(count) for name, count in rows}

    kinds = counts(t.kind)
    stages = counts(lv.stage)
    reasons = counts(lv.drop_reason, lv.drop_reason.is_not(None))
    versions = counts(a.state)
    newest = (
        connection.execute(sa.select(schema.steps).order_by(s.started_at.desc()).limit(1))
    ).one_or_none()
    error = (
        connection.execute(
            sa.select(s.error).where(s.error.is_not(None)).order_by(s.started_at.desc()).limit(1)
        )
    ).scalar_one_or_none()
    beats = [
        Heartbeat(
            process=row.process,
            pid=row.pid,
            state=row.state,
            detail=json.loads(row.detail),
            at=row.at,
        )
        for row in connection.execute(sa.select(schema.heartbeats).order_by(schema.heartbeats.c.process))
    ]
    training = control(connection, "training")
    live = {policy: move.version for policy, move in aliases(connection).items()}
    return RecordStatus(
        turns=sum(kinds.values()),
        kinds=kinds,
        stages=stages,
        drop_reasons=reasons,
        live=live,
        versions=versions,
        last_step=None if newest is None else step_of(newest),
        last_error=error,
        training=training or "running",
        heartbeats=tuple(beats),
    )


def rollback(
    connection: sa.Connection, policy: str, version: int, *, by: str = "rollback", now: float
) -> None:
    """Point the alias back (or forward) to a version that once passed the gate; 0 is the bare base model.

    Raises:
        RecordError: there is no such version, it never passed the gate, or its files are gone.
    """
    if version != BASE_VERSION:
        found = adapter(connection, policy, version)
        if found is None:
            raise RecordError(f"{policy} has no version {version}")
        if found.state is not AdapterState.PUBLISHED:
            raise RecordError(f"{found.name} cannot serve: it is {found.state.value} ({found.reason})")
    lock_aliases(connection)
    connection.execute(
        sa.insert(schema.alias_moves).values(policy=policy, version=version, moved_at=now, by=by)
    )


def set_paused(connection: sa.Connection, paused: bool, now: float) -> None:
    """Pause or resume training; what is recorded and scored meanwhile waits."""
    values = {
        "name": "training",
        "value": "paused" if paused else "running",
        "at": now,
    }
    upsert(connection, schema.controls, values, ["name"])


def is_paused(connection: sa.Connection) -> bool:
    return control(connection, "training") == "paused"


def fates(connection: sa.Connection, turn_ids: Sequence[str]) -> dict[str, TurnFate]:
    lv = schema.lives.c
    rows = connection.execute(sa.select(schema.lives).where(lv.turn_id.in_(turn_ids)))
    return {
        row.turn_id: TurnFate(
            turn_id=row.turn_id,
            stage=Stage(row.stage),
            drop_reason=DropReason(row.drop_reason) if row.drop_reason else None,
            trained_in_version=row.trained_in_version,
            detail=row.detail or "",
        )
        for row in rows
    }


def trajectories(
    connection: sa.Connection,
    *,
    session_id: str | None = None,
    stage: Stage | None = None,
    after: tuple[float, str] | None = None,
    limit: int = 1000,
    newest_first: bool = False,
) -> list[Json]:
    """Return rows of the view ``trajectories`` as JSON values (lists and messages parsed).

    Args:
        after: (created_at, turn_id) of the last row seen, to page through everything in order.
    """
    view = sa.table("trajectories", *(sa.column(name) for name in schema.TRAJECTORY_COLUMNS))
    query = sa.select(*(view.c[name] for name in schema.TRAJECTORY_COLUMNS)).limit(limit)
    order = (view.c.created_at, view.c.turn_id)
    query = query.order_by(*(column.desc() for column in order) if newest_first else order)
    if session_id is not None:
        query = query.where(view.c.session_id == session_id)
    if stage is not None:
        query = query.where(view.c.stage == stage.value)
    if after is not None:
        query = query.where(sa.tuple_(*order) > sa.tuple_(*(sa.literal(value) for value in after)))
    rows = connection.execute(query)
    return [_trajectory(row) for row in rows]


def alias_moves(connection: sa.Connection, policy: str) -> list[AliasMove]:
    """Return where the alias pointed over time, oldest first."""
    c = schema.alias_moves.c
    rows = connection.execute(
        sa.select(c.policy, c.version, c.moved_at, c.by).where(c.policy == policy).order_by(c.move_id)
    )
    return [AliasMove(**row._mapping) for row in rows]


def adapters(connection: sa.Connection, policy: str) -> list[AdapterVersion]:
    """Return every version of a policy, oldest first, rejected ones included."""
    c = schema.adapters.c
    rows = connection.execute(sa.select(schema.adapters).where(c.policy == policy).order_by(c.version))
    return [adapter_of(row) for row in rows]


def _trajectory(row: Row[Any]) -> Json:
    value = dict(row._mapping)
    for name in ("messages", "tool_calls", "completion_token_ids", "sampling_logprobs"):
        value[name] = json.loads(value[name])
    return value
