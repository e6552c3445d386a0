"""Forgets as rows: asked for by a person, the page or a client's deletion, carried out by `cli.forgetting`, whatever dies meanwhile.

A job holds the words only while they are needed: as its selection until its rows are deleted, then as its detail until no file holds them. From
then on it keeps their salted digests. The recorder, an import and a restore leave out what began before the deletion and holds them (`Guard`).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy.engine import Row

from store import schema
from store.errors import RecordError
from store.forgotten_texts import ForgottenTexts
from store.hashing import exact_json
from store.queries.closure import find_closure, pattern_of, turns_holding
from store.queries.common import moment, read_object, value_of
from store.queries.forget import add_forgotten, delete
from store.values import Closure, Feedback, ForgetJob, ForgetStage, Forgotten, Json, NewTurn, Selection

_NOT_DONE = [stage.value for stage in ForgetStage if stage is not ForgetStage.DONE]


def ask(
    connection: sa.Connection,
    selection: Selection,
    *,
    with_replies: bool = True,
    key_name: str = "",
    now: float | None = None,
) -> str:
    """Ask for something to be forgotten; returns the job's id, of the one under way where it is asked for again."""
    j, at = schema.forget_jobs.c, moment(now)
    wanted = exact_json({**asdict(selection), "with_replies": with_replies})
    query = sa.select(j.job_id).where(j.selection == wanted, j.key_name == key_name, j.stage.in_(_NOT_DONE))
    known: str | None = connection.execute(query).scalars().first()
    if known is not None:
        return known
    job_id = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(at))}-{uuid4().hex[:8]}"
    connection.execute(
        sa.insert(schema.forget_jobs).values(
            job_id=job_id,
            key_name=key_name,
            asked=selection.describe(),
            selection=wanted,
            stage=ForgetStage.ASKED.value,
            detail="{}",
            waits="",
            asked_at=at,
        )
    )
    return job_id


def find(connection: sa.Connection, job_id: str) -> ForgetJob | None:
    """Return one job."""
    j = schema.forget_jobs
    row = connection.execute(sa.select(j).where(j.c.job_id == job_id)).one_or_none()
    return None if row is None else _job(row)


def jobs(connection: sa.Connection, key_name: str | None = None, limit: int = 50) -> list[ForgetJob]:
    """Return the newest jobs, of one key or of all, newest first."""
    j = schema.forget_jobs
    query = sa.select(j).order_by(j.c.asked_at.desc(), j.c.job_id.desc()).limit(limit)
    rows = connection.execute(query if key_name is None else query.where(j.c.key_name == key_name))
    return [_job(row) for row in rows]


def open_jobs(connection: sa.Connection) -> list[ForgetJob]:
    """Return the jobs that are not done, oldest first."""
    j = schema.forget_jobs
    rows = connection.execute(sa.select(j).where(j.c.stage.in_(_NOT_DONE)).order_by(j.c.asked_at, j.c.job_id))
    return [_job(row) for row in rows]


def holds_training(connection: sa.Connection) -> bool:
    """Whether a step must not begin: what is asked for is not deleted yet, or weights that hold it are still there."""
    j = schema.forget_jobs.c
    early = [ForgetStage.ASKED.value, ForgetStage.DELETED.value]
    return connection.execute(sa.select(j.job_id).where(j.stage.in_(early)).limit(1)).first() is not None


def delete_asked(
    connection: sa.Connection,
    job_id: str,
    *,
    key: bytes,
    note_turns: Callable[[Sequence[str]], None] = lambda turn_ids: None,
    now: float | None = None,
) -> ForgetJob:
    """Delete the rows of a job that is asked for, and note in it what is needed to go on.

    Args:
        key: of the fingerprints.
        note_turns: gets the ids of all turns and uploaded files before anything is deleted; called again where the transaction is.

    Raises:
        RecordError: there is no such job.
    """
    at = moment(now)
    j = schema.forget_jobs.c
    row = connection.execute(
        sa.select(schema.forget_jobs).where(j.job_id == job_id).with_for_update()
    ).one_or_none()
    if row is None:
        raise RecordError(f"there is no forget {job_id}")
    if row.stage == ForgetStage.ASKED.value:
        wanted = json.loads(row.selection)
        with_replies = wanted.pop("with_replies")
        try:
            closure = find_closure(connection, Selection(**wanted), with_replies=with_replies)
        except RecordError as exc:  # another job took it along, or it was never recorded
            detail: Json = {
                "nothing": str(exc),
                "complete": True,
                "remaining": [],
                "turns": 0,
                "reactions": [],
            }
            _update(connection, job_id, stage=ForgetStage.DONE, detail=detail, deleted_at=at)
        else:
            turns, files = schema.turns.c.turn_id, schema.training_files.c.file_id  # a receipt lists both
            note_turns(
                [one for ids in (turns, files) for one in connection.execute(sa.select(ids)).scalars()]
            )
            done = delete(connection, closure, key=key, now=at)
            _update(connection, job_id, stage=ForgetStage.DELETED, detail=_detail(done), deleted_at=at)
    found = find(connection, job_id)
    assert found is not None  # of this transaction
    return found


def _detail(done: Forgotten) -> Json:
    return {
        "receipt": {
            "turns": dict(done.turns),
            **done.closure.to_json(),
            "messages": list(done.messages),
            "nodes": done.nodes,
            "live_before": dict(done.closure.live),
        },
        "lines": list(done.closure.lines),
        "removed": list(done.removed),
        "keys": sorted(done.closure.keys),
        "texts": ForgottenTexts.of(done.closure.lines).to_json(),
        "reactions": list(done.closure.reactions),
    }


def change(
    connection: sa.Connection,
    job_id: str,
    *,
    stage: ForgetStage,
    to: ForgetStage | None = None,
    detail: Json | None = None,
    waits: str = "",
) -> bool:
    """Move a job on that is at ``stage``, or say for what it waits; returns whether it was there."""
    return _update(connection, job_id, at_stage=stage, stage=to, detail=detail, waits=waits)


def _update(
    connection: sa.Connection,
    job_id: str,
    *,
    stage: ForgetStage | None,
    at_stage: ForgetStage | None = None,
    detail: Json | None = None,
    waits: str = "",
    deleted_at: float | None = None,
) -> bool:
    if connection.dialect.name == "sqlite":
        connection.execute(sa.text("PRAGMA secure_delete=ON"))
    j = schema.forget_jobs
    values: dict[str, Any] = {"waits": waits}
    if stage is not None:
        values |= {"stage": stage.value, "selection": "{}"}
    if detail is not None:
        values["detail"] = exact_json(detail)
    if deleted_at is not None:
        values["deleted_at"] = deleted_at
    query = sa.update(j).where(j.c.job_id == job_id)
    if at_stage is not None:
        query = query.where(j.c.stage == at_stage.value)
    return bool(connection.execute(query.values(**values)).rowcount)


def _job(row: Row[Any]) -> ForgetJob:
    return value_of(ForgetJob, row, stage=ForgetStage(row.stage), detail=read_object(row.detail))


def delete_again(
    connection: sa.Connection, gone: Mapping[str, float], reactions: Collection[str]
) -> Closure | None:
    """Delete from an older copy of a record what was forgotten in the newer one; None: the copy has nothing of it.

    Args:
        gone: ids of the forgotten turns, and when they were.
        reactions: ids of turns that stay without the reactions to them.
    """
    gone = {**gone, **_known_by_texts(connection)}
    for turn_id, at in gone.items():
        add_forgotten(connection, [turn_id], at)
    if not gone and not reactions:
        return None
    selection = Selection(turns=tuple(gone), reactions=tuple(sorted(reactions)))
    try:
        closure = find_closure(connection, selection, with_replies=False)
    except RecordError:
        return None
    delete(connection, closure, key=b"", now=time.time())
    return closure if closure.turns or closure.files or closure.tainted else None


def _known_by_texts(connection: sa.Connection) -> dict[str, float]:
    """Return the turns that hold a text which was forgotten after them, and when it was."""
    return {
        turn_id: guard.at
        for guard in guards(connection, 0.0)
        if guard.texts.digests
        for turn_id in turns_holding(connection, guard.keys, guard.at, guard.texts.is_in)
    }


# ---- what is under way while something is forgotten


@dataclass(frozen=True, slots=True)
class Guard:
    """Keeps out of the record what began before a forget and holds its words.

    Attributes:
        at: Unix time of the deletion.
        keys: names of the API keys that it is about.
        words: matches what was forgotten, while the job still holds it.
        messages: addresses of the removed messages, while the job still holds them.
        texts: digests of what was forgotten.
    """

    at: float
    keys: frozenset[str]
    words: re.Pattern[str]
    messages: frozenset[str]
    texts: ForgottenTexts

    def refuses(self, turn: NewTurn, addresses: Sequence[str]) -> bool:
        """Whether a turn with messages of these addresses is not to be recorded."""
        if turn.created_at >= self.at or turn.key_name not in self.keys:
            return False
        if not self.messages.isdisjoint(addresses):
            return True
        completion = turn.completion
        texts = (completion.text, completion.reasoning, exact_json([*turn.messages, turn.request]))
        search = self.words.search
        if any(map(search, texts)) or search(exact_json(list(completion.tool_calls))) is not None:
            return True
        whole = (completion.text, completion.reasoning, turn.messages, turn.request, completion.tool_calls)
        return self.texts.is_in(whole)

    def refuses_feedback(self, given: Feedback, key_name: str) -> bool:
        """Whether feedback about a turn of a key is not to be recorded."""
        is_earlier = given.created_at < self.at and key_name in self.keys
        return is_earlier and (self.words.search(given.text) is not None or self.texts.is_in(given.text))


def guards(connection: sa.Connection, began_at: float) -> list[Guard]:
    """Return the guards of the forgets that deleted later than then, also of those that are done."""
    j = schema.forget_jobs.c
    deleted = j.stage.in_([stage.value for stage in ForgetStage if stage is not ForgetStage.ASKED])
    rows = connection.execute(sa.select(j.deleted_at, j.detail).where(deleted, j.deleted_at > began_at)).all()
    return [_guard(row.deleted_at, read_object(row.detail)) for row in rows]


def _guard(at: float, detail: Mapping[str, Any]) -> Guard:
    lines, removed = detail.get("lines", ()), detail.get("removed", ())
    texts = ForgottenTexts.from_json(detail.get("texts", {}))
    return Guard(at, frozenset(detail.get("keys", ())), pattern_of(lines), frozenset(removed), texts)


def reactions_forgotten_since(connection: sa.Connection, at: float) -> set[str]:
    """Return the turns that stay whose reactions were forgotten since then."""
    j = schema.forget_jobs.c
    rows = connection.execute(sa.select(j.detail).where(j.deleted_at >= at))
    return {str(turn_id) for detail in rows.scalars() for turn_id in read_object(detail).get("reactions", ())}
