"""What the owner changed in the playbook: other words for a wish, or that it is withdrawn."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "wish_edits",
        sa.Column("edit_id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("policy", sa.String(length=128), nullable=False),
        sa.Column("turn_id", sa.String(length=64), nullable=False),
        sa.Column("text", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(
            ["turn_id"], ["turns.turn_id"], name=op.f("fk_wish_edits_turn_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("edit_id", name=op.f("pk_wish_edits")),
    )
    op.create_index(op.f("ix_wish_edits_policy_edit_id"), "wish_edits", ["policy", "edit_id"], unique=False)
    op.create_index(op.f("ix_wish_edits_turn_id"), "wish_edits", ["turn_id"], unique=False)


def downgrade() -> None:
    raise NotImplementedError("the record is never taken back to an older schema")
