"""Wishes with the turns that state them, and what of them was added to a turn's prompt. Of the owner's edits the newest words become wishes."""

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("turns", sa.Column("wish_text", sa.Text(), server_default="", nullable=False))
    op.add_column("turns", sa.Column("wish_place", sa.String(length=16), server_default="", nullable=False))
    wishes = op.create_table(
        "wishes",
        sa.Column("wish_id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("policy", sa.String(length=128), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("edited", sa.Boolean(), nullable=False),
        sa.Column("measures", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("changed_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("wish_id", name=op.f("pk_wishes")),
    )
    op.create_index(op.f("ix_wishes_policy"), "wishes", ["policy"], unique=False)
    statements = op.create_table(
        "wish_statements",
        sa.Column("turn_id", sa.String(length=64), nullable=False),
        sa.Column("wish_id", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(
            ["turn_id"], ["turns.turn_id"], name=op.f("fk_wish_statements_turn_id_turns"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("turn_id", name=op.f("pk_wish_statements")),
    )
    op.create_index(op.f("ix_wish_statements_wish_id"), "wish_statements", ["wish_id"], unique=False)
    edits = op.get_bind().execute(
        sa.text("SELECT policy, turn_id, text, created_at FROM wish_edits ORDER BY edit_id")
    )
    newest = {edit.turn_id: edit for edit in edits}
    kept = [edit for edit in newest.values() if edit.text]
    rows = [
        {"wish_id": number, "policy": edit.policy, "state": "prompt", "text": edit.text, "edited": True, "measures": "{}",
         "created_at": edit.created_at, "changed_at": edit.created_at}
        for number, edit in enumerate(kept, 1)
    ]  # fmt: skip
    op.bulk_insert(wishes, rows)
    op.bulk_insert(
        statements,
        [
            {"turn_id": edit.turn_id, "wish_id": number, "text": edit.text, "created_at": edit.created_at}
            for number, edit in enumerate(kept, 1)
        ],
    )
    op.drop_table("wish_edits")


def downgrade() -> None:
    raise NotImplementedError("the record is never taken back to an older schema")
