"""Items that clients add to a conversation or delete from it."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    items = op.create_table(
        "conversation_items",
        sa.Column("conversation_id", sa.String(length=64), nullable=False),
        sa.Column("item_id", sa.String(length=64), nullable=False),
        sa.Column("added_at", sa.Float(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("item", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["conversation_id"],
            ["conversations.conversation_id"],
            name=op.f("fk_conversation_items_conversation_id_conversations"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("conversation_id", "item_id", name=op.f("pk_conversation_items")),
    )
    known = op.get_bind().execute(sa.text("SELECT conversation_id, items, created_at FROM conversations"))
    rows = [
        {
            "conversation_id": conversation_id,
            "item_id": f"item_{conversation_id.removeprefix('conv_')}_{position}",
            "added_at": created_at,
            "position": position,
            "item": json.dumps(item, ensure_ascii=False),
        }
        for conversation_id, begun, created_at in known
        for position, item in enumerate(json.loads(begun))
    ]
    op.bulk_insert(items, rows)
    op.drop_column("conversations", "items")


def downgrade() -> None:
    raise NotImplementedError("the record is never taken back to an older schema")
