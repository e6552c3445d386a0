"""Versions that serve a share of the new conversations before all of them."""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "canary_releases",
        sa.Column("policy", sa.String(length=128), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("baseline_version", sa.Integer(), nullable=False),
        sa.Column("share", sa.Float(), nullable=False),
        sa.Column("stage", sa.String(length=16), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("stage_since", sa.Float(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("numbers", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("policy", "version", name=op.f("pk_canary_releases")),
    )
    op.create_index(op.f("ix_canary_releases_stage"), "canary_releases", ["stage"])


def downgrade() -> None:
    raise NotImplementedError("the record is never taken back to an older schema")
