"""Group commit: what the relay hands over is linked and written, many turns in one transaction.

The relay waits for its turn's commit before the client's last byte leaves, but never longer than `wait_s`: a record that is slow,
locked, full, damaged or gone costs a reply a quarter of a second, not the reply. Shortly before that bound, and at once while the
record is known to be in trouble, the turn goes into the journal (`proxy.journal`), so that one whose end the client saw is safe
from a crash all the same; it is counted (`late`) and written as soon as the record can be written again. What no longer fits into
memory waits in the journal alone. A turn that is nowhere safe when its client is served is counted as `exposed`, one that can never be
written as `lost`, and both are said in the log. Nothing is lost silently.

Linking happens here, right before the write, because one writer sees the turns in order: its own batch and the record together
are all there is.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import tenacity

from proxy.drafts import Draft, build_turns, dump_draft, id_of, load_draft
from proxy.journal import Journal
from proxy.linking import Known, Link, link
from proxy.recent import READ_BACK, Recent
from store.errors import RecordCorrupt, RecordError, RecordUnavailable
from store.record import Record
from store.values import Json, NewTurn, Tip, TurnKind

log = logging.getLogger(__name__)

#: The newest keys of a history are asked for first: a continued conversation is found by them, however long it is.
_PROBE = 6
#: One transaction, and what of the journal is in memory at once.
_MAX_BATCH, _MAX_BATCH_BYTES = 256, 16 << 20
#: Of so many turns in the journal alone is known what they are called; of more, any name may be one of theirs.
_KNOWN_SPILLED = 100_000
#: So much of the bound is left to the record alone before the journal is written as well.
_RECORD_SHARE = 0.6

_NOTHING = Known()

T = TypeVar("T")


@dataclass(slots=True)
class _Item:
    draft: Draft
    written: asyncio.Future[None]
    since: float  # of the loop's clock
    waiter: asyncio.Future[None] | None = None  # who waits for it, until it is written or too late


class Recorder:
    """The writer of turns.

    Args:
        opening: opens the record; called again and again while the record cannot be reached.
        wait_s: longest time a reply waits for its row.
        journal: where turns are safe that the record does not take in time; without one they wait in memory only.
        capacity, capacity_bytes: what may wait in memory while the record is away.
    """

    def __init__(
        self,
        opening: Callable[[], Awaitable[Record]],
        *,
        wait_s: float = 0.25,
        journal: Journal | None = None,
        capacity: int = 10_000,
        capacity_bytes: int = 128 << 20,
    ) -> None:
        self._opening = opening
        self._wait_s = wait_s
        self._journal = journal
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._queue: deque[_Item] = deque()
        self._queued_bytes = 0
        self._items: dict[asyncio.Future[None], _Item] = {}  # those of the queue
        self._spilled = 0  # in the journal alone
        self._spilled_ids: set[str] = set()  # … and what the newest of them are called
        self._has_leftovers = journal is not None and journal.size() > 0  # of an earlier life
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._opening_lock = asyncio.Lock()
        self._idle.set()
        self._recent = Recent()
        self._linked: dict[str, tuple[NewTurn, ...]] = {}  # by draft: decided, not written yet
        self.record: Record | None = None
        self.written = 0
        self.late = 0
        self.exposed = 0
        self.journaled = 0
        self.recovered = 0
        self.lost = 0
        self.failed_writes = 0
        self.last_error: str | None = None  # why nothing can be written now
        self.journal_error: str | None = None
        self.last_loss: str | None = None
        if self._has_leftovers:
            self._idle.clear()
            self._work.set()

    def submit(self, draft: Draft) -> asyncio.Future[None]:
        """Queue an exchange; the future is done when it is committed, or safe in the journal where memory is full (or can never
        be, see `lost`)."""
        loop = asyncio.get_running_loop()
        written: asyncio.Future[None] = loop.create_future()
        is_full = len(self._queue) >= self._capacity or self._queued_bytes + draft.size > self._capacity_bytes
        if is_full and self._journal is None:
            self._lose(draft, "the record is away and the memory for waiting turns is full")
            written.set_result(None)
            return written
        self._idle.clear()
        self._work.set()
        if self._journal is not None and (is_full or self._spilled):
            # Once something waits in the journal alone, what comes after it does too: they are written in their order.
            self._spill(self._journal, draft, written)
            return written
        item = _Item(draft, written, loop.time())
        self._queue.append(item)
        self._items[written] = item
        self._queued_bytes += draft.size
        return written

    def _spill(self, journal: Journal, draft: Draft, written: asyncio.Future[None]) -> None:
        self._spilled += 1
        if self._spilled <= _KNOWN_SPILLED:
            self._spilled_ids.update(filter(None, (draft.turn_id, draft.reply.completion_id)))

        def done(appended: asyncio.Future[None]) -> None:
            error = appended.exception()
            if error is None:
                self.journaled += 1
            else:
                self._spilled = max(0, self._spilled - 1)
                self.journal_error = str(error)
                self._lose(draft, f"memory is full and the journal cannot be written: {error}")
            if not written.done():
                written.set_result(None)

        journal.append(dump_draft(draft)).add_done_callback(done)

    def _lose(self, draft: Draft, why: str) -> None:
        self.lost += 1
        self.last_loss = f"turn {draft.turn_id}: {why}"[:300]
        log.error("%s", self.last_loss)

    async def settle(self, written: asyncio.Future[None]) -> None:
        """Wait until a turn is committed, or safe in the journal, but not for ever."""
        item = self._items.get(written)
        if item is None or self._journal is None:
            if not written.done():
                await asyncio.wait((written,), timeout=self._wait_s)
        else:
            share = 0.0 if self.last_error is not None else _RECORD_SHARE
            if share and not written.done():
                await _until_written(item, share * self._wait_s)
            if not written.done():
                await self._note(self._journal, item, (1 - share) * self._wait_s)
        if not written.done():
            self.late += 1

    async def _note(self, journal: Journal, item: _Item, timeout_s: float) -> None:
        appended = journal.append(dump_draft(item.draft))
        await asyncio.wait((item.written, appended), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not appended.done():
            if not item.written.done():
                self.exposed += 1
        elif (error := appended.exception()) is not None:
            is_first, self.journal_error = self.journal_error is None, str(error)
            if not item.written.done():
                self.exposed += 1
                if is_first:  # the others are counted: a disk that is full must not be filled with this
                    log.error(
                        "turn %s is in memory only, as are those that follow: %s", item.draft.turn_id, error
                    )
        else:
            self.journaled += 1
            self.journal_error = None

    def may_hold(self, reference: str | None, before: float) -> bool:
        """Whether a turn that ended ``before`` a time of the loop's clock may be waiting to be written.

        Args:
            reference: its id or its completion's; None: any turn.
        """
        turn_id = reference.partition(".")[0] if reference is not None else None
        if self._has_leftovers or self._spilled > _KNOWN_SPILLED:
            return True
        if self._spilled and (reference is None or {reference, turn_id} & self._spilled_ids):
            return True
        return any(
            item.since <= before
            and (
                reference is None
                or turn_id == item.draft.turn_id
                or reference == item.draft.reply.completion_id
            )
            for item in self._queue
        )

    async def drain(self, timeout_s: float) -> int:
        """Wait until everything queued is written; returns how many turns still wait after ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return len(self._queue) + self._spilled
        return 0

    async def stow(self) -> None:
        """Before the end: put into the journal what could not be written."""
        if self._journal is not None:
            lines = [self._journal.append(dump_draft(item.draft)) for item in self._queue]
            await asyncio.gather(*lines, return_exceptions=True)
            failed = [line for line in lines if line.exception() is not None]
            if failed:
                log.error(
                    "%d turns could not even be put into the journal: %s", len(failed), failed[0].exception()
                )
            await self._journal.settled()
            self._journal.close()

    def state(self) -> Json:
        """Counters for `status`.

        ``state`` is "ok", "slow" (somebody waits longer than the bound), "opening", or "away" (``last_error`` says why).
        """
        oldest_s = asyncio.get_running_loop().time() - self._queue[0].since if self._queue else 0.0
        if self.last_error is not None:
            state = "away"
        elif self.record is None:
            state = "opening"
        else:
            state = "slow" if oldest_s > self._wait_s or self._spilled else "ok"
        return {
            "state": state,
            "available": self.record is not None and self.last_error is None,
            "written": self.written,
            "late": self.late,
            "exposed": self.exposed,
            "lost": self.lost,
            "waiting": len(self._queue) + self._spilled,
            "waiting_bytes": self._queued_bytes,
            "oldest_s": round(oldest_s, 3),
            "journaled": self.journaled,
            "journal_bytes": self._journal.size() if self._journal is not None else 0,
            "recovered": self.recovered,
            "failed_writes": self.failed_writes,
            "last_error": self.last_error,
            "journal_error": self.journal_error,
            "last_loss": self.last_loss,
        }

    # ---- the writer

    async def run(self) -> None:
        """Open the record and write what is queued until cancelled."""
        while True:
            await self._work.wait()
            self._work.clear()
            while self._queue or self._spilled or self._has_leftovers:
                if self._has_leftovers or not self._queue:
                    await self._replay()
                    continue
                # They stay in the queue until they are written: `drain` and the bounds count them.
                batch = _some(iter(self._queue), lambda item: item.draft.size)
                await self._commit(batch)
                for item in batch:
                    self._queue.popleft()
                    self._queued_bytes -= item.draft.size
                    del self._items[item.written]
                    if not item.written.done():
                        item.written.set_result(None)
                    if item.waiter is not None:
                        _open(item.waiter)
            self._empty_journal()
            self._idle.set()

    def _empty_journal(self) -> None:
        """Everything is in the record: the journal's lines are history."""
        journal = self._journal
        if journal is not None and journal.is_quiet and journal.size():
            try:
                journal.empty()
            except OSError as exc:
                self.journal_error = str(exc)  # tried again next time; its lines are found in the record then

    async def _replay(self) -> None:
        """Write the turns that are in the journal alone, in their order."""
        journal, start = self._journal, 0
        assert journal is not None  # nothing is spilled or left over without one
        while True:
            await journal.settled()
            end = journal.size()
            if end <= start:
                break
            lines = journal.lines(start, end)
            while chunk := await asyncio.to_thread(_some, lines, len):
                await self._recover(chunk)
            start = end
        self._spilled = 0
        self._spilled_ids.clear()
        self._has_leftovers = False

    async def _recover(self, lines: Sequence[bytes]) -> None:
        # Most lines are of turns that were late and are recorded by now: they are told by their ids, and not read.
        waiting = {id_of(line): line for line in lines}
        for item in self._queue:
            waiting.pop(item.draft.turn_id, None)  # written from memory, in its turn

        async def known() -> set[str]:
            return await (await self._available()).known_turns([i for i in waiting if i is not None])

        for turn_id in await self._patiently(known):
            del waiting[turn_id]
        drafts: list[Draft] = []
        for line in waiting.values():
            try:
                drafts.append(load_draft(line))
            except (ValueError, KeyError, TypeError) as exc:
                # Torn by a crash while it was written: its client never saw the end.
                log.warning("a line of the journal cannot be read: %s", type(exc).__name__)
        if drafts:
            now = asyncio.get_running_loop().time()
            nobody: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            await self._commit([_Item(draft, nobody, now) for draft in drafts])
            self.recovered += len(drafts)
            if self._spilled:
                self._spilled = max(1, self._spilled - len(drafts))  # what is left is seen to by `_replay`

    async def _commit(self, batch: Sequence[_Item]) -> None:
        try:
            await self._patiently(lambda: self._write([item.draft for item in batch]))
        except Exception as exc:  # noqa: BLE001 - one turn that cannot be written must not take the others with it
            if len(batch) > 1:
                # What was decided for them may rest on the one that is at fault: decide again, one by one.
                self._undo([item.draft for item in batch])
                for item in batch:
                    await self._commit([item])
                return
            self._undo([batch[0].draft])
            self._lose(batch[0].draft, f"it cannot be written: {type(exc).__name__}: {exc}")

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """Try until the record can be used."""
        try:
            done = await work()  # nearly always the only attempt: the retrying is not set up for it
        except (RecordUnavailable, RecordCorrupt) as exc:
            self._note_failure(exc, is_first=True)
            done = await self._retrying(work)
        self.last_error = None
        return done

    async def _retrying(self, work: Callable[[], Awaitable[T]]) -> T:
        async for attempt in tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type((RecordUnavailable, RecordCorrupt)),
            wait=tenacity.wait_random_exponential(multiplier=0.05, max=2.0),
            before_sleep=self._note_attempt,
            reraise=True,
        ):
            with attempt:
                done = await work()
        return done

    def _note_attempt(self, state: tenacity.RetryCallState) -> None:
        self._note_failure(state.outcome.exception() if state.outcome is not None else None)

    def _note_failure(self, error: BaseException | None, *, is_first: bool = False) -> None:
        self.failed_writes += 1
        self.last_error = str(error)[:300]
        if is_first:
            log.warning("the record cannot be written, trying again: %s", self.last_error)

    async def opened(self) -> Record:
        """Return the record, opening it if need be. Raises: RecordError."""
        if self.record is None:
            async with self._opening_lock:
                if self.record is None:
                    record = await self._opening()
                    try:
                        self._recent.recall(await record.recollect(READ_BACK))
                    except BaseException:
                        await record.close()  # it is opened again and again while it cannot be read
                        raise
                    self.record = record
                    self.last_error = None
        return self.record

    def _undo(self, drafts: Sequence[Draft]) -> None:
        for draft in drafts:
            self._recent.remove(t.turn_id for t in self._linked.pop(draft.turn_id, ()))

    async def _available(self) -> Record:
        try:
            return await self.opened()
        except RecordError as exc:
            # Whatever is wrong with it (not migrated yet, too new), it is not the turns' fault: they wait.
            raise RecordUnavailable(str(exc)) from exc

    async def _write(self, drafts: Sequence[Draft]) -> None:
        record = await self._available()
        await self._link(record, [d for d in drafts if d.turn_id not in self._linked])
        turns = [turn for draft in drafts for turn in self._linked[draft.turn_id]]
        done = [
            (draft.scope, self._linked[draft.turn_id][0].session_id)
            for draft in drafts
            if draft.wishes.is_session_done
        ]
        await record.write_turns(turns, done)
        for draft in drafts:
            del self._linked[draft.turn_id]
        self.written += len(turns)

    async def _link(self, record: Record, drafts: Sequence[Draft]) -> None:
        """Decide, in the order in which they ended, what the drafts continue. A second attempt keeps what was decided."""
        for draft, found in zip(drafts, await self._known(record, drafts), strict=True):
            session = draft.wishes.session
            tip = None
            if session is not None:
                tip = self._recent.newest(draft.scope, session) or await record.session_tip(
                    draft.scope, session
                )
            known = self._with_recent(draft, found)
            decided: Link = link(draft.history, known, draft.kind.kind, session=session, tip=tip)
            session_id = decided.session_id or f"session_{draft.turn_id.removeprefix('turn_')}"
            turns = build_turns(draft, decided, session_id)
            self._linked[draft.turn_id] = turns
            self._recent.add(draft, turns)

    def _with_recent(self, draft: Draft, found: Known) -> Known:
        """Add to what the record knows what this process remembers."""
        recent, history = self._recent, draft.history
        return recent.known(
            draft,
            replies=_merged(recent.replies(history), found.replies, recent),
            requests=_merged(recent.requests(history), found.requests, recent),
        )

    async def _known(self, record: Record, drafts: Sequence[Draft]) -> list[Known]:
        """Ask the record for the turns that these requests may rest on: not at all, one question a scope, or two."""
        known = {d.turn_id: _NOTHING for d in drafts}
        open_ones: Sequence[Draft] = drafts
        for keys_of in (_newest_keys, _all_keys):
            # What came before in this very batch is linked later, and is found in memory then.
            open_ones = [d for d in open_ones if not _is_certain(d, known[d.turn_id], self._recent)]
            if keys_of is _all_keys:
                open_ones = [d for d in open_ones if len(d.history.marks) > _PROBE]
            if open_ones:
                answers = await self._ask(record, open_ones, keys_of)
                known.update(zip((d.turn_id for d in open_ones), answers, strict=True))
        return [known[d.turn_id] for d in drafts]

    async def _ask(
        self, record: Record, drafts: Sequence[Draft], keys_of: Callable[[Draft], Sequence[str]]
    ) -> list[Known]:
        by_scope: dict[str, set[str]] = {}
        for draft in drafts:
            by_scope.setdefault(draft.scope, set()).update(keys_of(draft))
        tips = {scope: await record.tips_for(scope, sorted(keys)) for scope, keys in by_scope.items()}
        found = []
        for draft in drafts:
            answer = tips[draft.scope]
            keys = keys_of(draft)
            found.append(
                Known(
                    replies={k: answer.replies[k] for k in keys if k in answer.replies},
                    requests={k: answer.requests[k] for k in keys if k in answer.requests},
                )
            )
        return found


async def _until_written(item: _Item, timeout_s: float) -> None:
    """As `asyncio.wait`, for every turn and at a fifth of its price."""
    loop = asyncio.get_running_loop()
    item.waiter = loop.create_future()
    timer = loop.call_later(timeout_s, _open, item.waiter)
    try:
        await item.waiter
    finally:
        timer.cancel()
        item.waiter = None


def _open(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _some(things: Iterator[T], size: Callable[[T], int]) -> list[T]:
    """Return the next few: at most a batch, in number and in bytes, but one at least."""
    taken: list[T] = []
    total = 0
    for thing in things:
        taken.append(thing)
        total += size(thing)
        if len(taken) >= _MAX_BATCH or total >= _MAX_BATCH_BYTES:
            break
    return taken


def _newest_keys(draft: Draft) -> list[str]:
    return [mark.key for mark in draft.history.marks[-_PROBE:]]


def _all_keys(draft: Draft) -> list[str]:
    return draft.history.keys


def _is_certain(draft: Draft, known: Known, recent: Recent) -> bool:
    """Whether nothing that the record could still tell would change the link.

    So it is for an opening (only an identical body matters, and bodies are remembered, not stored), and where the newest
    answer in the history is known to end a main turn (nothing older can be the parent then).
    """
    if draft.history.is_opening and draft.wishes.session is None:
        return True
    for mark in reversed(draft.history.marks):
        if mark.role == "assistant":
            tips = known.replies.get(mark.key, ())
            return any(t.kind is TurnKind.MAIN for t in tips) or recent.ends_main(mark.key)
    return False


def _merged(
    newer: Mapping[str, list[Tip]], older: Mapping[str, Iterable[Tip]], recent: Recent
) -> Mapping[str, list[Tip]]:
    if not older:
        return newer
    merged: dict[str, list[Tip]] = {}
    for key in {*newer, *older}:
        tips = list(newer.get(key, ()))
        ids = {tip.turn_id for tip in tips}
        merged[key] = tips + [recent.today(tip) for tip in older.get(key, ()) if tip.turn_id not in ids]
    return merged
