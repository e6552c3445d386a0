"""The live version of a policy: the one place where it moves."""

from __future__ import annotations

import sqlalchemy as sa

from store import schema
from store.queries.wishes import sync_retired


def move_alias(connection: sa.Connection, policy: str, version: int, *, at: float, actor: str) -> None:
    """Make a version live; wishes that it follows alone leave the prompt, and others come back."""
    connection.execute(
        sa.insert(schema.alias_moves).values(policy=policy, version=version, moved_at=at, actor=actor)
    )
    sync_retired(connection, policy, version, at)
