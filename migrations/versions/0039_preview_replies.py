"""Replies of two versions to past questions, before a canary release."""

import sqlalchemy as sa
from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "preview_replies",
        sa.Column("policy", sa.String(length=128), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("turn_id", sa.String(length=64), nullable=False),
        sa.Column("live", sa.Text(), nullable=False),
        sa.Column("new", sa.Text(), nullable=False),
        sa.Column("change", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(
            ["turn_id"], ["turns.turn_id"], name=op.f("fk_preview_replies_turn_id_turns"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("policy", "version", "turn_id", name=op.f("pk_preview_replies")),
    )
    op.create_index(op.f("ix_preview_replies_turn_id"), "preview_replies", ["turn_id"])


def downgrade() -> None:
    raise NotImplementedError("the record is never taken back to an older schema")
