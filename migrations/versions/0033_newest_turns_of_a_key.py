"""Index the turns of a key by time: its pages and its status read the newest ones."""

from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(op.f("ix_turns_key_name_created_at"), "turns", ["key_name", "created_at"])
    # With the time, or SQLite looks for a completion among all turns of the key because they come in the wanted order.
    op.drop_index(op.f("ix_turns_key_name_completion_key"), "turns")
    columns = ["key_name", "completion_key", "created_at"]
    op.create_index(op.f("ix_turns_key_name_completion_key_created_at"), "turns", columns)


def downgrade() -> None:
    raise NotImplementedError("the record is never taken back to an older schema")
