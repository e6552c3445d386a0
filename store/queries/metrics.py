"""What metrics and spans read of learning."""

from __future__ import annotations

import math

import sqlalchemy as sa

from store import schema
from store.queries.common import adapter_of, aliases, step_of
from store.values import GivenVerdict, LearningMetrics, StepReport


def learning_metrics(connection: sa.Connection) -> LearningMetrics:
    """Return the counts of verdicts, the newest version of each policy, how soon feedback became live, and canary releases."""
    v, a, n, lv = schema.verdicts.c, schema.adapters.c, schema.next_states.c, schema.turn_states.c
    verdicts = connection.execute(
        sa.select(v.value, v.source, sa.func.count()).group_by(v.value, v.source).order_by(v.value, v.source)
    )
    newest = sa.select(a.policy, sa.func.max(a.version).label("version")).group_by(a.policy).subquery()
    versions = connection.execute(
        sa.select(schema.adapters)
        .join(newest, sa.and_(a.policy == newest.c.policy, a.version == newest.c.version))
        .order_by(a.policy)
    )
    delays = {}
    for policy, move in aliases(connection).items():
        heard_at = connection.execute(
            sa.select(sa.func.max(n.created_at))
            .join(schema.turn_states, lv.turn_id == n.turn_id)
            .where(lv.policy == policy, lv.trained_in_version == move.version)
        ).scalar_one()
        if heard_at is not None:
            times = (move.moved_at, heard_at)
            is_sound = all(isinstance(one, int | float) for one in times)
            delays[policy] = max(0.0, times[0] - times[1]) if is_sound else math.nan
    stage = schema.canary_releases.c.stage
    releases = connection.execute(sa.select(stage, sa.func.count()).group_by(stage).order_by(stage))
    return LearningMetrics(
        verdicts={(value, source): int(count) for value, source, count in verdicts},
        newest=tuple(adapter_of(row) for row in versions),
        feedback_to_live_s=delays,
        releases={str(name): int(count) for name, count in releases},
    )


def verdicts_after(connection: sa.Connection, verdict_id: int | None, limit: int = 500) -> list[GivenVerdict]:
    """Return up to ``limit`` verdicts behind one, oldest first; of None: the newest one alone."""
    v, t = schema.verdicts.c, schema.turns.c
    query = sa.select(
        v.verdict_id, v.turn_id, t.completion_id, t.session_id, v.value, v.source, sa.func.coalesce(v.hint, "").label("hint"),
        v.wish, v.confidence, v.created_at,
    ).join(schema.turns, t.turn_id == v.turn_id)  # fmt: skip
    if verdict_id is None:
        query = query.order_by(v.verdict_id.desc()).limit(1)
    else:
        query = query.where(v.verdict_id > verdict_id).order_by(v.verdict_id).limit(limit)
    return [GivenVerdict(**row._mapping) for row in connection.execute(query)]


def steps_finished_after(connection: sa.Connection, finished_at: float, limit: int = 50) -> list[StepReport]:
    """Return up to ``limit`` steps that ended after a time (Unix time, seconds), the first to end first."""
    s = schema.steps.c
    rows = connection.execute(
        sa.select(schema.steps).where(s.finished_at > finished_at).order_by(s.finished_at).limit(limit)
    )
    return [step_of(row) for row in rows]
