"""The tables, one place. `migrations/` creates them; a test holds the two against each other.

Rules: `turns`, `messages`, `nodes`, `next_states`, `feedback`, `verdicts`, `alias_moves` are append-only: a row never changes once it is
written (what a person asks to forget is deleted, not edited; the recorder corrects a turn's kind and place). `turn_states` is the one table that several processes
update, and only by compare-and-set along `store.lifecycle`; `canary_releases` changes by compare-and-set too. `wishes` and `wish_statements`
change in whole transactions of the scorer (stated, withdrawn), the trainer (measured, merged, retired) and a person. Every other table
has one writing process:

    proxy   messages, nodes, turns, next_states, feedback        trainer  adapters, steps, step_turns,
                                                                 canary_releases,
                                                                 preview_replies
    proxy   training_files, tuning_jobs (the trainer moves their status)
    scorer  verdicts                                             alias_moves: trainer (publish) and a person (rollback)
    person  controls; forgotten_turns, forget_jobs (`cli.forgetting`)

A conversation is stored as a chain of nodes, each naming its parent and one message; messages are content-addressed, so a
200-turn session costs what is new in it. Leading system messages form a chain of their own (`preamble_node`): clients change
them every turn, and with them in front of the history every later node would be new as well.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

_HASH = String(32)
_ID = String(64)

messages = Table(
    "messages",
    metadata,
    Column("hash", _HASH, primary_key=True),  # digest(body)
    Column("body", Text, nullable=False),  # JSON exactly as sent
)

nodes = Table(
    "nodes",
    metadata,
    Column("node", _HASH, primary_key=True),  # digest(parent, message)
    Column("parent", _HASH, nullable=False),  # "" for the first
    Column("message", _HASH, ForeignKey("messages.hash"), nullable=False),
    Column("depth", Integer, nullable=False),  # 0 for the first
)

turns = Table(
    "turns",
    metadata,
    Column("turn_id", _ID, primary_key=True),
    Column("completion_id", String(128)),
    Column("session_id", String(256), nullable=False),
    Column("parent_turn_id", _ID),
    Column("turn_index", Integer, nullable=False),
    Column("kind", String(8), nullable=False),
    Column("relation", String(16), nullable=False),
    Column("link_reason", String(200), nullable=False),
    Column("kind_reason", String(32), nullable=False, server_default=""),
    Column("kind_evidence", Text, nullable=False, server_default="[]"),  # JSON list of [code, weight]
    Column(
        "first_kind", String(8)
    ),  # null unless what followed corrected the kind, which the next two columns explain
    Column("first_kind_reason", String(32)),
    Column("first_kind_evidence", Text),
    Column("link_confidence", Float, nullable=False),
    Column("policy", String(128), nullable=False),
    Column("key_name", String(128), nullable=False),
    Column("adapter_version", Integer, nullable=False),
    Column("client", String(128), nullable=False),
    Column("user", String(256)),
    Column("created_at", Float, nullable=False),
    Column("finished_at", Float, nullable=False),
    Column("status_code", Integer, nullable=False),
    Column("streamed", Boolean, nullable=False),
    Column("preamble_node", _HASH, nullable=False),  # "" when there are no leading system messages
    Column("history_node", _HASH, nullable=False),
    Column(
        "request", _HASH, ForeignKey("messages.hash"), nullable=False
    ),  # body less messages, content-addressed too
    Column("completion", Text, nullable=False),
    Column("reasoning", Text, nullable=False),
    Column("tool_calls", Text, nullable=False),  # JSON list
    Column("completion_token_ids", Text, nullable=False),  # JSON list
    Column("sampling_logprobs", Text, nullable=False),  # JSON list
    Column("finish_reason", String(64)),
    # Prompt ids grow with the session; the part that equals the parent's prompt + completion is not stored again.
    Column("prompt_base_turn_id", _ID),
    Column("prompt_base_length", Integer, nullable=False),
    Column("prompt_token_ids", Text, nullable=False),  # JSON list: the ids after the base
    Column("temperature", Float, nullable=False),
    Column("logprob_mode", String(32), nullable=False),
    Column("usage", Text),
    Column("request_key", _HASH, nullable=False),
    Column("reply_key", _HASH),
    Column("completion_key", _HASH, nullable=False),  # text_key(completion)
    Column("drop_detail", Text, nullable=False),
    Column("main_drop_reason", String(32)),  # of a side turn: why it would not train as a main turn either
    Column("wish_text", Text, nullable=False, server_default=""),  # added to the prompt; "": nothing
    Column("wish_place", String(16), nullable=False, server_default=""),
    Column(
        "drawn", _HASH, nullable=False, server_default=""
    ),  # conversation of a canary release's draw; "": none
    Index(None, "key_name", "reply_key", "created_at"),
    Index(None, "key_name", "request_key", "created_at"),
    Index(None, "key_name", "completion_key", "created_at"),
    Index(None, "key_name", "created_at"),
    Index(None, "completion_id"),
    Index(None, "session_id", "turn_index", "parent_turn_id"),
    Index(None, "created_at"),
    Index(None, "kind"),  # for `status`, which would read every turn
)

api_requests = Table(
    "api_requests",
    metadata,
    Column("turn_id", _ID, ForeignKey("turns.turn_id", ondelete="CASCADE"), primary_key=True),
    Column("api", String(16), nullable=False),  # responses, messages
    Column(
        "detail", Text, nullable=False
    ),  # JSON: what the chat request does not hold of the client's request
    Column("is_hidden", Boolean, nullable=False),  # its client deleted the response
)

stored_completions = Table(
    "stored_completions",
    metadata,
    # A row only where its client changed something.
    Column("turn_id", _ID, ForeignKey("turns.turn_id", ondelete="CASCADE"), primary_key=True),
    Column("metadata", Text),  # JSON; null: as the request sent it
    Column("deleted_at", Float),  # it is hidden from its client and waits to be forgotten
    Index(None, "deleted_at"),
)

conversations = Table(
    "conversations",
    metadata,
    Column("conversation_id", _ID, primary_key=True),
    Column("key_name", String(128), nullable=False),
    Column("metadata", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("deleted_at", Float),
)

conversation_items = Table(
    "conversation_items",
    metadata,
    Column(
        "conversation_id",
        _ID,
        ForeignKey("conversations.conversation_id", ondelete="CASCADE"),
        primary_key=True,
    ),
    Column("item_id", _ID, primary_key=True),
    Column("added_at", Float, nullable=False),
    Column("position", Integer, nullable=False),  # among the items that were added together
    Column("item", Text),  # JSON: the item that the client added; null: it deleted this item of a turn
)

next_states = Table(
    "next_states",
    metadata,
    Column("turn_id", _ID, ForeignKey("turns.turn_id", ondelete="CASCADE"), primary_key=True),
    Column("by_turn_id", _ID, primary_key=True),
    Column("role", String(16), nullable=False),
    Column("text", Text, nullable=False),
    Column("messages", Text, nullable=False),  # JSON list of message hashes
    Column("relation", String(16), nullable=False),
    Column("created_at", Float, nullable=False),
)

feedback = Table(
    "feedback",
    metadata,
    Column("feedback_id", _ID, primary_key=True),
    Column("turn_id", _ID, ForeignKey("turns.turn_id", ondelete="CASCADE"), nullable=False),
    Column("score", Float),
    Column("text", Text, nullable=False),
    Column("idempotency_key", String(256), nullable=False, unique=True),
    Column("created_at", Float, nullable=False),
    Index(None, "turn_id"),
)

verdicts = Table(
    "verdicts",
    metadata,
    Column("verdict_id", Integer, primary_key=True, autoincrement=True),
    Column("turn_id", _ID, ForeignKey("turns.turn_id", ondelete="CASCADE"), nullable=False),
    Column("value", Integer),
    Column("hint", Text),
    Column("hint_is_reaction", Boolean, nullable=False),
    Column("wish", Text),  # the user's words; NULL together with its scope
    Column("wish_scope", String(16)),
    Column("source", String(256), nullable=False),
    Column("confidence", Float, nullable=False),
    Column("detail", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    Index(None, "turn_id", "verdict_id"),
)

turn_states = Table(
    "turn_states",
    metadata,
    Column("turn_id", _ID, ForeignKey("turns.turn_id", ondelete="CASCADE"), primary_key=True),
    Column("policy", String(128), nullable=False),
    Column("stage", String(16), nullable=False),
    Column("drop_reason", String(32)),
    Column("claimed_by", String(128)),
    Column("lease_until", Float),
    Column("trained_in_version", Integer),
    Column("stage_since", Float, nullable=False),  # when this stage began
    Column("detail", Text),  # why it was dropped, in words
    Index(None, "stage", "policy", "stage_since"),
    Index(None, "policy", "trained_in_version"),
    Index(
        "ix_turn_states_drop_reason",
        "drop_reason",
        # Of all rows on PostgreSQL: to name its dialect here makes every command import it.
        sqlite_where=text("drop_reason IS NOT NULL"),
    ),
)

adapters = Table(
    "adapters",
    metadata,
    Column("policy", String(128), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("path", Text, nullable=False),
    Column("content_hash", String(64), nullable=False),
    Column("manifest_hash", String(64), nullable=False, server_default=""),
    Column("parent_version", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    Column("method", String(16), nullable=False),
    Column("metrics", Text, nullable=False),
    Column("created_at", Float, nullable=False),
)

alias_moves = Table(
    "alias_moves",
    metadata,
    Column("move_id", Integer, primary_key=True, autoincrement=True),
    Column("policy", String(128), nullable=False),
    Column("version", Integer, nullable=False),
    Column("moved_at", Float, nullable=False),
    Column("actor", String(64), nullable=False),
    Index(None, "policy", "move_id"),
)

canary_releases = Table(
    "canary_releases",
    metadata,
    Column("policy", String(128), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("baseline_version", Integer, nullable=False),
    Column("share", Float, nullable=False),
    Column("stage", String(16), nullable=False),  # changes by compare-and-set
    Column("started_at", Float, nullable=False),
    Column("stage_since", Float, nullable=False),
    Column("reason", Text, nullable=False),
    Column("numbers", Text, nullable=False),  # JSON: what the newest comparison counted
    Index(None, "stage"),
)

preview_replies = Table(
    "preview_replies",
    metadata,
    # Of past questions, so they go with the turn that asked.
    Column("policy", String(128), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("turn_id", _ID, ForeignKey("turns.turn_id", ondelete="CASCADE"), primary_key=True),
    Column("live", Text, nullable=False),
    Column("new", Text, nullable=False),
    Column("change", Float, nullable=False),
    Index(None, "turn_id"),
)

steps = Table(
    "steps",
    metadata,
    Column("step_id", _ID, primary_key=True),
    Column("policy", String(128), nullable=False),
    Column("method", String(16), nullable=False),
    Column("started_at", Float, nullable=False),
    Column("finished_at", Float),
    Column("version", Integer),
    Column("error", Text),
    Column("metrics", Text, nullable=False),
    Column("inputs", Text, nullable=False, server_default="{}"),  # JSON; the turns are in `step_turns`
    Index(None, "policy", "started_at"),
)

step_turns = Table(
    "step_turns",
    metadata,
    Column("step_id", _ID, ForeignKey("steps.step_id", ondelete="CASCADE"), primary_key=True),
    Column("role", String(16), primary_key=True),  # `store.values.StepRole`
    Column("position", Integer, primary_key=True),  # from 0 in each role
    Column("turn_id", _ID, nullable=False),  # no reference: the list stays whole when a turn is forgotten
    Column("verdict_id", Integer, nullable=False),  # the verdict as it was then
    Index(None, "turn_id"),
)

forgotten_turns = Table(
    "forgotten_turns",
    metadata,
    Column("turn_id", _ID, primary_key=True),  # never recorded or trained again
    Column("at", Float, nullable=False),
)

forget_jobs = Table(
    "forget_jobs",
    metadata,
    Column("job_id", _ID, primary_key=True),  # of its receipt as well
    Column(
        "key_name", String(128), nullable=False
    ),  # that asked on the page or by an API; "": at the command line
    Column("asked", Text, nullable=False),  # without the words
    Column("selection", Text, nullable=False),  # JSON; "{}" once its rows are deleted
    Column("stage", String(16), nullable=False),  # `store.values.ForgetStage`
    Column("detail", Text, nullable=False),  # JSON; with the words until the files are clean
    Column("waits", Text, nullable=False),  # for what; "": for nothing
    Column("asked_at", Float, nullable=False),
    Column("deleted_at", Float),  # of its rows
    Index(None, "stage"),
)

heartbeats = Table(
    "heartbeats",
    metadata,
    Column("process", String(32), primary_key=True),  # each process writes its own row only
    Column("pid", Integer, nullable=False),
    Column("state", String(32), nullable=False),
    Column("detail", Text, nullable=False),
    Column("at", Float, nullable=False),
)

gpu_leases = Table(
    "gpu_leases",
    metadata,
    Column(
        "role", String(16), primary_key=True
    ),  # trainer: the lease it requests; engine: the lease it granted
    Column("pid", Integer, nullable=False),
    Column("lease", String(64)),
    Column("should_yield", Boolean, nullable=False),  # the engine asks the trainer to release the GPU
    Column("at", Float, nullable=False),
)

journal_offsets = Table(
    "journal_offsets",
    metadata,
    Column("segment", String(128), primary_key=True),
    Column("recorded", BigInteger, nullable=False),  # bytes
)

controls = Table(
    "controls",
    metadata,
    Column("name", String(32), primary_key=True),  # written by a person through run.py: "training" = "paused"
    Column("value", Text, nullable=False),
    Column("at", Float, nullable=False),
)

wishes = Table(
    "wishes",
    metadata,
    Column("wish_id", Integer, primary_key=True, autoincrement=True),
    Column("policy", String(128), nullable=False),
    Column("state", String(16), nullable=False),
    Column("text", Text, nullable=False),  # the wording in use
    Column("edited", Boolean, nullable=False),  # by the owner
    Column("measures", Text, nullable=False),  # JSON, by the trainer
    Column("created_at", Float, nullable=False),
    Column("changed_at", Float, nullable=False),
    Index(None, "policy"),
)

wish_statements = Table(
    "wish_statements",
    metadata,
    Column("turn_id", _ID, ForeignKey("turns.turn_id", ondelete="CASCADE"), primary_key=True),
    Column("wish_id", Integer, nullable=False),
    Column("text", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    Index(None, "wish_id"),
)

training_files = Table(
    "training_files",
    metadata,
    Column("file_id", _ID, primary_key=True),
    Column("key_name", String(128), nullable=False),
    Column("filename", String(256), nullable=False),
    Column("size", Integer, nullable=False),  # bytes
    Column("method", String(16), nullable=False),
    Column("content", Text, nullable=False),  # JSON lines
    Column("created_at", Float, nullable=False),
    Column("deleted_at", Float),  # it is hidden from its client and waits to be forgotten
    Index(None, "key_name", "created_at"),
)

tuning_jobs = Table(
    "tuning_jobs",
    metadata,
    Column("job_id", _ID, primary_key=True),
    Column("key_name", String(128), nullable=False),
    Column("policy", String(128), nullable=False),
    Column("file_id", _ID, ForeignKey("training_files.file_id", ondelete="CASCADE"), nullable=False),
    Column("method", String(16), nullable=False),
    Column("epochs", Integer, nullable=False),
    Column("beta", Float, nullable=False),
    Column("status", String(16), nullable=False),
    Column("detail", Text, nullable=False),  # JSON: suffix and metadata
    Column("created_at", Float, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("version", Integer),  # that it made, rejected or not
    Column("error", Text, nullable=False),
    Column("started_at", Float),
    Column("finished_at", Float),
    Index(None, "key_name", "created_at"),
    Index(None, "status", "policy"),
)

#: Columns of the view `trajectories`, in order: a fixed interface.
TRAJECTORY_COLUMNS = (
    "turn_id", "session_id", "parent_turn_id", "turn_index", "kind", "relation", "policy", "adapter_version", "client",
    "created_at", "messages", "completion", "tool_calls", "completion_token_ids", "sampling_logprobs", "finish_reason",
    "next_role", "next_text", "verdict", "hint", "verdict_source", "stage", "drop_reason", "trained_in_version",
)  # fmt: skip


def trajectories_view(dialect: str) -> str:
    """Return the SQL that creates the view ``trajectories`` (one row a turn) on ``sqlite`` or ``postgresql``."""
    if dialect == "postgresql":
        collect = "COALESCE(json_agg(w.body::json ORDER BY w.part, w.depth), '[]'::json)::text"
    else:
        # json_group_array takes its rows in the order of the sub-select (ORDER BY inside it needs SQLite >= 3.44)
        collect = "json_group_array(json(w.body))"
    walk = f"""
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
      ) w"""
    newest_next = """(SELECT {} FROM next_states s WHERE s.turn_id = t.turn_id AND s.relation <> 'tool_loop'
      ORDER BY s.created_at DESC, s.by_turn_id LIMIT 1)"""
    newest_verdict = (
        "(SELECT v.{} FROM verdicts v WHERE v.turn_id = t.turn_id ORDER BY v.verdict_id DESC LIMIT 1)"
    )
    return f"""CREATE VIEW trajectories AS
SELECT t.turn_id, t.session_id, t.parent_turn_id, t.turn_index, t.kind, t.relation, t.policy, t.adapter_version,
  t.client, t.created_at,
  ({walk}) AS messages,
  t.completion, t.tool_calls, t.completion_token_ids, t.sampling_logprobs, t.finish_reason,
  {newest_next.format("s.role")} AS next_role,
  {newest_next.format("s.text")} AS next_text,
  {newest_verdict.format("value")} AS verdict,
  {newest_verdict.format("hint")} AS hint,
  {newest_verdict.format("source")} AS verdict_source,
  l.stage, l.drop_reason, l.trained_in_version
FROM turns t JOIN turn_states l ON l.turn_id = t.turn_id"""
