"""Which version was computed from which, and from what: what `forget` and `retrain` ask."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator

import sqlalchemy as sa

from store import schema
from store.values import BASE_VERSION, LineageStep, StepInputs, StepRole

#: Ids in one statement.
_CHUNK = 10_000
#: What a version was trained on. The window of the baseline is not among it: of that only a mean of verdicts enters.
TRAINED_ON = (StepRole.BATCH, StepRole.REPLAY, StepRole.REMEMBERED)


def parents(connection: sa.Connection, policy: str) -> dict[int, int]:
    """Return the parent of every version of a policy."""
    a = schema.adapters.c
    rows = connection.execute(sa.select(a.version, a.parent_version).where(a.policy == policy))
    return {row.version: row.parent_version for row in rows}


def lineage(
    connection: sa.Connection, policy: str, version: int, start: int = BASE_VERSION
) -> list[LineageStep]:
    """Return the versions from ``start`` (not among them) to ``version``, oldest first.

    Where ``start`` is no ancestor, they begin at the base model.
    """
    of = parents(connection, policy)
    chain = []
    while version not in (start, BASE_VERSION) and version in of:
        chain.append(version)
        version = of[version]
    return [_step(connection, policy, one, of[one]) for one in reversed(chain)]


def _step(connection: sa.Connection, policy: str, version: int, parent: int) -> LineageStep:
    s, t = schema.steps.c, schema.step_turns.c
    row = connection.execute(
        sa.select(s.step_id, s.inputs).where(s.policy == policy, s.version == version)
    ).first()
    stored = json.loads(row.inputs) if row is not None else {}
    turns: dict[StepRole, list[tuple[str, int]]] = {role: [] for role in StepRole}
    if row is not None:
        used = sa.select(t.role, t.turn_id, t.verdict_id).where(t.step_id == row.step_id).order_by(t.position)
        for one in connection.execute(used):
            turns[StepRole(one.role)].append((one.turn_id, one.verdict_id))
    inputs = StepInputs(
        turns={role: tuple(some) for role, some in turns.items()},
        edit_id=int(stored.get("edit_id", 0)),
        state=stored.get("state", {}),
        settings=stored.get("settings", {}),
    )
    return LineageStep(policy=policy, version=version, parent_version=parent, inputs=inputs)


def trained_on(connection: sa.Connection, turn_ids: Collection[str]) -> dict[str, set[int]]:
    """Return the versions, by policy, that were trained on one of these turns, and all that descend from them.

    A version of before the inputs were recorded counts by the turns that name it, and when it was rejected and is younger than the
    oldest of them.
    """
    found: dict[str, set[int]] = {}
    every = sorted(turn_ids)
    for start in range(0, len(every), _CHUNK):
        for policy, version in _directly_trained_on(connection, every[start : start + _CHUNK]):
            found.setdefault(policy, set()).add(version)
    return {
        policy: with_descendants(versions, parents(connection, policy)) for policy, versions in found.items()
    }


def _directly_trained_on(connection: sa.Connection, ids: list[str]) -> Iterator[tuple[str, int]]:
    s, t, lv = schema.steps.c, schema.step_turns.c, schema.turn_states.c
    a = schema.adapters.c
    used = (
        sa.select(s.policy, s.version)
        .join(schema.step_turns, t.step_id == s.step_id)
        .where(t.turn_id.in_(ids), t.role.in_([role.value for role in TRAINED_ON]), s.version.is_not(None))
    )
    named = sa.select(lv.policy, lv.trained_in_version).where(
        lv.turn_id.in_(ids), lv.trained_in_version.is_not(None)
    )
    for query in (used, named):
        yield from ((policy, version) for policy, version in connection.execute(query))
    oldest = sa.select(lv.policy, sa.func.min(schema.turns.c.created_at)).join(
        schema.turns, schema.turns.c.turn_id == lv.turn_id
    )
    for policy, at in connection.execute(oldest.where(lv.turn_id.in_(ids)).group_by(lv.policy)).all():
        unknown = (
            sa.select(a.version)
            .join(schema.steps, sa.and_(s.policy == a.policy, s.version == a.version))
            .where(a.policy == policy, a.state == "rejected", a.created_at > at, s.inputs == "{}")
        )
        yield from ((policy, version) for version in connection.execute(unknown).scalars())


def with_descendants(versions: Collection[int], parents: dict[int, int]) -> set[int]:
    """Return these versions and all that were made from them. Pure."""
    found = set(versions)
    for version in sorted(parents):  # a version is younger than its parent
        if parents[version] in found:
            found.add(version)
    return found
