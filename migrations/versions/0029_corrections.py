"""Why a side turn would not train as a main turn, for corrections after a restart; a plain name for "no scorer had an opinion"."""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("turns", sa.Column("main_drop_reason", sa.String(length=32)))
    op.execute("UPDATE turns SET main_drop_reason = 'no_tokens' WHERE completion_token_ids = '[]'")
    op.execute("UPDATE verdicts SET source = 'none' WHERE source = 'nobody'")


def downgrade() -> None:
    raise NotImplementedError("the record is never taken back to an older schema")
