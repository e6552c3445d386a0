"""What the Responses and Messages APIs say beside the chat request, and conversations that clients create."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "api_requests",
        sa.Column("turn_id", sa.String(length=64), nullable=False),
        sa.Column("api", sa.String(length=16), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("is_hidden", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["turn_id"], ["turns.turn_id"], name=op.f("fk_api_requests_turn_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("turn_id", name=op.f("pk_api_requests")),
    )
    op.create_table(
        "conversations",
        sa.Column("conversation_id", sa.String(length=64), nullable=False),
        sa.Column("key_name", sa.String(length=128), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("items", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("deleted_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("conversation_id", name=op.f("pk_conversations")),
    )


def downgrade() -> None:
    raise NotImplementedError("the record is never taken back to an older schema")
