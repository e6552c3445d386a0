"""The lease of a shared GPU, as rows of its own instead of text in the heartbeats."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "gpu_leases",
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("lease", sa.String(length=64), nullable=True),
        sa.Column("should_yield", sa.Boolean(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("role", name=op.f("pk_gpu_leases")),
    )


def downgrade() -> None:
    raise NotImplementedError("the record is never taken back to an older schema")
