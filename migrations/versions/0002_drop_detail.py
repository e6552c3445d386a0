"""Why a turn was dropped, in words, beside the reason: also when it was dropped long after it was written."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("lives", sa.Column("detail", sa.Text(), nullable=True))
    op.execute(
        "UPDATE lives SET detail = (SELECT t.drop_detail FROM turns t WHERE t.turn_id = lives.turn_id)"
        " WHERE drop_reason IS NOT NULL"
        " AND EXISTS (SELECT 1 FROM turns t WHERE t.turn_id = lives.turn_id AND t.drop_detail <> '')"
    )


def downgrade() -> None:
    raise NotImplementedError("the record is never taken back to an older schema")
