CREATE TABLE adapters (
    policy character varying(128) NOT NULL,
    version integer NOT NULL,
    path text NOT NULL,
    content_hash character varying(64) NOT NULL,
    parent_version integer NOT NULL,
    state character varying(16) NOT NULL,
    reason text NOT NULL,
    method character varying(16) NOT NULL,
    metrics text NOT NULL,
    created_at double precision NOT NULL
);
CREATE TABLE alembic_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE alias_moves (
    move_id integer NOT NULL,
    policy character varying(128) NOT NULL,
    version integer NOT NULL,
    moved_at double precision NOT NULL,
    by character varying(64) NOT NULL
);
CREATE SEQUENCE alias_moves_move_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE alias_moves_move_id_seq OWNED BY alias_moves.move_id;
CREATE TABLE controls (
    name character varying(32) NOT NULL,
    value text NOT NULL,
    at double precision NOT NULL
);
CREATE TABLE feedback (
    feedback_id character varying(64) NOT NULL,
    turn_id character varying(64) NOT NULL,
    score double precision,
    text text NOT NULL,
    idempotency_key character varying(256) NOT NULL,
    created_at double precision NOT NULL
);
CREATE TABLE heartbeats (
    process character varying(32) NOT NULL,
    pid integer NOT NULL,
    state character varying(32) NOT NULL,
    detail text NOT NULL,
    at double precision NOT NULL
);
CREATE TABLE journal_offsets (
    segment character varying(128) NOT NULL,
    recorded bigint NOT NULL
);
CREATE TABLE lives (
    turn_id character varying(64) NOT NULL,
    policy character varying(128) NOT NULL,
    stage character varying(16) NOT NULL,
    drop_reason character varying(32),
    claimed_by character varying(128),
    lease_until double precision,
    trained_in_version integer,
    since double precision NOT NULL,
    detail text
);
CREATE TABLE messages (
    hash character varying(32) NOT NULL,
    body text NOT NULL
);
CREATE TABLE next_states (
    turn_id character varying(64) NOT NULL,
    by_turn_id character varying(64) NOT NULL,
    role character varying(16) NOT NULL,
    text text NOT NULL,
    messages text NOT NULL,
    relation character varying(16) NOT NULL,
    created_at double precision NOT NULL
);
CREATE TABLE nodes (
    node character varying(32) NOT NULL,
    parent character varying(32) NOT NULL,
    message character varying(32) NOT NULL,
    depth integer NOT NULL
);
CREATE TABLE steps (
    step_id character varying(64) NOT NULL,
    policy character varying(128) NOT NULL,
    method character varying(16) NOT NULL,
    started_at double precision NOT NULL,
    finished_at double precision,
    version integer,
    error text,
    metrics text NOT NULL
);
CREATE TABLE turns (
    turn_id character varying(64) NOT NULL,
    completion_id character varying(128),
    session_id character varying(256) NOT NULL,
    parent_turn_id character varying(64),
    turn_index integer NOT NULL,
    kind character varying(8) NOT NULL,
    relation character varying(16) NOT NULL,
    link_reason character varying(200) NOT NULL,
    link_confidence double precision NOT NULL,
    policy character varying(128) NOT NULL,
    scope character varying(128) NOT NULL,
    adapter_version integer NOT NULL,
    client character varying(128) NOT NULL,
    "user" character varying(256),
    created_at double precision NOT NULL,
    finished_at double precision NOT NULL,
    status_code integer NOT NULL,
    streamed boolean NOT NULL,
    preamble_node character varying(32) NOT NULL,
    history_node character varying(32) NOT NULL,
    request character varying(32) NOT NULL,
    completion text NOT NULL,
    reasoning text NOT NULL,
    tool_calls text NOT NULL,
    completion_token_ids text NOT NULL,
    sampling_logprobs text NOT NULL,
    finish_reason character varying(64),
    prompt_base_turn_id character varying(64),
    prompt_base_length integer NOT NULL,
    prompt_token_ids text NOT NULL,
    temperature double precision NOT NULL,
    logprob_mode character varying(32) NOT NULL,
    usage text,
    request_key character varying(32) NOT NULL,
    reply_key character varying(32),
    completion_key character varying(32) NOT NULL,
    drop_detail text NOT NULL,
    kind_reason character varying(32) DEFAULT ''::character varying NOT NULL
);
CREATE TABLE verdicts (
    verdict_id integer NOT NULL,
    turn_id character varying(64) NOT NULL,
    value integer,
    hint text,
    hint_is_reaction boolean NOT NULL,
    source character varying(256) NOT NULL,
    confidence double precision NOT NULL,
    detail text NOT NULL,
    created_at double precision NOT NULL,
    wishes text DEFAULT '[]'::text NOT NULL
);
CREATE VIEW trajectories AS
 SELECT t.turn_id,
    t.session_id,
    t.parent_turn_id,
    t.turn_index,
    t.kind,
    t.relation,
    t.policy,
    t.adapter_version,
    t.client,
    t.created_at,
    ( WITH RECURSIVE walk(part, parent, message, depth) AS (
                 SELECT
                        CASE
                            WHEN ((n.node)::text = (t.preamble_node)::text) THEN 0
                            ELSE 1
                        END AS "case",
                    n.parent,
                    n.message,
                    n.depth
                   FROM nodes n
                  WHERE ((n.node)::text = (t.preamble_node)::text)
                UNION ALL
                 SELECT 1,
                    n.parent,
                    n.message,
                    n.depth
                   FROM nodes n
                  WHERE ((n.node)::text = (t.history_node)::text)
                UNION ALL
                 SELECT walk.part,
                    n.parent,
                    n.message,
                    n.depth
                   FROM (nodes n
                     JOIN walk ON (((n.node)::text = (walk.parent)::text)))
                )
         SELECT (COALESCE(json_agg((w.body)::json ORDER BY w.part, w.depth), '[]'::json))::text AS "coalesce"
           FROM ( SELECT walk.part,
                    walk.depth,
                    m.body
                   FROM (walk
                     JOIN messages m ON (((m.hash)::text = (walk.message)::text)))
                  ORDER BY walk.part, walk.depth) w) AS messages,
    t.completion,
    t.tool_calls,
    t.completion_token_ids,
    t.sampling_logprobs,
    t.finish_reason,
    ( SELECT s.role
           FROM next_states s
          WHERE ((s.turn_id)::text = (t.turn_id)::text)
          ORDER BY s.created_at DESC, s.by_turn_id
         LIMIT 1) AS next_role,
    ( SELECT s.text
           FROM next_states s
          WHERE ((s.turn_id)::text = (t.turn_id)::text)
          ORDER BY s.created_at DESC, s.by_turn_id
         LIMIT 1) AS next_text,
    ( SELECT v.value
           FROM verdicts v
          WHERE ((v.turn_id)::text = (t.turn_id)::text)
          ORDER BY v.verdict_id DESC
         LIMIT 1) AS verdict,
    ( SELECT v.hint
           FROM verdicts v
          WHERE ((v.turn_id)::text = (t.turn_id)::text)
          ORDER BY v.verdict_id DESC
         LIMIT 1) AS hint,
    ( SELECT v.source
           FROM verdicts v
          WHERE ((v.turn_id)::text = (t.turn_id)::text)
          ORDER BY v.verdict_id DESC
         LIMIT 1) AS verdict_source,
    l.stage,
    l.drop_reason,
    l.trained_in_version
   FROM (turns t
     JOIN lives l ON (((l.turn_id)::text = (t.turn_id)::text)));
CREATE SEQUENCE verdicts_verdict_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE verdicts_verdict_id_seq OWNED BY verdicts.verdict_id;
CREATE TABLE wish_edits (
    edit_id integer NOT NULL,
    policy character varying(128) NOT NULL,
    turn_id character varying(64) NOT NULL,
    text text,
    created_at double precision NOT NULL
);
CREATE SEQUENCE wish_edits_edit_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE wish_edits_edit_id_seq OWNED BY wish_edits.edit_id;
ALTER TABLE alias_moves ALTER COLUMN move_id SET DEFAULT nextval('alias_moves_move_id_seq'::regclass);
ALTER TABLE verdicts ALTER COLUMN verdict_id SET DEFAULT nextval('verdicts_verdict_id_seq'::regclass);
ALTER TABLE wish_edits ALTER COLUMN edit_id SET DEFAULT nextval('wish_edits_edit_id_seq'::regclass);
ALTER TABLE alembic_version ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE adapters ADD CONSTRAINT pk_adapters PRIMARY KEY (policy, version);
ALTER TABLE alias_moves ADD CONSTRAINT pk_alias_moves PRIMARY KEY (move_id);
ALTER TABLE controls ADD CONSTRAINT pk_controls PRIMARY KEY (name);
ALTER TABLE feedback ADD CONSTRAINT pk_feedback PRIMARY KEY (feedback_id);
ALTER TABLE heartbeats ADD CONSTRAINT pk_heartbeats PRIMARY KEY (process);
ALTER TABLE journal_offsets ADD CONSTRAINT pk_journal_offsets PRIMARY KEY (segment);
ALTER TABLE lives ADD CONSTRAINT pk_lives PRIMARY KEY (turn_id);
ALTER TABLE messages ADD CONSTRAINT pk_messages PRIMARY KEY (hash);
ALTER TABLE next_states ADD CONSTRAINT pk_next_states PRIMARY KEY (turn_id, by_turn_id);
ALTER TABLE nodes ADD CONSTRAINT pk_nodes PRIMARY KEY (node);
ALTER TABLE steps ADD CONSTRAINT pk_steps PRIMARY KEY (step_id);
ALTER TABLE turns ADD CONSTRAINT pk_turns PRIMARY KEY (turn_id);
ALTER TABLE verdicts ADD CONSTRAINT pk_verdicts PRIMARY KEY (verdict_id);
ALTER TABLE wish_edits ADD CONSTRAINT pk_wish_edits PRIMARY KEY (edit_id);
ALTER TABLE feedback ADD CONSTRAINT uq_feedback_idempotency_key UNIQUE (idempotency_key);
CREATE INDEX ix_alias_moves_policy_move_id ON alias_moves USING btree (policy, move_id);
CREATE INDEX ix_feedback_turn_id ON feedback USING btree (turn_id);
CREATE INDEX ix_lives_drop_reason ON lives USING btree (drop_reason) WHERE (drop_reason IS NOT NULL);
CREATE INDEX ix_lives_policy_trained_in_version ON lives USING btree (policy, trained_in_version);
CREATE INDEX ix_lives_stage_policy_since ON lives USING btree (stage, policy, since);
CREATE INDEX ix_steps_policy_started_at ON steps USING btree (policy, started_at);
CREATE INDEX ix_turns_completion_id ON turns USING btree (completion_id);
CREATE INDEX ix_turns_created_at ON turns USING btree (created_at);
CREATE INDEX ix_turns_kind ON turns USING btree (kind);
CREATE INDEX ix_turns_scope_completion_key ON turns USING btree (scope, completion_key);
CREATE INDEX ix_turns_scope_reply_key ON turns USING btree (scope, reply_key);
CREATE INDEX ix_turns_scope_request_key ON turns USING btree (scope, request_key);
CREATE INDEX ix_turns_session_id_turn_index ON turns USING btree (session_id, turn_index);
CREATE INDEX ix_verdicts_turn_id_verdict_id ON verdicts USING btree (turn_id, verdict_id);
CREATE INDEX ix_wish_edits_policy_edit_id ON wish_edits USING btree (policy, edit_id);
CREATE INDEX ix_wish_edits_turn_id ON wish_edits USING btree (turn_id);
ALTER TABLE feedback ADD CONSTRAINT fk_feedback_turn_id FOREIGN KEY (turn_id) REFERENCES turns(turn_id) ON DELETE CASCADE;
ALTER TABLE lives ADD CONSTRAINT fk_lives_turn_id FOREIGN KEY (turn_id) REFERENCES turns(turn_id) ON DELETE CASCADE;
ALTER TABLE next_states ADD CONSTRAINT fk_next_states_turn_id FOREIGN KEY (turn_id) REFERENCES turns(turn_id) ON DELETE CASCADE;
ALTER TABLE nodes ADD CONSTRAINT fk_nodes_message FOREIGN KEY (message) REFERENCES messages(hash);
ALTER TABLE turns ADD CONSTRAINT fk_turns_request FOREIGN KEY (request) REFERENCES messages(hash);
ALTER TABLE verdicts ADD CONSTRAINT fk_verdicts_turn_id FOREIGN KEY (turn_id) REFERENCES turns(turn_id) ON DELETE CASCADE;
ALTER TABLE wish_edits ADD CONSTRAINT fk_wish_edits_turn_id FOREIGN KEY (turn_id) REFERENCES turns(turn_id) ON DELETE CASCADE;
INSERT INTO alembic_version VALUES ('0007');
