"""How far each segment of a journal is recorded, in the transaction that records it."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "journal_offsets",
        sa.Column("segment", sa.String(length=128), nullable=False),
        sa.Column("recorded", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("segment", name=op.f("pk_journal_offsets")),
    )


def downgrade() -> None:
    raise NotImplementedError("the record is never taken back to an older schema")
