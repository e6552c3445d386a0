"""Indexes for what `status` counts: over a million turns it took longer than anybody waits."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(op.f("ix_turns_kind"), "turns", ["kind"], unique=False)
    dropped = sa.text("drop_reason IS NOT NULL")
    op.create_index(
        "ix_lives_drop_reason", "lives", ["drop_reason"], sqlite_where=dropped, postgresql_where=dropped
    )


def downgrade() -> None:
    raise NotImplementedError("the record is never taken back to an older schema")
