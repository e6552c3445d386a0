"""What clients change of their stored completions."""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "stored_completions",
        sa.Column("turn_id", sa.String(length=64), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=True),
        sa.Column("deleted_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(
            ["turn_id"],
            ["turns.turn_id"],
            name=op.f("fk_stored_completions_turn_id_turns"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("turn_id", name=op.f("pk_stored_completions")),
    )
    op.create_index(op.f("ix_stored_completions_deleted_at"), "stored_completions", ["deleted_at"])


def downgrade() -> None:
    raise NotImplementedError("the record is never taken back to an older schema")
