"""The hash of each version's manifest; "" for versions made before there were manifests."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "adapters", sa.Column("manifest_hash", sa.String(length=64), nullable=False, server_default="")
    )


def downgrade() -> None:
    raise NotImplementedError("the record is never taken back to an older schema")
