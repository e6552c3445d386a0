"""What a forget does with training files: which go with it, and which jobs are to be done again."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

import sqlalchemy as sa

from store import schema
from store.values import Selection, TuningStatus


def files_of(
    connection: sa.Connection, selection: Selection, keys: Collection[str], words: re.Pattern[str]
) -> dict[str, str]:
    """Return the files that a selection names or that hold its words, each with its key.

    Args:
        keys: whose files are searched for the words.
    """
    f = schema.training_files
    found: dict[str, str] = {}
    wanted = {selection.turn, *selection.turns}
    for row in connection.execute(sa.select(f.c.file_id, f.c.key_name, f.c.created_at)).all():
        is_of_key = (
            selection.key_name == row.key_name
            and selection.match is None
            and selection.before is None
            and row.created_at >= (selection.since or 0.0)
        )
        if row.file_id in wanted or is_of_key:
            found[row.file_id] = row.key_name
        elif row.key_name in keys:
            content = connection.execute(
                sa.select(f.c.content).where(f.c.file_id == row.file_id)
            ).scalar_one()
            if words.search(content):
                found[row.file_id] = row.key_name
    return found


def keys_with_files(connection: sa.Connection) -> set[str]:
    """Return the names of the keys that have files."""
    return set(connection.execute(sa.select(schema.training_files.c.key_name).distinct()).scalars())


def file_contents(connection: sa.Connection, file_ids: Collection[str]) -> list[tuple[str, str]]:
    """Return (id, content) of files."""
    f = schema.training_files.c
    rows = connection.execute(sa.select(f.file_id, f.content).where(f.file_id.in_(sorted(file_ids))))
    return [(row.file_id, row.content) for row in rows]


def delete_files(connection: sa.Connection, file_ids: Collection[str]) -> None:
    """Delete files with their jobs."""
    s = schema.step_turns
    connection.execute(sa.delete(s).where(s.c.turn_id.in_(sorted(file_ids))))
    for table in (schema.tuning_jobs, schema.training_files):
        connection.execute(sa.delete(table).where(table.c.file_id.in_(sorted(file_ids))))


def queue_again(connection: sa.Connection, tainted: Mapping[str, Collection[int]]) -> None:
    """Queue the jobs whose versions are forgotten because of something else: their files are still there."""
    j = schema.tuning_jobs
    for policy, versions in tainted.items():
        connection.execute(
            sa.update(j)
            .where(
                j.c.policy == policy,
                j.c.version.in_(sorted(versions)),
                j.c.status == TuningStatus.SUCCEEDED.value,
            )
            .values(
                status=TuningStatus.QUEUED.value, version=None, attempts=0, started_at=None, finished_at=None
            )
        )
