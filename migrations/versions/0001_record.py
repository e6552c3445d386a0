"""The record: messages, turns, what followed them, verdicts, lives, adapters.

Revision: 0001, after none.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _create_policy_tables()
    _create_messages()
    _create_turns()
    _create_turn_tables()
    _create_verdicts()
    op.execute(_VIEW[op.get_bind().dialect.name])


def _create_policy_tables() -> None:
    op.create_table(
        "adapters",
        sa.Column("policy", sa.String(length=128), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("content_hash", sa.String(length=64), nullable=False),
        sa.Column("parent_version", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("method", sa.String(length=16), nullable=False),
        sa.Column("metrics", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("policy", "version", name=op.f("pk_adapters")),
    )
    op.create_table(
        "alias_moves",
        sa.Column("move_id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("policy", sa.String(length=128), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("moved_at", sa.Float(), nullable=False),
        sa.Column("by", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("move_id", name=op.f("pk_alias_moves")),
    )
    op.create_index(op.f("ix_alias_moves_policy_move_id"), "alias_moves", ["policy", "move_id"], unique=False)
    op.create_table(
        "controls",
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_controls")),
    )
    op.create_table(
        "heartbeats",
        sa.Column("process", sa.String(length=32), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("process", name=op.f("pk_heartbeats")),
    )


def _create_messages() -> None:
    op.create_table(
        "messages",
        sa.Column("hash", sa.String(length=32), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_messages")),
    )
    op.create_table(
        "steps",
        sa.Column("step_id", sa.String(length=64), nullable=False),
        sa.Column("policy", sa.String(length=128), nullable=False),
        sa.Column("method", sa.String(length=16), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("finished_at", sa.Float(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("metrics", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("step_id", name=op.f("pk_steps")),
    )
    op.create_index(op.f("ix_steps_policy_started_at"), "steps", ["policy", "started_at"], unique=False)
    op.create_table(
        "nodes",
        sa.Column("node", sa.String(length=32), nullable=False),
        sa.Column("parent", sa.String(length=32), nullable=False),
        sa.Column("message", sa.String(length=32), nullable=False),
        sa.Column("depth", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["message"], ["messages.hash"], name=op.f("fk_nodes_message")),
        sa.PrimaryKeyConstraint("node", name=op.f("pk_nodes")),
    )


def _create_turns() -> None:
    op.create_table(
        "turns",
        sa.Column("turn_id", sa.String(length=64), nullable=False),
        sa.Column("completion_id", sa.String(length=128), nullable=True),
        sa.Column("session_id", sa.String(length=256), nullable=False),
        sa.Column("parent_turn_id", sa.String(length=64), nullable=True),
        sa.Column("turn_index", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("relation", sa.String(length=16), nullable=False),
        sa.Column("link_reason", sa.String(length=200), nullable=False),
        sa.Column("link_confidence", sa.Float(), nullable=False),
        sa.Column("policy", sa.String(length=128), nullable=False),
        sa.Column("scope", sa.String(length=128), nullable=False),
        sa.Column("adapter_version", sa.Integer(), nullable=False),
        sa.Column("client", sa.String(length=128), nullable=False),
        sa.Column("user", sa.String(length=256), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("finished_at", sa.Float(), nullable=False),
        sa.Column("status_code", sa.Integer(), nullable=False),
        sa.Column("streamed", sa.Boolean(), nullable=False),
        sa.Column("preamble_node", sa.String(length=32), nullable=False),
        sa.Column("history_node", sa.String(length=32), nullable=False),
        sa.Column("request", sa.String(length=32), nullable=False),
        sa.Column("completion", sa.Text(), nullable=False),
        sa.Column("reasoning", sa.Text(), nullable=False),
        sa.Column("tool_calls", sa.Text(), nullable=False),
        sa.Column("completion_token_ids", sa.Text(), nullable=False),
        sa.Column("sampling_logprobs", sa.Text(), nullable=False),
        sa.Column("finish_reason", sa.String(length=64), nullable=True),
        sa.Column("prompt_base_turn_id", sa.String(length=64), nullable=True),
        sa.Column("prompt_base_length", sa.Integer(), nullable=False),
        sa.Column("prompt_token_ids", sa.Text(), nullable=False),
        sa.Column("temperature", sa.Float(), nullable=False),
        sa.Column("logprob_mode", sa.String(length=32), nullable=False),
        sa.Column("usage", sa.Text(), nullable=True),
        sa.Column("request_key", sa.String(length=32), nullable=False),
        sa.Column("reply_key", sa.String(length=32), nullable=True),
        sa.Column("completion_key", sa.String(length=32), nullable=False),
        sa.Column("drop_detail", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["request"], ["messages.hash"], name=op.f("fk_turns_request")),
        sa.PrimaryKeyConstraint("turn_id", name=op.f("pk_turns")),
    )
    op.create_index(op.f("ix_turns_completion_id"), "turns", ["completion_id"], unique=False)
    op.create_index(op.f("ix_turns_created_at"), "turns", ["created_at"], unique=False)
    op.create_index(op.f("ix_turns_scope_completion_key"), "turns", ["scope", "completion_key"], unique=False)
    op.create_index(op.f("ix_turns_scope_reply_key"), "turns", ["scope", "reply_key"], unique=False)
    op.create_index(op.f("ix_turns_scope_request_key"), "turns", ["scope", "request_key"], unique=False)
    op.create_index(
        op.f("ix_turns_session_id_turn_index"), "turns", ["session_id", "turn_index"], unique=False
    )


def _create_turn_tables() -> None:
    op.create_table(
        "feedback",
        sa.Column("feedback_id", sa.String(length=64), nullable=False),
        sa.Column("turn_id", sa.String(length=64), nullable=False),
        sa.Column("score", sa.Float(), nullable=True),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.String(length=256), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(
            ["turn_id"], ["turns.turn_id"], name=op.f("fk_feedback_turn_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("feedback_id", name=op.f("pk_feedback")),
        sa.UniqueConstraint("idempotency_key", name=op.f("uq_feedback_idempotency_key")),
    )
    op.create_index(op.f("ix_feedback_turn_id"), "feedback", ["turn_id"], unique=False)
    op.create_table(
        "lives",
        sa.Column("turn_id", sa.String(length=64), nullable=False),
        sa.Column("policy", sa.String(length=128), nullable=False),
        sa.Column("stage", sa.String(length=16), nullable=False),
        sa.Column("drop_reason", sa.String(length=32), nullable=True),
        sa.Column("claimed_by", sa.String(length=128), nullable=True),
        sa.Column("lease_until", sa.Float(), nullable=True),
        sa.Column("trained_in_version", sa.Integer(), nullable=True),
        sa.Column("since", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(
            ["turn_id"], ["turns.turn_id"], name=op.f("fk_lives_turn_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("turn_id", name=op.f("pk_lives")),
    )
    op.create_index(
        op.f("ix_lives_policy_trained_in_version"), "lives", ["policy", "trained_in_version"], unique=False
    )
    op.create_index(op.f("ix_lives_stage_policy_since"), "lives", ["stage", "policy", "since"], unique=False)
    op.create_table(
        "next_states",
        sa.Column("turn_id", sa.String(length=64), nullable=False),
        sa.Column("by_turn_id", sa.String(length=64), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("messages", sa.Text(), nullable=False),
        sa.Column("relation", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(
            ["turn_id"], ["turns.turn_id"], name=op.f("fk_next_states_turn_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("turn_id", "by_turn_id", name=op.f("pk_next_states")),
    )


def _create_verdicts() -> None:
    op.create_table(
        "verdicts",
        sa.Column("verdict_id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("turn_id", sa.String(length=64), nullable=False),
        sa.Column("value", sa.Integer(), nullable=True),
        sa.Column("hint", sa.Text(), nullable=True),
        sa.Column("hint_is_reaction", sa.Boolean(), nullable=False),
        sa.Column("source", sa.String(length=256), nullable=False),
        sa.Column("confidence", sa.Float(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(
            ["turn_id"], ["turns.turn_id"], name=op.f("fk_verdicts_turn_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("verdict_id", name=op.f("pk_verdicts")),
    )
    op.create_index(
        op.f("ix_verdicts_turn_id_verdict_id"), "verdicts", ["turn_id", "verdict_id"], unique=False
    )


def downgrade() -> None:
    raise NotImplementedError("the first migration has nothing before it")


# Frozen copies of `store.schema.trajectories_view`: a migration is history and must not follow later changes.
_VIEW = {
    "sqlite": """
CREATE VIEW trajectories AS
SELECT t.turn_id, t.session_id, t.parent_turn_id, t.turn_index, t.kind, t.relation, t.policy, t.adapter_version,
  t.client, t.created_at,
  (
      WITH RECURSIVE walk(part, parent, message, depth) AS (
        SELECT CASE WHEN n.node = t.preamble_node THEN 0 ELSE 1 END, n.parent, n.message, n.depth
          FROM nodes n WHERE n.node = t.preamble_node
        UNION ALL
        SELECT 1, n.parent, n.message, n.depth FROM nodes n WHERE n.node = t.history_node
        UNION ALL
        SELECT walk.part, n.parent, n.message, n.depth FROM nodes n JOIN walk ON n.node = walk.parent
      )
      SELECT json_group_array(json(w.body)) FROM (
        SELECT walk.part AS part, walk.depth AS depth, m.body AS body
          FROM walk JOIN messages m ON m.hash = walk.message ORDER BY walk.part, walk.depth
      ) w) AS messages,
  t.completion, t.tool_calls, t.completion_token_ids, t.sampling_logprobs, t.finish_reason,
  (SELECT s.role FROM next_states s WHERE s.turn_id = t.turn_id
      ORDER BY s.created_at DESC, s.by_turn_id LIMIT 1) AS next_role,
  (SELECT s.text FROM next_states s WHERE s.turn_id = t.turn_id
      ORDER BY s.created_at DESC, s.by_turn_id LIMIT 1) AS next_text,
  (SELECT v.value FROM verdicts v WHERE v.turn_id = t.turn_id ORDER BY v.verdict_id DESC LIMIT 1) AS verdict,
  (SELECT v.hint FROM verdicts v WHERE v.turn_id = t.turn_id ORDER BY v.verdict_id DESC LIMIT 1) AS hint,
  (SELECT v.source FROM verdicts v WHERE v.turn_id = t.turn_id ORDER BY v.verdict_id DESC LIMIT 1) AS verdict_source,
  l.stage, l.drop_reason, l.trained_in_version
FROM turns t JOIN lives l ON l.turn_id = t.turn_id
""",
    "postgresql": """
CREATE VIEW trajectories AS
SELECT t.turn_id, t.session_id, t.parent_turn_id, t.turn_index, t.kind, t.relation, t.policy, t.adapter_version,
  t.client, t.created_at,
  (
      WITH RECURSIVE walk(part, parent, message, depth) AS (
        SELECT CASE WHEN n.node = t.preamble_node THEN 0 ELSE 1 END, n.parent, n.message, n.depth
          FROM nodes n WHERE n.node = t.preamble_node
        UNION ALL
        SELECT 1, n.parent, n.message, n.depth FROM nodes n WHERE n.node = t.history_node
        UNION ALL
        SELECT walk.part, n.parent, n.message, n.depth FROM nodes n JOIN walk ON n.node = walk.parent
      )
      SELECT COALESCE(json_agg(w.body::json ORDER BY w.part, w.depth), '[]'::json)::text FROM (
        SELECT walk.part AS part, walk.depth AS depth, m.body AS body
          FROM walk JOIN messages m ON m.hash = walk.message ORDER BY walk.part, walk.depth
      ) w) AS messages,
  t.completion, t.tool_calls, t.completion_token_ids, t.sampling_logprobs, t.finish_reason,
  (SELECT s.role FROM next_states s WHERE s.turn_id = t.turn_id
      ORDER BY s.created_at DESC, s.by_turn_id LIMIT 1) AS next_role,
  (SELECT s.text FROM next_states s WHERE s.turn_id = t.turn_id
      ORDER BY s.created_at DESC, s.by_turn_id LIMIT 1) AS next_text,
  (SELECT v.value FROM verdicts v WHERE v.turn_id = t.turn_id ORDER BY v.verdict_id DESC LIMIT 1) AS verdict,
  (SELECT v.hint FROM verdicts v WHERE v.turn_id = t.turn_id ORDER BY v.verdict_id DESC LIMIT 1) AS hint,
  (SELECT v.source FROM verdicts v WHERE v.turn_id = t.turn_id ORDER BY v.verdict_id DESC LIMIT 1) AS verdict_source,
  l.stage, l.drop_reason, l.trained_in_version
FROM turns t JOIN lives l ON l.turn_id = t.turn_id
""",
}
