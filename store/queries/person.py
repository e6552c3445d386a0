"""What a person (or a program for one) asks and sets: status, versions, rollback, pause, trajectories."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from store import schema
from store.errors import RecordError
from store.lifecycle import DropReason, Stage
from store.queries import canary
from store.queries.alias import move_alias
from store.queries.common import (
    adapter,
    adapter_of,
    aliases,
    control,
    heartbeat_of,
    lock_aliases,
    moment,
    own_turns,
    set_control,
    step_of,
)
from store.queries.forget_jobs import open_jobs
from store.queries.lineage import trained_on
from store.values import (
    BASE_VERSION,
    AdapterState,
    AdapterVersion,
    AliasMove,
    ClientTraffic,
    Heartbeat,
    Json,
    RecordStatus,
    Relation,
    StepRole,
    TurnFate,
    TurnKind,
    TurnProgress,
    UnusedComplaint,
)

#: Turns of one key that its status counts: over more, a request would take seconds.
OWN_TURNS = 10_000
_DROP_REASONS = frozenset(DropReason)


def status(
    connection: sa.Connection, *, policy: str | None = None, key_name: str | None = None
) -> RecordStatus:
    """Return the counts and states that `status` shows.

    Args:
        policy: count only turns, versions and steps of this policy.
        key_name: count only the newest turns of this key, at most `OWN_TURNS`, and leave out the processes.
    """
    t, lv, s, a = schema.turns.c, schema.turn_states.c, schema.steps.c, schema.adapters.c

    def counts(column: sa.ColumnElement[Any], *where: sa.ColumnElement[bool]) -> dict[str, int]:
        rows = connection.execute(
            sa.select(column, sa.func.count()).where(*where).group_by(column).order_by(column)
        )
        return {str(name): int(count) for name, count in rows}

    def of(column: sa.ColumnElement[str]) -> list[sa.ColumnElement[bool]]:
        return [] if policy is None else [column == policy]

    turns, states = of(t.policy), of(lv.policy)
    if key_name is not None:
        newest_own = own_turns(key_name, OWN_TURNS)
        turns.append(t.turn_id.in_(newest_own))
        # The expressions keep SQLite from an index over everyone's turns.
        states = [sa.func.coalesce(lv.policy, "") == policy] if policy is not None else []
        states.append(lv.turn_id.in_(newest_own))
    kinds = counts(t.kind, *turns)
    newest_first = s.started_at.desc()
    newest = connection.execute(
        sa.select(schema.steps).where(*of(s.policy)).order_by(newest_first).limit(1)
    ).one_or_none()
    error = connection.execute(
        sa.select(s.error).where(s.error.is_not(None), *of(s.policy)).order_by(newest_first).limit(1)
    ).scalar_one_or_none()
    return RecordStatus(
        turns=sum(kinds.values()),
        kinds=kinds,
        stages=counts(lv.stage, *states),
        drop_reasons=counts(lv.drop_reason, lv.drop_reason.is_not(None), *states),
        live={name: move.version for name, move in aliases(connection).items() if policy in (None, name)},
        versions=counts(a.state, *of(a.policy)),
        last_step=None if newest is None else step_of(newest),
        last_error=error,
        training=control(connection, "training") or "running",
        paused=tuple(name for name in paused_policies(connection) if policy in (None, name)),
        heartbeats=heartbeats(connection) if key_name is None else (),
        forgetting=tuple(job.sentence for job in open_jobs(connection)) if key_name is None else (),
    )


def heartbeats(connection: sa.Connection) -> tuple[Heartbeat, ...]:
    """Return the newest heartbeat of each process, in order of their names."""
    rows = connection.execute(sa.select(schema.heartbeats).order_by(schema.heartbeats.c.process))
    return tuple(map(heartbeat_of, rows))


def client_traffic(connection: sa.Connection, window: int) -> list[ClientTraffic]:
    """Return the clients of the newest ``window`` turns and what became of their turns, the busiest first."""
    t, lv, n = schema.turns.c, schema.turn_states.c, schema.next_states.c
    newest = (
        sa.select(t.turn_id, t.client, t.kind, t.relation, t.kind_reason, t.created_at)
        .order_by(t.created_at.desc())
        .limit(window)
        .subquery()
    )
    c = newest.c
    followed = sa.exists().where(n.turn_id == c.turn_id, n.role == "user").correlate(newest)
    rows = connection.execute(
        sa.select(*c, lv.stage, lv.drop_reason, followed.label("followed")).outerjoin(
            schema.turn_states, lv.turn_id == c.turn_id
        )
    )
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(row.client, []).append(row)
    return sorted(
        (_traffic(name, some) for name, some in found.items()), key=lambda one: (-one.turns, one.client)
    )


def _place(row: Any) -> tuple[float, str]:
    """The place of a turn in time; one whose time is no number, in a damaged row, comes first."""
    created_at = row.created_at
    return (created_at if isinstance(created_at, int | float) else -math.inf), row.turn_id


def _traffic(client: str, rows: Sequence[Any]) -> ClientTraffic:
    rows = sorted(rows, key=_place)
    main = [row for row in rows if row.kind == TurnKind.MAIN.value]
    side = [row for row in rows if row.kind != TurnKind.MAIN.value]
    return ClientTraffic(
        client=client,
        main=len(main),
        side=len(side),
        linked=sum(row.relation != Relation.FIRST.value for row in main),
        followed=sum(bool(row.followed) for row in main),
        trained=sum(row.stage == Stage.TRAINED.value for row in main),
        side_reasons=Counter(row.kind_reason for row in side),
        drop_reasons=Counter(DropReason(row.drop_reason) for row in main if row.drop_reason in _DROP_REASONS),
        last_side_turn=side[-1].turn_id if side else None,
        last_main_turn=main[-1].turn_id if main else None,
        last_seen_at=rows[-1].created_at,
    )


def rollback(
    connection: sa.Connection, policy: str, version: int, *, actor: str = "rollback", now: float | None = None
) -> None:
    """Point the alias back (or forward) to a version that once passed the gate; 0 is the bare base model.

    Raises:
        RecordError: there is no such version, it never passed the gate, or its files are gone.
    """
    now = moment(now)
    if version != BASE_VERSION:
        _servable(connection, policy, version)
    lock_aliases(connection)
    canary.supersede(connection, policy, now, f"{actor} made version {version} live")
    move_alias(connection, policy, version, at=now, actor=actor)


def readmit(connection: sa.Connection, policy: str, version: int, *, reason: str) -> None:
    """Let a refused version serve again; see `store.integrity.readmit_version`."""
    c = schema.adapters.c
    connection.execute(
        sa.update(schema.adapters)
        .where(c.policy == policy, c.version == version, c.state == AdapterState.REFUSED.value)
        .values(state=AdapterState.PUBLISHED.value, reason=reason)
    )


def refuse(
    connection: sa.Connection,
    policy: str,
    version: int,
    *,
    reason: str,
    ancestor: int,
    actor: str,
    now: float | None = None,
) -> int:
    """Mark a version that must not serve; where it is live, point the alias to ``ancestor``. Returns the live version."""
    now = moment(now)
    lock_aliases(connection)
    c = schema.adapters.c
    connection.execute(
        sa.update(schema.adapters)
        .where(c.policy == policy, c.version == version)
        .values(state=AdapterState.REFUSED.value, reason=reason)
    )
    move = aliases(connection).get(policy)
    live = move.version if move is not None else BASE_VERSION
    canary.supersede(
        connection,
        policy,
        now,
        f"version {version} must not serve: {reason}",
        version=None if live == version else version,
    )
    if live != version:
        return live
    move_alias(connection, policy, ancestor, at=now, actor=actor)
    return ancestor


def set_paused(
    connection: sa.Connection, paused: bool, now: float | None = None, *, policy: str | None = None
) -> None:
    """Pause or resume the training of one policy; None: of all. What is recorded and scored meanwhile waits."""
    now = moment(now)
    if policy is None:
        set_control(connection, "training", "paused" if paused else "running", now)
    else:
        names = {*paused_policies(connection)} - {policy} | ({policy} if paused else set())
        set_control(connection, "paused_policies", json.dumps(sorted(names)), now)


def is_paused(connection: sa.Connection, policy: str | None = None) -> bool:
    """Whether training is paused, of this policy or of all."""
    return control(connection, "training") == "paused" or policy in paused_policies(connection)


def paused_policies(connection: sa.Connection) -> list[str]:
    """Return the policies that are paused one by one."""
    found: list[str] = json.loads(control(connection, "paused_policies") or "[]")
    return found


def lora_names(connection: sa.Connection) -> dict[str, dict[str, str]]:
    """Return the policies by the names that clients gave them, by key (CLaaS's `lora_id`)."""
    found: dict[str, dict[str, str]] = json.loads(control(connection, "lora_names") or "{}")
    return found


def bind_lora(connection: sa.Connection, key_name: str, name: str, policy: str, *, most: int) -> bool:
    """Bind a name of a key to a policy; False, with nothing written, when the key has ``most`` names."""
    every = lora_names(connection)
    mine = every.setdefault(key_name, {})
    if name not in mine and len(mine) >= most:
        return False
    mine[name] = policy
    set_control(connection, "lora_names", json.dumps(every), moment(None))
    return True


def unbind_lora(connection: sa.Connection, key_name: str, name: str) -> str | None:
    """Remove a name of a key; returns the policy that it meant, or None."""
    every = lora_names(connection)
    policy = every.get(key_name, {}).pop(name, None)
    if policy is not None:
        set_control(connection, "lora_names", json.dumps(every), moment(None))
    return policy


def try_version(
    connection: sa.Connection, policy: str, version: int, *, share: float, now: float | None = None
) -> None:
    """Begin a canary release: a published version serves a share of the new conversations.

    Raises:
        RecordError: there is no such version, it cannot serve, or it is live.
    """
    now = moment(now)
    found = _servable(connection, policy, version)
    lock_aliases(connection)
    move = aliases(connection).get(policy)
    live = BASE_VERSION if move is None else move.version
    if live == version:
        raise RecordError(f"{found.name} is live")
    canary.begin(connection, policy, version, live, share, now)


def _servable(connection: sa.Connection, policy: str, version: int) -> AdapterVersion:
    found = adapter(connection, policy, version)
    if found is None:
        raise RecordError(f"{policy} has no version {version}")
    if found.state is not AdapterState.PUBLISHED:
        raise RecordError(f"{found.name} cannot serve: it is {found.state.value} ({found.reason})")
    return found


def pins(connection: sa.Connection, policy: str) -> list[int]:
    """Return the versions of a policy whose files stay whatever their number or size is."""
    found: dict[str, list[int]] = json.loads(control(connection, "pins") or "{}")
    return found.get(policy, [])


def pin(
    connection: sa.Connection, policy: str, version: int, *, stays: bool, now: float | None = None
) -> None:
    """Pin or unpin a version.

    Raises:
        RecordError: there is no such version, or its files are gone.
    """
    now = moment(now)
    found = adapter(connection, policy, version)
    if found is None:
        raise RecordError(f"{policy} has no version {version}")
    if stays and found.state is AdapterState.PRUNED:
        raise RecordError(f"{found.name} cannot be pinned: its files are gone")
    every: dict[str, list[int]] = json.loads(control(connection, "pins") or "{}")
    mine = {*every.get(policy, [])} - {version} | ({version} if stays else set())
    value = json.dumps({**every, policy: sorted(mine)}, sort_keys=True)
    set_control(connection, "pins", value, now)


def fates(connection: sa.Connection, turn_ids: Sequence[str]) -> dict[str, TurnFate]:
    """Return where these turns stand in life."""
    lv = schema.turn_states.c
    rows = connection.execute(sa.select(schema.turn_states).where(lv.turn_id.in_(turn_ids)))
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


def turn_progress(connection: sa.Connection, key_name: str, turn_id: str) -> TurnProgress | None:
    """Return how far a turn of this key has come on its way into the live version; None: it is not recorded."""
    t = schema.turns.c
    policy = connection.execute(
        sa.select(t.policy).where(t.turn_id == turn_id, t.key_name == key_name)
    ).scalar_one_or_none()
    fate = fates(connection, [turn_id]).get(turn_id)
    if policy is None or fate is None:
        return None
    move = aliases(connection).get(policy)
    version = move.version if move is not None else BASE_VERSION
    taught = trained_on(connection, [turn_id], but=[StepRole.RECENT]).get(policy, ())
    is_live = fate.trained_in_version is not None and version in taught
    return TurnProgress(fate=fate, policy=policy, is_live=is_live)


def unused_complaints(connection: sa.Connection, policy: str, since: float) -> list[UnusedComplaint]:
    """Return the complaints that were dropped since then because they have nothing to teach, newest first.

    A complaint is a turn whose newest verdict is -1, or has a hint and is not +1.
    """
    v, lv, s, f = schema.verdicts.c, schema.turn_states.c, schema.next_states.c, schema.feedback.c
    followed = (
        sa.select(s.text)
        .where(s.turn_id == lv.turn_id)
        .order_by(s.created_at.desc(), s.by_turn_id)
        .limit(1)
        .correlate(schema.turn_states)
        .scalar_subquery()
    )
    given = (
        sa.select(f.text)
        .where(f.turn_id == lv.turn_id, f.text != "")
        .order_by(f.created_at.desc(), f.feedback_id)
        .limit(1)
        .correlate(schema.turn_states)
        .scalar_subquery()
    )
    rows = connection.execute(
        sa.select(
            lv.turn_id,
            v.hint,
            sa.func.coalesce(given, followed, v.hint, "").label("text"),
            lv.drop_reason,
            lv.detail,
            lv.stage_since,
        )
        .join(schema.verdicts, v.turn_id == lv.turn_id)
        .where(
            lv.stage == Stage.DROPPED.value,
            lv.policy == policy,
            lv.stage_since >= since,
            lv.drop_reason.in_([DropReason.HINT_IRRELEVANT.value, DropReason.NO_SIGNAL.value]),
            _is_newest_verdict(),
            sa.or_(v.value == -1, sa.and_(v.hint.is_not(None), sa.func.coalesce(v.value, 0) <= 0)),
        )
        .order_by(lv.stage_since.desc(), lv.turn_id)
    )
    return [
        UnusedComplaint(
            turn_id=row.turn_id,
            text=row.text,
            hint=row.hint,
            drop_reason=DropReason(row.drop_reason),
            detail=row.detail or "",
            dropped_at=row.stage_since,
        )
        for row in rows
    ]


def _is_newest_verdict() -> sa.ColumnElement[bool]:
    """Whether the row of `verdicts` is the newest one of its turn."""
    later = schema.verdicts.alias("later")
    v = schema.verdicts.c
    return ~(
        sa.exists()
        .where(later.c.turn_id == v.turn_id, later.c.verdict_id > v.verdict_id)
        .correlate(schema.verdicts)
    )


def trajectories(
    connection: sa.Connection,
    *,
    session_id: str | None = None,
    stage: Stage | None = None,
    turn_ids: Sequence[str] | None = None,
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
    if turn_ids is not None:
        query = query.where(view.c.turn_id.in_(turn_ids))
    if after is not None:
        query = query.where(sa.tuple_(*order) > sa.tuple_(*(sa.literal(value) for value in after)))
    rows = connection.execute(query)
    return [_trajectory(row) for row in rows]


def turns_since(connection: sa.Connection, at: float) -> list[tuple[str, float]]:
    """Return (turn id, Unix time of the request in seconds) of the turns that were asked from a time on, oldest first."""
    c = schema.turns.c
    rows = connection.execute(
        sa.select(c.turn_id, c.created_at).where(c.created_at >= at).order_by(c.created_at, c.turn_id)
    )
    return [(row.turn_id, row.created_at) for row in rows]


def judgements(connection: sa.Connection, turn_ids: Sequence[str]) -> dict[str, Json]:
    """Return, by turn, what was made of it beside the view's columns: every verdict with its detail, explicit feedback, why it was dropped."""
    v, f, lv = schema.verdicts.c, schema.feedback.c, schema.turn_states.c
    ids = list(turn_ids)
    found: dict[str, Json] = {
        row.turn_id: {"drop_detail": row.detail, "verdicts": [], "feedback": []}
        for row in connection.execute(sa.select(lv.turn_id, lv.detail).where(lv.turn_id.in_(ids)))
    }
    verdicts = sa.select(
        v.turn_id,
        v.value,
        v.hint,
        v.hint_is_reaction,
        v.wish,
        v.wish_scope,
        v.source,
        v.confidence,
        v.detail,
        v.created_at,
    )
    for verdict in connection.execute(verdicts.where(v.turn_id.in_(ids)).order_by(v.verdict_id)):
        one = dict(verdict._mapping)
        one["detail"] = json.loads(one["detail"])
        found[one.pop("turn_id")]["verdicts"].append(one)
    given = sa.select(f.turn_id, f.score, f.text, f.created_at).where(f.turn_id.in_(ids))
    for entry in connection.execute(given.order_by(f.created_at, f.feedback_id)):
        one = dict(entry._mapping)
        found[one.pop("turn_id")]["feedback"].append(one)
    return found


def alias_moves(connection: sa.Connection, policy: str) -> list[AliasMove]:
    """Return where the alias pointed over time, oldest first."""
    c = schema.alias_moves.c
    rows = connection.execute(
        sa.select(c.policy, c.version, c.moved_at, c.actor).where(c.policy == policy).order_by(c.move_id)
    )
    return [AliasMove(**row._mapping) for row in rows]


def adapters(connection: sa.Connection, policy: str | None = None) -> list[AdapterVersion]:
    """Return every version of a policy, or of all, oldest first, rejected ones included."""
    c = schema.adapters.c
    query = sa.select(schema.adapters).order_by(c.policy, c.version)
    rows = connection.execute(query if policy is None else query.where(c.policy == policy))
    return [adapter_of(row) for row in rows]


def _trajectory(row: Row[Any]) -> Json:
    value = dict(row._mapping)
    for name in ("messages", "tool_calls", "completion_token_ids", "sampling_logprobs"):
        value[name] = json.loads(value[name])
    return value
