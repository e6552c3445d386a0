"""Deletion of what a person asks to forget, as one transaction; what belongs to it is found by `store.queries.closure`.

After it the live versions are clean, and the turns that remain of the tainted ones' batches wait to be trained again: the trainer builds the
next version from the base model out of what the record holds then. The removed ids are kept in `forgotten_turns`, so that a journal that
still holds them cannot bring them back.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from store import schema
from store.database import insert_ignore
from store.hashing import ROOT, exact_json
from store.lifecycle import DropReason, Event, Stage
from store.queries import canary
from store.queries.alias import move_alias
from store.queries.closure import find_closure
from store.queries.common import lock_aliases, moment, move, prompt_ids, read_list
from store.queries.tuning_forget import delete_files, file_contents, queue_again
from store.queries.wishes import answered_with, settle_wishes, wishes_stated_in
from store.values import AdapterState, Closure, Forgotten, Selection, StepRole

#: Ids in one statement.
_CHUNK = 5_000
#: Drops that an attempt decided: in another batch it may decide otherwise.
_DECIDED_BY_STEP = (
    DropReason.NO_SIGNAL, DropReason.STALE, DropReason.TEACHER_FAILED, DropReason.HINT_IRRELEVANT, DropReason.TOO_LONG,
    DropReason.OUT_OF_MEMORY, DropReason.TRAINER_DIED, DropReason.CONSTRAINED, DropReason.TOKEN_MISMATCH,
)  # fmt: skip
#: Tables with rows about one turn.
_ABOUT_TURNS = (
    schema.next_states,
    schema.feedback,
    schema.verdicts,
    schema.wish_statements,
    schema.turn_states,
    schema.api_requests,
    schema.stored_completions,
)


def forget(
    connection: sa.Connection,
    selection: Selection,
    *,
    with_replies: bool = True,
    key: bytes,
    now: float | None = None,
) -> Forgotten:
    """Delete the selected turns and everything that holds their words or was made from them.

    Args:
        with_replies: also what tainted versions answered under the same keys.
        key: of the fingerprints.

    Raises:
        RecordError: the selection names no turn.
    """
    now = moment(now)
    return delete(
        connection, find_closure(connection, selection, with_replies=with_replies), key=key, now=now
    )


def delete(connection: sa.Connection, closure: Closure, *, key: bytes, now: float) -> Forgotten:
    """Delete what a closure holds."""
    if connection.dialect.name == "sqlite":
        connection.execute(sa.text("PRAGMA secure_delete=ON"))
    gone = closure.turns
    batches = _batches(connection, closure)
    fingerprints = _turn_fingerprints(connection, gone, key)
    for file_id, content in file_contents(connection, closure.files):
        fingerprints[file_id] = fingerprint(key, content)
    stating = {*gone, *closure.reactions}
    with_wish = sorted(answered_with(connection, stating) - set(gone))
    wishes = wishes_stated_in(connection, stating)
    _detach(connection, gone)
    _forget_wishes(connection, with_wish, now)
    _forget_reactions(connection, closure.reactions, gone, now)
    before = set(connection.execute(sa.select(schema.messages.c.hash)).scalars())
    _delete_turns(connection, gone, now)
    settle_wishes(connection, wishes, now)
    nodes = _delete_unneeded(connection)
    after = set(connection.execute(sa.select(schema.messages.c.hash)).scalars())
    _delete_items(connection, closure.items)
    delete_files(connection, closure.files)
    add_forgotten(connection, closure.files, now)
    _retire_versions(connection, closure, now)
    queue_again(connection, closure.tainted)
    _untrain(connection, batches - {*stating, *with_wish}, now)
    return Forgotten(
        closure=closure,
        turns=fingerprints,
        messages=tuple(sorted(fingerprint(key, name) for name in before - after)),
        removed=tuple(sorted(before - after)),
        nodes=nodes,
        at=now,
    )


def fingerprint(key: bytes, text: str) -> str:
    """Return a keyed digest: it says nothing to those who lack the key, however short the text is."""
    return hmac.new(key, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def _chunks(values: Sequence[str]) -> Iterator[list[str]]:
    for start in range(0, len(values), _CHUNK):
        yield list(values[start : start + _CHUNK])


def _turn_fingerprints(connection: sa.Connection, gone: Sequence[str], key: bytes) -> dict[str, str]:
    t = schema.turns.c
    found = {}
    for ids in _chunks(gone):
        for row in connection.execute(sa.select(schema.turns).where(t.turn_id.in_(ids))):
            found[row.turn_id] = fingerprint(key, exact_json([str(value) for value in row]))
    return found


def _detach(connection: sa.Connection, gone: Sequence[str]) -> None:
    """Let the turns that stay rest on no removed one: their prompts are stored whole, and they begin a tree."""
    t = schema.turns.c
    _store_whole_prompts(connection, gone)
    for ids in _chunks(gone):
        connection.execute(
            sa.update(schema.turns).where(t.parent_turn_id.in_(ids)).values(parent_turn_id=None)
        )


def _store_whole_prompts(connection: sa.Connection, gone: Sequence[str]) -> None:
    """Let the prompts of other turns rest on none of these."""
    t = schema.turns.c
    removed = set(gone)
    for ids in _chunks(gone):
        resting = connection.execute(sa.select(t.turn_id).where(t.prompt_base_turn_id.in_(ids))).scalars()
        for turn_id in [one for one in resting if one not in removed]:
            whole = exact_json(list(prompt_ids(connection, turn_id)))
            connection.execute(
                sa.update(schema.turns)
                .where(t.turn_id == turn_id)
                .values(prompt_base_turn_id=None, prompt_base_length=0, prompt_token_ids=whole)
            )


def _forget_wishes(connection: sa.Connection, with_wish: Sequence[str], now: float) -> None:
    """Remove the forgotten wishes from the prompts of turns that stay: of other keys, or with replies kept. Those turns train no more."""
    _store_whole_prompts(connection, with_wish)
    t = schema.turns.c
    nothing = {"prompt_base_turn_id": None, "prompt_base_length": 0, "prompt_token_ids": "[]"}
    for ids in _chunks(with_wish):
        connection.execute(
            sa.update(schema.turns).where(t.turn_id.in_(ids)).values(wish_text="", wish_place="", **nothing)
        )
        _drop_forgotten(connection, ids, now)


def _forget_reactions(
    connection: sa.Connection, reactions: Sequence[str], gone: Sequence[str], now: float
) -> None:
    """Remove what removed turns say about turns that stay: the reaction, and the verdict and hint made of it."""
    n = schema.next_states.c
    for ids in _chunks(gone):
        connection.execute(sa.delete(schema.next_states).where(n.by_turn_id.in_(ids)))
    for ids in _chunks(reactions):
        for table in (schema.verdicts, schema.feedback, schema.wish_statements):
            connection.execute(sa.delete(table).where(table.c.turn_id.in_(ids)))
        _drop_forgotten(connection, ids, now)
        connection.execute(sa.delete(schema.step_turns).where(schema.step_turns.c.turn_id.in_(ids)))


def _drop_forgotten(connection: sa.Connection, turn_ids: Sequence[str], now: float) -> None:
    nothing: dict[str, Any] = dict.fromkeys(("detail", "trained_in_version", "claimed_by", "lease_until"))
    move(connection, turn_ids, Event.FORGET, now, drop_reason=DropReason.FORGOTTEN.value, **nothing)


def _delete_turns(connection: sa.Connection, gone: Sequence[str], now: float) -> None:
    for ids in _chunks(gone):
        for table in (*_ABOUT_TURNS, schema.step_turns, schema.turns):
            connection.execute(sa.delete(table).where(table.c.turn_id.in_(ids)))
        add_forgotten(connection, ids, now)


def add_forgotten(connection: sa.Connection, turn_ids: Sequence[str], now: float) -> None:
    """Keep the ids of turns that are never recorded or trained again."""
    rows = [{"turn_id": turn_id, "at": now} for turn_id in turn_ids]
    if not rows:
        return
    connection.execute(insert_ignore(connection.dialect.name, schema.forgotten_turns), rows)


def _delete_unneeded(connection: sa.Connection) -> int:
    """Delete the nodes and messages that no turn needs; returns the number of nodes."""
    t, n, m = schema.turns.c, schema.nodes.c, schema.messages.c
    nodes = {
        node: (parent, message)
        for node, parent, message in connection.execute(sa.select(n.node, n.parent, n.message))
    }
    needed: set[str] = set()
    messages: set[str] = set()
    for preamble, history, request in connection.execute(
        sa.select(t.preamble_node, t.history_node, t.request)
    ):
        messages.add(request)
        for node in (preamble, history):
            while node != ROOT and node not in needed and node in nodes:
                needed.add(node)
                messages.add(nodes[node][1])
                node = nodes[node][0]
    for stored in connection.execute(sa.select(schema.next_states.c.messages)).scalars():
        messages.update(map(str, read_list(stored)))
    unneeded = [node for node in nodes if node not in needed]
    for ids in _chunks(unneeded):
        connection.execute(sa.delete(schema.nodes).where(n.node.in_(ids)))
    stale = [name for name in connection.execute(sa.select(m.hash)).scalars() if name not in messages]
    for ids in _chunks(stale):
        connection.execute(sa.delete(schema.messages).where(m.hash.in_(ids)))
    return len(unneeded)


def _delete_items(connection: sa.Connection, items: Sequence[tuple[str, str]]) -> None:
    """Delete items of conversations that clients created, and whole conversations."""
    c, i = schema.conversations, schema.conversation_items
    for conversation_id, item_id in items:
        mine = i.c.conversation_id == conversation_id
        connection.execute(sa.delete(i).where(mine if not item_id else mine & (i.c.item_id == item_id)))
        if not item_id:
            connection.execute(sa.delete(c).where(c.c.conversation_id == conversation_id))


def _retire_versions(connection: sa.Connection, closure: Closure, now: float) -> None:
    """Make the clean versions live, and empty the rows of the tainted ones."""
    a, s = schema.adapters.c, schema.steps.c
    lock_aliases(connection)
    for policy, versions in closure.tainted.items():
        is_one = sa.and_(a.policy == policy, a.version.in_(versions))
        connection.execute(
            sa.update(schema.adapters)
            .where(is_one)
            .values(state=AdapterState.FORGOTTEN.value, reason="", metrics="{}")
        )
        # A preview holds replies of two versions: one of them may be tainted.
        connection.execute(sa.delete(schema.preview_replies).where(schema.preview_replies.c.policy == policy))
        connection.execute(
            sa.update(schema.steps)
            .where(s.policy == policy, s.version.in_(versions))
            .values(error=None, metrics="{}")
        )
        for version in versions:
            canary.supersede(connection, policy, now, "it was trained on what is forgotten", version=version)
        if policy in closure.clean:
            canary.supersede(connection, policy, now, "an earlier version is live after a forget")
            move_alias(connection, policy, closure.clean[policy], at=now, actor="forget")


def _batches(connection: sa.Connection, closure: Closure) -> set[str]:
    """Return the turns of the batches of those tainted versions that are between a version that goes live and the one that was."""
    s, t, lv = schema.steps.c, schema.step_turns.c, schema.turn_states.c
    found: set[str] = set()
    for policy, clean in closure.clean.items():
        versions = [one for one in closure.tainted[policy] if clean < one <= closure.live[policy]]
        named = sa.select(lv.turn_id).where(lv.policy == policy, lv.trained_in_version.in_(versions))
        claimed = (
            sa.select(t.turn_id)
            .join(schema.steps, s.step_id == t.step_id)
            .where(s.policy == policy, s.version.in_(versions), t.role == StepRole.BATCH.value)
        )
        for query in (named, claimed):
            found.update(connection.execute(query).scalars())
    return found


def _untrain(connection: sa.Connection, batches: Collection[str], now: float) -> None:
    """Let what remains of these batches wait to be trained again."""
    lv = schema.turn_states.c
    columns: dict[str, Any] = {"trained_in_version": None, "drop_reason": None, "detail": None}
    decided = lv.drop_reason.in_([reason.value for reason in _DECIDED_BY_STEP])
    for ids in _chunks(sorted(batches)):
        move(connection, ids, Event.UNTRAIN, now, only=(Stage.TRAINED,), **columns)
        move(connection, ids, Event.UNTRAIN, now, only=(Stage.DROPPED,), extra=decided, **columns)
        late = sa.and_(lv.turn_id.in_(ids), lv.stage == Stage.ANSWERED.value)
        connection.execute(sa.update(schema.turn_states).where(late).values(trained_in_version=None))


def forgotten_among(connection: sa.Connection, turn_ids: Collection[str]) -> set[str]:
    """Return those of these turns that were forgotten."""
    c = schema.forgotten_turns.c
    found: set[str] = set()
    for ids in _chunks(sorted(turn_ids)):
        found.update(connection.execute(sa.select(c.turn_id).where(c.turn_id.in_(ids))).scalars())
    return found


def found_again(
    connection: sa.Connection, turn_ids: Sequence[str], messages: Sequence[str], key: bytes
) -> list[str]:
    """Return one sentence for each removed turn or message that the record holds again.

    Args:
        messages: their fingerprints.
    """
    wrong = []
    for ids in _chunks(sorted(turn_ids)):
        f = schema.training_files.c
        files = connection.execute(sa.select(f.file_id).where(f.file_id.in_(ids))).scalars()
        wrong += [f"training file {file_id} is there again" for file_id in files]
        for table in (*_ABOUT_TURNS, schema.step_turns, schema.turns):
            rows = connection.execute(sa.select(table.c.turn_id).where(table.c.turn_id.in_(ids)).distinct())
            wrong += [f"turn {turn_id} is in {table.name} again" for turn_id in rows.scalars()]
    wanted = set(messages)
    for name in connection.execute(sa.select(schema.messages.c.hash)).scalars():
        if fingerprint(key, name) in wanted:
            wrong.append(f"message {name} is in the record again: a client sent the same words")
    return wrong
