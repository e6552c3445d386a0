"""Canary releases: their stages, which change by compare-and-set, and what became of the turns that two versions served."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from store import schema
from store.canary_arms import is_in_canary
from store.database import upsert
from store.hashing import exact_json
from store.queries.alias import move_alias
from store.queries.common import aliases, chain_messages, lock_aliases, moment, read_object, value_of
from store.texts import first_user_text, last_user_text
from store.values import (
    BASE_VERSION,
    AliasMove,
    CanaryRelease,
    DrawnConversation,
    Json,
    PreviewReply,
    ReleaseStage,
    TurnKind,
)

#: How long a conversation is watched: what is said of it later does not count. The test (`trainer.sequential_rates`) needs outcomes that do
#: not change once they count.
WINDOW_S = 3600.0
#: Conversations that count as begun before a release: those with their first turn in so many seconds before it.
_RECENT_S, _MOST_CONVERSATIONS = 24 * 3600.0, 2_000


def begin(
    connection: sa.Connection, policy: str, version: int, baseline: int, share: float, now: float
) -> None:
    """Insert a release that runs; an older one of the policy is superseded, an ended one of the version replaced."""
    supersede(connection, policy, now, f"version {version} is tried")
    release = {
        "policy": policy,
        "version": version,
        "baseline_version": baseline,
        "share": share,
        "stage": ReleaseStage.RUNNING.value,
        "started_at": now,
        "stage_since": now,
        "reason": "",
        "numbers": "{}",
    }
    upsert(connection, schema.canary_releases, release, ["policy", "version"])


def supersede(
    connection: sa.Connection, policy: str, now: float, reason: str, *, version: int | None = None
) -> None:
    """End the open release of a policy (only one of ``version``): another version goes live."""
    c = schema.canary_releases.c
    where = [c.policy == policy, c.stage == ReleaseStage.RUNNING.value]
    if version is not None:
        where.append(c.version == version)
    connection.execute(
        sa.update(schema.canary_releases)
        .where(*where)
        .values(stage=ReleaseStage.SUPERSEDED.value, stage_since=now, reason=reason)
    )


def releases(
    connection: sa.Connection, policy: str | None = None, *, stages: Collection[ReleaseStage] | None = None
) -> list[CanaryRelease]:
    """Return the canary releases (of one policy, at some stages), oldest first."""
    c = schema.canary_releases.c
    query = sa.select(schema.canary_releases).order_by(c.started_at, c.policy, c.version)
    if policy is not None:
        query = query.where(c.policy == policy)
    if stages is not None:
        query = query.where(c.stage.in_([stage.value for stage in stages]))
    return [_release(row) for row in connection.execute(query)]


def routes(connection: sa.Connection) -> tuple[dict[str, AliasMove], list[CanaryRelease]]:
    """Return what is live, and the canary releases that run, as of one moment."""
    return aliases(connection), releases(connection, stages=(ReleaseStage.RUNNING,))


def settle(
    connection: sa.Connection,
    release: CanaryRelease,
    stage: ReleaseStage,
    *,
    numbers: Json,
    reason: str,
    now: float | None = None,
) -> bool:
    """Move a release to its next stage: compare-and-set. A version that is kept goes live; with the release's own stage only its numbers change.

    Returns:
        False, with nothing written, when the release is at another stage by now, or when what is live is not what the release says.
    """
    now = moment(now)
    lock_aliases(connection)
    live_move = aliases(connection).get(release.policy)
    live = live_move.version if live_move is not None else BASE_VERSION
    if live != release.baseline_version:
        return False
    c = schema.canary_releases.c
    changed: dict[str, Any] = {"numbers": exact_json(numbers), "reason": reason}
    if stage is not release.stage:
        changed |= {"stage": stage.value, "stage_since": now}
    done = connection.execute(
        sa.update(schema.canary_releases)
        .where(c.policy == release.policy, c.version == release.version, c.stage == release.stage.value)
        .values(**changed)
    )
    if done.rowcount != 1:
        return False
    if stage is ReleaseStage.KEPT:
        move_alias(connection, release.policy, release.version, at=now, actor="canary")
    return True


def drawn_conversations(
    connection: sa.Connection, release: CanaryRelease, now: float
) -> list[DrawnConversation]:
    """Return the conversations that a release drew a version for and whose time is over, oldest first.

    A conversation is what the draw is by (`store.canary_arms`), so that no two of them share a draw.
    """
    t, v = schema.turns.c, schema.verdicts.c
    rows = connection.execute(
        sa.select(
            t.drawn, t.key_name, t.created_at, t.turn_id, t.completion, t.tool_calls,
            v.value, v.created_at.label("judged_at"),
        )
        .outerjoin_from(schema.turns, schema.verdicts, v.turn_id == t.turn_id)
        .where(
            t.policy == release.policy,
            t.drawn != "",
            t.kind == TurnKind.MAIN.value,
            t.status_code < 400,
            t.created_at >= release.started_at,
        )
        .order_by(t.created_at, t.turn_id, v.verdict_id)
    )  # fmt: skip
    begun: dict[str, tuple[str, float, dict[str, bool]]] = {}
    for row in rows:
        _, start, turns = begun.setdefault(row.drawn, (row.key_name, row.created_at, {}))
        if row.created_at > start + WINDOW_S:
            continue
        if not row.completion.strip() and row.tool_calls in ("[]", ""):
            turns[row.turn_id] = True
        elif row.judged_at is not None and row.judged_at <= start + WINDOW_S:
            turns.pop(row.turn_id, None)  # the newest verdict counts, and one without a value says nothing
            if row.value is not None:
                turns[row.turn_id] = row.value == -1
    return [
        DrawnConversation(
            key_name=key,
            is_on_trial=is_in_canary(name, release.policy, release.version, release.share),
            complaints=tuple(turns.values()),
        )
        for name, (key, start, turns) in begun.items()
        if start + WINDOW_S <= now
    ]


def conversations_before(
    connection: sa.Connection, policy: str, at: float
) -> list[tuple[str, str | None, str, str]]:
    """Return (key name, user, session id, first user text) of the conversations of a policy that began in the day before ``at``."""
    t = schema.turns.c
    rows = connection.execute(
        sa.select(t.key_name, t.user, t.session_id, t.history_node)
        .where(
            t.policy == policy,
            t.kind == TurnKind.MAIN.value,
            t.parent_turn_id.is_(None),
            t.created_at < at,
            t.created_at >= at - _RECENT_S,
        )
        .order_by(t.created_at.desc())
        .limit(_MOST_CONVERSATIONS)
    ).all()
    return [
        (
            row.key_name,
            row.user,
            row.session_id,
            first_user_text(chain_messages(connection, row.history_node)),
        )
        for row in rows
    ]


def active_keys(connection: sa.Connection, policy: str, since: float) -> int:
    """Return how many keys sent main turns to a policy since then."""
    t = schema.turns.c
    count = sa.select(sa.func.count(sa.distinct(t.key_name))).where(
        t.policy == policy, t.kind == TurnKind.MAIN.value, t.created_at >= since
    )
    return int(connection.execute(count).scalar_one())


def add_preview(
    connection: sa.Connection, policy: str, version: int, replies: Sequence[PreviewReply]
) -> None:
    """Insert the replies of a preview, those whose questions are still in the record."""
    t = schema.turns.c
    asked = [one.turn_id for one in replies]
    known = set(connection.execute(sa.select(t.turn_id).where(t.turn_id.in_(asked))).scalars())
    for one in replies:
        if one.turn_id in known:
            row = {"policy": policy, "version": version, **asdict(one)}
            upsert(connection, schema.preview_replies, row, ["policy", "version", "turn_id"])


def preview_replies(
    connection: sa.Connection, policy: str, version: int, key_name: str | None = None
) -> list[tuple[str, PreviewReply]]:
    """Return the questions of a preview with their replies, the most changed first.

    Args:
        key_name: only those of this key; None: all.
    """
    r, t = schema.preview_replies.c, schema.turns.c
    query = (
        sa.select(schema.preview_replies, t.history_node)
        .join(schema.turns, t.turn_id == r.turn_id)
        .where(r.policy == policy, r.version == version)
        .order_by(r.change.desc(), r.turn_id)
    )
    if key_name is not None:
        query = query.where(t.key_name == key_name)
    return [
        (
            last_user_text(chain_messages(connection, row.history_node)),
            PreviewReply(turn_id=row.turn_id, live=row.live, new=row.new, change=row.change),
        )
        for row in connection.execute(query)
    ]


def _release(row: Row[Any]) -> CanaryRelease:
    return value_of(CanaryRelease, row, stage=ReleaseStage(row.stage), numbers=read_object(row.numbers))
