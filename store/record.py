"""The record: the one interface to the database. Its methods are the functions of `store.queries`, by process, without their connection.

Values in, values out; each method is one short transaction (`store.database` says how it is run and what a commit promises). Errors are
`store.errors.RecordError`s: no other module sees SQLAlchemy.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from store.change_notice import FALLBACK_POLL_S, ChangeNotice
from store.database import BUSY_TIMEOUT_S, Database
from store.errors import RecordError, RecordTooNew
from store.queries import (
    canary,
    common,
    dashboard,
    journal,
    metrics,
    person,
    proxy,
    replies,
    scorer,
    stored,
    trainer,
    tuning,
)
from store.queries import closure as closures
from store.queries import forget as forgetting
from store.queries import forget_jobs as forgets
from store.queries import retention as retentions
from store.queries import story as stories
from store.queries import wishes as wish_list
from store.queries.turns import TurnWriter
from store.values import BASE_VERSION, Feedback, Heartbeat, Json, NewTurn, gateway_name
from store.verify import verify

#: Newest migration this code knows. A test holds it against `migrations/`.
SCHEMA_REVISION = "0040"

P = ParamSpec("P")
T = TypeVar("T")
Query = Callable[Concatenate[sa.Connection, P], T]
Method = Callable[Concatenate["Record", P], Coroutine[Any, Any, T]]


def _read(query: Query[P, T]) -> Method[P, T]:
    """Return the method that runs a query which only reads; its words and arguments are the query's."""

    @functools.wraps(query)
    async def method(self: Record, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._database.read(query, *args, **kwargs)

    return method


def _write(query: Query[P, T]) -> Method[P, T]:
    """Return the method that runs a query as one transaction."""

    @functools.wraps(query)
    async def method(self: Record, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._database.write(query, *args, **kwargs)

    return method


class Record:
    """The open record. Make it with `open`; safe for concurrent tasks of one event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._turns = TurnWriter()

    @classmethod
    async def open(cls, url: str, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> Record:
        """Open a record whose schema exists (see `migrations.upgrade`).

        Args:
            busy_timeout_s: so long another process's write is waited for (SQLite).

        Raises:
            RecordTooNew: a newer Patina wrote it.
            RecordUnavailable: it cannot be reached.
            RecordCorrupt: its file is damaged.
            RecordError: it is no record of ours, or older than this code.
        """
        database = await Database.open(url, busy_timeout_s)
        try:
            check_revision(await database.read(read_revision))
        except BaseException:
            await database.close()
            raise
        return cls(database)

    async def close(self) -> None:
        await self._database.close()

    def change_notice(self, *, poll_s: float = FALLBACK_POLL_S, min_interval_s: float = 0.0) -> ChangeNotice:
        """Return what ends a wait when any process has written to the record, heartbeats aside; see `store.change_notice`.

        Args:
            poll_s: longest wait where changes cannot be noticed: on PostgreSQL, and without inotify.
            min_interval_s: shortest time between two looks.
        """
        return self._database.change_notice(poll_s=poll_s, min_interval_s=min_interval_s)

    # ------------------------------------------------------------------ proxy and recorder

    async def write_turns(
        self,
        turns: Sequence[NewTurn],
        done: Sequence[tuple[str, str]] = (),
        *,
        feedback: Sequence[Feedback] = (),
        offsets: Mapping[str, int] | None = None,
    ) -> list[Feedback]:
        """Write turns with their new messages and their parents' next states, all in one transaction.

        A turn id that is there already is skipped, so that a retried write is harmless.

        Args:
            done: (key_name, session) of sessions that their clients say are over: what nothing has followed in them will not
                be answered any more.
            feedback: explicit feedback, stored after the turns.
            offsets: segment of the journal -> byte offset up to which it is recorded with this transaction.

        Returns:
            feedback about turns that the record does not have; it is not stored.

        Raises:
            RecordUnavailable: locked, full or gone; nothing of it was written.
        """
        written, unmatched = await self._database.write(
            journal.record_batch, self._turns, turns, done, feedback, offsets or {}
        )
        self._turns.keep(written)
        return unmatched

    journal_offsets = _read(journal.journal_offsets)

    async def sync(self) -> None:
        """Make everything that was written so far survive a power cut. Raises: RecordUnavailable."""
        await self._database.sync()

    forget_segments = _write(journal.forget_segments)
    has_feedback = _read(journal.has_feedback)
    known_turns = _read(proxy.known_turns)
    tips_for = _read(proxy.tips_for)
    session_tip = _read(proxy.session_tip)
    recollect = _read(stories.recollect)
    find_turn = _read(proxy.find_turn)
    recorded_turn = _read(replies.recorded_turn)
    conversation_turns = _read(replies.conversation_turns)
    hide_turn = _write(replies.hide_turn)
    list_completions = _read(stored.list_completions)
    stored_completion = _read(stored.find_completion)
    set_completion_metadata = _write(stored.set_metadata)
    delete_completion = _write(stored.delete)
    add_conversation = _write(replies.add_conversation)
    conversation = _read(replies.conversation)
    update_conversation = _write(replies.update_conversation)
    delete_conversation = _write(replies.delete_conversation)
    add_items = _write(replies.add_items)
    delete_item = _write(replies.delete_item)
    find_exchange = _read(proxy.find_exchange)
    turns_answering = _read(proxy.turns_answering)
    feedback_keys = _read(proxy.feedback_keys)
    add_feedback = _write(proxy.add_feedback)

    async def heartbeat(self, beat: Heartbeat) -> None:
        """Say that a process lives and what it does; its row is its own. It ends no wait of a `change_notice`."""
        await self._database.write_unnoticed(proxy.heartbeat, beat)

    write_gpu_lease = _write(proxy.write_gpu_lease)
    gpu_lease = _read(proxy.gpu_lease)
    beat_of = _read(proxy.beat_of)
    # ----------------------------------------------------------------- scorer

    answered = _read(scorer.answered)
    answered_turns = _read(scorer.answered_turns)
    add_verdict = _write(scorer.add_verdict)
    # ---------------------------------------------------------------- trainer

    waiting = _read(trainer.waiting)
    accepted_turns = _read(trainer.accepted_turns)
    newest_turns = _read(trainer.newest_turns)
    count_accepted = _read(trainer.count_accepted)
    claim = _write(trainer.claim)
    renew = _write(trainer.renew)
    release = _write(trainer.release)
    release_expired = _write(trainer.release_expired)
    drop = _write(trainer.drop)
    next_version = _read(trainer.next_version)
    publish = _write(trainer.publish)
    canary_releases = _read(canary.releases)
    routes = _read(canary.routes)
    settle_release = _write(canary.settle)
    drawn_conversations = _read(canary.drawn_conversations)
    add_preview = _write(canary.add_preview)
    preview_replies = _read(canary.preview_replies)
    conversations_before = _read(canary.conversations_before)
    active_keys = _read(canary.active_keys)
    reject = _write(trainer.reject)
    write_step = _write(trainer.write_step)
    steps = _read(trainer.steps)
    mark_pruned = _write(trainer.mark_pruned)
    trained_turns = _read(trainer.trained_turns)
    scored_turns = _read(trainer.scored_turns)
    recent_verdicts = _read(trainer.recent_verdicts)
    # ------------------------------------------------------------ fine-tuning

    add_training_file = _write(tuning.add_file)
    training_files = _read(tuning.files)
    training_file = _read(tuning.file)
    delete_training_file = _write(tuning.delete_file)
    add_tuning_job = _write(tuning.add_job)
    tuning_jobs = _read(tuning.jobs)
    cancel_tuning_job = _write(tuning.cancel_job)
    open_tuning_jobs = _read(tuning.open_jobs)
    begin_tuning_job = _write(tuning.begin_job)
    fail_tuning_job = _write(tuning.fail_job)
    tuning_data = _read(tuning.data)
    # ----------------------------------------------------------------- person

    status = _read(person.status)
    heartbeats = _read(person.heartbeats)
    learning_metrics = _read(metrics.learning_metrics)
    verdicts_after = _read(metrics.verdicts_after)
    steps_finished_after = _read(metrics.steps_finished_after)
    client_traffic = _read(person.client_traffic)
    aliases = _read(common.aliases)

    async def live_version(self, policy: str) -> int:
        move = (await self.aliases()).get(policy)
        return BASE_VERSION if move is None else move.version

    alias_moves = _read(person.alias_moves)
    adapter = _read(common.adapter)
    adapters = _read(person.adapters)
    rollback = _write(person.rollback)
    readmit = _write(person.readmit)
    refuse = _write(person.refuse)
    activity = _read(trainer.activity)
    ask_to_train = _write(trainer.ask_to_train)
    set_paused = _write(person.set_paused)
    is_paused = _read(person.is_paused)
    paused_policies = _read(person.paused_policies)
    lora_names = _read(person.lora_names)
    bind_lora = _write(person.bind_lora)
    unbind_lora = _write(person.unbind_lora)
    feedback_turns = _read(proxy.feedback_turns)
    try_version = _write(person.try_version)
    pins = _read(person.pins)
    pin = _write(person.pin)
    wishes = _read(wish_list.wishes)
    wishes_since = _read(wish_list.prompt_texts_since)

    async def adds_wishes(self) -> bool:
        """Whether the gateway adds wishes to prompts, as it said last."""
        beat = await self.beat_of(gateway_name(1))
        return beat is None or bool((beat.detail.get("wishes") or {}).get("is_on", True))

    change_wish = _write(wish_list.change_wish)
    merge_wishes = _write(wish_list.merge_wishes)
    unused_complaints = _read(person.unused_complaints)
    story = _read(stories.story)
    fates = _read(person.fates)
    turn_progress = _read(person.turn_progress)
    trajectories = _read(person.trajectories)
    turns_since = _read(person.turns_since)

    async def all_turns(self, batch: int = 500) -> AsyncIterator[Json]:
        """Yield every row of ``trajectories``, oldest first, without holding a transaction open between pages."""
        after: tuple[float, str] | None = None
        while rows := await self.trajectories(after=after, limit=batch):
            for row in rows:
                yield row
            after = (rows[-1]["created_at"], rows[-1]["turn_id"])

    judgements = _read(person.judgements)
    # -------------------------------------------------------------- dashboard

    judged_turns = _read(dashboard.judged_turns)
    conversations = _read(dashboard.conversations)
    session_turns = _read(dashboard.session_turns)
    dropped_turns = _read(dashboard.dropped_turns)
    step_page = _read(dashboard.step_page)
    step_samples = _read(dashboard.step_samples)
    version_samples = _read(dashboard.version_samples)
    turn_tokens = _read(dashboard.turn_tokens)
    key_of_turn = _read(dashboard.key_of_turn)
    find_closure = _read(closures.find_closure)
    forget = _write(forgetting.forget)

    async def scrub(self) -> None:
        """Write the database's file anew, so that no free page holds what was deleted. Raises: RecordUnavailable."""
        await self._database.scrub()

    found_again = _read(forgetting.found_again)
    ask_to_forget = _write(forgets.ask)
    forget_job = _read(forgets.find)
    forget_jobs = _read(forgets.jobs)
    open_forget_jobs = _read(forgets.open_jobs)
    delete_asked = _write(forgets.delete_asked)
    change_forget_job = _write(forgets.change)
    holds_training = _read(forgets.holds_training)
    retain = _write(retentions.retain)
    retention = _read(retentions.retention)
    ask_for_aged = _write(retentions.ask_for_aged)

    async def verify(self) -> list[str]:
        """Re-hash and cross-check the record; one sentence for each thing wrong, none when all is well."""
        return await self._database.read(verify)


def read_revision(connection: sa.Connection) -> str | None:
    """Return the database's schema revision; None: it holds no record."""
    try:
        found: str | None = connection.execute(
            sa.text("SELECT version_num FROM alembic_version")
        ).scalar_one_or_none()
    except DBAPIError as exc:
        text = str(exc.orig).lower()
        if "no such table" in text or "does not exist" in text:
            return None
        raise
    return found


def check_revision(found: str | None) -> None:
    """Raises: RecordTooNew or RecordError when the database's schema revision is not ours."""
    if found == SCHEMA_REVISION:
        return
    if found is None:
        raise RecordError("the database holds no Patina record yet; start Patina once to create it")
    if found > SCHEMA_REVISION:
        raise RecordTooNew(
            f"the record was written by a newer Patina (schema {found}, this program knows {SCHEMA_REVISION}): "
            "update Patina, or give another --home"
        )
    raise RecordError(
        f"the record has schema {found}, this program needs {SCHEMA_REVISION}: run the migrations"
    )
