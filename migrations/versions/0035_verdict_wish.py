"""What a message asks of replies, in the person's words, with its scope; the labels of known styles go. Older verdicts have none."""

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("verdicts", sa.Column("wish", sa.Text()))
    op.add_column("verdicts", sa.Column("wish_scope", sa.String(16)))
    op.drop_column("verdicts", "wishes")


def downgrade() -> None:
    raise NotImplementedError("the record is never taken back to an older schema")
