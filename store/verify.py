"""`verify`: re-hash what is content-addressed, cross-check what must agree. Reads only; says what is wrong, mends nothing."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa

from store import schema
from store.errors import RecordError
from store.hashing import ROOT, digest
from store.lifecycle import Stage
from store.queries.common import prompt_ids


def verify(connection: sa.Connection) -> list[str]:
    """Return one sentence for each thing wrong."""
    wrong: list[str] = []
    for name, body in connection.execute(sa.select(schema.messages.c.hash, schema.messages.c.body)):
        if digest(body) != name:
            wrong.append(f"message {name}: its content hashes to {digest(body)}")
    n = schema.nodes.c
    depths: dict[str, int] = {}
    nodes = (connection.execute(sa.select(n.node, n.parent, n.message, n.depth).order_by(n.depth))).all()
    for node, parent, message, depth in nodes:
        depths[node] = depth
        if digest(parent, message) != node:
            wrong.append(f"node {node}: parent and message hash to another name")
        if (parent == ROOT) != (depth == 0) or (parent != ROOT and depths.get(parent) != depth - 1):
            wrong.append(f"node {node}: its parent {parent} is missing or at a wrong depth")
    wrong += _turns(connection, depths)
    wrong += _orphans(connection)
    return wrong


def _turns(connection: sa.Connection, depths: dict[str, int]) -> list[str]:
    t, lv = schema.turns.c, schema.turn_states.c
    wrong: list[str] = []
    adapters = {
        (policy, version)
        for policy, version in connection.execute(
            sa.select(schema.adapters.c.policy, schema.adapters.c.version)
        )
    }
    rows = (
        connection.execute(
            sa.select(
                t.turn_id, t.parent_turn_id, t.preamble_node, t.history_node, t.completion_token_ids,
                t.sampling_logprobs, t.policy, lv.stage, lv.drop_reason, lv.trained_in_version, lv.claimed_by,
            ).outerjoin(schema.turn_states, lv.turn_id == t.turn_id)
        )
    ).all()  # fmt: skip
    known = {row.turn_id for row in rows}
    for row in rows:
        say = f"turn {row.turn_id}: "
        if row.parent_turn_id is not None and row.parent_turn_id not in known:
            wrong.append(say + f"its parent {row.parent_turn_id} is not there")
        for node in (row.preamble_node, row.history_node):
            if node != ROOT and node not in depths:
                wrong.append(say + f"its messages end in node {node}, which is not there")
        wrong += [say + fault for fault in _life_faults(row, adapters)]
        try:
            prompt_ids(connection, row.turn_id)
        except RecordError as exc:
            wrong.append(str(exc))
    return wrong


def _life_faults(row: Any, adapters: set[tuple[str, int]]) -> list[str]:
    if row.stage is None:
        return ["it has no state"]
    faults = []
    ids, logprobs = json.loads(row.completion_token_ids), json.loads(row.sampling_logprobs)
    if row.stage != Stage.DROPPED and len(ids) != len(logprobs):
        faults.append(f"{len(ids)} ids but {len(logprobs)} logprobs, and it is not dropped")
    if (row.stage == Stage.DROPPED) != (row.drop_reason is not None):
        faults.append(f"stage {row.stage} with drop reason {row.drop_reason}")
    # After late feedback a trained turn is answered again, and names its version until it is scored.
    may_name = (Stage.TRAINED, Stage.ANSWERED) if row.trained_in_version is not None else (row.stage,)
    if row.stage not in may_name or (row.stage == Stage.TRAINED and row.trained_in_version is None):
        faults.append(f"stage {row.stage} with trained_in_version {row.trained_in_version}")
    if row.trained_in_version is not None and (row.policy, row.trained_in_version) not in adapters:
        faults.append(f"trained in version {row.trained_in_version}, which is not there")
    if (row.stage == Stage.CLAIMED) != (row.claimed_by is not None):
        faults.append(f"stage {row.stage} claimed by {row.claimed_by}")
    return faults


def _orphans(connection: sa.Connection) -> list[str]:
    wrong = []
    for table in (
        schema.next_states,
        schema.feedback,
        schema.verdicts,
        schema.turn_states,
        schema.wish_statements,
    ):
        rows = connection.execute(
            sa.select(table.c.turn_id)
            .outerjoin(schema.turns, schema.turns.c.turn_id == table.c.turn_id)
            .where(schema.turns.c.turn_id.is_(None))
        )
        wrong += [f"{table.name}: its turn {turn_id} is not there" for turn_id in rows.scalars()]
    wishes = set(connection.execute(sa.select(schema.wishes.c.wish_id)).scalars())
    stated = set(connection.execute(sa.select(schema.wish_statements.c.wish_id)).scalars())
    wrong += [f"wish {wish_id}: no turn states it" for wish_id in sorted(wishes - stated)]
    wrong += [f"wish {wish_id}: it is not there, but a turn states it" for wish_id in sorted(stated - wishes)]
    return wrong
