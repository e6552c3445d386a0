"""The evidence for a turn's kind, and the first kind where what followed corrected it."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("turns", sa.Column("kind_evidence", sa.Text(), nullable=False, server_default="[]"))
    op.add_column("turns", sa.Column("first_kind", sa.String(length=8)))
    op.add_column("turns", sa.Column("first_kind_reason", sa.String(length=32)))
    op.add_column("turns", sa.Column("first_kind_evidence", sa.Text()))


def downgrade() -> None:
    raise NotImplementedError("the record is never taken back to an older schema")
