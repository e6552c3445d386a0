"""What the queries of several processes share: the life of a turn, message chains, prompt ids, rows to values."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.engine import Row

from store import schema
from store.database import upsert
from store.errors import RecordError
from store.hashing import ROOT, exact_json
from store.lifecycle import RESCORED, TEACHABLE_AGAIN, Event, Stage, advance, sources
from store.values import (
    AdapterState,
    AdapterVersion,
    AliasMove,
    Completion,
    FollowUp,
    Heartbeat,
    Json,
    StepReport,
    Verdict,
    WishReading,
    WishScope,
)

V = TypeVar("V")


def moment(now: float | None) -> float:
    """Return a given time, or the present one (Unix time, seconds)."""
    return time.time() if now is None else now


# ---- the life of a turn


def move(
    connection: sa.Connection,
    turn_ids: Sequence[str],
    event: Event,
    at: float,
    *,
    only: Sequence[Stage] | None = None,
    extra: sa.ColumnElement[bool] | None = None,
    **columns: Any,
) -> int:
    """Compare-and-set: move those of ``turn_ids`` whose stage allows ``event``; returns how many moved."""
    if not turn_ids:
        return 0
    lv = schema.turn_states.c
    moved = 0
    for stage in only or sources(event):
        where = [lv.turn_id.in_(list(turn_ids)), lv.stage == stage.value]
        if extra is not None:
            where.append(extra)
        done = connection.execute(
            sa.update(schema.turn_states)
            .where(*where)
            .values(stage=advance(stage, event).value, stage_since=at, **columns)
        )
        moved += done.rowcount
    return moved


def answer(connection: sa.Connection, turn_id: str, at: float) -> None:
    """A turn that waited for an answer has one; a later one changes nothing but the list of next states."""
    move(connection, [turn_id], Event.NEXT_STATE, at)
    move(
        connection,
        [turn_id],
        Event.REVIVE,
        at,
        extra=schema.turn_states.c.drop_reason.in_([r.value for r in RESCORED]),
        drop_reason=None,
        detail=None,
    )


def teach_again(connection: sa.Connection, turn_id: str, at: float) -> None:
    """Words about a turn that is trained, or was refused in a batch, came: it is up for scoring again.

    Until then the row still names the version that it was trained in.
    """
    lv = schema.turn_states.c
    for stage, extra in (
        (Stage.TRAINED, None),
        (Stage.DROPPED, lv.drop_reason.in_([r.value for r in TEACHABLE_AGAIN])),
    ):
        move(
            connection,
            [turn_id],
            Event.TEACH_AGAIN,
            at,
            only=(stage,),
            extra=extra,
            drop_reason=None,
            detail=None,
        )


# ---- verdicts


def encode_verdict_detail(verdict: Verdict) -> str:
    """Return the JSON text of the column ``verdicts.detail``, which holds `Verdict.follow_up` and ``share`` too."""
    detail = dict(verdict.detail)
    if verdict.share != 1.0:
        detail["share"] = verdict.share
    if verdict.follow_up is not None:
        detail["follow_up"] = verdict.follow_up.text
        detail["follow_up_is_question"] = verdict.follow_up.is_question
    return exact_json(detail)


def decode_verdict_detail(stored: str) -> tuple[Json, FollowUp | None, float]:
    """Return (detail, follow-up, share) from the column ``verdicts.detail``."""
    detail: Json = json.loads(stored)
    share = float(detail.pop("share", 1.0))
    text, is_question = detail.pop("follow_up", None), detail.pop("follow_up_is_question", False)
    follow_up = FollowUp(text=text, is_question=bool(is_question)) if isinstance(text, str) else None
    return detail, follow_up, share


# ---- indexes


def unindexed(column: sa.ColumnElement[str]) -> sa.ColumnElement[str]:
    """Return a text column as an expression, so that SQLite does not take the index on it.

    Without statistics it prefers the index on the kind, or on the key and the time, to the one on the session, and then reads most of the record.
    SQLite's unary plus does the same, but PostgreSQL has none for text.
    """
    return sa.func.coalesce(column, "")


# ---- rows that a page lists


def read_json(stored: str) -> object:
    """Return a JSON value of a row; None for one that was damaged."""
    try:
        found: object = json.loads(stored)
    except ValueError:
        return None
    return found


def read_list(stored: str) -> list[Any]:
    """Return a JSON list of a row; an empty one for one that was damaged."""
    found = read_json(stored)
    return found if isinstance(found, list) else []


def read_object(stored: str) -> Json:
    """Return a JSON object of a row; ``{"unreadable": why}`` for one that was damaged: a list shows it and the other rows."""
    try:
        found = json.loads(stored)
    except ValueError as exc:
        return {"unreadable": f"this row cannot be read: {exc}"}
    return found if isinstance(found, dict) else {"unreadable": "this row cannot be read: it is no object"}


def read_wish(text: str | None, scope: str | None) -> WishReading | None:
    """Return the wish of a verdict's row; None where it has none, or a scope that no program wrote."""
    if not text or scope not in frozenset(WishScope):
        return None
    return WishReading(text=text, scope=WishScope(scope))


# ---- messages


def read_message(stored: str) -> Json:
    """Return a message; for one that was damaged, one that says so."""
    message = read_object(stored)
    return {"role": "", "content": message["unreadable"]} if "unreadable" in message else message


def chain_messages(
    connection: sa.Connection, *tips: str, read: Callable[[str], Json] = json.loads
) -> list[Json]:
    """Return the message chains that end in ``tips``, concatenated.

    Args:
        read: makes a message of its JSON.
    """
    found: list[Json] = []
    n = schema.nodes.c
    for tip in tips:
        if tip == ROOT:
            continue
        walk = sa.select(n.parent, n.message, n.depth).where(n.node == tip).cte("walk", recursive=True)
        walk = walk.union_all(sa.select(n.parent, n.message, n.depth).join(walk, n.node == walk.c.parent))
        rows = connection.execute(
            sa.select(schema.messages.c.body)
            .join(walk, schema.messages.c.hash == walk.c.message)
            .order_by(walk.c.depth)
        )
        found += [read(body) for body in rows.scalars()]
    return found


def bodies(connection: sa.Connection, hashes: Sequence[str]) -> list[Json]:
    """Return messages by their addresses, in the given order."""
    rows = connection.execute(sa.select(schema.messages).where(schema.messages.c.hash.in_(list(hashes))))
    found = {row.hash: json.loads(row.body) for row in rows}
    return [found[name] for name in hashes]


# ---- prompt ids


def full_ids(connection: sa.Connection, turn_id: str) -> tuple[int, ...]:
    """Return the turn's prompt + completion ids; nothing for a turn that is not there."""
    row = connection.execute(
        sa.select(schema.turns.c.completion_token_ids).where(schema.turns.c.turn_id == turn_id)
    ).scalar_one_or_none()
    if row is None:
        return ()
    return (*prompt_ids(connection, turn_id), *json.loads(row))


_BASES = sa.text(
    """
    WITH RECURSIVE walk(turn_id, base, base_length, own, completion, depth) AS (
      SELECT turn_id, prompt_base_turn_id, prompt_base_length, prompt_token_ids, completion_token_ids, 0
        FROM turns WHERE turn_id = :turn_id
      UNION ALL
      SELECT t.turn_id, t.prompt_base_turn_id, t.prompt_base_length, t.prompt_token_ids, t.completion_token_ids,
             walk.depth + 1
        FROM walk JOIN turns t ON t.turn_id = walk.base
    )
    SELECT base, base_length, own, completion FROM walk ORDER BY depth DESC
    """
)


def prompt_ids(connection: sa.Connection, turn_id: str) -> list[int]:
    """Rebuild a turn's prompt ids by walking the bases down and then up again.

    Raises:
        RecordError: a turn that they rest on is not there.
    """
    rows = connection.execute(_BASES, {"turn_id": turn_id}).all()
    if not rows or rows[0].base is not None:
        missing = rows[0].base if rows else turn_id
        raise RecordError(f"turn {turn_id}: its prompt rests on turn {missing}, which is not there")
    ids: list[int] = []
    completion: list[int] = []
    for row in rows:
        ids = [*[*ids, *completion][: row.base_length], *json.loads(row.own)]
        completion = json.loads(row.completion)
    return ids


# ---- what several ask


def control(connection: sa.Connection, name: str) -> str | None:
    """Return what a person has set, or None."""
    return connection.execute(
        sa.select(schema.controls.c.value).where(schema.controls.c.name == name)
    ).scalar_one_or_none()


def set_control(connection: sa.Connection, name: str, value: str, now: float) -> None:
    """Keep what a person sets."""
    upsert(connection, schema.controls, {"name": name, "value": value, "at": now}, ["name"])


def own_turns(key_name: str, limit: int) -> sa.Select[Any]:
    """Return the select of the ids of a key's newest turns."""
    t = schema.turns.alias("own").c
    return sa.select(t.turn_id).where(t.key_name == key_name).order_by(t.created_at.desc()).limit(limit)


def lock_aliases(connection: sa.Connection) -> None:
    """Lock the aliases until this transaction ends; SQLite's write transactions are alone anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text(f"LOCK TABLE {schema.alias_moves.name} IN SHARE ROW EXCLUSIVE MODE"))


def aliases(connection: sa.Connection) -> dict[str, AliasMove]:
    """Return the live version of every policy that ever had one."""
    c = schema.alias_moves.c
    newest = sa.select(sa.func.max(c.move_id)).group_by(c.policy)
    rows = connection.execute(
        sa.select(c.policy, c.version, c.moved_at, c.actor).where(c.move_id.in_(newest))
    )
    return {row.policy: AliasMove(**row._mapping) for row in rows}


def adapter(connection: sa.Connection, policy: str, version: int) -> AdapterVersion | None:
    """Return one version of a policy, published or not."""
    c = schema.adapters.c
    row = connection.execute(
        sa.select(schema.adapters).where(c.policy == policy, c.version == version)
    ).one_or_none()
    return None if row is None else adapter_of(row)


# ---- rows to values


def value_of(kind: type[V], row: Any, /, **read: Any) -> V:
    """Return a value of a row: a field is the column of its name where it is not given, and has its default where there is no such column."""
    columns = row._mapping
    names = (one.name for one in fields(cast(Any, kind)) if one.name not in read and one.name in columns)
    return kind(**{name: columns[name] for name in names}, **read)


def completion_of(row: Row[Any]) -> Completion:
    return Completion(
        text=row.completion,
        reasoning=row.reasoning,
        tool_calls=tuple(json.loads(row.tool_calls)),
        token_ids=tuple(json.loads(row.completion_token_ids)),
        sampling_logprobs=tuple(json.loads(row.sampling_logprobs)),
        finish_reason=row.finish_reason,
    )


def adapter_of(row: Row[Any]) -> AdapterVersion:
    return value_of(AdapterVersion, row, state=AdapterState(row.state), metrics=read_object(row.metrics))


def heartbeat_of(row: Row[Any]) -> Heartbeat:
    return value_of(Heartbeat, row, detail=read_object(row.detail))


def step_of(row: Row[Any]) -> StepReport:
    return value_of(StepReport, row, metrics=read_object(row.metrics), inputs=None)
