"""What belongs to the turns that a person wants forgotten: everything in the record that holds their words or was made from them.

selected        the turns that were named
continuations   turns that hold a selected one in their history
quotes          later turns under the same keys that repeat a line of one
reactions       kept turns that a removed one reacted to: the reaction, its verdict, its hint and its wish go
tainted         versions whose inputs hold any of these, and all that were made from them (`store.queries.lineage`)
replies         turns under the same keys that a tainted version answered, or that were answered with a forgotten wish in the prompt
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sqlalchemy as sa

from store import schema
from store.errors import RecordError
from store.hashing import ROOT
from store.queries.common import aliases
from store.queries.lineage import trained_on
from store.queries.wishes import answered_with, wishes
from store.values import BASE_VERSION, AdapterState, Closure, Selection

#: Shorter lines are not searched for: many people write them.
_LEAST_LINE = 24
_SENTENCE_END = re.compile(r"[\n\r]+|(?<=[.!?…])\s+")


class _Turn(NamedTuple):
    turn_id: str
    completion_id: str | None
    key_name: str
    session_id: str
    parent_turn_id: str | None
    policy: str
    adapter_version: int
    preamble_node: str
    history_node: str
    request: str
    created_at: float


_COLUMNS = [schema.turns.c[name] for name in _Turn._fields]


@dataclass(slots=True)
class _Record:
    """The structure of the record, without its texts."""

    turns: dict[str, _Turn]
    nodes: dict[str, tuple[str, str]]  # node -> (parent, message), parents first
    children: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, connection: sa.Connection) -> _Record:
        turns = {row.turn_id: _Turn(*row) for row in connection.execute(sa.select(*_COLUMNS))}
        n = schema.nodes.c
        rows = connection.execute(sa.select(n.node, n.parent, n.message).order_by(n.depth))
        found = cls(turns, {node: (parent, message) for node, parent, message in rows})
        for turn in turns.values():
            if turn.parent_turn_id is not None:
                found.children.setdefault(turn.parent_turn_id, []).append(turn.turn_id)
        return found

    def chain(self, node: str) -> Iterator[str]:
        while node != ROOT and node in self.nodes:
            yield node
            node = self.nodes[node][0]

    def below(self, nodes: Collection[str]) -> set[str]:
        """Return these nodes and all that continue them."""
        found = set(nodes)
        for node, (parent, _) in self.nodes.items():  # parents first
            if parent in found:
                found.add(node)
        return found

    def own_nodes(self, turn: _Turn) -> set[str]:
        """Return the nodes of a turn's history that its parent's does not have."""
        parent = self.turns.get(turn.parent_turn_id or "")
        before = set(self.chain(parent.history_node)) if parent is not None else set()
        return set(self.chain(turn.history_node)) - before


def find_closure(connection: sa.Connection, selection: Selection, *, with_replies: bool = True) -> Closure:
    """Return everything that goes with the selected turns.

    Raises:
        RecordError: the selection names no turn, or several.
    """
    record = _Record.read(connection)
    selected = _selected(connection, record, selection)
    keys = {record.turns[turn_id].key_name for turn_id in selected}
    continuations = _continuations(record, selected)
    lines = _lines(connection, record, selected, continuations, selection)
    quotes = _quotes(connection, record, selected | continuations, keys, lines)
    quotes |= _continuations(record, quotes) - selected - continuations
    gone = selected | continuations | quotes
    replies: set[str] = set()
    while True:
        reactions = _reactions(connection, gone, lines)
        with_wish = answered_with(connection, gone | reactions)
        tainted = trained_on(connection, gone | reactions | with_wish)
        found = {
            turn.turn_id
            for turn in record.turns.values()
            if turn.key_name in keys
            and (turn.turn_id in with_wish or turn.adapter_version in tainted.get(turn.policy, ()))
        } - (gone - replies)
        found |= _continuations(record, found) - (gone - replies)
        if found <= replies or not with_replies:
            replies |= found
            break
        replies |= found
        gone |= found
    live, clean = _clean_versions(connection, tainted)
    return Closure(
        selected=_sorted(record, selected),
        continuations=_sorted(record, continuations),
        quotes=_sorted(record, quotes),
        replies=_sorted(record, replies),
        with_replies=with_replies,
        reactions=_sorted(record, reactions),
        tainted={policy: tuple(sorted(versions)) for policy, versions in tainted.items()},
        live=live,
        clean=clean,
        lines=tuple(lines),
        keys=frozenset(keys),
    )


def _sorted(record: _Record, turn_ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(turn_ids, key=lambda turn_id: (record.turns[turn_id].created_at, turn_id)))


# ---- what is named


def _selected(connection: sa.Connection, record: _Record, selection: Selection) -> set[str]:
    turns = record.turns.values()
    if selection.turn is not None:
        wanted = selection.turn
        if wanted == "last":
            found = {max(turns, key=lambda turn: turn.created_at).turn_id} if record.turns else set()
        else:
            found = {turn.turn_id for turn in turns if wanted in (turn.turn_id, turn.completion_id)}
            found = found or {turn.turn_id for turn in turns if turn.turn_id.endswith(wanted)}
        if len(found) > 1:
            raise RecordError(f"{len(found)} turns end with {wanted!r}: give more of the id")
    elif selection.session is not None:
        sessions = {turn.session_id for turn in turns}
        wanted = selection.session
        matching = {wanted} & sessions or {one for one in sessions if one.endswith(wanted)}
        if len(matching) > 1:
            raise RecordError(f"{len(matching)} sessions end with {wanted!r}: give more of the id")
        found = {turn.turn_id for turn in turns if turn.session_id in matching}
    elif selection.match is not None:
        found = _holding(connection, record, record.turns, [selection.match])
        found |= _reactions_holding(connection, [selection.match])
        if selection.key_name is not None:
            found = {one for one in found if record.turns[one].key_name == selection.key_name}
    else:
        found = {turn.turn_id for turn in turns if turn.key_name == selection.key_name}
    if selection.since is not None:
        found = {one for one in found if record.turns[one].created_at >= selection.since}
    if not found:
        raise RecordError(f"the record has no turn for {selection.describe()}")
    return found


def _continuations(record: _Record, turn_ids: Collection[str]) -> set[str]:
    """Return the turns that follow these, or hold what is new in them in their own history (an edit, a retry)."""
    found: set[str] = set()
    waiting = list(turn_ids)
    while waiting:
        for child in record.children.get(waiting.pop(), ()):
            if child not in found and child not in turn_ids:
                found.add(child)
                waiting.append(child)
    sessions: dict[tuple[str, str], set[str]] = {}
    for turn_id in turn_ids:
        turn = record.turns[turn_id]
        sessions.setdefault((turn.key_name, turn.session_id), set()).update(record.own_nodes(turn))
    for turn in record.turns.values():
        own = sessions.get((turn.key_name, turn.session_id))
        if own and turn.turn_id not in turn_ids and not own.isdisjoint(record.chain(turn.history_node)):
            found.add(turn.turn_id)
    return found


# ---- their words


def _lines(
    connection: sa.Connection,
    record: _Record,
    selected: set[str],
    continuations: set[str],
    selection: Selection,
) -> list[str]:
    """Return the text that was asked for, or else the longer lines and sentences of the selected turns that no earlier turn has."""
    if selection.match is not None:
        return [selection.match]
    texts: list[str] = []
    hashes = {
        record.nodes[node][1] for turn_id in selected for node in record.own_nodes(record.turns[turn_id])
    }
    for _, body in _message_bodies(connection, hashes):
        texts += _stored_strings(body)
    for _, stored in _replies(connection, selected):
        texts += stored
    lines = {
        line.strip()
        for text in texts
        for line in _SENTENCE_END.split(text)
        if len(line.strip()) >= _LEAST_LINE
    }
    if not lines:
        return []
    first = min(record.turns[turn_id].created_at for turn_id in selected)
    keys = {record.turns[turn_id].key_name for turn_id in selected}
    earlier = {
        turn.turn_id for turn in record.turns.values() if turn.created_at < first and turn.key_name in keys
    }
    known = "\n".join(_texts_of(connection, record, earlier - selected - continuations))
    return sorted(line for line in lines if line not in known)


def _quotes(
    connection: sa.Connection, record: _Record, gone: set[str], keys: set[str], lines: list[str]
) -> set[str]:
    others = {
        turn_id for turn_id, turn in record.turns.items() if turn.key_name in keys and turn_id not in gone
    }
    return _holding(connection, record, others, lines) if lines and others else set()


def _holding(
    connection: sa.Connection, record: _Record, turn_ids: Collection[str], texts: list[str]
) -> set[str]:
    """Return the turns whose messages, request or reply hold one of these texts, whatever their case."""
    pattern = pattern_of(texts)
    hit = {name for name, body in _message_bodies(connection, None) if pattern.search(body)}
    nodes = record.below({node for node, (_, message) in record.nodes.items() if message in hit})
    found = {
        turn_id
        for turn_id in turn_ids
        if (turn := record.turns[turn_id]).history_node in nodes
        or turn.preamble_node in nodes
        or turn.request in hit
    }
    rest = set(turn_ids) - found
    found |= {turn_id for turn_id, stored in _replies(connection, rest) if any(map(pattern.search, stored))}
    return found


def _reactions_holding(connection: sa.Connection, texts: list[str]) -> set[str]:
    """Return the turns whose feedback, verdicts or wishes (the owner's wording too) hold one of these texts."""
    pattern = pattern_of(texts)
    found: set[str] = set()
    for table, names in (
        (schema.feedback, ("text",)),
        (schema.verdicts, ("hint", "detail")),
        (schema.wish_statements, ("text",)),
    ):
        for turn_id, *values in connection.execute(
            sa.select(table.c.turn_id, *(table.c[name] for name in names))
        ):
            if any(value and pattern.search(value) for value in values):
                found.add(turn_id)
    found |= {
        statement.turn_id
        for wish in wishes(connection)
        if pattern.search(wish.text)
        for statement in wish.statements
    }
    return found


def _reactions(connection: sa.Connection, gone: set[str], lines: list[str]) -> set[str]:
    """Return the kept turns that a removed one reacted to, or whose feedback or verdict holds one of the lines."""
    n = schema.next_states.c
    found = {
        row.turn_id
        for row in connection.execute(sa.select(n.turn_id, n.by_turn_id))
        if row.by_turn_id in gone
    }
    if lines:
        found |= _reactions_holding(connection, lines)
    return found - gone


def pattern_of(texts: Sequence[str]) -> re.Pattern[str]:
    """Match any of the texts, as they are and as JSON holds them; nothing where there is none."""
    if not texts:
        return re.compile(r"(?!)")
    forms = {form for text in texts for form in (text, json.dumps(text, ensure_ascii=False)[1:-1])}
    return re.compile("|".join(map(re.escape, sorted(forms, key=len, reverse=True))), re.IGNORECASE)


def _message_bodies(connection: sa.Connection, hashes: Collection[str] | None) -> Iterator[tuple[str, str]]:
    m = schema.messages.c
    for row in connection.execute(sa.select(m.hash, m.body)):
        if hashes is None or row.hash in hashes:
            yield row.hash, row.body


def _replies(connection: sa.Connection, turn_ids: Collection[str]) -> Iterator[tuple[str, list[str]]]:
    t = schema.turns.c
    for row in connection.execute(sa.select(t.turn_id, t.completion, t.reasoning, t.tool_calls)):
        if row.turn_id in turn_ids:
            yield row.turn_id, [row.completion, row.reasoning, *_stored_strings(row.tool_calls)]


def _texts_of(connection: sa.Connection, record: _Record, turn_ids: Collection[str]) -> Iterator[str]:
    hashes = {
        record.nodes[node][1]
        for turn_id in turn_ids
        for tip in (record.turns[turn_id].preamble_node, record.turns[turn_id].history_node)
        for node in record.chain(tip)
    }
    for _, body in _message_bodies(connection, hashes):
        yield from _stored_strings(body)
    for _, stored in _replies(connection, turn_ids):
        yield from stored


def _stored_strings(stored: str) -> Iterator[str]:
    """Yield the texts in a row's JSON; the whole of one that was damaged, so that it can be forgotten too."""
    try:
        value = json.loads(stored)
    except ValueError:
        value = stored
    yield from _strings(value)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


# ---- versions


def _clean_versions(
    connection: sa.Connection, tainted: Mapping[str, Collection[int]]
) -> tuple[dict[str, int], dict[str, int]]:
    """Return the live version of each policy whose live version is tainted, and the newest one before it that was live, is clean and has its files."""
    a, m = schema.adapters.c, schema.alias_moves.c
    moves = aliases(connection)
    live: dict[str, int] = {}
    clean: dict[str, int] = {}
    for policy, versions in tainted.items():
        version = moves[policy].version if policy in moves else BASE_VERSION
        if version not in versions:
            continue
        live[policy] = version
        usable = sa.select(sa.func.max(a.version)).where(
            a.policy == policy,
            a.version < version,
            a.version.not_in(sorted(versions)),
            a.state == AdapterState.PUBLISHED.value,
            a.version.in_(sa.select(m.version).where(m.policy == policy)),
        )
        clean[policy] = connection.execute(usable).scalar_one() or BASE_VERSION
    return live, clean
