"""Standard names: the table `lives` is `turn_states`, `scope` is `key_name`, `since` is `stage_since`, `by` is `actor`."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_TURN_INDEXES: tuple[tuple[str, ...], ...] = (
    ("reply_key", "created_at"),
    ("request_key", "created_at"),
    ("completion_key",),
)
_STATE_INDEXES: tuple[tuple[str, ...], ...] = (("policy", "trained_in_version"), ("stage", "policy", "since"))


def upgrade() -> None:
    # Both databases follow a renamed table and column in the view and in foreign keys. An index keeps its name: SQLite cannot rename one.
    for columns in _TURN_INDEXES:
        op.drop_index(op.f(f"ix_turns_scope_{'_'.join(columns)}"), "turns")
    for columns in _STATE_INDEXES:
        op.drop_index(op.f(f"ix_lives_{'_'.join(columns)}"), "lives")
    op.drop_index(op.f("ix_lives_drop_reason"), "lives")
    op.rename_table("lives", "turn_states")
    op.execute("ALTER TABLE turns RENAME COLUMN scope TO key_name")
    op.execute("ALTER TABLE turn_states RENAME COLUMN since TO stage_since")
    op.execute('ALTER TABLE alias_moves RENAME COLUMN "by" TO actor')
    for columns in _TURN_INDEXES:
        op.create_index(op.f(f"ix_turns_key_name_{'_'.join(columns)}"), "turns", ["key_name", *columns])
    for columns in _STATE_INDEXES:
        names = ["stage_since" if name == "since" else name for name in columns]
        op.create_index(op.f(f"ix_turn_states_{'_'.join(names)}"), "turn_states", names)
    dropped = sa.text("drop_reason IS NOT NULL")
    op.create_index(
        op.f("ix_turn_states_drop_reason"),
        "turn_states",
        ["drop_reason"],
        sqlite_where=dropped,
        postgresql_where=dropped,
    )


def downgrade() -> None:
    raise NotImplementedError("the record is never taken back to an older schema")
