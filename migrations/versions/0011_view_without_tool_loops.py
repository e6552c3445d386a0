"""The view shows what followed a turn itself, not what a user wrote about the answer that its tool loop led to."""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_COLLECT = {
    "sqlite": "json_group_array(json(w.body))",
    "postgresql": "COALESCE(json_agg(w.body::json ORDER BY w.part, w.depth), '[]'::json)::text",
}

# A frozen copy of `store.schema.trajectories_view`.
_VIEW = """
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
      SELECT {collect} FROM (
        SELECT walk.part AS part, walk.depth AS depth, m.body AS body
          FROM walk JOIN messages m ON m.hash = walk.message ORDER BY walk.part, walk.depth
      ) w) AS messages,
  t.completion, t.tool_calls, t.completion_token_ids, t.sampling_logprobs, t.finish_reason,
  (SELECT s.role FROM next_states s WHERE s.turn_id = t.turn_id AND s.relation <> 'tool_loop'
      ORDER BY s.created_at DESC, s.by_turn_id LIMIT 1) AS next_role,
  (SELECT s.text FROM next_states s WHERE s.turn_id = t.turn_id AND s.relation <> 'tool_loop'
      ORDER BY s.created_at DESC, s.by_turn_id LIMIT 1) AS next_text,
  (SELECT v.value FROM verdicts v WHERE v.turn_id = t.turn_id ORDER BY v.verdict_id DESC LIMIT 1) AS verdict,
  (SELECT v.hint FROM verdicts v WHERE v.turn_id = t.turn_id ORDER BY v.verdict_id DESC LIMIT 1) AS hint,
  (SELECT v.source FROM verdicts v WHERE v.turn_id = t.turn_id ORDER BY v.verdict_id DESC LIMIT 1) AS verdict_source,
  l.stage, l.drop_reason, l.trained_in_version
FROM turns t JOIN lives l ON l.turn_id = t.turn_id
"""


def upgrade() -> None:
    op.execute("DROP VIEW trajectories")
    op.execute(_VIEW.format(collect=_COLLECT[op.get_bind().dialect.name]))


def downgrade() -> None:
    raise NotImplementedError("the record is never taken back to an older schema")
