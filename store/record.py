"""The record: every question the house asks of the database, and every write. The only queries.

Values in, values out; one short transaction a method; SQLite (WAL) by default, PostgreSQL by URL with the same code.
Foreign exceptions are mapped once, here (`_mapped`): nobody else sees SQLAlchemy.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Row
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from store import schema
from store.errors import IllegalTransition, RecordError, RecordTooNew, RecordUnavailable
from store.hashing import ROOT, chain, digest, exact_json, text_key
from store.lifecycle import REVIVABLE, DropReason, Event, Stage, advance, sources
from store.values import (
    BASE_VERSION,
    AdapterState,
    AdapterVersion,
    AliasMove,
    AnsweredTurn,
    Completion,
    Feedback,
    Heartbeat,
    Json,
    LogprobMode,
    NewTurn,
    NextState,
    Relation,
    ScoredTurn,
    StepReport,
    Tip,
    TurnFate,
    TurnKind,
    Verdict,
)
from store.verify import verify

#: Newest migration this code knows. A test holds it against `migrations/`.
SCHEMA_REVISION = "0001"

#: SQLite waits so long for another writer before it says "locked"; writes here take milliseconds.
BUSY_TIMEOUT_MS = 5000

_PREAMBLE_ROLES = frozenset({"system", "developer"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tips:
    """Stored turns found by their canonical keys, newest first."""

    replies: Mapping[str, tuple[Tip, ...]]  #: by reply_key: a history that ends after their reply
    requests: Mapping[str, tuple[Tip, ...]]  #: by request_key: the very same prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordStatus:
    """What `status` shows: a GROUP BY of the life of turns, and who does what now."""

    turns: int
    kinds: Mapping[str, int]
    stages: Mapping[str, int]
    drop_reasons: Mapping[str, int]
    live: Mapping[str, int]
    versions: Mapping[str, int]  #: adapter versions by state
    last_step: StepReport | None
    last_error: str | None
    training: str  #: "running" or "paused"
    heartbeats: tuple[Heartbeat, ...]

    def to_json(self) -> Json:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Scored turns that no step has claimed yet."""

    scored: int
    ready: int  #: of these, with something to teach
    oldest_since: float | None  #: when the first of them was scored


class Record:
    """The open record. Make it with `open`; safe for concurrent tasks of one event loop."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._dialect = engine.dialect.name

    @classmethod
    async def open(cls, url: str) -> Record:
        """Open a record whose schema exists (see `migrations.upgrade`).

        Raises:
            RecordTooNew: a newer Patina wrote it.
            RecordUnavailable: it cannot be reached.
            RecordError: it is no record of ours, or older than this code.
        """
        record = cls(_engine(url))
        try:
            async with record._read() as connection:
                try:
                    found = (
                        await connection.execute(sa.text("SELECT version_num FROM alembic_version"))
                    ).scalar_one_or_none()
                except DBAPIError as exc:
                    if _is_missing_table(exc):
                        found = None
                    else:
                        raise
            check_revision(found)
        except BaseException:
            await record.close()
            raise
        return record

    async def close(self) -> None:
        await self._engine.dispose()

    # ------------------------------------------------------------------ proxy

    async def write_turns(self, turns: Sequence[NewTurn]) -> None:
        """Write turns with their new messages and their parents' next states, all in one transaction.

        A turn id that is there already is skipped, so that a retried write is harmless.

        Raises:
            RecordUnavailable: locked, full or gone; nothing of it was written.
        """
        if not turns:
            return
        async with self._write() as connection:
            known = await self._existing(connection, [t.turn_id for t in turns])
            for turn in turns:
                if turn.turn_id not in known:
                    known.add(turn.turn_id)
                    await self._insert_turn(connection, turn)

    async def _existing(self, connection: AsyncConnection, ids: Sequence[str]) -> set[str]:
        rows = await connection.execute(
            sa.select(schema.turns.c.turn_id).where(schema.turns.c.turn_id.in_(ids))
        )
        return set(rows.scalars())

    async def _insert_turn(self, connection: AsyncConnection, turn: NewTurn) -> None:
        preamble = 0
        while preamble < len(turn.messages) and turn.messages[preamble].get("role") in _PREAMBLE_ROLES:
            preamble += 1
        preamble_node = await self._insert_chain(connection, turn.messages[:preamble])
        history_node = await self._insert_chain(connection, turn.messages[preamble:])
        request = await self._insert_messages(connection, [turn.request])
        base, base_length = await self._prompt_base(connection, turn)
        await connection.execute(
            sa.insert(schema.turns).values(
                turn_id=turn.turn_id,
                completion_id=turn.completion_id,
                session_id=turn.session_id,
                parent_turn_id=turn.parent_turn_id,
                turn_index=turn.turn_index,
                kind=turn.kind.value,
                relation=turn.relation.value,
                link_reason=turn.link_reason[:200],
                link_confidence=turn.link_confidence,
                policy=turn.policy,
                scope=turn.scope,
                adapter_version=turn.adapter_version,
                client=turn.client[:128],
                user=turn.user[:256] if turn.user is not None else None,
                created_at=turn.created_at,
                finished_at=turn.finished_at,
                status_code=turn.status_code,
                streamed=turn.streamed,
                preamble_node=preamble_node,
                history_node=history_node,
                request=request[0],
                completion=turn.completion.text,
                reasoning=turn.completion.reasoning,
                tool_calls=exact_json(list(turn.completion.tool_calls)),
                completion_token_ids=exact_json(list(turn.completion.token_ids)),
                sampling_logprobs=exact_json(list(turn.completion.sampling_logprobs)),
                finish_reason=turn.completion.finish_reason,
                prompt_base_turn_id=base,
                prompt_base_length=base_length,
                prompt_token_ids=exact_json(list(turn.prompt_token_ids[base_length:])),
                temperature=turn.temperature,
                logprob_mode=turn.logprob_mode.value,
                usage=None if turn.usage is None else exact_json(turn.usage),
                request_key=turn.request_key,
                reply_key=turn.reply_key,
                completion_key=text_key(turn.completion.text),
                drop_detail=turn.drop_detail,
            )
        )
        await connection.execute(
            sa.insert(schema.lives).values(
                turn_id=turn.turn_id,
                policy=turn.policy,
                stage=(Stage.DROPPED if turn.drop_reason else Stage.RECORDED).value,
                drop_reason=turn.drop_reason.value if turn.drop_reason else None,
                since=turn.finished_at,
            )
        )
        if turn.next_state is not None:
            await self._insert_next_state(connection, turn.next_state)

    async def _insert_chain(self, connection: AsyncConnection, messages: Sequence[Json]) -> str:
        """Store a message chain and return its last node; what is stored already is not written again."""
        if not messages:
            return ROOT
        hashes = [digest(exact_json(m)) for m in messages]
        nodes = chain(ROOT, hashes)
        present = set(
            (
                await connection.execute(
                    sa.select(schema.nodes.c.node).where(schema.nodes.c.node.in_(_tail_probe(nodes)))
                )
            ).scalars()
        )
        start = _first_missing(nodes, present)
        await self._insert_messages(connection, messages[start:])
        rows = [
            {"node": nodes[i], "parent": nodes[i - 1] if i else ROOT, "message": hashes[i], "depth": i}
            for i in range(start, len(nodes))
        ]
        if rows:
            await connection.execute(self._insert_ignore(schema.nodes), rows)
        return nodes[-1]

    async def _insert_messages(self, connection: AsyncConnection, bodies: Sequence[Json]) -> list[str]:
        texts = [exact_json(body) for body in bodies]
        hashes = [digest(text) for text in texts]
        if texts:
            await connection.execute(
                self._insert_ignore(schema.messages),
                [{"hash": h, "body": t} for h, t in zip(hashes, texts, strict=True)],
            )
        return hashes

    async def _prompt_base(self, connection: AsyncConnection, turn: NewTurn) -> tuple[str | None, int]:
        """Return (turn id, n): the first n prompt ids are the first n ids of that turn's prompt + completion."""
        if turn.parent_turn_id is None or not turn.prompt_token_ids:
            return None, 0
        parent = await self._full_ids(connection, turn.parent_turn_id)
        shared = 0
        for mine, theirs in zip(turn.prompt_token_ids, parent, strict=False):
            if mine != theirs:
                break
            shared += 1
        return (turn.parent_turn_id, shared) if shared else (None, 0)

    async def _full_ids(self, connection: AsyncConnection, turn_id: str) -> list[int]:
        """Return the turn's prompt + completion ids."""
        row = (
            await connection.execute(
                sa.select(schema.turns.c.completion_token_ids).where(schema.turns.c.turn_id == turn_id)
            )
        ).scalar_one_or_none()
        if row is None:
            return []
        completion: list[int] = json.loads(row)
        return [*await self._prompt_ids(connection, turn_id), *completion]

    async def _prompt_ids(self, connection: AsyncConnection, turn_id: str) -> list[int]:
        """Rebuild a turn's prompt ids by walking the bases down and then up again."""
        c = schema.turns.c
        pieces: list[tuple[int, list[int], list[int]]] = []  # (base length, own ids, completion ids)
        current: str | None = turn_id
        while current is not None:
            row = (
                await connection.execute(
                    sa.select(
                        c.prompt_base_turn_id,
                        c.prompt_base_length,
                        c.prompt_token_ids,
                        c.completion_token_ids,
                    ).where(c.turn_id == current)
                )
            ).one_or_none()
            if row is None:
                raise RecordError(f"turn {turn_id}: its prompt rests on turn {current}, which is not there")
            pieces.append((row[1], json.loads(row[2]), json.loads(row[3])))
            current = row[0]
        ids: list[int] = []
        completion: list[int] = []
        for base_length, own, own_completion in reversed(pieces):
            ids = [*[*ids, *completion][:base_length], *own]
            completion = own_completion
        return ids

    async def _insert_next_state(self, connection: AsyncConnection, state: NextState) -> None:
        hashes = await self._insert_messages(connection, state.messages)
        await connection.execute(
            self._insert_ignore(schema.next_states),
            [
                {
                    "turn_id": state.turn_id,
                    "by_turn_id": state.by_turn_id,
                    "role": state.role,
                    "text": state.text,
                    "messages": exact_json(hashes),
                    "relation": state.relation.value,
                    "created_at": state.created_at,
                }
            ],
        )
        await self._answer(connection, state.turn_id, state.created_at)

    async def _answer(self, connection: AsyncConnection, turn_id: str, at: float) -> None:
        """A turn that waited for an answer has one; a later one changes nothing but the list of next states."""
        await self._move(connection, [turn_id], Event.NEXT_STATE, at)
        await self._move(
            connection,
            [turn_id],
            Event.REVIVE,
            at,
            extra=schema.lives.c.drop_reason.in_([r.value for r in REVIVABLE]),
            drop_reason=None,
        )

    async def tips_for(self, scope: str, keys: Sequence[str]) -> Tips:
        """Return the stored turns of ``scope`` whose request or reply key is among ``keys``."""
        if not keys:
            return Tips(replies={}, requests={})
        async with self._read() as connection:
            found = []
            for statement in (_TIPS_BY_REPLY, _TIPS_BY_REQUEST):
                tips: dict[str, list[Tip]] = {}
                for row in await connection.execute(statement, {"scope": scope, "keys": list(keys)}):
                    tips.setdefault(row.key, []).append(_tip(row))
                found.append({key: tuple(some) for key, some in tips.items()})
        return Tips(replies=found[0], requests=found[1])

    async def session_tip(self, scope: str, session_id: str) -> Tip | None:
        """Return the newest main turn of an explicitly named session."""
        async with self._read() as connection:
            row = (
                await connection.execute(_SESSION_TIP, {"scope": scope, "session_id": session_id})
            ).one_or_none()
        return None if row is None else _tip(row)

    async def find_turn(self, scope: str, reference: str) -> str | None:
        """Return the id of the turn named by a turn id or by a completion id that its client saw."""
        c = schema.turns.c
        async with self._read() as connection:
            return (
                await connection.execute(
                    sa.select(c.turn_id)
                    .where(c.scope == scope, sa.or_(c.turn_id == reference, c.completion_id == reference))
                    .order_by(c.created_at.desc())
                    .limit(1)
                )
            ).scalar_one_or_none()

    async def find_exchange(self, scope: str, prompt: str, response: str) -> str | None:
        """Return the newest turn that answered ``response`` to a last user text ``prompt`` (CLaaS's feedback body)."""
        c = schema.turns.c
        async with self._read() as connection:
            rows = (
                await connection.execute(
                    sa.select(c.turn_id, c.preamble_node, c.history_node)
                    .where(c.scope == scope, c.completion_key == text_key(response))
                    .order_by(c.created_at.desc())
                    .limit(50)
                )
            ).all()
            for turn_id, _, history in rows:
                messages = await self._messages(connection, ROOT, history)
                if last_user_text(messages).strip() == prompt.strip():
                    return str(turn_id)
        return None

    async def add_feedback(self, feedback: Feedback) -> bool:
        """Store explicit feedback; a turn that waited for an answer (or had none) is up for scoring.

        Returns:
            False when this idempotency key is known already; nothing changed.
        """
        async with self._write() as connection:
            inserted = await connection.execute(
                self._insert_ignore(schema.feedback),
                {
                    "feedback_id": feedback.feedback_id,
                    "turn_id": feedback.turn_id,
                    "score": feedback.score,
                    "text": feedback.text,
                    "idempotency_key": feedback.idempotency_key,
                    "created_at": feedback.created_at,
                },
            )
            if inserted.rowcount == 0:
                return False
            await self._answer(connection, feedback.turn_id, feedback.created_at)
            # Scored already but not yet claimed: what a person says outweighs what was guessed, so score again.
            await self._move(connection, [feedback.turn_id], Event.RECONSIDER, feedback.created_at)
        return True

    async def close_session(self, scope: str, session_id: str) -> int:
        """The client says the session is over: turns nothing has followed will not be answered any more."""
        t, lv = schema.turns.c, schema.lives.c
        async with self._write() as connection:
            ids = list(
                (
                    await connection.execute(
                        sa.select(t.turn_id)
                        .join(schema.lives, lv.turn_id == t.turn_id)
                        .where(
                            t.scope == scope,
                            t.session_id == session_id,
                            lv.stage == Stage.RECORDED.value,
                        )
                    )
                ).scalars()
            )
            return await self._move(
                connection, ids, Event.DROP, time.time(), drop_reason=DropReason.NO_NEXT_STATE.value
            )

    async def aliases(self) -> dict[str, AliasMove]:
        """Return the live version of every policy that ever had one."""
        c = schema.alias_moves.c
        newest = sa.select(sa.func.max(c.move_id)).group_by(c.policy)
        async with self._read() as connection:
            rows = await connection.execute(
                sa.select(c.policy, c.version, c.moved_at, c.by).where(c.move_id.in_(newest))
            )
            return {row.policy: AliasMove(**row._mapping) for row in rows}

    async def alias_moves(self, policy: str) -> list[AliasMove]:
        """Return where the alias pointed over time, oldest first."""
        c = schema.alias_moves.c
        async with self._read() as connection:
            rows = await connection.execute(
                sa.select(c.policy, c.version, c.moved_at, c.by).where(c.policy == policy).order_by(c.move_id)
            )
            return [AliasMove(**row._mapping) for row in rows]

    async def adapter(self, policy: str, version: int) -> AdapterVersion | None:
        c = schema.adapters.c
        async with self._read() as connection:
            row = (
                await connection.execute(
                    sa.select(schema.adapters).where(c.policy == policy, c.version == version)
                )
            ).one_or_none()
        return None if row is None else _adapter(row)

    async def adapters(self, policy: str) -> list[AdapterVersion]:
        """Return every version of a policy, oldest first, rejected ones included."""
        c = schema.adapters.c
        async with self._read() as connection:
            rows = await connection.execute(
                sa.select(schema.adapters).where(c.policy == policy).order_by(c.version)
            )
            return [_adapter(row) for row in rows]

    async def heartbeat(self, beat: Heartbeat) -> None:
        """Say that a process lives and what it does; its row is its own."""
        values = {
            "process": beat.process,
            "pid": beat.pid,
            "state": beat.state,
            "detail": exact_json(beat.detail),
            "at": beat.at,
        }
        async with self._write() as connection:
            await connection.execute(self._upsert(schema.heartbeats, values, ["process"]))

    async def status(self) -> RecordStatus:
        """Return the counts and states that `status` shows."""
        t, lv, s, a = schema.turns.c, schema.lives.c, schema.steps.c, schema.adapters.c
        async with self._read() as connection:

            async def counts(column: sa.ColumnElement[Any], *where: sa.ColumnElement[bool]) -> dict[str, int]:
                rows = await connection.execute(
                    sa.select(column, sa.func.count()).where(*where).group_by(column).order_by(column)
                )
                return {str(name): int(count) for name, count in rows}

            kinds = await counts(t.kind)
            stages = await counts(lv.stage)
            reasons = await counts(lv.drop_reason, lv.drop_reason.is_not(None))
            versions = await counts(a.state)
            newest = (
                await connection.execute(sa.select(schema.steps).order_by(s.started_at.desc()).limit(1))
            ).one_or_none()
            error = (
                await connection.execute(
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
                for row in await connection.execute(
                    sa.select(schema.heartbeats).order_by(schema.heartbeats.c.process)
                )
            ]
            training = await self._control(connection, "training")
        live = {policy: move.version for policy, move in (await self.aliases()).items()}
        return RecordStatus(
            turns=sum(kinds.values()),
            kinds=kinds,
            stages=stages,
            drop_reasons=reasons,
            live=live,
            versions=versions,
            last_step=None if newest is None else _step(newest),
            last_error=error,
            training=training or "running",
            heartbeats=tuple(beats),
        )

    # ----------------------------------------------------------------- scorer

    async def answered(self, limit: int, *, exclude: Iterable[str] = ()) -> list[AnsweredTurn]:
        """Return turns that wait for a verdict, oldest first."""
        t, lv = schema.turns.c, schema.lives.c
        skip = list(exclude)
        async with self._read() as connection:
            query = (
                sa.select(schema.turns)
                .join(schema.lives, lv.turn_id == t.turn_id)
                .where(lv.stage == Stage.ANSWERED.value)
                .order_by(lv.since, t.turn_id)
                .limit(limit)
            )
            if skip:
                query = query.where(t.turn_id.not_in(skip))
            return [await self._answered(connection, row) for row in (await connection.execute(query)).all()]

    async def _answered(self, connection: AsyncConnection, row: Row[Any]) -> AnsweredTurn:
        n, f = schema.next_states.c, schema.feedback.c
        states = []
        for state in await connection.execute(
            sa.select(schema.next_states).where(n.turn_id == row.turn_id).order_by(n.created_at, n.by_turn_id)
        ):
            bodies = await self._bodies(connection, json.loads(state.messages))
            states.append(
                NextState(
                    turn_id=state.turn_id,
                    by_turn_id=state.by_turn_id,
                    role=state.role,
                    text=state.text,
                    messages=tuple(bodies),
                    relation=Relation(state.relation),
                    created_at=state.created_at,
                )
            )
        given = [
            Feedback(**entry._mapping)
            for entry in await connection.execute(
                sa.select(schema.feedback).where(f.turn_id == row.turn_id).order_by(f.created_at)
            )
        ]
        return AnsweredTurn(
            turn_id=row.turn_id,
            session_id=row.session_id,
            policy=row.policy,
            scope=row.scope,
            messages=tuple(await self._messages(connection, row.preamble_node, row.history_node)),
            request=(await self._bodies(connection, [row.request]))[0],
            completion=_completion(row),
            next_states=tuple(states),
            feedback=tuple(given),
            created_at=row.created_at,
        )

    async def add_verdict(self, verdict: Verdict, *, drop: DropReason | None = None) -> None:
        """Store a verdict and move its turn to scored, or with ``drop`` to dropped.

        A turn that is not waiting any more (forgotten, scored by somebody faster) keeps its stage; the verdict stays in
        the record all the same.
        """
        async with self._write() as connection:
            await connection.execute(
                sa.insert(schema.verdicts).values(
                    turn_id=verdict.turn_id,
                    value=verdict.value,
                    hint=verdict.hint,
                    hint_is_reaction=verdict.hint_is_reaction,
                    source=verdict.source[:256],
                    confidence=verdict.confidence,
                    detail=exact_json(verdict.detail),
                    created_at=verdict.created_at,
                )
            )
            if drop is None:
                await self._move(
                    connection,
                    [verdict.turn_id],
                    Event.VERDICT,
                    verdict.created_at,
                )
            else:
                await self._move(
                    connection,
                    [verdict.turn_id],
                    Event.DROP,
                    verdict.created_at,
                    only=(Stage.ANSWERED,),
                    drop_reason=drop.value,
                )

    # ---------------------------------------------------------------- trainer

    async def waiting(self, policy: str, *, hint_only: bool = False) -> Waiting:
        """Return what waits to be trained.

        Args:
            hint_only: count only turns with a hint as ready (methods that do not read the verdict), not those with a
                verdict of +1 or -1 as well.
        """
        lv, v = schema.lives.c, schema.verdicts.c
        w = schema.verdicts.alias("w")
        newest = (
            sa.select(sa.func.max(w.c.verdict_id))
            .where(w.c.turn_id == lv.turn_id)
            .correlate(schema.lives)
            .scalar_subquery()
        )
        has_signal = v.hint.is_not(None) if hint_only else sa.or_(v.hint.is_not(None), v.value != 0)
        async with self._read() as connection:
            row = (
                await connection.execute(
                    sa.select(
                        sa.func.count().label("scored"),
                        sa.func.coalesce(sa.func.sum(sa.case((has_signal, 1), else_=0)), 0).label("ready"),
                        sa.func.min(lv.since).label("oldest_since"),
                    )
                    .select_from(schema.lives.join(schema.verdicts, v.verdict_id == newest))
                    .where(lv.policy == policy, lv.stage == Stage.SCORED.value)
                )
            ).one()
        return Waiting(scored=int(row.scored), ready=int(row.ready), oldest_since=row.oldest_since)

    async def claim(
        self, policy: str, limit: int, *, worker: str, lease_s: float, now: float | None = None
    ) -> list[ScoredTurn]:
        """Take up to ``limit`` scored turns, oldest first, for ``worker`` until the lease runs out."""
        now = time.time() if now is None else now
        lv = schema.lives.c
        async with self._write() as connection:
            ids = list(
                (
                    await connection.execute(
                        sa.select(lv.turn_id)
                        .where(lv.policy == policy, lv.stage == Stage.SCORED.value)
                        .order_by(lv.since, lv.turn_id)
                        .limit(limit)
                        # PostgreSQL lets others read on meanwhile; SQLite has one writer and leaves this away.
                        .with_for_update(skip_locked=True)
                    )
                ).scalars()
            )
            await self._move(connection, ids, Event.CLAIM, now, claimed_by=worker, lease_until=now + lease_s)
            return [await self._scored(connection, turn_id) for turn_id in ids]

    async def renew(self, worker: str, lease_s: float, now: float | None = None) -> int:
        """Keep a worker's claims for another ``lease_s`` seconds; returns how many it still holds."""
        now = time.time() if now is None else now
        lv = schema.lives.c
        async with self._write() as connection:
            done = await connection.execute(
                sa.update(schema.lives)
                .where(lv.stage == Stage.CLAIMED.value, lv.claimed_by == worker)
                .values(lease_until=now + lease_s)
            )
            return done.rowcount

    async def release(self, turn_ids: Sequence[str], now: float | None = None) -> int:
        """Give claimed turns back, as a step that failed does."""
        async with self._write() as connection:
            return await self._move(
                connection,
                turn_ids,
                Event.RELEASE,
                time.time() if now is None else now,
                claimed_by=None,
                lease_until=None,
            )

    async def release_expired(self, now: float | None = None) -> int:
        """Give back the claims of workers that died: their leases ran out."""
        now = time.time() if now is None else now
        lv = schema.lives.c
        async with self._write() as connection:
            ids = list(
                (
                    await connection.execute(
                        sa.select(lv.turn_id).where(lv.stage == Stage.CLAIMED.value, lv.lease_until < now)
                    )
                ).scalars()
            )
            return await self._move(connection, ids, Event.RELEASE, now, claimed_by=None, lease_until=None)

    async def drop(self, turn_ids: Sequence[str], reason: DropReason, now: float | None = None) -> int:
        """End the life of turns that cannot train, with the reason."""
        async with self._write() as connection:
            return await self._move(
                connection,
                turn_ids,
                Event.DROP,
                time.time() if now is None else now,
                drop_reason=reason.value,
                claimed_by=None,
                lease_until=None,
            )

    async def next_version(self, policy: str) -> int:
        """Return a version number no adapter of this policy ever had, rejected ones included."""
        async with self._read() as connection:
            newest = (
                await connection.execute(
                    sa.select(sa.func.max(schema.adapters.c.version)).where(
                        schema.adapters.c.policy == policy
                    )
                )
            ).scalar_one_or_none()
        return (newest or BASE_VERSION) + 1

    async def publish(
        self, adapter: AdapterVersion, turn_ids: Sequence[str], step: StepReport, *, by: str = "trainer"
    ) -> None:
        """Publish a version, move the alias to it and mark its turns trained: one transaction, all or nothing.

        Raises:
            IllegalTransition: a turn is not claimed any more (its lease ran out and somebody else has it): nothing is
                written, so that no turn is ever trained twice.
        """
        async with self._write() as connection:
            moved = await self._move(
                connection,
                turn_ids,
                Event.STEPPED,
                adapter.created_at,
                trained_in_version=adapter.version,
                claimed_by=None,
                lease_until=None,
            )
            if moved != len(turn_ids):
                raise IllegalTransition(
                    f"{len(turn_ids) - moved} of {len(turn_ids)} turns are not claimed by this step any more"
                )
            await self._insert_adapter(connection, adapter)
            await self._upsert_step(connection, step)
            await connection.execute(
                sa.insert(schema.alias_moves).values(
                    policy=adapter.policy, version=adapter.version, moved_at=adapter.created_at, by=by
                )
            )

    async def reject(
        self,
        adapter: AdapterVersion,
        step: StepReport,
        *,
        release: Sequence[str] = (),
        drop: Sequence[str] = (),
    ) -> None:
        """Record a version the gate refused; its turns go back or, when they caused it twice, out."""
        async with self._write() as connection:
            await self._insert_adapter(connection, adapter)
            await self._upsert_step(connection, step)
            await self._move(
                connection, release, Event.RELEASE, adapter.created_at, claimed_by=None, lease_until=None
            )
            await self._move(
                connection,
                drop,
                Event.DROP,
                adapter.created_at,
                drop_reason=DropReason.GATE_REJECTED.value,
                claimed_by=None,
                lease_until=None,
            )

    async def write_step(self, step: StepReport) -> None:
        """Store (or complete) the report of a step that published nothing."""
        async with self._write() as connection:
            await self._upsert_step(connection, step)

    async def steps(self, policy: str, limit: int = 1000) -> list[StepReport]:
        """Return the newest steps, newest first."""
        s = schema.steps.c
        async with self._read() as connection:
            rows = await connection.execute(
                sa.select(schema.steps).where(s.policy == policy).order_by(s.started_at.desc()).limit(limit)
            )
            return [_step(row) for row in rows]

    async def mark_pruned(self, policy: str, versions: Sequence[int]) -> None:
        """The files of these versions are gone by the retention policy; their rows stay."""
        c = schema.adapters.c
        async with self._write() as connection:
            await connection.execute(
                sa.update(schema.adapters)
                .where(c.policy == policy, c.version.in_(list(versions)))
                .values(state=AdapterState.PRUNED.value)
            )

    async def trained_turns(
        self, policy: str, *, version: int | None = None, limit: int = 1000
    ) -> list[ScoredTurn]:
        """Return turns that were trained (in ``version``), newest first: for `why` and for replay."""
        lv = schema.lives.c
        async with self._read() as connection:
            query = sa.select(lv.turn_id).where(lv.policy == policy, lv.stage == Stage.TRAINED.value)
            if version is not None:
                query = query.where(lv.trained_in_version == version)
            ids = list(
                (await connection.execute(query.order_by(lv.since.desc(), lv.turn_id).limit(limit))).scalars()
            )
            return [await self._scored(connection, turn_id) for turn_id in ids]

    async def scored_turns(self, turn_ids: Sequence[str]) -> list[ScoredTurn]:
        """Return these turns with their newest verdicts, those that are still in the record, in the given order."""
        v = schema.verdicts.c
        async with self._read() as connection:
            rows = await connection.execute(sa.select(v.turn_id).where(v.turn_id.in_(list(turn_ids))))
            known = set(rows.scalars())
            return [await self._scored(connection, i) for i in turn_ids if i in known]

    async def recent_verdict_values(self, policy: str, limit: int) -> list[int]:
        """Return the values of a policy's newest verdicts that had an opinion, newest first: the baseline's window."""
        v, lv = schema.verdicts.c, schema.lives.c
        async with self._read() as connection:
            rows = await connection.execute(
                sa.select(v.value)
                .join(schema.lives, lv.turn_id == v.turn_id)
                .where(lv.policy == policy, v.value.is_not(None))
                .order_by(v.verdict_id.desc())
                .limit(limit)
            )
            return [int(value) for value in rows.scalars()]

    async def _scored(self, connection: AsyncConnection, turn_id: str) -> ScoredTurn:
        row = (
            await connection.execute(sa.select(schema.turns).where(schema.turns.c.turn_id == turn_id))
        ).one()
        v, n = schema.verdicts.c, schema.next_states.c
        verdict = (
            await connection.execute(
                sa.select(schema.verdicts).where(v.turn_id == turn_id).order_by(v.verdict_id.desc()).limit(1)
            )
        ).one()
        next_text = (
            await connection.execute(
                sa.select(n.text)
                .where(n.turn_id == turn_id)
                .order_by(n.created_at.desc(), n.by_turn_id)
                .limit(1)
            )
        ).scalar_one_or_none()
        return ScoredTurn(
            turn_id=row.turn_id,
            session_id=row.session_id,
            turn_index=row.turn_index,
            policy=row.policy,
            scope=row.scope,
            adapter_version=row.adapter_version,
            messages=tuple(await self._messages(connection, row.preamble_node, row.history_node)),
            request=(await self._bodies(connection, [row.request]))[0],
            completion=_completion(row),
            prompt_token_ids=tuple(await self._prompt_ids(connection, turn_id)),
            temperature=row.temperature,
            logprob_mode=LogprobMode(row.logprob_mode),
            verdict=Verdict(
                turn_id=turn_id,
                value=verdict.value,
                hint=verdict.hint,
                hint_is_reaction=verdict.hint_is_reaction,
                source=verdict.source,
                confidence=verdict.confidence,
                detail=json.loads(verdict.detail),
                created_at=verdict.created_at,
            ),
            next_text=next_text or "",
            created_at=row.created_at,
        )

    # ----------------------------------------------------------------- person

    async def rollback(
        self, policy: str, version: int, *, by: str = "rollback", now: float | None = None
    ) -> None:
        """Point the alias back (or forward) to a version that once passed the gate; 0 is the bare base model.

        Raises:
            RecordError: there is no such version, it never passed the gate, or its files are gone.
        """
        if version != BASE_VERSION:
            found = await self.adapter(policy, version)
            if found is None:
                raise RecordError(f"{policy} has no version {version}")
            if found.state is not AdapterState.PUBLISHED:
                raise RecordError(f"{found.name} cannot serve: it is {found.state.value} ({found.reason})")
        async with self._write() as connection:
            await connection.execute(
                sa.insert(schema.alias_moves).values(
                    policy=policy, version=version, moved_at=time.time() if now is None else now, by=by
                )
            )

    async def set_paused(self, paused: bool, now: float | None = None) -> None:
        """Pause or resume training; what is recorded and scored meanwhile waits."""
        values = {
            "name": "training",
            "value": "paused" if paused else "running",
            "at": time.time() if now is None else now,
        }
        async with self._write() as connection:
            await connection.execute(self._upsert(schema.controls, values, ["name"]))

    async def is_paused(self) -> bool:
        async with self._read() as connection:
            return await self._control(connection, "training") == "paused"

    async def _control(self, connection: AsyncConnection, name: str) -> str | None:
        return (
            await connection.execute(sa.select(schema.controls.c.value).where(schema.controls.c.name == name))
        ).scalar_one_or_none()

    async def fates(self, turn_ids: Sequence[str]) -> dict[str, TurnFate]:
        lv = schema.lives.c
        async with self._read() as connection:
            rows = await connection.execute(sa.select(schema.lives).where(lv.turn_id.in_(turn_ids)))
            return {
                row.turn_id: TurnFate(
                    turn_id=row.turn_id,
                    stage=Stage(row.stage),
                    drop_reason=DropReason(row.drop_reason) if row.drop_reason else None,
                    trained_in_version=row.trained_in_version,
                )
                for row in rows
            }

    async def trajectories(
        self,
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
        async with self._read() as connection:
            rows = await connection.execute(query)
            return [_trajectory(row) for row in rows]

    async def all_turns(self, batch: int = 500) -> AsyncIterator[Json]:
        """Yield every row of ``trajectories``, oldest first, without holding a transaction open between pages."""
        after: tuple[float, str] | None = None
        while rows := await self.trajectories(after=after, limit=batch):
            for row in rows:
                yield row
            after = (rows[-1]["created_at"], rows[-1]["turn_id"])

    async def verify(self) -> list[str]:
        """Re-hash and cross-check the record; one sentence for each thing wrong, none when all is well."""
        async with self._read() as connection:
            return await verify(connection, self._prompt_ids)

    # ---------------------------------------------------------------- helpers

    async def _messages(self, connection: AsyncConnection, *tips: str) -> list[Json]:
        """Return the message chains that end in ``tips``, concatenated."""
        found: list[Json] = []
        n = schema.nodes.c
        for tip in tips:
            if tip == ROOT:
                continue
            walk = sa.select(n.parent, n.message, n.depth).where(n.node == tip).cte("walk", recursive=True)
            walk = walk.union_all(sa.select(n.parent, n.message, n.depth).join(walk, n.node == walk.c.parent))
            rows = await connection.execute(
                sa.select(schema.messages.c.body)
                .join(walk, schema.messages.c.hash == walk.c.message)
                .order_by(walk.c.depth)
            )
            found += [json.loads(body) for body in rows.scalars()]
        return found

    async def _bodies(self, connection: AsyncConnection, hashes: Sequence[str]) -> list[Json]:
        rows = await connection.execute(
            sa.select(schema.messages).where(schema.messages.c.hash.in_(list(hashes)))
        )
        found = {row.hash: json.loads(row.body) for row in rows}
        return [found[name] for name in hashes]

    async def _move(
        self,
        connection: AsyncConnection,
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
        lv = schema.lives.c
        moved = 0
        for stage in only or sources(event):
            where = [lv.turn_id.in_(list(turn_ids)), lv.stage == stage.value]
            if extra is not None:
                where.append(extra)
            done = await connection.execute(
                sa.update(schema.lives)
                .where(*where)
                .values(stage=advance(stage, event).value, since=at, **columns)
            )
            moved += done.rowcount
        return moved

    async def _insert_adapter(self, connection: AsyncConnection, adapter: AdapterVersion) -> None:
        await connection.execute(
            sa.insert(schema.adapters).values(
                policy=adapter.policy,
                version=adapter.version,
                path=adapter.path,
                content_hash=adapter.content_hash,
                parent_version=adapter.parent_version,
                state=adapter.state.value,
                reason=adapter.reason,
                method=adapter.method,
                metrics=exact_json(adapter.metrics),
                created_at=adapter.created_at,
            )
        )

    async def _upsert_step(self, connection: AsyncConnection, step: StepReport) -> None:
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
        await connection.execute(self._upsert(schema.steps, values, ["step_id"]))

    def _insert_ignore(self, table: sa.Table) -> sa.Insert:
        if self._dialect == "postgresql":
            return postgresql.insert(table).on_conflict_do_nothing()
        return sqlite.insert(table).on_conflict_do_nothing()

    def _upsert(self, table: sa.Table, values: Mapping[str, Any], key: Sequence[str]) -> sa.Insert:
        rest = {name: value for name, value in values.items() if name not in key}
        if self._dialect == "postgresql":
            return (
                postgresql.insert(table)
                .values(**values)
                .on_conflict_do_update(index_elements=list(key), set_=rest)
            )
        return (
            sqlite.insert(table).values(**values).on_conflict_do_update(index_elements=list(key), set_=rest)
        )

    @asynccontextmanager
    async def _read(self) -> AsyncIterator[AsyncConnection]:
        async with _mapped(), self._engine.connect() as connection:
            yield connection

    @asynccontextmanager
    async def _write(self) -> AsyncIterator[AsyncConnection]:
        async with _mapped(), self._engine.connect() as connection:
            if self._dialect == "sqlite":
                # Take the write lock at once: a read that later turns into a write fails with SQLITE_BUSY at any timeout.
                await connection.exec_driver_sql("BEGIN IMMEDIATE")
                try:
                    yield connection
                except BaseException:
                    await connection.exec_driver_sql("ROLLBACK")
                    raise
                await connection.exec_driver_sql("COMMIT")
            else:
                async with connection.begin():
                    yield connection


def _tip_select(key: sa.ColumnElement[Any]) -> sa.Select[Any]:
    c = schema.turns.c
    child = schema.turns.alias("child")
    extended = (
        sa.exists()
        .where(
            child.c.session_id == c.session_id,
            child.c.parent_turn_id == c.turn_id,
            child.c.kind == TurnKind.MAIN.value,
            child.c.relation != Relation.RETRY.value,
        )
        .correlate(schema.turns)
    )
    return sa.select(
        c.turn_id,
        c.session_id,
        c.turn_index,
        c.kind,
        c.parent_turn_id,
        key.label("key"),
        (~extended).label("is_newest"),
        c.created_at,
    ).where(c.scope == sa.bindparam("scope"))


def _tips_by(column: sa.ColumnElement[Any]) -> sa.Select[Any]:
    c = schema.turns.c
    return (
        _tip_select(column)
        .where(column.in_(sa.bindparam("keys", expanding=True)))
        .order_by(c.created_at.desc(), c.turn_id.desc())
    )


# Built once: putting such a statement together costs as much as running it, and these run for every request.
_TIPS_BY_REPLY = _tips_by(schema.turns.c.reply_key)
_TIPS_BY_REQUEST = _tips_by(schema.turns.c.request_key)
_SESSION_TIP = (
    _tip_select(sa.func.coalesce(schema.turns.c.reply_key, schema.turns.c.request_key))
    .where(
        schema.turns.c.session_id == sa.bindparam("session_id"),
        schema.turns.c.kind == TurnKind.MAIN.value,
    )
    .order_by(schema.turns.c.turn_index.desc(), schema.turns.c.created_at.desc())
    .limit(1)
)


def last_user_text(messages: Sequence[Json]) -> str:
    """Return the text of the last user message, parts joined; empty when there is none."""
    for message in reversed(messages):
        if message.get("role") == "user":
            return content_text(message.get("content"))
    return ""


def content_text(content: Any) -> str:
    """Return the text of a message's content: a string as it is, the text parts of a list, nothing of the rest."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        return "\n".join(text for text in texts if isinstance(text, str))
    return ""


def check_revision(found: str | None) -> None:
    """Raises: RecordTooNew or RecordError when the database's schema revision is not ours."""
    if found == SCHEMA_REVISION:
        return
    if found is None:
        raise RecordError("the database holds no Patina record yet; start Patina once to create it")
    if found > SCHEMA_REVISION:
        raise RecordTooNew(
            f"the record was written by a newer Patina (schema {found}, this program knows {SCHEMA_REVISION}): "
            "update Patina, or give another --home"
        )
    raise RecordError(
        f"the record has schema {found}, this program needs {SCHEMA_REVISION}: run the migrations"
    )


def _engine(url: str) -> AsyncEngine:
    try:
        parsed = sa.make_url(url)
    except SQLAlchemyError as exc:
        raise RecordError(f"{url!r} is not a database URL") from exc
    if parsed.get_backend_name() == "sqlite":
        if parsed.database and parsed.database != ":memory:":
            folder = Path(parsed.database).parent
            if not folder.is_dir():
                raise RecordUnavailable(f"the record's folder {folder} is not there")
        # AUTOCOMMIT: the driver begins no transaction of its own; `_write` does, with BEGIN IMMEDIATE.
        engine = create_async_engine(parsed, isolation_level="AUTOCOMMIT", pool_size=4, max_overflow=8)
        sa.event.listen(engine.sync_engine, "connect", _set_pragmas)
        return engine
    if parsed.get_backend_name() != "postgresql":
        raise RecordError(f"the record lives in SQLite or PostgreSQL, not in {parsed.get_backend_name()}")
    try:
        return create_async_engine(parsed, pool_pre_ping=True)
    except ModuleNotFoundError as exc:
        raise RecordError("PostgreSQL needs the extra: pip install 'patina[postgres]'") from exc


def _set_pragmas(connection: Any, _: object) -> None:
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    cursor.execute("PRAGMA journal_mode=WAL")
    # WAL + NORMAL: a committed row survives kill -9 of any process; only a power cut may take the last milliseconds.
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


@asynccontextmanager
async def _mapped() -> AsyncIterator[None]:
    """Map SQLAlchemy's and the drivers' exceptions to ours, once."""
    try:
        yield
    except DBAPIError as exc:
        if isinstance(exc, sa.exc.OperationalError | sa.exc.InterfaceError):
            raise RecordUnavailable(f"the record cannot be used: {exc.orig}") from exc
        raise RecordError(f"the record refused: {exc.orig}") from exc
    except SQLAlchemyError as exc:
        raise RecordUnavailable(f"the record cannot be used: {exc}") from exc
    except OSError as exc:
        raise RecordUnavailable(f"the record cannot be reached: {exc}") from exc


def _is_missing_table(exc: DBAPIError) -> bool:
    text = str(exc.orig).lower()
    return "no such table" in text or "does not exist" in text


def _tail_probe(nodes: Sequence[str]) -> list[str]:
    """Return the nodes to look up: all of a short chain, of a long one the last ones and every power of two from the end.

    A chain is stored prefix by prefix, so that one stored node proves all before it.
    """
    if len(nodes) <= 64:
        return list(nodes)
    picked = set(range(len(nodes) - 16, len(nodes)))
    step = 16
    while step < len(nodes):
        picked.add(len(nodes) - 1 - step)
        step *= 2
    picked.add(0)
    return [nodes[i] for i in sorted(picked)]


def _first_missing(nodes: Sequence[str], present: set[str]) -> int:
    for i in range(len(nodes) - 1, -1, -1):
        if nodes[i] in present:
            return i + 1
    return 0


def _tip(row: Row[Any]) -> Tip:
    return Tip(
        turn_id=row.turn_id,
        session_id=row.session_id,
        turn_index=row.turn_index,
        kind=TurnKind(row.kind),
        parent_turn_id=row.parent_turn_id,
        key=row.key,
        is_newest=bool(row.is_newest),
        created_at=row.created_at,
    )


def _completion(row: Row[Any]) -> Completion:
    return Completion(
        text=row.completion,
        reasoning=row.reasoning,
        tool_calls=tuple(json.loads(row.tool_calls)),
        token_ids=tuple(json.loads(row.completion_token_ids)),
        sampling_logprobs=tuple(json.loads(row.sampling_logprobs)),
        finish_reason=row.finish_reason,
    )


def _adapter(row: Row[Any]) -> AdapterVersion:
    return AdapterVersion(
        policy=row.policy,
        version=row.version,
        path=row.path,
        content_hash=row.content_hash,
        parent_version=row.parent_version,
        state=AdapterState(row.state),
        reason=row.reason,
        method=row.method,
        metrics=json.loads(row.metrics),
        created_at=row.created_at,
    )


def _step(row: Row[Any]) -> StepReport:
    return StepReport(
        step_id=row.step_id,
        policy=row.policy,
        method=row.method,
        started_at=row.started_at,
        finished_at=row.finished_at,
        version=row.version,
        error=row.error,
        metrics=json.loads(row.metrics),
    )


def _trajectory(row: Row[Any]) -> Json:
    value = dict(row._mapping)
    for name in ("messages", "tool_calls", "completion_token_ids", "sampling_logprobs"):
        value[name] = json.loads(value[name])
    return value
