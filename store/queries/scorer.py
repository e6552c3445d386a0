"""What the scorers ask and write."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from store import schema
from store.lifecycle import DropReason, Event, Stage
from store.queries.common import bodies, chain_messages, completion_of, encode_verdict_detail, move, value_of
from store.queries.wishes import take_wish
from store.values import AnsweredTurn, Feedback, NextState, Relation, Verdict

_HOUR_S = 3_600.0
#: Drop reasons of turns that do not count towards the verdicts of an hour.
_NOT_COUNTED = [DropReason.OVER_LIMIT.value, DropReason.NO_TOKENS.value]


def answered(connection: sa.Connection, limit: int, *, exclude: Iterable[str] = ()) -> list[AnsweredTurn]:
    """Return turns that wait for a verdict, oldest first."""
    t, lv = schema.turns.c, schema.turn_states.c
    # The ids first: to sort a long queue of whole turns (an import) would read all of them for the few that are wanted.
    order = (lv.stage_since, lv.turn_id)
    oldest = sa.select(lv.turn_id).where(lv.stage == Stage.ANSWERED.value).order_by(*order).limit(limit)
    if skip := list(exclude):
        oldest = oldest.where(lv.turn_id.not_in(skip))
    query = (
        sa.select(schema.turns)
        .join(schema.turn_states, lv.turn_id == t.turn_id)
        .where(t.turn_id.in_(oldest.correlate(None)))
        .order_by(*order)
    )
    return [_answered(connection, row) for row in connection.execute(query).all()]


def answered_turns(connection: sa.Connection, turn_ids: Sequence[str]) -> list[AnsweredTurn]:
    """Return these turns with all that followed them, whatever their stage, those that are in the record."""
    t = schema.turns.c
    rows = connection.execute(sa.select(schema.turns).where(t.turn_id.in_(list(turn_ids)))).all()
    return [_answered(connection, row) for row in rows]


def _answered(connection: sa.Connection, row: Row[Any]) -> AnsweredTurn:
    n, f = schema.next_states.c, schema.feedback.c
    states = []
    for state in connection.execute(
        sa.select(schema.next_states).where(n.turn_id == row.turn_id).order_by(n.created_at, n.by_turn_id)
    ):
        states.append(
            value_of(
                NextState,
                state,
                messages=tuple(bodies(connection, json.loads(state.messages))),
                relation=Relation(state.relation),
            )
        )
    given = [
        Feedback(**entry._mapping)
        for entry in connection.execute(
            sa.select(schema.feedback).where(f.turn_id == row.turn_id).order_by(f.created_at)
        )
    ]
    return value_of(
        AnsweredTurn,
        row,
        messages=tuple(chain_messages(connection, row.preamble_node, row.history_node)),
        request=bodies(connection, [row.request])[0],
        completion=completion_of(row),
        next_states=tuple(states),
        feedback=tuple(given),
    )


def add_verdict(
    connection: sa.Connection, verdict: Verdict, *, drop: DropReason | None = None, most_per_hour: int = 0
) -> None:
    """Store a verdict and move its turn to scored, or with ``drop`` to dropped.

    A turn that is not waiting any more (forgotten, scored by another worker) keeps its stage; the verdict stays in
    the record all the same.

    Args:
        most_per_hour: verdicts of one key within an hour that may train; a turn beyond them is dropped. 0: no limit.
    """
    if _is_forgotten(connection, verdict.turn_id):
        return  # it was read before the reaction to it was forgotten, and may quote it
    if drop is None and _lacks_tokens(connection, verdict.turn_id):
        drop = DropReason.NO_TOKENS
    has_signal = bool(verdict.value or verdict.hint)
    trained_in = _trained_in(connection, verdict.turn_id)
    if drop is None and most_per_hour and has_signal and _trainable(connection, verdict) >= most_per_hour:
        drop = DropReason.OVER_LIMIT
    if drop is not DropReason.OVER_LIMIT:
        take_wish(connection, verdict)
    connection.execute(
        sa.insert(schema.verdicts).values(
            turn_id=verdict.turn_id,
            value=verdict.value,
            hint=verdict.hint,
            hint_is_reaction=verdict.hint_is_reaction,
            wish=verdict.wish.text if verdict.wish else None,
            wish_scope=verdict.wish.scope.value if verdict.wish else None,
            source=verdict.source[:256],
            confidence=verdict.confidence,
            detail=encode_verdict_detail(verdict),
            created_at=verdict.created_at,
        )
    )
    if trained_in is not None and (drop is not None or not verdict.hint):
        # Late feedback without a hint: the turn stays in the version that learned from it.
        move(
            connection,
            [verdict.turn_id],
            Event.NOTHING_NEW,
            verdict.created_at,
        )
    elif drop is None:
        move(
            connection,
            [verdict.turn_id],
            Event.VERDICT,
            verdict.created_at,
            trained_in_version=None,
        )
    else:
        move(
            connection,
            [verdict.turn_id],
            Event.DROP,
            verdict.created_at,
            only=(Stage.ANSWERED,),
            drop_reason=drop.value,
        )


def _is_forgotten(connection: sa.Connection, turn_id: str) -> bool:
    lv = schema.turn_states.c
    query = sa.select(lv.drop_reason).where(lv.turn_id == turn_id)
    return connection.execute(query).scalar_one_or_none() == DropReason.FORGOTTEN.value


def _trained_in(connection: sa.Connection, turn_id: str) -> int | None:
    """Return the version that was trained on this turn before late feedback on it came; None: none was."""
    lv = schema.turn_states.c
    found: int | None = connection.execute(
        sa.select(lv.trained_in_version).where(lv.turn_id == turn_id, lv.stage == Stage.ANSWERED.value)
    ).scalar_one_or_none()
    return found


def _lacks_tokens(connection: sa.Connection, turn_id: str) -> bool:
    """Whether a backend reported no tokens for a turn. Imported turns have none either, and train by their hints."""
    t = schema.turns.c
    reason = connection.execute(
        sa.select(t.main_drop_reason).where(t.turn_id == turn_id)
    ).scalar_one_or_none()
    return reason == DropReason.NO_TOKENS.value


def _trainable(connection: sa.Connection, verdict: Verdict) -> int:
    """Return how many other turns of the same key got something to teach in the hour before this verdict."""
    t, lv, v = schema.turns.c, schema.turn_states.c, schema.verdicts.c
    since = verdict.created_at - _HOUR_S
    key = sa.select(t.key_name).where(t.turn_id == verdict.turn_id).scalar_subquery()
    return connection.execute(
        sa.select(sa.func.count(sa.distinct(lv.turn_id)))
        .select_from(schema.turn_states)
        .join(schema.turns, t.turn_id == lv.turn_id)
        .join(schema.verdicts, v.turn_id == lv.turn_id)
        .where(
            # The stage is as old as the newest verdict at most, and the index is over it.
            lv.stage.in_([Stage.SCORED.value, Stage.CLAIMED.value, Stage.TRAINED.value, Stage.DROPPED.value]),
            lv.stage_since > since,
            sa.func.coalesce(lv.drop_reason, "").not_in(_NOT_COUNTED),
            lv.turn_id != verdict.turn_id,
            t.key_name == key,
            v.created_at > since,
            sa.or_(v.value != 0, v.hint.is_not(None)),
        )
    ).scalar_one()
