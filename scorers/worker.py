"""The loop: answered turns in, verdicts out, for as long as the process lives.

What must hold: a turn is never scored because something failed. A judge that is down leaves its turns answered (they wait, and
are looked at again, since explicit feedback may settle them meanwhile); a reward function that fails is asked three times;
a record that is busy is asked again. All of it is counted and shown in the heartbeat.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from scorers.scorer_chain import ScorerChain
from store.change_notice import ChangeNotice
from store.errors import JudgeUnavailable, PatinaError, RecordUnavailable, RewardError
from store.heartbeats import LOOK_S, HeartbeatWriter
from store.lifecycle import DropReason
from store.values import Activity, AnsweredTurn, Heartbeat, Json, Verdict

log = logging.getLogger(__name__)

#: Turns worked on at once. The judge's own limit is lower: turns that rules decide shall not queue behind it.
CONCURRENCY = 32
#: Between two looks for turns: where the record cannot be read or its changes cannot be noticed; at least; at most.
POLL_S, MIN_INTERVAL_S, REST_S = 2.0, 0.1, 10.0
#: A case of the judge's self-test is asked when no request came for so many seconds.
QUIET_S = 4.0
#: How long a turn that waits for the judge is left alone before its rules are tried again.
RECHECK_S = 10.0
#: First and longest pause before a judge that was down is tried again.
JUDGE_PAUSE_S = (1.0, 60.0)
#: A reward function that failed so often for one turn is not asked about it any more.
REWARD_ATTEMPTS = 3
REWARD_PAUSE_S = 1.0
#: More waiting turns than this are not distinguished; polling rests until the judge is back.
MAX_WAITING = 20_000


class Turns(Protocol):
    """What the worker needs of the record."""

    async def answered(self, limit: int, *, exclude: Iterable[str] = ()) -> list[AnsweredTurn]: ...
    async def add_verdict(
        self, verdict: Verdict, *, drop: DropReason | None = None, most_per_hour: int = 0
    ) -> None: ...
    async def heartbeat(self, beat: Heartbeat) -> None: ...
    def change_notice(self, *, poll_s: float, min_interval_s: float) -> ChangeNotice: ...
    async def activity(self) -> Activity: ...


@dataclass(slots=True)
class ScorerCounters:
    """What happened since the process started."""

    scored: int = 0
    abstained: int = 0
    no_signal: int = 0
    judge_failures: int = 0
    reward_errors: int = 0
    record_errors: int = 0
    unexpected_errors: int = 0
    by_source: dict[str, int] = field(default_factory=dict)
    last_error: str | None = None
    lines_error: str | None = None  #: of `scorers.record_lines`


@dataclass(slots=True)
class _Failure:
    message: str
    count: int = 0
    reward_errors: int = 0


class ScorerWorker:
    """Scores answered turns with a scorer chain.

    Args:
        most_per_hour: verdicts of one key within an hour that may train; 0: no limit.
        clock: seconds since the epoch.
        judge_pause_s: (first, longest) pause before a judge that was down is tried again.
        quiet_s: see `QUIET_S`.
    """

    def __init__(
        self,
        record: Turns,
        chain: ScorerChain,
        *,
        most_per_hour: int = 0,
        concurrency: int = CONCURRENCY,
        poll_s: float = POLL_S,
        judge_pause_s: tuple[float, float] = JUDGE_PAUSE_S,
        reward_pause_s: float = REWARD_PAUSE_S,
        recheck_s: float = RECHECK_S,
        quiet_s: float = QUIET_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._record = record
        self._chain = chain
        self._most_per_hour = most_per_hour
        self._concurrency = concurrency
        self._poll_s = poll_s
        self._judge_pause_s = judge_pause_s
        self._reward_pause_s = reward_pause_s
        self._recheck_s = recheck_s
        self._quiet_s = quiet_s
        self._clock = clock
        self._beats = HeartbeatWriter("scorer", clock=clock)
        self._changes = ChangeNotice()
        self._began = time.time()
        self.counters = ScorerCounters()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        #: turn id -> when to look at it again (monotonic)
        self._waiting_for_judge: dict[str, float] = {}
        self._paused: dict[str, float] = {}
        self._failures: dict[str, _Failure] = {}
        #: When the record is asked again that could not be read (monotonic).
        self._ask_again_at = 0.0
        self._judge_error: JudgeUnavailable | None = None
        self._judge_pause = judge_pause_s[0]
        self._judge_resumes_at = 0.0
        self._is_probing = False

    # -- the loop

    async def run(self, stop: asyncio.Event) -> None:
        """Work until ``stop`` is set; turns in flight are left answered and taken up again at the next start."""
        self._changes = self._record.change_notice(poll_s=self._poll_s, min_interval_s=MIN_INTERVAL_S)
        beside = [self._beat(), self._test_judge(), self._changes.wake_at(stop)]
        tasks = [asyncio.create_task(one) for one in beside]
        try:
            while not stop.is_set():
                await self.poll()
                await self._changes.wait(
                    self._rest_s()
                )  # ended by a change of the record, and by a turn that is done
        finally:
            tasks += self._tasks.values()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._changes.close()
            await self.announce("stopped")

    def _rest_s(self) -> float:
        """Return the seconds until a turn or the judge is due again, at most `REST_S`."""
        now = time.monotonic()
        due = [self._ask_again_at, *self._paused.values(), *self._waiting_for_judge.values()]
        if self._waiting_for_judge:
            due.append(self._judge_resumes_at)
        return min([REST_S, *(at - now for at in due if at > now)])

    async def _test_judge(self) -> None:
        """Test the candidate judge while no person waits; scoring goes on by rules and classifier meanwhile."""
        pause, longest = self._judge_pause_s
        try:
            await self._chain.recall_test()
            while self._chain.candidate is not None:
                await self._until_quiet()
                case = asyncio.create_task(self._chain.test_candidate())
                try:
                    while not case.done():
                        await asyncio.wait({case}, timeout=self._quiet_s / 4)
                        if not case.done() and not await self._is_quiet(0.0):
                            break  # a person asks: the case is asked again later
                finally:
                    case.cancel()
                    (outcome,) = await asyncio.gather(case, return_exceptions=True)
                if isinstance(outcome, JudgeUnavailable):
                    log.info("judge not tested yet: %s", outcome)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, longest)
                elif isinstance(outcome, Exception):
                    raise outcome
        except (PatinaError, OSError) as exc:
            self._chain.judge_test = f"cannot be tested: {exc}"
            log.warning("judge cannot be tested: %s", exc)
            return
        log.info("judge: %s", self._chain.judge_test)

    async def _until_quiet(self) -> None:
        while not await self._is_quiet(self._quiet_s):  # noqa: ASYNC110  other processes answer
            await asyncio.sleep(self._quiet_s)

    async def _is_quiet(self, seconds: float) -> bool:
        """Whether a request was answered since the start and none is in flight, or was for so many seconds."""
        try:
            activity = await self._record.activity()
        except RecordUnavailable as exc:
            self._note_record_error(exc)
            return False
        now = time.time()
        return (
            activity.newest_main_at > self._began
            and not activity.in_flight
            and activity.quiet_s(now) >= seconds
        )

    async def poll(self) -> int:
        """Take up to as many answered turns as there is room for; return how many were started."""
        now = time.monotonic()
        self._forget_the_past(now)
        room = self._concurrency - len(self._tasks)
        probing = self._judge_error is not None and now >= self._judge_resumes_at
        if probing and self._is_probing:
            probing = False
        if room <= 0 or (len(self._waiting_for_judge) > MAX_WAITING and not probing):
            return 0
        exclude = {*self._tasks, *self._paused}
        if probing:
            room = 1  # one turn finds out whether the judge is back
        else:
            exclude |= {turn_id for turn_id, at in self._waiting_for_judge.items() if at > now}
        try:
            turns = await self._record.answered(room, exclude=exclude)
        except RecordUnavailable as exc:
            # Busy or full: nothing is lost, the same question is asked again at the next poll.
            self._note_record_error(exc)
            self._ask_again_at = time.monotonic() + self._poll_s
            return 0
        for turn in turns:
            self._is_probing = self._is_probing or probing
            self._waiting_for_judge.pop(turn.turn_id, None)
            task = asyncio.create_task(self._score(turn, probing), name=f"score {turn.turn_id}")
            self._tasks[turn.turn_id] = task
            task.add_done_callback(partial(self._done, turn.turn_id))
        return len(turns)

    async def drain(self) -> None:
        """Wait until nothing is in flight."""
        while self._tasks:
            await asyncio.wait(self._tasks.values())
            await asyncio.sleep(0)  # done callbacks run

    def _done(self, turn_id: str, _: asyncio.Task[None]) -> None:
        self._tasks.pop(turn_id, None)
        self._changes.wake()

    def _forget_the_past(self, now: float) -> None:
        self._paused = {turn_id: at for turn_id, at in self._paused.items() if at > now}
        # Kept past their time for the count in the heartbeat; a turn that was forgotten meanwhile leaves it in the end.
        self._waiting_for_judge = {
            turn_id: at for turn_id, at in self._waiting_for_judge.items() if at > now - 6 * self._recheck_s
        }

    # -- one turn

    async def _score(self, turn: AnsweredTurn, probing: bool) -> None:
        gave_up = self._failures.get(turn.turn_id)
        asked = self._judge_error is None or probing
        answers = self._answers()
        try:
            verdict, drop = await self._chain.decide(
                turn,
                now=self._clock(),
                judge_is_down=None if asked else self._judge_error,
                custom_gave_up=gave_up.message
                if gave_up and gave_up.reward_errors >= REWARD_ATTEMPTS
                else None,
            )
            if asked and self._answers() > answers:
                self._judge_is_back()
            await self._record.add_verdict(verdict, drop=drop, most_per_hour=self._most_per_hour)
        except JudgeUnavailable as exc:
            self._waiting_for_judge[turn.turn_id] = time.monotonic() + self._recheck_s
            if asked:
                self._judge_is_down(exc)
        except RewardError as exc:
            self.counters.reward_errors += 1
            self._fail(turn.turn_id, exc)
        except RecordUnavailable as exc:
            # The verdict is lost, the turn is not: it is still answered and will be scored again.
            self._note_record_error(exc)
            self._paused[turn.turn_id] = time.monotonic() + self._poll_s
        except PatinaError as exc:
            # The record refuses this one turn (forgotten meanwhile, say). Others must not wait for it.
            self.counters.unexpected_errors += 1
            self._fail(turn.turn_id, exc)
        except Exception as exc:
            self.counters.unexpected_errors += 1
            log.exception("scoring turn %s failed", turn.turn_id)
            self._fail(turn.turn_id, exc)
        else:
            self._count(verdict, drop)
        finally:
            if probing:
                self._is_probing = False

    def _fail(self, turn_id: str, exc: Exception) -> None:
        failure = self._failures.setdefault(turn_id, _Failure(""))
        failure.message = str(exc)
        failure.count += 1
        failure.reward_errors += isinstance(exc, RewardError)
        self.counters.last_error = str(exc)
        pause = min(60.0, self._reward_pause_s * 2 ** min(failure.count - 1, 10))
        self._paused[turn_id] = time.monotonic() + pause
        log.warning("turn %s, attempt %d: %s", turn_id, failure.count, exc)

    def _count(self, verdict: Verdict, drop: DropReason | None) -> None:
        self._failures.pop(verdict.turn_id, None)
        if drop is DropReason.ABSTAINED:
            self.counters.abstained += 1
        elif drop is not None:
            self.counters.no_signal += 1
        else:
            self.counters.scored += 1
        sources = self.counters.by_source
        sources[verdict.source] = sources.get(verdict.source, 0) + 1
        if "judge_error" in verdict.detail:
            self.counters.judge_failures += 1
            self.counters.last_error = str(verdict.detail["judge_error"])

    def _note_record_error(self, exc: RecordUnavailable) -> None:
        self.counters.record_errors += 1
        self.counters.last_error = str(exc)
        log.warning("the record is not available: %s", exc)

    # -- the judge's state

    def _answers(self) -> int:
        return self._chain.judge.answers if self._chain.judge else 0

    def _judge_is_down(self, exc: JudgeUnavailable) -> None:
        self.counters.judge_failures += 1
        self.counters.last_error = str(exc)
        if self._judge_error is None:
            log.warning("judge unreachable: %s", exc)
            self._judge_pause = self._judge_pause_s[0]
        elif time.monotonic() >= self._judge_resumes_at:
            self._judge_pause = min(self._judge_pause * 2, self._judge_pause_s[1])
        self._judge_error = exc
        # Jitter, so that several scorers do not knock at the same moment.
        self._judge_resumes_at = time.monotonic() + self._judge_pause * random.uniform(0.8, 1.2)

    def _judge_is_back(self) -> None:
        if self._judge_error is not None:
            log.info("the judge answers again")
            self._judge_error = None
            self._waiting_for_judge.clear()
        self._judge_pause = self._judge_pause_s[0]

    # -- the heartbeat

    def state(self) -> str:
        return "running" if self._judge_error is None else f"judge unreachable: {self._judge_error}"

    def detail(self) -> Json:
        c = self.counters
        return {
            **({"record_jsonl": c.lines_error} if c.lines_error else {}),
            "scored": c.scored,
            "abstained": c.abstained,
            "no_signal": c.no_signal,
            "in_flight": len(self._tasks),
            "waiting_for_judge": len(self._waiting_for_judge),
            "judge": self._chain.judge.place if self._chain.judge else "none",
            "judge_test": self._chain.judge_test,
            "judge_failures": c.judge_failures,
            "reward_errors": c.reward_errors,
            "record_errors": c.record_errors,
            "unexpected_errors": c.unexpected_errors,
            "by_source": dict(c.by_source),
            "last_error": c.last_error,
        }

    def note_lines(self, problem: str | None) -> None:
        """Report in the heartbeat that ``--record-jsonl`` cannot be written; None: it can again."""
        self.counters.lines_error = problem

    async def _beat(self) -> None:
        while True:
            await self.announce(self.state())
            await asyncio.sleep(LOOK_S)

    async def announce(self, state: str) -> None:
        """Write a heartbeat if one is due; a record that is busy only misses it."""
        try:
            await self._beats.write(self._record, state, self.detail())
        except RecordUnavailable as exc:
            # A missed heartbeat shows in its row; the next one comes soon.
            self._note_record_error(exc)
