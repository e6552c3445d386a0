"""Indexes in which the newest turns under a key, and a turn's children in its session, stand together."""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_WIDER = (
    (["scope", "reply_key"], "created_at"),
    (["scope", "request_key"], "created_at"),
    (["session_id", "turn_index"], "parent_turn_id"),
)


def upgrade() -> None:
    for columns, added in _WIDER:
        op.drop_index(op.f(f"ix_turns_{'_'.join(columns)}"), "turns")
        op.create_index(op.f(f"ix_turns_{'_'.join([*columns, added])}"), "turns", [*columns, added])


def downgrade() -> None:
    raise NotImplementedError("the record is never taken back to an older schema")
