"""The record: the one interface to the database. Its queries and writes are in `store.queries`, by process.

Values in, values out; each method is one short transaction (`store.database` says how it is run and what a commit promises). Errors are
`store.errors.RecordError`s: no other module sees SQLAlchemy.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from store.change_notice import FALLBACK_POLL_S, ChangeNotice
from store.database import BUSY_TIMEOUT_S, Database
from store.errors import RecordError, RecordTooNew
from store.lifecycle import DropReason, Stage
from store.queries import (
    canary,
    common,
    dashboard,
    forget,
    journal,
    metrics,
    person,
    proxy,
    replies,
    scorer,
    stored,
    story,
    trainer,
    wishes,
)
from store.queries import closure as closures
from store.queries.turns import TurnWriter
from store.values import (
    BASE_VERSION,
    Activity,
    AdapterVersion,
    AddedItem,
    AliasMove,
    AnsweredTurn,
    CanaryRelease,
    ClientTraffic,
    Closure,
    Conversation,
    ConversationRow,
    DroppedTurn,
    Feedback,
    Forgotten,
    GivenVerdict,
    GpuLease,
    GpuRole,
    Heartbeat,
    Json,
    JudgedTurn,
    LearningMetrics,
    NewTurn,
    RecentVerdict,
    RecordedTurn,
    RecordStatus,
    ReleaseStage,
    Remembered,
    ScoredTurn,
    Selection,
    ServedTurn,
    StepReport,
    StoredCompletion,
    StoredQuery,
    Tip,
    Tips,
    TurnFate,
    TurnProgress,
    UnusedComplaint,
    Verdict,
    Waiting,
    Wish,
    WishesSeen,
    WishState,
    gateway_name,
)
from store.verify import verify

#: Newest migration this code knows. A test holds it against `migrations/`.
SCHEMA_REVISION = "0036"


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
            check_revision(await database.read(_revision))
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

    async def journal_offsets(self) -> dict[str, int]:
        """Return how far each segment of the journal is recorded, in bytes, by name."""
        return await self._database.read(journal.journal_offsets)

    async def sync(self) -> None:
        """Make everything that was written so far survive a power cut. Raises: RecordUnavailable."""
        await self._database.sync()

    async def forget_segments(self, names: Sequence[str]) -> None:
        """Delete the offsets of segments that were removed."""
        await self._database.write(journal.forget_segments, names)

    async def has_feedback(self, idempotency_key: str) -> bool:
        """Whether feedback with this key is recorded."""
        return await self._database.read(journal.has_feedback, idempotency_key)

    async def known_turns(self, turn_ids: Sequence[str]) -> set[str]:
        """Return those of ``turn_ids`` that are recorded."""
        return await self._database.read(proxy.known_turns, turn_ids)

    async def tips_for(self, key_name: str, keys: Sequence[str]) -> Tips:
        """Return the stored turns of a key whose request or reply key is among ``keys``."""
        return await self._database.read(proxy.tips_for, key_name, keys)

    async def session_tip(self, key_name: str, session_id: str) -> Tip | None:
        """Return the newest main turn of an explicitly named session."""
        return await self._database.read(proxy.session_tip, key_name, session_id)

    async def recollect(self, limit: int) -> list[Remembered]:
        """Return the newest turns, oldest first, with the end of what each was asked: what a proxy that starts should know."""
        return await self._database.read(story.recollect, limit)

    async def find_turn(self, key_name: str, reference: str) -> str | None:
        """Return the id of the turn named by a turn id or by a completion id that its client saw."""
        return await self._database.read(proxy.find_turn, key_name, reference)

    async def recorded_turn(self, key_name: str, turn_id: str) -> RecordedTurn | None:
        """Return a turn that a client names; without its API when its response was deleted."""
        return await self._database.read(replies.recorded_turn, key_name, turn_id)

    async def conversation_turns(self, key_name: str, conversation_id: str) -> list[RecordedTurn]:
        """Return the finished turns of a conversation, oldest first; without their requests where their own input is recorded."""
        return await self._database.read(replies.conversation_turns, key_name, conversation_id)

    async def hide_turn(self, key_name: str, turn_id: str) -> None:
        """Stop showing a response to its client."""
        await self._database.write(replies.hide_turn, key_name, turn_id)

    async def list_completions(
        self, key_name: str, wanted: StoredQuery
    ) -> tuple[list[StoredCompletion], bool] | None:
        """Return a page of a key's chat completions, and whether more follow; None: there is no completion ``after``."""
        return await self._database.read(stored.list_completions, key_name, wanted)

    async def stored_completion(self, key_name: str, reference: str) -> StoredCompletion | None:
        """Return a chat completion by the id that its client saw; None: there is none, or it was deleted."""
        return await self._database.read(stored.find_completion, key_name, reference)

    async def set_completion_metadata(self, turn_id: str, metadata: Json) -> None:
        """Replace a completion's metadata."""
        await self._database.write(stored.set_metadata, turn_id, metadata)

    async def delete_completion(self, turn_id: str, now: float | None = None) -> None:
        """Hide a completion from its client; `turns_to_forget` has its turn from now on."""
        await self._database.write(stored.delete, turn_id, _now(now))

    async def turns_to_forget(self) -> list[tuple[str, str]]:
        """Return (turn, key name) of deleted completions that are still recorded, in the order of deletion."""
        return await self._database.read(stored.turns_to_forget)

    async def add_conversation(
        self, key_name: str, conversation: Conversation, items: Sequence[Json] = ()
    ) -> None:
        await self._database.write(replies.add_conversation, key_name, conversation, items)

    async def conversation(self, key_name: str, conversation_id: str) -> Conversation | None:
        """Return a conversation that a client created and did not delete."""
        return await self._database.read(replies.conversation, key_name, conversation_id)

    async def update_conversation(self, conversation_id: str, metadata: Json) -> None:
        await self._database.write(replies.update_conversation, conversation_id, metadata)

    async def delete_conversation(self, conversation_id: str) -> None:
        await self._database.write(replies.delete_conversation, conversation_id)

    async def add_items(
        self, conversation_id: str, items: Sequence[Json], now: float | None = None
    ) -> list[AddedItem]:
        """Add items to a conversation. Each keeps its id where it has one that no other item of the conversation has."""
        return await self._database.write(replies.add_items, conversation_id, items, _now(now))

    async def delete_item(self, conversation_id: str, item_id: str, now: float | None = None) -> None:
        """Delete an item that a client added, or stop showing one of a turn."""
        await self._database.write(replies.delete_item, conversation_id, item_id, _now(now))

    async def find_exchange(self, key_name: str, prompt: str, response: str) -> str | None:
        """Return the newest turn that answered ``response`` to a last user text ``prompt`` (CLaaS's feedback body)."""
        return await self._database.read(proxy.find_exchange, key_name, prompt, response)

    async def turns_answering(self, key_name: str, response: str) -> list[tuple[str, float, list[Json]]]:
        """Return the newest turns of a key that answered ``response``: id, time, messages of the prompt."""
        return await self._database.read(proxy.turns_answering, key_name, response)

    async def feedback_keys(self, prefix: str) -> list[tuple[str, str]]:
        """Return idempotency key and turn of the feedback whose key begins so, oldest first."""
        return await self._database.read(proxy.feedback_keys, prefix)

    async def add_feedback(self, feedback: Feedback) -> bool:
        """Store explicit feedback; a turn that waited for an answer (or had none) is up for scoring.

        Returns:
            False when this idempotency key is known already; nothing changed.
        """
        return await self._database.write(proxy.add_feedback, feedback)

    async def heartbeat(self, beat: Heartbeat) -> None:
        """Say that a process lives and what it does; its row is its own."""
        await self._database.write_unnoticed(proxy.heartbeat, beat)

    async def write_gpu_lease(self, lease: GpuLease) -> None:
        """Store what one side of a shared GPU requests or grants."""
        await self._database.write(proxy.write_gpu_lease, lease)

    async def gpu_lease(self, role: GpuRole) -> GpuLease | None:
        """Return what that side wrote last, or None."""
        return await self._database.read(proxy.gpu_lease, role)

    async def beat_of(self, process: str) -> Heartbeat | None:
        """Return the newest heartbeat of a process, or None."""
        return await self._database.read(proxy.beat_of, process)

    # ----------------------------------------------------------------- scorer

    async def answered(self, limit: int, *, exclude: Iterable[str] = ()) -> list[AnsweredTurn]:
        """Return turns that wait for a verdict, oldest first."""
        return await self._database.read(scorer.answered, limit, exclude=exclude)

    async def answered_turns(self, turn_ids: Sequence[str]) -> list[AnsweredTurn]:
        """Return these turns with all that followed them, whatever their stage."""
        return await self._database.read(scorer.answered_turns, turn_ids)

    async def add_verdict(
        self, verdict: Verdict, *, drop: DropReason | None = None, most_per_hour: int = 0
    ) -> None:
        """Store a verdict and move its turn to scored, or with ``drop`` to dropped.

        A turn that is not waiting any more (forgotten, scored by another worker) keeps its stage; the verdict stays in
        the record all the same.

        Args:
            most_per_hour: verdicts of one key within an hour that may train; a turn beyond them is dropped. 0: no limit.
        """
        await self._database.write(scorer.add_verdict, verdict, drop=drop, most_per_hour=most_per_hour)

    # ---------------------------------------------------------------- trainer

    async def waiting(
        self, *, wishes: bool = True, sources: Sequence[str] | None = None
    ) -> dict[str, Waiting]:
        """Return what waits to be trained, by policy; see `store.queries.trainer.waiting`."""
        return await self._database.read(trainer.waiting, wishes=wishes, sources=sources)

    async def accepted_turns(self, policy: str, limit: int) -> list[ScoredTurn]:
        """Return replies that were served with wishes in their prompt and drew no complaint, the newest first."""
        return await self._database.read(trainer.accepted_turns, policy, limit)

    async def count_accepted(self, policy: str) -> int:
        """Return how many `accepted_turns` there are."""
        return await self._database.read(trainer.count_accepted, policy)

    async def claim(
        self, policy: str, limit: int, *, worker: str, lease_s: float, now: float | None = None
    ) -> list[ScoredTurn]:
        """Take up to ``limit`` scored turns for ``worker`` until the lease runs out: the oldest first, thanks last."""
        return await self._database.write(
            trainer.claim, policy, limit, worker=worker, lease_s=lease_s, now=_now(now)
        )

    async def renew(self, worker: str, lease_s: float, now: float | None = None) -> int:
        """Keep a worker's claims for another ``lease_s`` seconds; returns how many it still holds."""
        return await self._database.write(trainer.renew, worker, lease_s, _now(now))

    async def release(self, turn_ids: Sequence[str], now: float | None = None, *, worker: str) -> int:
        """Give back those of these turns that ``worker`` holds, as a step that failed does; returns how many."""
        return await self._database.write(trainer.release, turn_ids, _now(now), worker=worker)

    async def release_expired(self, now: float | None = None) -> int:
        """Give back the claims of workers that died: their leases ran out."""
        return await self._database.write(trainer.release_expired, _now(now))

    async def drop(
        self,
        turn_ids: Sequence[str],
        reason: DropReason,
        now: float | None = None,
        *,
        worker: str,
        detail: str = "",
    ) -> int:
        """End the life of those of these turns that ``worker`` holds: they cannot train.

        Args:
            detail: the reason in words.

        Returns:
            How many there were.
        """
        return await self._database.write(trainer.drop, turn_ids, reason, _now(now), detail, worker=worker)

    async def next_version(self, policy: str) -> int:
        """Return a version number no adapter of this policy ever had, rejected ones included."""
        return await self._database.read(trainer.next_version, policy)

    async def publish(
        self,
        adapter: AdapterVersion,
        turn_ids: Sequence[str],
        step: StepReport,
        *,
        worker: str,
        actor: str = "trainer",
        canary_share: float = 0.0,
        live: int | None = None,
    ) -> None:
        """Publish a version, move the alias to it and mark its turns trained: one transaction, all or nothing.

        Args:
            canary_share: above 0 the alias stays, and the version serves this share of the new conversations first.
            live: the version that was live when the attempt began; None: its parent.

        Raises:
            ClaimLost: ``worker`` does not hold one of the turns any more (its lease ran out): nothing is written, so that no
                turn is ever trained twice.
            AliasMoved: another version is live by now (a rollback came between): nothing is written.
        """
        await self._database.write(
            trainer.publish,
            adapter,
            turn_ids,
            step,
            worker=worker,
            actor=actor,
            canary_share=canary_share,
            live=live,
        )

    async def canary_releases(
        self, policy: str | None = None, *, stages: Collection[ReleaseStage] | None = None
    ) -> list[CanaryRelease]:
        """Return the canary releases (of one policy, at some stages), oldest first."""
        return await self._database.read(canary.releases, policy=policy, stages=stages)

    async def routes(self) -> tuple[dict[str, AliasMove], list[CanaryRelease]]:
        """Return what is live, and the canary releases that run, as of one moment."""
        return await self._database.read(canary.routes)

    async def settle_release(
        self,
        release: CanaryRelease,
        stage: ReleaseStage,
        *,
        numbers: Json,
        reason: str,
        now: float | None = None,
    ) -> bool:
        """Move a canary release to its next stage, and the alias with it; False, with nothing written, when it has moved meanwhile."""
        return await self._database.write(
            canary.settle, release, stage, numbers=numbers, reason=reason, now=_now(now)
        )

    async def served_turns(self, policy: str, versions: Sequence[int], since: float) -> list[ServedTurn]:
        """Return the main turns of these versions in conversations that began at ``since`` or later, oldest first."""
        return await self._database.read(canary.served_turns, policy, versions, since)

    async def conversations_before(self, policy: str, at: float) -> list[tuple[str, str | None, str, str]]:
        """Return (key name, user, session id, first user text) of the conversations that began in the day before ``at``."""
        return await self._database.read(canary.conversations_before, policy, at)

    async def active_keys(self, policy: str, since: float) -> int:
        """Return how many keys sent main turns to a policy since then."""
        return await self._database.read(canary.active_keys, policy, since)

    async def reject(
        self,
        adapter: AdapterVersion,
        step: StepReport,
        *,
        worker: str,
        release: Sequence[str] = (),
        drop: Sequence[str] = (),
    ) -> None:
        """Record a version the gate refused; those of its turns that ``worker`` holds go back or, when they caused it twice, out."""
        await self._database.write(trainer.reject, adapter, step, worker=worker, release=release, drop=drop)

    async def write_step(self, step: StepReport) -> None:
        """Store (or complete) the report of a step that published nothing."""
        await self._database.write(trainer.write_step, step)

    async def steps(self, policy: str, limit: int = 1000) -> list[StepReport]:
        """Return the newest steps, newest first."""
        return await self._database.read(trainer.steps, policy, limit)

    async def mark_pruned(self, policy: str, versions: Sequence[int]) -> None:
        """The files of these versions are gone by the retention policy; their rows stay."""
        await self._database.write(trainer.mark_pruned, policy, versions)

    async def trained_turns(
        self, policy: str, *, version: int | None = None, limit: int = 1000
    ) -> list[ScoredTurn]:
        """Return turns that were trained (in ``version``), newest first."""
        return await self._database.read(trainer.trained_turns, policy, version=version, limit=limit)

    async def scored_turns(self, turn_ids: Sequence[str]) -> list[ScoredTurn]:
        """Return these turns with their newest verdicts, those that are still in the record, in the given order."""
        return await self._database.read(trainer.scored_turns, turn_ids)

    async def recent_verdicts(self, policy: str, limit: int) -> list[RecentVerdict]:
        """Return the newest verdicts of a policy's settled (trained or dropped) turns, oldest first: the baseline's window."""
        return await self._database.read(trainer.recent_verdicts, policy, limit)

    # ----------------------------------------------------------------- person

    async def status(self, *, policy: str | None = None, key_name: str | None = None) -> RecordStatus:
        """Return the counts and states that `status` shows.

        Args:
            policy: count only turns, versions and steps of this policy.
            key_name: count only turns of this key, and leave out the processes.
        """
        return await self._database.read(person.status, policy=policy, key_name=key_name)

    async def heartbeats(self) -> tuple[Heartbeat, ...]:
        """Return the newest heartbeat of each process."""
        return await self._database.read(person.heartbeats)

    async def learning_metrics(self) -> LearningMetrics:
        """Return what `/metrics` reads of learning."""
        return await self._database.read(metrics.learning_metrics)

    async def verdicts_after(self, verdict_id: int | None, limit: int = 500) -> list[GivenVerdict]:
        """Return up to ``limit`` verdicts behind one, oldest first; of None: the newest one alone."""
        return await self._database.read(metrics.verdicts_after, verdict_id, limit)

    async def steps_finished_after(self, finished_at: float, limit: int = 50) -> list[StepReport]:
        """Return up to ``limit`` steps that ended after a time (Unix time, seconds), the first to end first."""
        return await self._database.read(metrics.steps_finished_after, finished_at, limit)

    async def client_traffic(self, window: int) -> list[ClientTraffic]:
        """Return the clients of the newest ``window`` turns and what became of their turns, the busiest first."""
        return await self._database.read(person.client_traffic, window)

    async def aliases(self) -> dict[str, AliasMove]:
        """Return the live version of every policy that ever had one."""
        return await self._database.read(common.aliases)

    async def live_version(self, policy: str) -> int:
        move = (await self.aliases()).get(policy)
        return BASE_VERSION if move is None else move.version

    async def alias_moves(self, policy: str) -> list[AliasMove]:
        """Return where the alias pointed over time, oldest first."""
        return await self._database.read(person.alias_moves, policy)

    async def adapter(self, policy: str, version: int) -> AdapterVersion | None:
        """Return one version of a policy, published or not."""
        return await self._database.read(common.adapter, policy, version)

    async def adapters(self, policy: str) -> list[AdapterVersion]:
        """Return every version of a policy, oldest first, rejected ones included."""
        return await self._database.read(person.adapters, policy)

    async def rollback(
        self, policy: str, version: int, *, actor: str = "rollback", now: float | None = None
    ) -> None:
        """Point the alias back (or forward) to a version that once passed the gate; 0 is the bare base model.

        Raises:
            RecordError: there is no such version, it never passed the gate, or its files are gone.
        """
        await self._database.write(person.rollback, policy, version, actor=actor, now=_now(now))

    async def readmit(self, policy: str, version: int, *, reason: str) -> None:
        """Let a refused version serve again; see `store.integrity.readmit_version`."""
        await self._database.write(person.readmit, policy, version, reason=reason)

    async def refuse(
        self,
        policy: str,
        version: int,
        *,
        reason: str,
        ancestor: int,
        actor: str,
        now: float | None = None,
    ) -> int:
        """Mark a version that must not serve; where it is live, point the alias to ``ancestor``. Returns the live version."""
        return await self._database.write(
            person.refuse, policy, version, reason=reason, ancestor=ancestor, actor=actor, now=_now(now)
        )

    async def activity(self, now: float | None = None) -> Activity:
        """Return what the gateways do now, and when a person last asked to train."""
        return await self._database.read(trainer.activity, _now(now))

    async def ask_to_train(self, now: float | None = None) -> None:
        """Let what is scored by now be trained, whatever the schedule and the size of a batch."""
        await self._database.write(trainer.ask_to_train, _now(now))

    async def set_paused(self, paused: bool, now: float | None = None, *, policy: str | None = None) -> None:
        """Pause or resume the training of one policy; None: of all. What is recorded and scored meanwhile waits."""
        await self._database.write(person.set_paused, paused, _now(now), policy)

    async def is_paused(self, policy: str | None = None) -> bool:
        """Whether training is paused, of this policy or of all."""
        return await self._database.read(person.is_paused, policy)

    async def paused_policies(self) -> list[str]:
        """Return the policies that are paused one by one."""
        return await self._database.read(person.paused_policies)

    async def lora_names(self) -> dict[str, dict[str, str]]:
        """Return the policies by the names that clients gave them, by key (CLaaS's `lora_id`)."""
        return await self._database.read(person.lora_names)

    async def bind_lora(self, key_name: str, name: str, policy: str, *, most: int) -> bool:
        """Bind a name of a key to a policy; False, with nothing written, when the key has ``most`` names."""
        return await self._database.write(person.bind_lora, key_name, name, policy, most, _now(None))

    async def unbind_lora(self, key_name: str, name: str) -> str | None:
        """Remove a name of a key; returns the policy that it meant, or None."""
        return await self._database.write(person.unbind_lora, key_name, name, _now(None))

    async def feedback_turns(self, feedback_ids: Sequence[str]) -> list[str]:
        """Return the turns that recorded feedback is about, in the order of its ids."""
        return await self._database.read(proxy.feedback_turns, feedback_ids)

    async def try_version(self, policy: str, version: int, *, share: float, now: float | None = None) -> None:
        """Begin a canary release: a published version serves a share of the new conversations.

        Raises:
            RecordError: there is no such version, it cannot serve, or it is live.
        """
        await self._database.write(person.try_version, policy, version, share, _now(now))

    async def pins(self, policy: str) -> list[int]:
        """Return the versions of a policy whose files stay whatever their number or size is."""
        return await self._database.read(person.pins, policy)

    async def pin(self, policy: str, version: int, *, stays: bool, now: float | None = None) -> None:
        """Pin or unpin a version.

        Raises:
            RecordError: there is no such version, or its files are gone.
        """
        await self._database.write(person.pin, policy, version, stays=stays, now=_now(now))

    async def wishes(self, policy: str | None = None) -> tuple[Wish, ...]:
        """Return the wishes of a policy, or of all, the oldest first, whatever their state."""
        return await self._database.read(wishes.wishes, policy)

    async def wishes_since(
        self, known: WishesSeen | None
    ) -> tuple[WishesSeen, dict[str, tuple[str, ...]] | None]:
        """Return the wordings in the prompt of each policy (`store.wish_states.in_prompt`), where any changed since ``known``.

        Returns:
            (what to ask with next time, the wordings; None: nothing changed).
        """
        return await self._database.read(wishes.prompt_texts_since, known)

    async def adds_wishes(self) -> bool:
        """Whether the gateway adds wishes to prompts, as it said last."""
        beat = await self.beat_of(gateway_name(1))
        return beat is None or bool((beat.detail.get("wishes") or {}).get("is_on", True))

    async def change_wish(
        self,
        wish_id: int,
        *,
        state: WishState | None = None,
        text: str | None = None,
        measures: Json | None = None,
        now: float | None = None,
    ) -> Wish:
        """Change what is given of a wish, and return it. ``text`` is the owner's; the measures of the earlier wording go with it.

        Raises:
            RecordError: there is no such wish, or the text is empty.
        """
        return await self._database.write(
            wishes.change_wish, wish_id, state=state, text=text, measures=measures, now=_now(now)
        )

    async def merge_wishes(self, into: int, others: Sequence[int]) -> None:
        """Move the statements of other wishes to one of the same policy, and delete the others.

        Raises:
            RecordError: one of them is not there, or of another policy.
        """
        await self._database.write(wishes.merge_wishes, into, others)

    async def unused_complaints(self, policy: str, since: float) -> list[UnusedComplaint]:
        """Return the complaints that were dropped since then because they have nothing to teach, newest first."""
        return await self._database.read(person.unused_complaints, policy, since)

    async def story(self, reference: str) -> Json | None:
        """Return everything recorded about one turn, named by its id, the end of it, or its completion id; None: no such turn."""
        return await self._database.read(story.story, reference)

    async def fates(self, turn_ids: Sequence[str]) -> dict[str, TurnFate]:
        """Return where these turns stand in life."""
        return await self._database.read(person.fates, turn_ids)

    async def turn_progress(self, key_name: str, turn_id: str) -> TurnProgress | None:
        """Return how far a turn of this key has come on its way into the live version; None: it is not recorded."""
        return await self._database.read(person.turn_progress, key_name, turn_id)

    async def trajectories(
        self,
        *,
        session_id: str | None = None,
        stage: Stage | None = None,
        after: tuple[float, str] | None = None,
        limit: int = 1000,
        newest_first: bool = False,
    ) -> list[Json]:
        """Return rows of the view ``trajectories`` as JSON values (lists and messages parsed).

        Args:
            after: (created_at, turn_id) of the last row seen, to page through everything in order.
        """
        return await self._database.read(
            person.trajectories,
            session_id=session_id,
            stage=stage,
            after=after,
            limit=limit,
            newest_first=newest_first,
        )

    async def all_turns(self, batch: int = 500) -> AsyncIterator[Json]:
        """Yield every row of ``trajectories``, oldest first, without holding a transaction open between pages."""
        after: tuple[float, str] | None = None
        while rows := await self.trajectories(after=after, limit=batch):
            for row in rows:
                yield row
            after = (rows[-1]["created_at"], rows[-1]["turn_id"])

    async def judgements(self, turn_ids: Sequence[str]) -> dict[str, Json]:
        """Return, by turn, every verdict with its detail, explicit feedback, and why it was dropped."""
        return await self._database.read(person.judgements, turn_ids)

    # -------------------------------------------------------------- dashboard

    async def judged_turns(self, policy: str, limit: int, key_name: str | None = None) -> list[JudgedTurn]:
        """Return the newest judged turns of a policy, oldest first; see `store.queries.dashboard`."""
        return await self._database.read(dashboard.judged_turns, policy, limit, key_name)

    async def conversations(
        self, limit: int, before: float | None = None, key_name: str | None = None
    ) -> list[ConversationRow]:
        """Return the sessions of the newest ``limit`` turns, newest first; see `store.queries.dashboard`."""
        return await self._database.read(dashboard.conversations, limit, before, key_name)

    async def session_turns(self, session_id: str, limit: int, key_name: str | None = None) -> list[Json]:
        """Return the newest turns of one session, oldest first; see `store.queries.dashboard`."""
        return await self._database.read(dashboard.session_turns, session_id, limit, key_name)

    async def dropped_turns(
        self, policy: str, limit: int, *, before: float | None = None, key_name: str | None = None
    ) -> list[DroppedTurn]:
        """Return the newest main turns of a policy that were dropped, newest first."""
        return await self._database.read(
            dashboard.dropped_turns, policy, limit, before=before, key_name=key_name
        )

    async def step_page(self, policy: str, page: int, per_page: int) -> tuple[int, int, list[StepReport]]:
        """Return how many steps a policy has, the number of the page (clamped), and its steps, newest first."""
        return await self._database.read(dashboard.step_page, policy, page, per_page)

    async def step_samples(
        self, steps: Sequence[StepReport], key_name: str | None = None
    ) -> dict[str, list[Json]]:
        """Return the first turns of each step's batch, by step id, each with its reply, what followed, and its verdict."""
        return await self._database.read(dashboard.step_samples, steps, key_name)

    async def version_samples(
        self, policy: str, version: int, limit: int, key_name: str | None = None
    ) -> tuple[list[Json], int, int]:
        """Return the first turns that were trained into a version, as `step_samples` does, the number of all of the key, and of the others."""
        return await self._database.read(dashboard.version_samples, policy, version, limit, key_name)

    async def turn_tokens(self, turn_id: str) -> tuple[list[int], list[float]]:
        """Return the token ids of a reply and their log-probabilities; empty where there are none."""
        return await self._database.read(dashboard.turn_tokens, turn_id)

    async def key_of_turn(self, turn_id: str) -> str | None:
        """Return the name of the key that a turn came with; None: there is no such turn."""
        return await self._database.read(dashboard.key_of_turn, turn_id)

    async def find_closure(self, selection: Selection, *, with_replies: bool = True) -> Closure:
        """Return what `forget` would remove. Raises: RecordError: the selection names no turn."""
        return await self._database.read(closures.find_closure, selection, with_replies=with_replies)

    async def forget(
        self, selection: Selection, *, with_replies: bool = True, key: bytes, now: float | None = None
    ) -> Forgotten:
        """Delete the selected turns and what belongs to them; see `store.queries.forget`. `scrub` afterwards.

        Raises:
            RecordError: the selection names no turn.
        """
        return await self._database.write(
            forget.forget, selection, with_replies=with_replies, key=key, now=_now(now)
        )

    async def scrub(self) -> None:
        """Write the database's file anew, so that no free page holds what was deleted. Raises: RecordUnavailable."""
        await self._database.scrub()

    async def found_again(self, turn_ids: Sequence[str], messages: Sequence[str], key: bytes) -> list[str]:
        """Return one sentence for each forgotten turn or message that the record holds again."""
        return await self._database.read(forget.found_again, turn_ids, messages, key)

    async def verify(self) -> list[str]:
        """Re-hash and cross-check the record; one sentence for each thing wrong, none when all is well."""
        return await self._database.read(verify)


def _now(now: float | None) -> float:
    return time.time() if now is None else now


def _revision(connection: sa.Connection) -> str | None:
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
