"""Uploaded files of examples, and the fine-tuning jobs that learn them."""

import sqlalchemy as sa
from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "training_files",
        sa.Column("file_id", sa.String(length=64), nullable=False),
        sa.Column("key_name", sa.String(length=128), nullable=False),
        sa.Column("filename", sa.String(length=256), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("method", sa.String(length=16), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("deleted_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("file_id", name=op.f("pk_training_files")),
    )
    op.create_index(
        op.f("ix_training_files_key_name_created_at"), "training_files", ["key_name", "created_at"]
    )
    op.create_table(
        "tuning_jobs",
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("key_name", sa.String(length=128), nullable=False),
        sa.Column("policy", sa.String(length=128), nullable=False),
        sa.Column("file_id", sa.String(length=64), nullable=False),
        sa.Column("method", sa.String(length=16), nullable=False),
        sa.Column("epochs", sa.Integer(), nullable=False),
        sa.Column("beta", sa.Float(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=True),
        sa.Column("finished_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(
            ["file_id"],
            ["training_files.file_id"],
            name=op.f("fk_tuning_jobs_file_id_training_files"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_tuning_jobs")),
    )
    op.create_index(op.f("ix_tuning_jobs_key_name_created_at"), "tuning_jobs", ["key_name", "created_at"])
    op.create_index(op.f("ix_tuning_jobs_status_policy"), "tuning_jobs", ["status", "policy"])


def downgrade() -> None:
    raise NotImplementedError("the record is never taken back to an older schema")
