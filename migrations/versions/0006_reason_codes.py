"""Link and kind reasons become codes in columns of their own, instead of one sentence that its readers parsed."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

# Frozen: the sentences that were stored, and their codes.
LINK_CODES = {
    "the history ends a recorded turn": "exact_prefix",
    "the same prompt asked again": "same_prompt",
    "opening": "opening",
    "session named by the client": "named_session",
    "newest turn of the named session": "named_session_tip",
    "a recorded exchange, its history rewritten": "rewritten_history",
    "the prompt quotes a recorded exchange and waits for the next line": "written_out_dialogue",
    "the beginning was replaced; a recorded exchange remains": "beginning_replaced",
    "the oldest part was dropped; a recorded exchange remains": "beginning_dropped",
    "the beginning was replaced by a recorded summary": "recorded_summary",
    "the prompt before the last answer was recorded, the answer altered": "altered_reply",
    "a recorded exchange with other words around it": "wrapped_exchange",
    "a side turn's answer stands in its history": "inserted_side_reply",
    "quotes a recorded exchange": "quoted_exchange",
    "quotes a recorded answer": "quoted_reply",
    "quotes a recorded question": "quoted_prompt",
    "the housekeeping before it quotes it": "quoted_by_side_turn",
    "the first message was edited": "edited_opening",
    "the first message after a recorded summary was edited": "edited_after_summary",
    "nothing recorded is a prefix of it": "no_recorded_prefix",
}
KIND_CODES = {
    "works on a recorded conversation": "works_on_recorded_exchange",
    "carries on with a side turn's tools": "side_tool_results",
    "said by the client": "client_header",
}


def upgrade() -> None:
    op.add_column("turns", sa.Column("kind_reason", sa.String(length=32), nullable=False, server_default=""))
    connection = op.get_bind()
    update = sa.text("UPDATE turns SET link_reason = :link, kind_reason = :kind WHERE link_reason = :stored")
    for (stored,) in connection.execute(sa.text("SELECT DISTINCT link_reason FROM turns")).all():
        # "{link}; {main or side}: {kind}", where {link} may hold a semicolon
        link, separator, kind = split_reason(stored)
        if separator:
            connection.execute(
                update,
                {
                    "stored": stored,
                    "link": LINK_CODES.get(link, link),
                    "kind": KIND_CODES.get(kind, kind)[:32],
                },
            )


def split_reason(stored: str) -> tuple[str, str, str]:
    """Return (link, separator, kind); an empty separator where the text has no kind."""
    for separator in ("; main: ", "; side: "):
        link, found, kind = stored.rpartition(separator)
        if found:
            return link, found, kind
    return stored, "", ""


def downgrade() -> None:
    raise NotImplementedError("the record is never taken back to an older schema")
