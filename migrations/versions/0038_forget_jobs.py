"""What a person asked to forget, until it is forgotten and after: deleted completions that waited in a process's memory become rows."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None


def upgrade() -> None:
    jobs = op.create_table(
        "forget_jobs",
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("key_name", sa.String(length=128), nullable=False),
        sa.Column("asked", sa.Text(), nullable=False),
        sa.Column("selection", sa.Text(), nullable=False),
        sa.Column("stage", sa.String(length=16), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("waits", sa.Text(), nullable=False),
        sa.Column("asked_at", sa.Float(), nullable=False),
        sa.Column("deleted_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_forget_jobs")),
    )
    op.create_index(op.f("ix_forget_jobs_stage"), "forget_jobs", ["stage"], unique=False)
    waiting = op.get_bind().execute(
        sa.text(
            "SELECT t.turn_id, t.key_name, s.deleted_at FROM stored_completions s JOIN turns t ON t.turn_id = s.turn_id"
            " WHERE s.deleted_at IS NOT NULL ORDER BY s.deleted_at"
        )
    )
    op.bulk_insert(
        jobs,
        [
            {"job_id": f"completion-{turn_id}"[:64], "key_name": key_name, "asked": f"turn {turn_id}",
             "selection": json.dumps({"turn": turn_id, "with_replies": True}), "stage": "asked", "detail": "{}", "waits": "",
             "asked_at": at, "deleted_at": None}
            for turn_id, key_name, at in waiting
        ],
    )  # fmt: skip


def downgrade() -> None:
    raise NotImplementedError("the record is never taken back to an older schema")
