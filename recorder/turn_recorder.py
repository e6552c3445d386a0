"""Linking captured exchanges and writing their turns, many in one transaction.

Linking happens right before the write: one writer sees the turns in order, and its batch, its index and the record together are complete.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import tenacity

from recorder.canonical import reply_key
from recorder.finders import PrefixTips, find_candidates
from recorder.kinds import KindDecider, new_session
from recorder.linking import LinkCandidates, TurnLink, link
from recorder.turn_index import RESTORED_TURNS, TurnIndex
from recorder.turns import ClassifiedExchange, build_turns
from store.errors import RecordCorrupt, RecordError, RecordUnavailable
from store.record import Record
from store.values import Feedback, NewTurn, Tip, TurnKind
from wire.classify import WEIGHTS

log = logging.getLogger(__name__)

#: The newest keys of a history are looked up first: they find a continued conversation of any length.
_NEWEST_KEYS = 6

_NO_CANDIDATES = LinkCandidates()
#: A word that a client puts in front of a session's name, or behind it, for its side turns.
_AFFIX, _AFFIX_END = re.compile(r"\A[A-Za-z]+[-_:/.]"), re.compile(r"[-_:/.][A-Za-z]+\Z")

T = TypeVar("T")


class TurnRecorder:
    """The only writer of turns of a record.

    Args:
        open_record: opens the record; called repeatedly while the record is unavailable.
        on_unwritable: called with an exchange or feedback that can never be written, and why.
        on_written: called with each exchange after its transaction, and the turn of its first choice.
        weights: evidence code -> weight, for experiments.
    """

    def __init__(
        self,
        open_record: Callable[[], Awaitable[Record]],
        on_unwritable: Callable[[ClassifiedExchange | Feedback, str], None] | None = None,
        on_written: Callable[[ClassifiedExchange, NewTurn], None] | None = None,
        weights: Mapping[str, float] = WEIGHTS,
    ) -> None:
        self._open_record = open_record
        self._on_unwritable = on_unwritable
        self._on_written = on_written
        self._opening_lock = asyncio.Lock()
        self._turn_index = TurnIndex()
        self._kinds = KindDecider(self._turn_index, weights)
        self._linked: dict[str, tuple[NewTurn, ...]] = {}  # by turn id: linked, not written yet
        self.record: Record | None = None
        self.written = 0
        self.failed_writes = 0
        self.unwritable = 0
        self.last_error: str | None = None  # why nothing can be written at present
        self.last_unwritable: str | None = None

    async def write(
        self,
        captures: Sequence[ClassifiedExchange],
        *,
        feedback: Sequence[Feedback] = (),
        offsets: Mapping[str, int] | None = None,
        may_be_known: bool = False,
    ) -> list[Feedback]:
        """Link exchanges, in the order in which they ended, and write them, the feedback and the offsets in one transaction.

        Waits as long as the record is unavailable. If the transaction fails for another reason, the exchanges are written one by
        one, so that one that cannot be written does not take the others with it; so is the feedback.

        Args:
            may_be_known: some exchanges may be recorded already; they are skipped.

        Returns:
            feedback about turns that the record does not have.
        """
        if may_be_known and captures:
            ids = [captured.turn_id for captured in captures]
            known = await self._with_retry(lambda: self._known(ids))
            captures = [captured for captured in captures if captured.turn_id not in known]
        try:
            return await self._with_retry(lambda: self._write(captures, feedback, offsets or {}))
        except Exception:  # noqa: BLE001 - handled one by one
            # Their links may depend on the failing exchange: link again.
            self._discard_links(captures)
        for captured in captures:
            try:
                await self._with_retry(lambda one=captured: self._write([one], (), {}))  # type: ignore[misc]
            except Exception as exc:  # noqa: BLE001 - reported and kept by `on_unwritable`
                self._discard_links([captured])
                self._report_unwritable(captured, f"turn {captured.turn_id}", exc)
        unmatched: list[Feedback] = []
        for given in feedback:
            try:
                unmatched += await self._with_retry(lambda one=given: self._write((), [one], {}))  # type: ignore[misc]
            except Exception as exc:  # noqa: BLE001 - reported and kept by `on_unwritable`
                self._report_unwritable(given, f"feedback {given.feedback_id}", exc)
        await self._with_retry(lambda: self._write((), (), offsets or {}))
        return unmatched

    def _report_unwritable(self, item: ClassifiedExchange | Feedback, name: str, exc: Exception) -> None:
        self.unwritable += 1
        self.last_unwritable = f"{name}: {type(exc).__name__}: {exc}"[:300]
        log.error("an entry cannot be written: %s", self.last_unwritable)
        if self._on_unwritable is not None:
            self._on_unwritable(item, self.last_unwritable)

    async def _known(self, turn_ids: Sequence[str]) -> set[str]:
        return await (await self._get_record_or_wait()).known_turns(turn_ids)

    async def _with_retry(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run ``work`` until the record is available."""
        try:
            done = await work()  # the usual case needs no retry machinery
        except (RecordUnavailable, RecordCorrupt) as exc:
            self._note_failure(exc, is_first=True)
            done = await self._retry_until_available(work)
        self.last_error = None
        return done

    async def _retry_until_available(self, work: Callable[[], Awaitable[T]]) -> T:
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

    async def get_record(self) -> Record:
        """Return the record, opening it if need be. Raises: RecordError."""
        if self.record is None:
            async with self._opening_lock:
                if self.record is None:
                    record = await self._open_record()
                    try:
                        self._turn_index.restore(await record.recollect(RESTORED_TURNS))
                    except BaseException:
                        await record.close()  # it is opened again on the next attempt
                        raise
                    self.record = record
        return self.record

    def _discard_links(self, captures: Sequence[ClassifiedExchange]) -> None:
        for captured in captures:
            self._turn_index.remove(t.turn_id for t in self._linked.pop(captured.turn_id, ()))

    async def _get_record_or_wait(self) -> Record:
        try:
            return await self.get_record()
        except RecordError as exc:
            # Whatever is wrong (not migrated yet, schema too new) is not the turns' fault: they wait.
            raise RecordUnavailable(str(exc)) from exc

    async def _write(
        self, captures: Sequence[ClassifiedExchange], feedback: Sequence[Feedback], offsets: Mapping[str, int]
    ) -> list[Feedback]:
        record = await self._get_record_or_wait()
        await self._link(record, [d for d in captures if d.turn_id not in self._linked])
        turns = [turn for captured in captures for turn in self._linked[captured.turn_id]]
        done = [
            (captured.key_name, self._linked[captured.turn_id][0].session_id)
            for captured in captures
            if captured.options.is_session_done
        ]
        unmatched = await record.write_turns(turns, done, feedback=feedback, offsets=offsets)
        for captured in captures:
            written = self._linked.pop(captured.turn_id)
            if self._on_written is not None:
                self._on_written(captured, written[0])
        self.written += len(turns)
        return unmatched

    async def _link(self, record: Record, captures: Sequence[ClassifiedExchange]) -> None:
        """Link the exchanges in the order in which they ended. A second attempt keeps the decisions."""
        continuing = _continue_another(captures)
        before = [captured for captured in captures if captured.turn_id not in continuing]
        known = dict(
            zip((d.turn_id for d in before), await self._find_candidates(record, before), strict=True)
        )
        for captured in captures:
            found = known.get(captured.turn_id)
            if found is None:
                # Most often what it continues is linked and indexed by now, and nothing is looked up.
                (found,) = await self._find_candidates(record, [captured])
            session = captured.options.session
            if session is not None and captured.kind.kind is TurnKind.SIDE:
                session = _base_session(self._turn_index, captured.key_name, session)
            tip = None
            if session is not None:
                tip = self._turn_index.newest(captured.key_name, session) or await record.session_tip(
                    captured.key_name, session
                )
            continues = captured.options.continues
            if tip is not None and tip.turn_id != continues and "conversation" in (captured.api or {}):
                # Its client deleted the newest replies of this conversation.
                tip = None if continues is None else self._turn_index.tip_of(continues)
            revision = self._kinds.decide(captured, is_named=session is not None)
            candidates = self._build_candidates(captured, found)
            decided: TurnLink = link(
                captured.history, candidates, captured.kind.kind, session=session, tip=tip
            )
            session_id = decided.session_id or new_session(captured.turn_id)
            parent = self._turn_index.tip_of(decided.parent_turn_id)
            if session is None and parent is not None:
                own = new_session(captured.turn_id)
                parted = self._kinds.separate(parent, own, captured.created_at)
                revision.moved += parted
                session_id = own if parted else session_id
            for correction in revision.corrections:
                if correction.kind is TurnKind.SIDE:  # a check beside this turn belongs to its session
                    revision.moved.append(
                        self._kinds.move(correction.turn_id, session_id, None, captured.created_at)
                    )
            turns = build_turns(captured, decided, session_id)
            earlier = self._turn_index.earlier_next_states(turns[0])
            turns[0].earlier_next_states = (*revision.states, *earlier)
            turns[0].corrections = tuple(revision.corrections)
            turns[0].link_corrections = tuple(revision.moved)
            self._linked[captured.turn_id] = turns
            self._turn_index.add(captured, turns)

    def _build_candidates(self, captured: ClassifiedExchange, found: LinkCandidates) -> LinkCandidates:
        """Return the candidates of the record together with those of the index."""
        turn_index, history = self._turn_index, captured.history
        return find_candidates(
            turn_index,
            captured,
            replies=_of_named_turn(
                _merged(PrefixTips(turn_index, "reply", history), found.replies, turn_index),
                captured.options.continues,
            ),
            requests=_merged(PrefixTips(turn_index, "request", history), found.requests, turn_index),
        )

    async def _find_candidates(
        self, record: Record, captures: Sequence[ClassifiedExchange]
    ) -> list[LinkCandidates]:
        """Query the record for candidates: not at all, or one or two queries for each key."""
        candidates = {d.turn_id: _NO_CANDIDATES for d in captures}
        undecided: Sequence[ClassifiedExchange] = captures
        for keys_of in (_newest_keys, _all_keys):
            undecided = [d for d in undecided if not _is_decided(d, candidates[d.turn_id], self._turn_index)]
            if keys_of is _all_keys:
                undecided = [d for d in undecided if len(d.history.runs) > _NEWEST_KEYS]
            if undecided:
                answers = await self._query_tips(record, undecided, keys_of)
                candidates.update(zip((d.turn_id for d in undecided), answers, strict=True))
        return [candidates[d.turn_id] for d in captures]

    async def _query_tips(
        self,
        record: Record,
        captures: Sequence[ClassifiedExchange],
        keys_of: Callable[[ClassifiedExchange], Sequence[str]],
    ) -> list[LinkCandidates]:
        by_key_name: dict[str, set[str]] = {}
        for captured in captures:
            by_key_name.setdefault(captured.key_name, set()).update(keys_of(captured))
        tips = {
            key_name: await record.tips_for(key_name, sorted(keys)) for key_name, keys in by_key_name.items()
        }
        found = []
        for captured in captures:
            answer = tips[captured.key_name]
            keys = keys_of(captured)
            found.append(
                LinkCandidates(
                    replies={k: answer.replies[k] for k in keys if k in answer.replies},
                    requests={k: answer.requests[k] for k in keys if k in answer.requests},
                )
            )
        return found


def _base_session(turn_index: TurnIndex, key_name: str, session: str) -> str:
    """Return the known session whose name a side turn's session extends ("title-<session>"), or ``session``."""
    found = _AFFIX_END.search(session)
    names = (session, _AFFIX.sub("", session, count=1), session[: -len(found[0])] if found else "")
    return next((name for name in names if name and turn_index.has("session", key_name, name)), session)


def _continue_another(captures: Sequence[ClassifiedExchange]) -> set[str]:
    """Return the ids of the exchanges that continue a reply of an earlier one among them."""
    found: set[str] = set()
    replies: set[str] = set()
    for captured in captures:
        runs = captured.history.runs
        newest = next((run for run in reversed(runs) if run.role == "assistant"), None) if replies else None
        if newest is not None and newest.key in replies:
            found.add(captured.turn_id)
        replies.update(reply_key(captured.history, one) for one in captured.reply.completions)
    return found


def _newest_keys(captured: ClassifiedExchange) -> list[str]:
    return [run.key for run in captured.history.runs[-_NEWEST_KEYS:]]


def _all_keys(captured: ClassifiedExchange) -> list[str]:
    return captured.history.keys


def _is_decided(captured: ClassifiedExchange, candidates: LinkCandidates, turn_index: TurnIndex) -> bool:
    """Whether nothing in the record can change the link.

    This holds for an opening (only an identical body matters, and bodies are indexed in memory), and where the newest reply in the history
    is known to end a main turn (nothing older can then be the parent).
    """
    if captured.history.is_opening and captured.options.session is None:
        return True
    for run in reversed(captured.history.runs):
        if run.role == "assistant":
            tips = candidates.replies.get(run.key, ())
            return any(t.kind is TurnKind.MAIN for t in tips) or turn_index.main_turn(run.key) is not None
    return False


def _of_named_turn(replies: Mapping[str, Sequence[Tip]], turn_id: str | None) -> Mapping[str, Sequence[Tip]]:
    """Leave only the turn that the client names as the previous one, where equal histories have several."""
    if turn_id is None:
        return replies
    return {key: [t for t in tips if t.turn_id == turn_id] or tips for key, tips in replies.items()}


def _merged(
    newer: Mapping[str, Sequence[Tip]], older: Mapping[str, Iterable[Tip]], turn_index: TurnIndex
) -> Mapping[str, Sequence[Tip]]:
    if not older:
        return newer
    merged: dict[str, Sequence[Tip]] = {}
    for key in {*newer, *older}:
        tips = list(newer.get(key, ()))
        ids = {tip.turn_id for tip in tips}
        merged[key] = tips + [turn_index.refresh(tip) for tip in older.get(key, ()) if tip.turn_id not in ids]
    return merged
