"""Group commit: what the relay hands over is linked and written, many turns in one transaction.

The relay waits for its turn's commit before the client's last byte leaves, but never longer than `wait_s`: a record that is slow,
locked or full costs a reply a quarter of a second, not the reply. What came too late is counted (`late`) and written as soon as
the record can be written again; what no longer fits into memory is counted as `lost` and said in the log. Nothing is lost
silently.

Linking happens here, right before the write, because one writer sees the turns in order: its own batch and the record together
are all there is.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import tenacity

from proxy.drafts import Draft, build_turns
from proxy.linking import Known, Link, link
from proxy.recent import Recent
from store.errors import RecordError, RecordUnavailable
from store.record import Record
from store.values import Json, NewTurn, Tip, TurnKind

log = logging.getLogger(__name__)

#: The newest keys of a history are asked for first: a continued conversation is found by them, however long it is.
_PROBE = 6
_MAX_BATCH = 256


@dataclass(frozen=True, slots=True)
class _Item:
    draft: Draft
    written: asyncio.Future[None]


class Recorder:
    """The writer of turns.

    Args:
        opening: opens the record; called again and again while the record cannot be reached.
        wait_s: longest time a reply waits for its row.
        capacity, capacity_bytes: what may wait in memory while the record is away.
    """

    def __init__(
        self,
        opening: Callable[[], Awaitable[Record]],
        *,
        wait_s: float = 0.25,
        capacity: int = 10_000,
        capacity_bytes: int = 512 << 20,
    ) -> None:
        self._opening = opening
        self._wait_s = wait_s
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._queue: deque[_Item] = deque()
        self._queued_bytes = 0
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._opening_lock = asyncio.Lock()
        self._idle.set()
        self._recent = Recent()
        self._linked: dict[str, tuple[NewTurn, ...]] = {}  # by draft: decided, not written yet
        self.record: Record | None = None
        self.written = 0
        self.late = 0
        self.lost = 0
        self.failed_writes = 0
        self.last_error: str | None = None  # why nothing can be written now
        self.last_loss: str | None = None

    def submit(self, draft: Draft) -> asyncio.Future[None]:
        """Queue an exchange; the future is done when it is committed (or can never be, see `lost`)."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if len(self._queue) >= self._capacity or self._queued_bytes + draft.size > self._capacity_bytes:
            self.lost += 1
            self.last_loss = (
                f"turn {draft.turn_id}: the record is away and the memory for waiting turns is full"
            )
            log.error("%s", self.last_loss)
            written.set_result(None)
            return written
        self._queue.append(_Item(draft, written))
        self._queued_bytes += draft.size
        self._idle.clear()
        self._work.set()
        return written

    async def settle(self, written: asyncio.Future[None]) -> None:
        """Wait until a turn is committed, but not for ever."""
        done, _ = await asyncio.wait({written}, timeout=self._wait_s)
        if not done:
            self.late += 1

    async def drain(self, timeout_s: float) -> int:
        """Wait until everything queued is written; returns how many turns still wait after ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return len(self._queue)
        return 0

    def state(self) -> Json:
        """Counters for `status`."""
        return {
            "available": self.record is not None and self.last_error is None,
            "written": self.written,
            "late": self.late,
            "lost": self.lost,
            "waiting": len(self._queue),
            "waiting_bytes": self._queued_bytes,
            "failed_writes": self.failed_writes,
            "last_error": self.last_error,
            "last_loss": self.last_loss,
        }

    # ---- the writer

    async def run(self) -> None:
        """Open the record and write what is queued until cancelled."""
        while True:
            await self._work.wait()
            self._work.clear()
            while self._queue:
                # They stay in the queue until they are written: `drain` and the bounds count them.
                batch = [self._queue[i] for i in range(min(len(self._queue), _MAX_BATCH))]
                await self._commit(batch)
                for item in batch:
                    self._queue.popleft()
                    self._queued_bytes -= item.draft.size
                    if not item.written.done():
                        item.written.set_result(None)
            self._idle.set()

    async def _commit(self, batch: Sequence[_Item]) -> None:
        try:
            await self._retrying(self._write, [item.draft for item in batch])
        except Exception as exc:  # noqa: BLE001 - one turn that cannot be written must not take the others with it
            if len(batch) > 1:
                # What was decided for them may rest on the one that is at fault: decide again, one by one.
                self._undo([item.draft for item in batch])
                for item in batch:
                    await self._commit([item])
                return
            self._undo([batch[0].draft])
            self.lost += 1
            self.last_loss = f"turn {batch[0].draft.turn_id} cannot be written: {type(exc).__name__}: {exc}"[
                :300
            ]
            log.error("%s", self.last_loss)

    async def _retrying(
        self, write: Callable[[Sequence[Draft]], Awaitable[None]], drafts: Sequence[Draft]
    ) -> None:
        async for attempt in tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(RecordUnavailable),
            wait=tenacity.wait_random_exponential(multiplier=0.05, max=2.0),
            before_sleep=self._note_failure,
            reraise=True,
        ):
            with attempt:
                await write(drafts)

    def _note_failure(self, state: tenacity.RetryCallState) -> None:
        self.failed_writes += 1
        error = state.outcome.exception() if state.outcome is not None else None
        self.last_error = str(error)[:300]
        if state.attempt_number == 1:
            log.warning("the record cannot be written, trying again: %s", self.last_error)

    async def opened(self) -> Record:
        """Return the record, opening it if need be. Raises: RecordError."""
        if self.record is None:
            async with self._opening_lock:
                if self.record is None:
                    self.record = await self._opening()
                    self.last_error = None
        return self.record

    def _undo(self, drafts: Sequence[Draft]) -> None:
        for draft in drafts:
            self._recent.remove(t.turn_id for t in self._linked.pop(draft.turn_id, ()))

    async def _write(self, drafts: Sequence[Draft]) -> None:
        try:
            record = await self.opened()
        except RecordError as exc:
            # Whatever is wrong with it (not migrated yet, too new), it is not the turns' fault: they wait.
            raise RecordUnavailable(str(exc)) from exc
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
        self.last_error = None

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
        return Known(
            replies=_merged(recent.replies(history), found.replies, recent),
            requests=_merged(recent.requests(history), found.requests, recent),
            exchanges=recent.exchanges(history),
            identical=recent.identical(draft),
        )

    async def _known(self, record: Record, drafts: Sequence[Draft]) -> list[Known]:
        """Ask the record for the turns that these requests may rest on: not at all, one question a scope, or two."""
        known = {d.turn_id: Known() for d in drafts}
        for keys_of in (_newest_keys, _all_keys):
            # What came before in this very batch is linked later, and is found in memory then.
            open_ones = [
                d for d in drafts if not _is_certain(d, known[d.turn_id], self._recent.replies(d.history))
            ]
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


def _newest_keys(draft: Draft) -> list[str]:
    return draft.history.keys[-_PROBE:]


def _all_keys(draft: Draft) -> list[str]:
    return draft.history.keys


def _is_certain(draft: Draft, known: Known, remembered: Mapping[str, Sequence[Tip]]) -> bool:
    """Whether nothing that the record could still tell would change the link.

    So it is for an opening (only an identical body matters, and bodies are remembered, not stored), and where the newest
    answer in the history is known to end a main turn (nothing older can be the parent then).
    """
    if draft.history.is_opening and draft.wishes.session is None:
        return True
    for mark in reversed(draft.history.marks):
        if mark.role == "assistant":
            tips = [*known.replies.get(mark.key, ()), *remembered.get(mark.key, ())]
            return any(t.kind is TurnKind.MAIN for t in tips)
    return False


def _merged(
    newer: Mapping[str, Iterable[Tip]], older: Mapping[str, Iterable[Tip]], recent: Recent
) -> dict[str, list[Tip]]:
    merged: dict[str, list[Tip]] = {}
    for key in {*newer, *older}:
        tips = list(newer.get(key, ()))
        ids = {tip.turn_id for tip in tips}
        merged[key] = tips + [recent.today(tip) for tip in older.get(key, ()) if tip.turn_id not in ids]
    return merged
