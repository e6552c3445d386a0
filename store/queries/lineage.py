"""Which version was computed from which, and from what: what `forget` asks."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import sqlalchemy as sa

from store import schema
from store.values import StepRole

#: Ids in one statement.
_CHUNK = 10_000


def parents(connection: sa.Connection, policy: str) -> dict[int, int]:
    """Return the parent of every version of a policy."""
    a = schema.adapters.c
    rows = connection.execute(sa.select(a.version, a.parent_version).where(a.policy == policy))
    return {row.version: row.parent_version for row in rows}


def trained_on(
    connection: sa.Connection, turn_ids: Collection[str], *, but: Collection[StepRole] = ()
) -> dict[str, set[int]]:
    """Return the versions, by policy, whose inputs hold one of these turns, and all that were made from them.

    A version that begins at the base model descends from none (`AdapterVersion.parent_version` is 0).
    A version of before the inputs were recorded counts by the turns that name it, and when it was rejected and is younger than the
    oldest of them.

    Args:
        but: roles that do not count.
    """
    found: dict[str, set[int]] = {}
    every = sorted(turn_ids)
    for start in range(0, len(every), _CHUNK):
        for policy, version in _directly_trained_on(connection, every[start : start + _CHUNK], but):
            found.setdefault(policy, set()).add(version)
    return {
        policy: with_descendants(versions, parents(connection, policy)) for policy, versions in found.items()
    }


def _directly_trained_on(
    connection: sa.Connection, ids: list[str], but: Collection[StepRole]
) -> Iterator[tuple[str, int]]:
    s, t, lv = schema.steps.c, schema.step_turns.c, schema.turn_states.c
    a = schema.adapters.c
    used = (
        sa.select(s.policy, s.version)
        .join(schema.step_turns, t.step_id == s.step_id)
        .where(t.turn_id.in_(ids), t.role.not_in(sorted(but)), s.version.is_not(None))
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
