"""What the trainer asks and writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from store import schema
from store.database import insert_ignore, upsert
from store.errors import AliasMoved, ClaimLost, MadeOfForgotten
from store.hashing import exact_json
from store.heartbeats import SILENT_S
from store.lifecycle import DropReason, Event, Stage
from store.queries import canary, tuning
from store.queries.alias import move_alias
from store.queries.common import adapter as find_adapter
from store.queries.common import (
    aliases,
    bodies,
    chain_messages,
    completion_of,
    control,
    decode_verdict_detail,
    lock_aliases,
    moment,
    move,
    prompt_ids,
    read_wish,
    set_control,
    step_of,
    value_of,
)
from store.queries.forget import forgotten_among
from store.queries.forget_jobs import reactions_forgotten_since
from store.values import (
    BASE_VERSION,
    LOOP_SOURCE,
    NO_SOURCE,
    Activity,
    AdapterState,
    AdapterVersion,
    LogprobMode,
    RecentVerdict,
    ScoredTurn,
    StepReport,
    TurnKind,
    Verdict,
    Waiting,
    WishScope,
    gateway_name,
)

#: Name in `controls`: when a person last asked to train now.
TRAIN_NOW = "train_now"
#: The newest turns among which the newest main turn is looked for.
_ACTIVITY_TURNS = 200


def waiting(
    connection: sa.Connection, *, wishes: bool = True, sources: Sequence[str] | None = None
) -> dict[str, Waiting]:
    """Return what has been scored and not claimed, by policy.

    Args:
        wishes: whether a stated wish counts as a signal.
        sources: beginnings of `Verdict.source` of which +1 and -1 count; None: of all.
    """
    lv, v = schema.turn_states.c, schema.verdicts.c
    states_wish = v.wish_scope == WishScope.LASTING.value if wishes else sa.false()
    counted = (
        sa.true() if sources is None else sa.or_(sa.false(), *(v.source.startswith(one) for one in sources))
    )
    has_signal = sa.or_(states_wish, sa.and_(v.value != 0, counted))
    complained_at = sa.case((sa.or_(states_wish, sa.and_(v.value < 0, counted)), lv.stage_since))
    rows = connection.execute(
        sa.select(
            lv.policy,
            sa.func.count().label("scored"),
            sa.func.sum(sa.case((has_signal, 1), else_=0)).label("ready"),
            sa.func.min(lv.stage_since).label("oldest_since"),
            sa.func.count(complained_at).label("complaints"),
            sa.func.min(complained_at).label("complaint_since"),
            sa.func.max(complained_at).label("newest_complaint"),
        )
        .select_from(schema.turn_states.join(schema.verdicts, v.verdict_id == _newest_verdict()))
        .where(lv.stage == Stage.SCORED.value)
        .group_by(lv.policy)
    )
    return {
        row.policy: Waiting(
            scored=int(row.scored),
            ready=int(row.ready),
            oldest_since=row.oldest_since,
            complaints=int(row.complaints),
            complaint_since=row.complaint_since,
            newest_complaint=row.newest_complaint,
        )
        for row in rows
    }


def _newest_verdict() -> sa.ScalarSelect[Any]:
    """The number of the newest verdict of a row of `turn_states`."""
    w = schema.verdicts.alias("w")
    number = sa.select(sa.func.max(w.c.verdict_id)).where(w.c.turn_id == schema.turn_states.c.turn_id)
    return number.correlate(schema.turn_states).scalar_subquery()


def activity(connection: sa.Connection, now: float | None = None) -> Activity:
    """Return what the gateways do now (Unix time, seconds). Heartbeats that are older than some seconds do not count."""
    now = moment(now)
    h, t = schema.heartbeats.c, schema.turns.c
    beats = connection.execute(
        sa.select(h.detail).where(h.process.startswith(gateway_name(1)), h.at > now - SILENT_S)
    ).scalars()
    newest = sa.select(t.kind, t.created_at).order_by(t.created_at.desc()).limit(_ACTIVITY_TURNS).subquery()
    main = connection.execute(
        sa.select(sa.func.max(newest.c.created_at)).where(newest.c.kind == TurnKind.MAIN.value)
    ).scalar_one()
    return Activity(
        in_flight=sum(int(json.loads(detail).get("in_flight", 0)) for detail in beats),
        newest_main_at=float(main or 0.0),
        asked_at=float(control(connection, TRAIN_NOW) or 0.0),
    )


def ask_to_train(connection: sa.Connection, now: float | None = None) -> None:
    """Let what is scored by now be trained, whatever the schedule and the size of a batch."""
    now = moment(now)
    set_control(connection, TRAIN_NOW, repr(now), now)


def claim(
    connection: sa.Connection,
    policy: str,
    limit: int,
    *,
    worker: str,
    lease_s: float,
    now: float | None = None,
) -> list[ScoredTurn]:
    """Take up to ``limit`` scored turns for ``worker`` until the lease runs out: the oldest first, thanks last."""
    now = moment(now)
    lv, v = schema.turn_states.c, schema.verdicts.c
    is_thanks = sa.and_(v.value > 0, v.wish.is_(None))
    ids = list(
        (
            connection.execute(
                sa.select(lv.turn_id)
                .select_from(schema.turn_states.join(schema.verdicts, v.verdict_id == _newest_verdict()))
                .where(lv.policy == policy, lv.stage == Stage.SCORED.value)
                .order_by(sa.case((is_thanks, 1), else_=0), lv.stage_since, lv.turn_id)
                .limit(limit)
                # PostgreSQL lets others read on meanwhile; SQLite has one writer and leaves this away.
                .with_for_update(skip_locked=True, of=schema.turn_states)
            )
        ).scalars()
    )
    move(connection, ids, Event.CLAIM, now, claimed_by=worker, lease_until=now + lease_s)
    return [_scored(connection, turn_id) for turn_id in ids]


def renew(connection: sa.Connection, worker: str, lease_s: float, now: float | None = None) -> int:
    """Keep a worker's claims for another ``lease_s`` seconds; returns how many it still holds."""
    now = moment(now)
    lv = schema.turn_states.c
    done = connection.execute(
        sa.update(schema.turn_states)
        .where(lv.stage == Stage.CLAIMED.value, lv.claimed_by == worker)
        .values(lease_until=now + lease_s)
    )
    return done.rowcount


def release(
    connection: sa.Connection, turn_ids: Sequence[str], now: float | None = None, *, worker: str
) -> int:
    """Give back those of these turns that ``worker`` holds, as a step that failed does; returns how many."""
    now = moment(now)
    return _end_claim(connection, turn_ids, Event.RELEASE, now, worker)


def release_expired(connection: sa.Connection, now: float | None = None) -> int:
    """Give back the claims of workers that died: their leases ran out."""
    now = moment(now)
    lv = schema.turn_states.c
    ids = list(
        (
            connection.execute(
                sa.select(lv.turn_id).where(lv.stage == Stage.CLAIMED.value, lv.lease_until < now)
            )
        ).scalars()
    )
    return move(connection, ids, Event.RELEASE, now, claimed_by=None, lease_until=None)


def drop(
    connection: sa.Connection,
    turn_ids: Sequence[str],
    reason: DropReason,
    now: float | None = None,
    *,
    worker: str,
    detail: str = "",
) -> int:
    """End the life of those of these turns that ``worker`` holds: they cannot train.

    Args:
        detail: the reason in words.

    Returns:
        How many there were.
    """
    now = moment(now)
    return _end_claim(
        connection, turn_ids, Event.DROP, now, worker, drop_reason=reason.value, detail=detail or None
    )


def next_version(connection: sa.Connection, policy: str) -> int:
    """Return a version number no adapter of this policy ever had, rejected ones included."""
    newest = (
        connection.execute(
            sa.select(sa.func.max(schema.adapters.c.version)).where(schema.adapters.c.policy == policy)
        )
    ).scalar_one_or_none()
    return (newest or BASE_VERSION) + 1


def publish(
    connection: sa.Connection,
    adapter: AdapterVersion,
    turn_ids: Sequence[str],
    step: StepReport,
    *,
    worker: str,
    actor: str = "trainer",
    canary_share: float = 0.0,
    live: int | None = None,
) -> None:
    """Publish a version, move the alias to it and mark its turns trained: one transaction, all or nothing.

    Args:
        canary_share: above 0 the alias stays, and the version serves this share of the new conversations first.
        live: the version that was live when the attempt began; None: its parent.

    Raises:
        ClaimLost: ``worker`` does not hold one of the turns any more: its lease ran out. Nothing is written, so that no turn
            is ever trained twice.
        AliasMoved: another version is live by now: a rollback came while this one was trained, and
            publishing it would undo that. Nothing is written.
    """
    moved = _end_claim(
        connection,
        turn_ids,
        Event.STEPPED,
        adapter.created_at,
        worker,
        trained_in_version=adapter.version,
    )
    _refuse_forgotten(connection, adapter, step)
    if moved != len(turn_ids):
        raise ClaimLost(
            f"version {adapter.version} is not published: {len(turn_ids) - moved} of {len(turn_ids)} turns are not claimed "
            f"by {worker} any more"
        )
    # After the turns: a worker that was late must not take another's version of the same bytes for its own, and remove it.
    lock_aliases(connection)
    move_now = aliases(connection).get(adapter.policy)
    version = move_now.version if move_now is not None else BASE_VERSION
    expected = adapter.parent_version if live is None else live
    if version != expected:
        raise AliasMoved(
            f"version {adapter.version} was to replace version {expected}, and version {version} was made live meanwhile: it is "
            "not published"
        )
    _insert_adapter(connection, adapter)
    _upsert_step(connection, step)
    if canary_share > 0:
        canary.begin(connection, adapter.policy, adapter.version, version, canary_share, adapter.created_at)
        return
    canary.supersede(connection, adapter.policy, adapter.created_at, f"version {adapter.version} is live")
    move_alias(connection, adapter.policy, adapter.version, at=adapter.created_at, actor=actor)


def reject(
    connection: sa.Connection,
    adapter: AdapterVersion,
    step: StepReport,
    *,
    worker: str,
    release: Sequence[str] = (),
    drop: Sequence[str] = (),
) -> None:
    """Record a version the gate refused; those of its turns that ``worker`` holds go back or, when they caused it twice, out.

    Raises:
        MadeOfForgotten: nothing is written.
    """
    _refuse_forgotten(connection, adapter, step)
    _insert_adapter(connection, adapter)
    _upsert_step(connection, step)
    _end_claim(connection, release, Event.RELEASE, adapter.created_at, worker)
    _end_claim(
        connection,
        drop,
        Event.DROP,
        adapter.created_at,
        worker,
        drop_reason=DropReason.GATE_REJECTED.value,
    )


def _refuse_forgotten(connection: sa.Connection, adapter: AdapterVersion, step: StepReport) -> None:
    """Raises: MadeOfForgotten: the version was computed from what a person has had forgotten meanwhile."""
    used = {turn_id for one in step.inputs.turns.values() for turn_id, _ in one} if step.inputs else set()
    parent = find_adapter(connection, adapter.policy, adapter.parent_version)
    is_tainted = parent is not None and parent.state is AdapterState.FORGOTTEN
    # The reactions to a turn may be forgotten while the turn itself stays.
    untaught = used & reactions_forgotten_since(connection, step.started_at)
    if is_tainted or untaught or forgotten_among(connection, used):
        raise MadeOfForgotten(f"version {adapter.version} was computed from what was forgotten meanwhile")


def write_step(connection: sa.Connection, step: StepReport) -> None:
    """Store (or complete) the report of a step that published nothing."""
    _upsert_step(connection, step)


def steps(connection: sa.Connection, policy: str, limit: int = 1000) -> list[StepReport]:
    """Return the newest steps, newest first."""
    s = schema.steps.c
    rows = connection.execute(
        sa.select(schema.steps).where(s.policy == policy).order_by(s.started_at.desc()).limit(limit)
    )
    return [step_of(row) for row in rows]


def mark_pruned(connection: sa.Connection, policy: str, versions: Sequence[int]) -> None:
    """The files of these versions are gone by the retention policy; their rows stay."""
    c = schema.adapters.c
    connection.execute(
        sa.update(schema.adapters)
        .where(c.policy == policy, c.version.in_(list(versions)))
        .values(state=AdapterState.PRUNED.value)
    )


def trained_turns(
    connection: sa.Connection, policy: str, *, version: int | None = None, limit: int = 1000
) -> list[ScoredTurn]:
    """Return turns that were trained (in ``version``), newest first."""
    lv = schema.turn_states.c
    query = sa.select(lv.turn_id).where(lv.policy == policy)
    if version is None:
        query = query.where(lv.stage == Stage.TRAINED.value)
    else:
        # The expression keeps SQLite from the index on stages, which would read what was trained into every version.
        is_trained = sa.func.coalesce(lv.stage, "") == Stage.TRAINED.value
        query = query.where(lv.trained_in_version == version, is_trained)
    ids = list((connection.execute(query.order_by(lv.stage_since.desc(), lv.turn_id).limit(limit))).scalars())
    return [_scored(connection, turn_id) for turn_id in ids]


def accepted_turns(connection: sa.Connection, policy: str, limit: int) -> list[ScoredTurn]:
    """Return replies that were served with wishes in their prompt and drew no complaint, the newest first."""
    rows = connection.execute(_accepted(policy).order_by(schema.turns.c.created_at.desc()).limit(limit))
    return [_scored(connection, row.turn_id) for row in rows]


def newest_turns(connection: sa.Connection, policy: str, limit: int) -> list[ScoredTurn]:
    """Return the newest main turns that were answered, the newest first."""
    t = schema.turns.c
    rows = connection.execute(
        sa.select(t.turn_id)
        .where(
            t.policy == policy,
            t.kind == TurnKind.MAIN.value,
            t.status_code < 400,
            t.completion_token_ids != "[]",
        )
        .order_by(t.created_at.desc(), t.turn_id)
        .limit(limit)
    )
    return [_scored(connection, turn_id) for turn_id in rows.scalars().all()]


def count_accepted(connection: sa.Connection, policy: str) -> int:
    """Return how many `accepted_turns` there are."""
    return int(
        connection.execute(sa.select(sa.func.count()).select_from(_accepted(policy).subquery())).scalar_one()
    )


def _accepted(policy: str) -> sa.Select[Any]:
    t, lv, v, w = schema.turns.c, schema.turn_states.c, schema.verdicts.c, schema.verdicts.alias("w")
    newest = sa.select(sa.func.max(w.c.verdict_id)).where(w.c.turn_id == t.turn_id).scalar_subquery()
    return (
        sa.select(t.turn_id, t.created_at)
        .select_from(
            schema.turns.join(schema.turn_states, lv.turn_id == t.turn_id).outerjoin(
                schema.verdicts, v.verdict_id == newest
            )
        )
        .where(
            t.policy == policy,
            t.kind == TurnKind.MAIN.value,
            t.wish_text != "",
            t.completion_token_ids != "[]",
            sa.or_(lv.drop_reason.is_(None), lv.drop_reason.in_([one.value for one in _ACCEPTED_DROPS])),
            sa.or_(v.value.is_(None), v.value >= 0),
        )
    )


#: Drops of turns whose replies are as good as any other: nothing was said about them, or their batch came to nothing.
_ACCEPTED_DROPS = (
    DropReason.NO_NEXT_STATE,
    DropReason.ABSTAINED,
    DropReason.NO_SIGNAL,
    DropReason.OVER_LIMIT,
    DropReason.STALE,
    DropReason.GATE_REJECTED,
    DropReason.STEP_FAILED,
)


def scored_turns(connection: sa.Connection, turn_ids: Sequence[str]) -> list[ScoredTurn]:
    """Return these turns with their newest verdicts, those that are still in the record, in the given order."""
    v = schema.verdicts.c
    rows = connection.execute(sa.select(v.turn_id).where(v.turn_id.in_(list(turn_ids))))
    known = set(rows.scalars())
    return [_scored(connection, i) for i in turn_ids if i in known]


def recent_verdicts(connection: sa.Connection, policy: str, limit: int) -> list[RecentVerdict]:
    """Return the newest verdicts of a policy's settled turns, oldest first: the baseline's window.

    A turn is settled once it is trained or dropped. A turn that waits for training, is claimed, or waits for a new verdict
    does not count: a batch must not be compared with itself, nor with what came after it. A turn counts once, with its
    newest verdict; neutral verdicts and abstentions do not count, however many there are between two opinions.
    """
    v, lv = schema.verdicts.c, schema.turn_states.c
    later = schema.verdicts.alias("later")
    rows = connection.execute(
        sa.select(v.turn_id, v.verdict_id, v.value)
        .join(schema.turn_states, lv.turn_id == v.turn_id)
        .where(
            lv.policy == policy,
            lv.stage.in_([Stage.TRAINED.value, Stage.DROPPED.value]),
            v.value != 0,
            v.source != LOOP_SOURCE,  # a loop of many turns would outvote what a person wrote once
            ~sa.exists().where(later.c.turn_id == v.turn_id, later.c.verdict_id > v.verdict_id),
        )
        .order_by(v.verdict_id.desc())
        .limit(limit)
    )
    return [RecentVerdict(**row._mapping) for row in rows][::-1]


def _end_claim(
    connection: sa.Connection, turn_ids: Sequence[str], event: Event, at: float, worker: str, **columns: Any
) -> int:
    """Compare-and-set: move those of ``turn_ids`` that ``worker`` holds out of their claim; returns how many moved."""
    return move(
        connection,
        turn_ids,
        event,
        at,
        only=(Stage.CLAIMED,),
        extra=schema.turn_states.c.claimed_by == worker,
        claimed_by=None,
        lease_until=None,
        **columns,
    )


def _scored(connection: sa.Connection, turn_id: str) -> ScoredTurn:
    row = (connection.execute(sa.select(schema.turns).where(schema.turns.c.turn_id == turn_id))).one()
    v, n = schema.verdicts.c, schema.next_states.c
    newest = sa.select(schema.verdicts).where(v.turn_id == turn_id).order_by(v.verdict_id.desc()).limit(1)
    verdict = connection.execute(newest).one_or_none()
    next_text = (
        connection.execute(
            sa.select(n.text).where(n.turn_id == turn_id).order_by(n.created_at.desc(), n.by_turn_id).limit(1)
        )
    ).scalar_one_or_none()
    return value_of(
        ScoredTurn,
        row,
        messages=tuple(chain_messages(connection, row.preamble_node, row.history_node)),
        request=bodies(connection, [row.request])[0],
        completion=completion_of(row),
        prompt_token_ids=tuple(prompt_ids(connection, turn_id)),
        logprob_mode=LogprobMode(row.logprob_mode),
        verdict=_verdict(turn_id, verdict, row.finished_at),
        next_text=next_text or "",
        verdict_id=verdict.verdict_id if verdict is not None else 0,
    )


def _verdict(turn_id: str, row: sa.Row[Any] | None, at: float) -> Verdict:
    """Return a verdict as a value; an abstention where a turn has none."""
    if row is None:
        return Verdict(turn_id=turn_id, value=None, source=NO_SOURCE, created_at=at)
    detail, follow_up, share = decode_verdict_detail(row.detail)
    return Verdict(
        turn_id=turn_id,
        value=row.value,
        hint=row.hint,
        hint_is_reaction=row.hint_is_reaction,
        wish=read_wish(row.wish, row.wish_scope),
        follow_up=follow_up,
        source=row.source,
        confidence=row.confidence,
        share=share,
        detail=detail,
        created_at=row.created_at,
    )


def _insert_adapter(connection: sa.Connection, adapter: AdapterVersion) -> None:
    tuning.settle(connection, adapter)
    connection.execute(
        sa.insert(schema.adapters).values(
            policy=adapter.policy,
            version=adapter.version,
            path=adapter.path,
            content_hash=adapter.content_hash,
            manifest_hash=adapter.manifest_hash,
            parent_version=adapter.parent_version,
            state=adapter.state.value,
            reason=adapter.reason,
            method=adapter.method,
            metrics=exact_json(adapter.metrics),
            created_at=adapter.created_at,
        )
    )


def _upsert_step(connection: sa.Connection, step: StepReport) -> None:
    values = {
        "step_id": step.step_id,
        "policy": step.policy,
        "method": step.method,
        "started_at": step.started_at,
        "finished_at": step.finished_at,
        "version": step.version,
        "error": step.error,
        "metrics": exact_json(step.metrics),
    }
    if step.inputs is not None:
        inputs = step.inputs
        values["inputs"] = exact_json({"settings": inputs.settings})
    upsert(connection, schema.steps, values, ["step_id"])
    if step.inputs is not None:
        rows = [
            {"step_id": step.step_id, "role": role.value, "position": at, "turn_id": turn_id, "verdict_id": verdict_id}
            for role, used in step.inputs.turns.items()
            for at, (turn_id, verdict_id) in enumerate(used)
        ]  # fmt: skip
        if rows:
            connection.execute(insert_ignore(connection.dialect.name, schema.step_turns), rows)
