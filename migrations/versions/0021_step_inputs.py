"""What each step was computed from, and the ids of forgotten turns."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("steps", sa.Column("inputs", sa.Text(), nullable=False, server_default="{}"))
    op.create_table(
        "step_turns",
        sa.Column("step_id", sa.String(length=64), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("turn_id", sa.String(length=64), nullable=False),
        sa.Column("verdict_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["step_id"], ["steps.step_id"], name=op.f("fk_step_turns_step_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("step_id", "role", "position", name=op.f("pk_step_turns")),
    )
    op.create_index(op.f("ix_step_turns_turn_id"), "step_turns", ["turn_id"])
    op.create_table(
        "forgotten_turns",
        sa.Column("turn_id", sa.String(length=64), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("turn_id", name=op.f("pk_forgotten_turns")),
    )


def downgrade() -> None:
    raise NotImplementedError("the record is never taken back to an older schema")
