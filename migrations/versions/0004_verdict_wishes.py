"""The style wishes that a verdict's hint states, as labels in a JSON list beside the hint. Verdicts made before state none."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("verdicts", sa.Column("wishes", sa.Text(), server_default="[]", nullable=False))


def downgrade() -> None:
    raise NotImplementedError("the record is never taken back to an older schema")
