"""Which conversation a canary release drew a version for. A version that was live and still watched is kept: nothing is compared after a trial."""

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("turns", sa.Column("drawn", sa.String(length=32), server_default="", nullable=False))
    op.execute("UPDATE canary_releases SET stage = 'kept' WHERE stage = 'watched'")


def downgrade() -> None:
    raise NotImplementedError("the record is never taken back to an older schema")
