"""What belongs to the turns that a person wants forgotten: everything in the record that holds their words or was made from them.

selected        the turns that were named
files           uploaded training files that were named, or hold the words
continuations   turns that hold a selected one in their history
quotes          later turns under the same keys that repeat a line of one
reactions       kept turns that a removed one reacted to: the reaction, its verdict, its hint and its wish go
tainted         versions whose inputs hold any of these, and all that were made from them (`store.queries.lineage`)
replies         turns under the same keys that a tainted version answered, or that were answered with a forgotten wish in the prompt
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import sqlalchemy as sa

from store import schema
from store.errors import RecordError
from store.hashing import ROOT
from store.queries.common import aliases
from store.queries.lineage import trained_on
from store.queries.tuning_forget import files_of, keys_with_files
from store.queries.wishes import answered_with, wishes
from store.texts import spellings
from store.values import BASE_VERSION, AdapterState, Closure, Selection

#: Of shorter lines only those with a number, a name with a sign, or an address are searched for.
_LEAST_LINE, _LEAST_OF_ALL = 24, 3
_SPECIFIC = re.compile(r"(?=\S*\d)[\w-]{4,}|\S@\S|\w_\w")
#: Values in a conversation's items that are no text of a person.
_NAMES_IN_ITEMS = frozenset(
    {"message", "user", "assistant", "system", "developer", "input_text", "output_text", "completed"}
)
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
    selection, selected = _selected(connection, record, selection)
    keys = {record.turns[turn_id].key_name for turn_id in selected}
    if selection.match is not None:
        everyone = _keys_with_items(connection) | keys_with_files(connection)
        keys |= {selection.key_name} if selection.key_name is not None else everyone
    continuations = _continuations(record, selected)
    lines, not_searched = _lines(connection, record, selected, continuations, selection)
    items = _items(connection, record, selection, selected, keys, lines)
    untaught = set(selection.reactions) & record.turns.keys()
    files = files_of(connection, selection, keys, pattern_of(lines))
    keys |= set(files.values())
    if not selected and not items and not untaught and not files:
        raise RecordError(f"the record has no turn for {selection.describe()}")
    quotes = _quotes(connection, record, selected | continuations, keys, lines)
    quotes |= _continuations(record, quotes) - selected - continuations
    gone = selected | continuations | quotes
    replies: set[str] = set()
    while True:
        reactions = _reactions(connection, record, gone, keys, lines) | (untaught - gone)
        with_wish = answered_with(connection, gone | reactions)
        tainted = trained_on(connection, gone | reactions | with_wish | files.keys())
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
        selection=selection,
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
        items=items,
        files=tuple(sorted(files)),
        not_searched=not_searched,
    )


def _sorted(record: _Record, turn_ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(turn_ids, key=lambda turn_id: (record.turns[turn_id].created_at, turn_id)))


# ---- what is named


def _selected(connection: sa.Connection, record: _Record, selection: Selection) -> tuple[Selection, set[str]]:
    """Return the selection with whole ids, and its turns."""
    turns = record.turns.values()
    if selection.turns or selection.reactions:
        found = set(selection.turns) & record.turns.keys()
    elif selection.turn is not None:
        found = _named_turn(record, selection.turn)
        if len(found) > 1:
            raise RecordError(f"{len(found)} turns end with {selection.turn!r}: give more of the id")
        if found:
            selection = replace(selection, turn=next(iter(found)))
    elif selection.session is not None:
        sessions = {turn.session_id for turn in turns}
        wanted = selection.session
        matching = {wanted} & sessions or {one for one in sessions if one.endswith(wanted)}
        if len(matching) > 1:
            raise RecordError(f"{len(matching)} sessions end with {wanted!r}: give more of the id")
        if matching:
            selection = replace(selection, session=next(iter(matching)))
        found = {turn.turn_id for turn in turns if turn.session_id in matching}
    elif selection.match is not None:
        found = _holding(connection, record, record.turns, pattern_of([selection.match]).search)
        found |= _reactions_holding(connection, [selection.match])
        if selection.key_name is not None:
            found = {one for one in found if record.turns[one].key_name == selection.key_name}
    else:
        found = {turn.turn_id for turn in turns if turn.key_name == selection.key_name}
    if selection.before is not None:
        newest: dict[str, float] = {}
        for turn_id in found:
            turn = record.turns[turn_id]
            newest[turn.session_id] = max(turn.created_at, newest.get(turn.session_id, 0.0))
        found = {one for one in found if newest[record.turns[one].session_id] < selection.before}
    if selection.since is not None:
        found = {one for one in found if record.turns[one].created_at >= selection.since}
    return selection, found


def _named_turn(record: _Record, wanted: str) -> set[str]:
    turns = record.turns.values()
    if wanted == "last":
        return {max(turns, key=lambda turn: turn.created_at).turn_id} if record.turns else set()
    if wanted in record.turns:
        return {wanted}  # whatever completion another key's backend gave the same name
    found = {turn.turn_id for turn in turns if turn.completion_id == wanted}
    return found or {turn.turn_id for turn in turns if turn.turn_id.endswith(wanted)}


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
) -> tuple[list[str], int]:
    """Return the text that was asked for, or else the lines and sentences of the selected turns that no earlier turn has, and how many are left out.

    Of short ones only those with a number or an address: many people write the others.
    """
    if selection.match is not None:
        return [selection.match], 0
    if selection.turns or selection.before is not None:
        return [], 0
    lines = {
        line.strip()
        for text in _own_texts(connection, record, selected)
        for line in _SENTENCE_END.split(text)
        if len(line.strip()) >= _LEAST_OF_ALL
    }
    if not lines:
        return [], 0
    first = min(record.turns[turn_id].created_at for turn_id in selected)
    keys = {record.turns[turn_id].key_name for turn_id in selected}
    earlier = {
        turn.turn_id for turn in record.turns.values() if turn.created_at < first and turn.key_name in keys
    }
    known = "\n".join(_texts_of(connection, record, earlier - selected - continuations))
    new = sorted(line for line in lines if line not in known)
    wanted = [line for line in new if len(line) >= _LEAST_LINE or _SPECIFIC.search(line)]
    return wanted, len(new) - len(wanted)


def _own_texts(connection: sa.Connection, record: _Record, turn_ids: Collection[str]) -> Iterator[str]:
    """Yield the texts that turns add to their conversation: their own messages and replies."""
    hashes = {
        record.nodes[node][1] for turn_id in turn_ids for node in record.own_nodes(record.turns[turn_id])
    }
    for _, body in _message_bodies(connection, hashes):
        yield from _stored_strings(body)
    for _, stored in _replies(connection, turn_ids):
        yield from stored


def _keys_with_items(connection: sa.Connection) -> set[str]:
    return set(connection.execute(sa.select(schema.conversations.c.key_name).distinct()).scalars())


def _items(
    connection: sa.Connection,
    record: _Record,
    selection: Selection,
    selected: set[str],
    keys: Collection[str],
    lines: Sequence[str],
) -> tuple[tuple[str, str], ...]:
    """Return what goes of the conversations that clients of these keys created: whole ones (""), and items that hold the words.

    With a key or a session all that is theirs goes; of a conversation with a selected turn also the items whose text that turn repeats.
    """
    c, i = schema.conversations, schema.conversation_items
    words = pattern_of(lines)
    named = selection.session or ""
    if selection.key_name is not None and selection.match is None:
        keys = {*keys, selection.key_name}
    sessions: dict[str, set[str]] = {}
    for turn_id in selected if selection.match is None else ():
        sessions.setdefault(record.turns[turn_id].session_id, set()).add(turn_id)
    found: list[tuple[str, str]] = []
    for row in connection.execute(sa.select(c).where(c.c.key_name.in_(sorted(keys)))).all():
        is_all_of_key = selection.key_name == row.key_name and not (
            selection.match or selection.since or selection.before
        )
        if is_all_of_key or row.conversation_id == named or words.search(row._mapping["metadata"]):
            found.append((row.conversation_id, ""))
            continue
        own = set(_own_texts(connection, record, sessions.get(row.conversation_id, ())))
        mine = i.c.conversation_id == row.conversation_id
        for item in connection.execute(sa.select(i).where(mine, i.c.item.is_not(None))).all():
            texts = set(_stored_strings(item.item)) - _NAMES_IN_ITEMS
            if words.search(item.item) or not own.isdisjoint(texts):
                found.append((row.conversation_id, item.item_id))
    return tuple(found)


def _quotes(
    connection: sa.Connection, record: _Record, gone: set[str], keys: set[str], lines: list[str]
) -> set[str]:
    others = {
        turn_id for turn_id, turn in record.turns.items() if turn.key_name in keys and turn_id not in gone
    }
    return _holding(connection, record, others, pattern_of(lines).search) if lines and others else set()


def turns_holding(
    connection: sa.Connection, keys: Collection[str], before: float, holds: Callable[[str], object]
) -> set[str]:
    """Return the turns of these API keys, created before then, that hold a text; ``holds`` is called with rows' JSON and with plain text."""
    record = _Record.read(connection)
    wanted = {
        one.turn_id for one in record.turns.values() if one.key_name in keys and one.created_at < before
    }
    return _holding(connection, record, wanted, holds) if wanted else set()


def _holding(
    connection: sa.Connection, record: _Record, turn_ids: Collection[str], holds: Callable[[str], object]
) -> set[str]:
    """Return the turns whose messages, request or reply hold a text."""
    hit = {name for name, body in _message_bodies(connection, None) if holds(body)}
    nodes = record.below({node for node, (_, message) in record.nodes.items() if message in hit})
    found = {
        turn_id
        for turn_id in turn_ids
        if (turn := record.turns[turn_id]).history_node in nodes
        or turn.preamble_node in nodes
        or turn.request in hit
    }
    rest = set(turn_ids) - found
    found |= {turn_id for turn_id, stored in _replies(connection, rest) if any(map(holds, stored))}
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


def _reactions(
    connection: sa.Connection, record: _Record, gone: set[str], keys: Collection[str], lines: list[str]
) -> set[str]:
    """Return the kept turns of these keys that a removed one reacted to, or whose feedback or verdict holds one of the lines."""
    n = schema.next_states.c
    found = {
        row.turn_id
        for row in connection.execute(sa.select(n.turn_id, n.by_turn_id))
        if row.by_turn_id in gone
    }
    if lines:
        holding = _reactions_holding(connection, lines)
        found |= {one for one in holding if one in record.turns and record.turns[one].key_name in keys}
    return found - gone


def pattern_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Match any of the texts; nothing where there is none."""
    forms = spellings(texts)
    return re.compile("|".join(forms) if forms else r"(?!)", re.IGNORECASE)


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
