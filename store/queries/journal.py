"""What the recorder writes besides turns: how far the journal is recorded, and the feedback that came through it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from store import schema
from store.database import present, upsert
from store.queries.forget_jobs import guards
from store.queries.proxy import add_feedback
from store.queries.replies import write_api_requests
from store.queries.turns import TurnWriter, Written
from store.values import Feedback, NewTurn


def record_batch(
    connection: sa.Connection,
    writer: TurnWriter,
    turns: Sequence[NewTurn],
    done: Sequence[tuple[str, str]],
    feedback: Sequence[Feedback],
    offsets: Mapping[str, int],
) -> tuple[Written, list[Feedback]]:
    """Write turns, then the feedback about them, then how far the journal is recorded.

    Args:
        offsets: segment name -> byte offset up to which it is recorded with this transaction.

    Returns:
        (what the writer shall keep, feedback about turns that the record does not have: it was not stored).
    """
    written = writer.write(connection, turns, done) if turns else []
    recorded_now = {turn.turn_id for turn, _ in written}
    write_api_requests(connection, [turn for turn in turns if turn.turn_id in recorded_now])
    known = present(connection, schema.turns.c.turn_id, [one.turn_id for one in feedback])
    unmatched = [one for one in feedback if one.turn_id not in known]
    wanted = [one for one in feedback if one.turn_id in known]
    refused = _refused(connection, wanted) if wanted else set()
    for one in wanted:
        if one.feedback_id not in refused:
            add_feedback(connection, one)
    for segment, recorded in offsets.items():
        upsert(connection, schema.journal_offsets, {"segment": segment, "recorded": recorded}, ["segment"])
    return written, unmatched


def _refused(connection: sa.Connection, feedback: Sequence[Feedback]) -> set[str]:
    """Return the ids of the feedback that holds words of a forget which it is older than."""
    found = guards(connection, min(one.created_at for one in feedback))
    if not found:
        return set()
    t = schema.turns.c
    query = sa.select(t.turn_id, t.key_name).where(t.turn_id.in_([one.turn_id for one in feedback]))
    keys = {row.turn_id: row.key_name for row in connection.execute(query)}
    return {
        one.feedback_id
        for one in feedback
        if any(guard.refuses_feedback(one, keys[one.turn_id]) for guard in found)
    }


def journal_offsets(connection: sa.Connection) -> dict[str, int]:
    """Return how far each segment of the journal is recorded, in bytes, by name."""
    c = schema.journal_offsets.c
    return {row.segment: row.recorded for row in connection.execute(sa.select(c.segment, c.recorded))}


def forget_segments(connection: sa.Connection, names: Sequence[str]) -> None:
    """Delete the offsets of segments that were removed."""
    connection.execute(
        schema.journal_offsets.delete().where(schema.journal_offsets.c.segment.in_(list(names)))
    )


def has_feedback(connection: sa.Connection, idempotency_key: str) -> bool:
    """Whether feedback with this key is recorded."""
    c = schema.feedback.c
    statement = sa.select(c.feedback_id).where(c.idempotency_key == idempotency_key).limit(1)
    return connection.execute(statement).first() is not None
