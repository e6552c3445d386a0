"""Writing turns: what the recorder does with every exchange.

The cost of a turn is what is new in it. Its request carries the whole history again, so that of the newest turn of every conversation
is remembered what was stored for it (`_Stored`); where nothing is remembered (after a restart, in a branch) the record is asked.
The record decides, not the recorder's memory: a parent that was removed meanwhile is not used.
"""

from __future__ import annotations

import math
import time
from array import array
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

import orjson
import sqlalchemy as sa

from store import schema
from store.database import PreparedStatement, insert_ignore, present
from store.hashing import ROOT, chain, digest, text_key, wire_json
from store.lifecycle import RESCORED, DropReason, Event, Stage, advance, sources
from store.queries.common import full_ids, move, unindexed
from store.queries.forget import add_forgotten
from store.queries.forget_jobs import guards
from store.values import Json, KindCorrection, LinkCorrection, NewTurn, NextState, TurnKind

_PREAMBLE_ROLES = frozenset({"system", "developer"})

#: Chains up to this length are stored without asking first how much of them is there.
_SHORT = 16


@dataclass(frozen=True, slots=True)
class _Stored:
    """What is in the record for a turn that was written.

    Attributes:
        messages: those behind the leading system ones, as the gateway read them; ``texts`` is their JSON, ``hashes`` and ``nodes``
            are theirs.
        ids: [T] prompt and completion ids.
        size: about what it takes in memory, bytes.
    """

    messages: tuple[Json, ...]
    texts: list[str]
    hashes: list[str]
    nodes: list[str]
    ids: array[int]
    size: int


#: What `TurnWriter.write` returns for `TurnWriter.keep`.
Written = list[tuple[NewTurn, _Stored]]


class TurnWriter:
    """Writes turns, and remembers of the newest what the next ones will repeat.

    `write` runs in the database's writing thread; `keep` is called there as well, once the transaction is known to be committed.

    Args:
        capacity, capacity_bytes: of the memory.
    """

    def __init__(self, capacity: int = 4096, capacity_bytes: int = 64 << 20) -> None:
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._stored: OrderedDict[str, _Stored] = OrderedDict()
        self._size = 0

    @property
    def remembered(self) -> tuple[int, int]:
        """How many turns are remembered, and about how many bytes that takes."""
        return len(self._stored), self._size

    def write(
        self, connection: sa.Connection, turns: Sequence[NewTurn], done: Sequence[tuple[str, str]] = ()
    ) -> Written:
        """Write turns with their new messages and their parents' next states; returns what to `keep`.

        Args:
            done: (key_name, session) of sessions that their clients say are over.
        """
        batch = _Batch(connection, self._stored, turns)
        for turn in turns:
            batch.add(turn)
        batch.insert()
        for key_name, session_id in done:
            _close_session(connection, key_name, session_id, turns[-1].finished_at)
        return batch.kept

    def keep(self, written: Sequence[tuple[NewTurn, _Stored]]) -> None:
        """Remember turns whose transaction is committed; their parents are not needed any more."""
        for turn, stored in written:
            parent = self._stored.pop(turn.parent_turn_id or "", None)
            if parent is not None:
                self._size -= parent.size
            self._stored[turn.turn_id] = stored
            self._size += stored.size
        while self._stored and (len(self._stored) > self._capacity or self._size > self._capacity_bytes):
            _, oldest = self._stored.popitem(last=False)
            self._size -= oldest.size


def _forgotten_at(connection: sa.Connection, turn_ids: Collection[str]) -> dict[str, float]:
    """Return when those of these turns were forgotten that were."""
    f = schema.forgotten_turns.c
    known = present(connection, f.turn_id, list(turn_ids))
    if not known:
        return {}
    rows = connection.execute(sa.select(f.turn_id, f.at).where(f.turn_id.in_(known)))
    return {row.turn_id: row.at for row in rows}


class _Batch:
    """The rows of one transaction, gathered table by table."""

    def __init__(
        self, connection: sa.Connection, stored: Mapping[str, _Stored], turns: Sequence[NewTurn]
    ) -> None:
        self._connection = connection
        self._stored = stored
        self._new: dict[str, _Stored] = {}
        asked = {t.turn_id for t in turns} | {t.parent_turn_id for t in turns if t.parent_turn_id}
        asked |= {state.turn_id for turn in turns for state in _next_states(turn)}
        self._there = present(connection, schema.turns.c.turn_id, list(asked))
        self._guards = guards(connection, min((turn.created_at for turn in turns), default=math.inf))
        self._forgotten = _forgotten_at(connection, asked)
        self.kept: list[tuple[NewTurn, _Stored]] = []
        self._messages: dict[str, str] = {}
        self._nodes: list[Json] = []
        self._turns: list[Json] = []
        self._states: list[Json] = []
        self._next_states: list[Json] = []
        self._answers: list[Json] = []
        self._corrections: list[KindCorrection] = []
        self._link_corrections: list[LinkCorrection] = []

    def add(self, turn: NewTurn) -> None:
        if turn.turn_id in self._there or turn.turn_id in self._forgotten:
            return  # written before: a retry, or replayed from the journal, maybe after it was forgotten
        if self._holds_forgotten(turn):
            self._forgotten[turn.turn_id] = time.time()
            add_forgotten(self._connection, [turn.turn_id], time.time())
            return
        self._there.add(turn.turn_id)
        parent = turn.parent_turn_id if turn.parent_turn_id in self._there else None
        before = (self._new.get(parent) or self._stored.get(parent)) if parent is not None else None
        split = 0
        while split < len(turn.messages) and turn.messages[split].get("role") in _PREAMBLE_ROLES:
            split += 1
        _, _, preamble = self._chain(turn.messages[:split], None)
        texts, hashes, nodes = self._chain(turn.messages[split:], before)
        base, base_length = self._base(turn, parent, before)
        request = self._message(turn.request)
        stored = _Stored(
            messages=turn.messages[split:],
            texts=texts,
            hashes=hashes,
            nodes=nodes,
            ids=array("Q", (*turn.prompt_token_ids, *turn.completion.token_ids)),
            size=sum(map(len, texts)) + 8 * len(turn.prompt_token_ids) + 300 * len(nodes) + 1000,
        )
        self._new[turn.turn_id] = stored
        self.kept.append((turn, stored))
        self._turns.append(
            {
                **_columns(turn),
                "parent_turn_id": parent,
                "preamble_node": preamble[-1] if preamble else ROOT,
                "history_node": nodes[-1] if nodes else ROOT,
                "request": request,
                "prompt_base_turn_id": base,
                "prompt_base_length": base_length,
                "prompt_token_ids": _numbers(turn.prompt_token_ids[base_length:]),
            }
        )
        self._states.append(
            {
                "turn_id": turn.turn_id,
                "policy": turn.policy,
                "stage": (Stage.DROPPED if turn.drop_reason else Stage.RECORDED).value,
                "drop_reason": turn.drop_reason.value if turn.drop_reason else None,
                "detail": turn.drop_detail or None,
                "stage_since": turn.finished_at,
            }
        )
        self._corrections += turn.corrections
        self._link_corrections += turn.link_corrections
        for state in _next_states(turn):
            if state.turn_id in self._there:
                self._answer(state)

    def _holds_forgotten(self, turn: NewTurn) -> bool:
        """Whether a turn that began before a forget continues what was forgotten, or holds its words."""
        if turn.created_at < self._forgotten.get(turn.parent_turn_id or "", 0.0):
            return True
        if not self._guards:
            return False
        addresses = [digest(wire_json(body)) for body in turn.messages]
        return any(guard.refuses(turn, addresses) for guard in self._guards)

    def _message(self, body: Json) -> str:
        text = wire_json(body)
        name = digest(text)
        self._messages[name] = text
        return name

    def _chain(
        self, messages: Sequence[Json], before: _Stored | None
    ) -> tuple[list[str], list[str], list[str]]:
        """Gather what is new in a message chain; returns its texts, their addresses and the nodes."""
        start, hashes, nodes = 0, [], []
        if before is not None and _begins_with(messages, before.messages):
            start = len(before.texts)
            texts = before.texts + [wire_json(message) for message in messages[start:]]
        else:
            texts = [wire_json(message) for message in messages]
            if before is not None:
                start = _shared(texts, before.texts)
        if before is not None:
            # the older strings, so that a conversation is in memory once
            texts[:start], hashes, nodes = before.texts[:start], before.hashes[:start], before.nodes[:start]
        hashes += [digest(text) for text in texts[start:]]
        nodes += chain(nodes[-1] if nodes else ROOT, hashes[start:])
        if len(nodes) - start > _SHORT:
            found = present(self._connection, schema.nodes.c.node, _tail_probe(nodes[start:]))
            start += _first_missing(nodes[start:], found)
        for i in range(start, len(nodes)):
            self._messages[hashes[i]] = texts[i]
            parent = nodes[i - 1] if i else ROOT
            self._nodes.append({"node": nodes[i], "parent": parent, "message": hashes[i], "depth": i})
        return texts, hashes, nodes

    def _base(self, turn: NewTurn, parent: str | None, before: _Stored | None) -> tuple[str | None, int]:
        """Return (turn id, n): the first n prompt ids are the first n ids of that turn's prompt + completion."""
        if parent is None or not turn.prompt_token_ids:
            return None, 0
        theirs = before.ids if before is not None else array("Q", full_ids(self._connection, parent))
        shared = _shared(array("Q", turn.prompt_token_ids), theirs)
        return (parent, shared) if shared else (None, 0)

    def _answer(self, state: NextState) -> None:
        self._next_states.append(
            {
                "turn_id": state.turn_id,
                "by_turn_id": state.by_turn_id,
                "role": state.role,
                "text": state.text,
                "messages": wire_json([self._message(body) for body in state.messages]),
                "relation": state.relation.value,
                "created_at": state.created_at,
            }
        )
        self._answers.append({"of_turn": state.turn_id, "at": state.created_at})

    def insert(self) -> None:
        connection = self._connection
        _INSERT_MESSAGES.many(connection, [{"hash": h, "body": b} for h, b in self._messages.items()])
        _INSERT_NODES.many(connection, self._nodes)
        _INSERT_TURNS.many(connection, self._turns)
        _INSERT_TURN_STATES.many(connection, self._states)
        for correction in self._corrections:
            _correct_kind(connection, correction)
        for moved in self._link_corrections:
            _correct_link(connection, moved)
        _INSERT_NEXT_STATES.many(connection, self._next_states)
        for statement in _ANSWER:
            statement.many(connection, self._answers)


def _next_states(turn: NewTurn) -> tuple[NextState, ...]:
    """Return what a turn says about earlier ones."""
    return (
        turn.earlier_next_states if turn.next_state is None else (turn.next_state, *turn.earlier_next_states)
    )


def _correct_kind(connection: sa.Connection, found: KindCorrection) -> None:
    """Set a turn's final kind; the first one stays in the row. A side turn that becomes a main turn may train."""
    t, lv = schema.turns.c, schema.turn_states.c
    connection.execute(
        sa.update(schema.turns)
        .where(t.turn_id == found.turn_id, t.kind != found.kind.value)
        .values(
            first_kind=sa.func.coalesce(t.first_kind, t.kind),
            first_kind_reason=sa.func.coalesce(t.first_kind_reason, t.kind_reason),
            first_kind_evidence=sa.func.coalesce(t.first_kind_evidence, t.kind_evidence),
            kind=found.kind.value,
            kind_reason=found.reason,
            kind_evidence=wire_json([list(pair) for pair in found.evidence]),
        )
    )
    if found.kind is TurnKind.SIDE:
        move(
            connection,
            [found.turn_id],
            Event.DROP,
            found.at,
            drop_reason=DropReason.SIDE_TURN.value,
            detail=found.reason,
        )
        return
    of_side = lv.drop_reason == DropReason.SIDE_TURN.value
    if found.drop_reason is None:
        move(
            connection,
            [found.turn_id],
            Event.RECLASSIFY,
            found.at,
            extra=of_side,
            drop_reason=None,
            detail=None,
        )
    else:
        connection.execute(
            sa.update(schema.turn_states)
            .where(lv.turn_id == found.turn_id, of_side)
            .values(drop_reason=found.drop_reason.value, detail=None)
        )


def _correct_link(connection: sa.Connection, found: LinkCorrection) -> None:
    """Move a turn to where it belongs."""
    t = schema.turns.c
    connection.execute(
        sa.update(schema.turns)
        .where(t.turn_id == found.turn_id)
        .values(
            session_id=found.session_id,
            parent_turn_id=found.parent_turn_id,
            turn_index=found.turn_index,
            relation=found.relation.value,
            link_reason=found.link_reason,
        )
    )
    move(connection, [found.turn_id], Event.RECONSIDER, found.at)  # a verdict may rest on the first place


def _columns(turn: NewTurn) -> Json:
    """Return the columns of a row that need no query."""
    completion = turn.completion
    return {
        "turn_id": turn.turn_id,
        "completion_id": turn.completion_id[:128] if turn.completion_id is not None else None,
        "session_id": turn.session_id,
        "turn_index": turn.turn_index,
        "kind": turn.kind.value,
        "relation": turn.relation.value,
        "link_reason": turn.link_reason,
        "kind_reason": turn.kind_reason,
        "kind_evidence": wire_json([list(pair) for pair in turn.evidence]),
        "link_confidence": turn.link_confidence,
        "policy": turn.policy,
        "key_name": turn.key_name,
        "adapter_version": turn.adapter_version,
        "client": turn.client[:128],
        "user": turn.user[:256] if turn.user is not None else None,
        "created_at": turn.created_at,
        "finished_at": turn.finished_at,
        "status_code": turn.status_code,
        "streamed": turn.streamed,
        "completion": completion.text,
        "reasoning": completion.reasoning,
        "tool_calls": wire_json(list(completion.tool_calls)),
        "completion_token_ids": _numbers(completion.token_ids),
        "sampling_logprobs": _numbers(completion.sampling_logprobs),
        "finish_reason": completion.finish_reason[:64] if completion.finish_reason is not None else None,
        "temperature": turn.temperature,
        "logprob_mode": turn.logprob_mode.value,
        "usage": None if turn.usage is None else wire_json(turn.usage),
        "request_key": turn.request_key,
        "reply_key": turn.reply_key,
        "completion_key": text_key(completion.text),
        "drop_detail": turn.drop_detail,
        "wish_text": turn.wish_text,
        "wish_place": turn.wish_place,
        "drawn": turn.drawn,
        "main_drop_reason": None if turn.main_drop_reason is None else turn.main_drop_reason.value,
    }


def _numbers(values: Sequence[float]) -> str:
    """Return JSON of ids or log-probabilities, exact to the last digit."""
    return orjson.dumps(values).decode()


def _begins_with(messages: Sequence[Json], before: Sequence[Json]) -> bool:
    """Whether the first messages are the very objects of ``before``: what reads requests leaves them so where their bytes are the same."""
    return 0 < len(before) <= len(messages) and all(map(is_, messages, before))


def _shared(mine: Sequence[Any], theirs: Sequence[Any]) -> int:
    """Return how many leading elements are equal."""
    low, high = 0, min(len(mine), len(theirs))
    if mine[:high] == theirs[:high]:  # nearly always: one comparison at the speed of C
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if mine[low:middle] == theirs[low:middle]:
            low = middle
        else:
            high = middle
    return low


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


def _first_missing(nodes: Sequence[str], found: set[str]) -> int:
    for i in range(len(nodes) - 1, -1, -1):
        if nodes[i] in found:
            return i + 1
    return 0


def _close_session(connection: sa.Connection, key_name: str, session_id: str, at: float) -> None:
    """The client says the session is over: turns nothing has followed will not be answered any more."""
    t, lv = schema.turns.c, schema.turn_states.c
    waiting = connection.execute(
        sa.select(t.turn_id)
        .join(schema.turn_states, lv.turn_id == t.turn_id)
        .where(
            t.session_id == session_id, unindexed(t.key_name) == key_name, lv.stage == Stage.RECORDED.value
        )
    )
    ids = list(waiting.scalars())
    move(connection, ids, Event.DROP, at, drop_reason=DropReason.NO_NEXT_STATE.value)


def _insert(table: sa.Table) -> PreparedStatement:
    return PreparedStatement(lambda dialect: insert_ignore(dialect, table), list(table.c.keys()))


def _answer(event: Event, **values: Any) -> list[PreparedStatement]:
    """A turn that waited for an answer has one; a later one changes nothing but the list of next states."""
    lv = schema.turn_states.c
    found = []
    for stage in sources(event):
        where = [lv.turn_id == sa.bindparam("of_turn"), lv.stage == sa.literal_column(f"'{stage.value}'")]
        if event is Event.REVIVE:
            reasons = ", ".join(f"'{reason.value}'" for reason in sorted(RESCORED))
            where.append(sa.literal_column(f"drop_reason IN ({reasons})"))
        statement = (
            sa.update(schema.turn_states)
            .where(*where)
            .values(
                stage=sa.literal_column(f"'{advance(stage, event).value}'"),
                stage_since=sa.bindparam("at"),
                **values,
            )
        )
        found.append(PreparedStatement(lambda _, made=statement: made, ["stage", "stage_since", *values]))  # type: ignore[misc]  # mypy cannot infer a lambda with a default
    return found


_INSERT_MESSAGES = _insert(schema.messages)
_INSERT_NODES = _insert(schema.nodes)
_INSERT_TURNS = _insert(schema.turns)
_INSERT_TURN_STATES = _insert(schema.turn_states)
_INSERT_NEXT_STATES = _insert(schema.next_states)
_ANSWER = (
    *_answer(Event.NEXT_STATE),
    *_answer(Event.REVIVE, drop_reason=sa.null(), detail=sa.null()),
)
