"""Which version is to be attempted next, by the record alone: no model is needed to know it, and this module loads none."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from store.policies import policies_of
from store.record import Record
from store.settings import Settings
from store.training_plan import read_plan, wait_s
from store.training_schedule import ALWAYS, is_batch_due
from store.values import (
    BASE_VERSION,
    AdapterState,
    AdapterVersion,
    Waiting,
    Wish,
    WishState,
    adapter_name,
)
from store.wish_states import learnt_rows
from trainer.release_watch import ReleaseWatch

#: So many attempts in a row at a version without new turns may be rejected or fail, before the wishes or the live version have to change.
#: After each of them the next one waits: so many seconds, doubled every time.
MAX_REBUILD_FAILURES, _REBUILD_PAUSE_S = 4, 60.0
#: A version takes at most so many times the plan's passes: beyond, a wish that the weights do not follow stays in the prompt.
MOST_PASSES = 4
#: Pause after a step that failed, doubled up to the longest with every failure in a row.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A version that is to be attempted.

    Attributes:
        takes_turns: False: it is built again from the record, since wishes changed or many more replies were accepted.
        is_asked_for: a person asked to train what waits now.
        quiet_s: seconds since the last main request; 0 while one is in flight.
        since: when its oldest verdict, or the change, came.
        job_id: of the fine-tuning job that asks for it; it takes no turns.
    """

    policy: str
    takes_turns: bool
    is_asked_for: bool
    quiet_s: float
    since: float
    job_id: str | None = None

    @property
    def is_rebuild(self) -> bool:
        """Whether it is made without new turns and without a job: attempts of this kind are bounded (`Rebuild`)."""
        return not self.takes_turns and self.job_id is None


@dataclass(slots=True)
class Rebuild:
    """Attempts in a row at a version without new turns that came to nothing.

    Attributes:
        basis: the live version and the active wishes that they began from; with others the count restarts.
        after: `time.monotonic` before which none is made.
        since: `time.time` at which the need was noticed.
    """

    basis: tuple[int, tuple[tuple[int, str], ...]]
    failures: int = 0
    after: float = 0.0
    since: float = field(default_factory=time.time)

    def may_begin(self) -> bool:
        return self.failures < MAX_REBUILD_FAILURES and time.monotonic() >= self.after

    def begin(self) -> None:
        """An attempt begins; it counts as failed until another version is live."""
        self.after = time.monotonic() + _REBUILD_PAUSE_S * 2**self.failures
        self.failures += 1


@dataclass(slots=True)
class Pause:
    """The pause after a step that failed."""

    until: float = 0.0
    seconds: float = _FIRST_PAUSE_S

    def extend(self) -> None:
        self.until = time.monotonic() + self.seconds
        self.seconds = min(2 * self.seconds, _LONGEST_PAUSE_S)


class DueFinder:
    """Looks for what to attempt.

    Attributes:
        state: why there is nothing, for the heartbeat.
        has_complaints: whether any waited at the last look, for a batch or a schedule.
        waits_for_time: whether something may be due later although the record does not change.
        served_at: `time.time` of each policy's last batch.
        pauses: after failures, by policy; None: of all.
        rebuilds: attempts at versions without new turns, by policy.
        releases: the canary releases of the record.
    """

    def __init__(self, record: Record, settings: Settings) -> None:
        self._record = record
        self._settings = settings
        self.state = "waiting"
        self.has_complaints = False
        self.waits_for_time = False
        self.served_at: dict[str, float] = {}
        self.pauses: dict[str | None, Pause] = {}
        self.rebuilds: dict[str, Rebuild] = {}
        self.releases = ReleaseWatch(record, settings)

    async def find(self, published: int) -> Due | None:
        """Return what to attempt now; None: nothing, and `state` says why.

        Args:
            published: versions since the start; `Settings.max_steps` bounds them.
        """
        self.waits_for_time = True
        if self._is_pausing(None):
            return None
        await self._record.release_expired()
        tried = await self.releases.review()
        steps = self._settings.max_steps
        is_paused, is_done = await self._record.is_paused(), bool(steps and published >= steps)
        if is_paused or is_done:
            self.state = "paused" if is_paused else f"done: {steps} steps"
            self.waits_for_time = False
            return None
        if await self._record.holds_training():
            self.state = "waiting: something is being forgotten"
            return None
        due = await self._next(tried)
        if due is None:
            now = time.monotonic()
            times = [
                *(one.until for one in self.pauses.values()),
                *(one.after for one in self.rebuilds.values()),
            ]
            self.waits_for_time = self.has_complaints or any(now < at for at in times)
            names = ", ".join(adapter_name(*one) for one in sorted(tried.items()))
            self.state = f"waiting: {names} on trial" if names else "waiting"
            return None
        schedule = self._settings.schedule
        reason = ""
        if schedule.mode != ALWAYS and not due.is_asked_for:  # what a person asked to train now does not wait
            reason = schedule.reason_to_wait(datetime.now(), due.quiet_s)
        self.state = reason or "waiting"
        return None if reason else due

    def _is_pausing(self, policy: str | None) -> bool:
        pause = self.pauses.get(policy)
        return pause is not None and time.monotonic() < pause.until

    async def _next(self, tried: Collection[str]) -> Due | None:
        """Return what to attempt next, but for policies with a version on trial: of the policies with a batch or a reason to build again, the one that waits longest."""
        waiting = await self._record.waiting(
            wishes=self._settings.learns_wishes, sources=self._settings.verdict_sources
        )
        self.has_complaints = any(one.complaint_since is not None for one in waiting.values())
        live = {policy: move.version for policy, move in (await self._record.aliases()).items()}
        stopped = {*await self._record.paused_policies(), *tried}
        now = time.time()
        activity = await self._record.activity(now)
        jobs = await self._record.open_tuning_jobs()
        found: list[tuple[float, Due]] = []
        for policy in policies_of(self._settings.policy, {*waiting, *live, *jobs}):
            if policy in stopped or self._is_pausing(policy):
                continue
            if (job := jobs.get(policy)) is not None:
                due = Due(
                    policy=policy,
                    takes_turns=False,
                    is_asked_for=True,
                    quiet_s=activity.quiet_s(now),
                    since=job.created_at,
                    job_id=job.job_id,
                )
                found.append((max(due.since, self.served_at.get(policy, 0.0)), due))
                continue
            one = waiting.get(policy)
            is_asked_for = (
                one is not None and one.oldest_since is not None and one.oldest_since <= activity.asked_at
            )
            since = one.oldest_since if one is not None and is_asked_for else self._batch_since(one, now)
            has_batch = since is not None
            if since is None and await self._may_rebuild(policy, live.get(policy, BASE_VERSION)):
                since = self.rebuilds[policy].since
            if since is not None:
                due = Due(
                    policy=policy,
                    takes_turns=has_batch,
                    is_asked_for=is_asked_for,
                    quiet_s=activity.quiet_s(now),
                    since=since,
                )
                found.append((max(since, self.served_at.get(policy, 0.0)), due))
        return min(found, key=lambda one: (one[0], one[1].policy))[1] if found else None

    def _batch_since(self, waiting: Waiting | None, now: float) -> float | None:
        """Return since when a batch waits; None: there is none yet."""
        if waiting is None:
            return None
        longest = wait_s(self._settings.max_wait_s, read_plan(self._settings.home))
        is_due = is_batch_due(waiting, self._settings.batch_size, longest, now)
        return waiting.oldest_since if is_due else None

    async def _may_rebuild(self, policy: str, live: int) -> bool:
        """Whether a version is to be built without new turns, by the record alone: the device need not be waited for."""
        if not self._settings.learns_wishes:
            return False
        active = [one for one in await self._record.wishes(policy) if one.state is not WishState.WITHDRAWN]
        versions = await self._record.adapters(policy)
        served = await self._record.count_accepted(policy)
        if not needs_rebuild(active, live, versions, served, many=self._settings.learning.samples // 2):
            return False
        basis = (live, tuple((one.wish_id, one.text) for one in active))
        known = self.rebuilds.get(policy)
        if known is None or known.basis != basis:
            known = self.rebuilds[policy] = Rebuild(basis=basis)
        return known.may_begin()


def needs_rebuild(
    active: Sequence[Wish], live: int, versions: Sequence[AdapterVersion], served: int, *, many: int
) -> bool:
    """Whether the live version is to be replaced although no batch waits. Pure.

    It has learnt a wish that is withdrawn or that the owner edited since; it has learnt one that the weights do not follow enough, and more
    passes may help; or many more accepted replies are there than at the last attempt, and a wish is still in the prompt.

    Args:
        active: wishes that are not withdrawn.
        served: accepted replies in the record.
        many: so many more.
    """
    changed_at = {one.wish_id: one.changed_at if one.edited else 0.0 for one in active}
    current = next((one for one in versions if one.version == live), None)
    for row in learnt_rows(current.metrics) if current is not None else ():
        changed = changed_at.get(row["wish_id"])
        if changed is None or (current is not None and changed > current.created_at):
            return True
    newest = max(versions, key=lambda one: one.version, default=None)
    if newest is not None and newest.version == live and next_passes(active, versions) > _passes(newest):
        return True
    before = int(newest.metrics.get("served", 0)) if newest is not None else 0
    return served - before >= max(many, 1) and any(one.state is WishState.PROMPT for one in active)


def next_passes(active: Sequence[Wish], versions: Sequence[AdapterVersion]) -> int:
    """How many times the plan's passes over its samples the next version takes. Pure.

    As many as the last one; twice as many where the weights do not follow a wish enough that it learnt. Never as many as of a version that
    was rejected with the same wishes.
    """
    newest = max(versions, key=lambda one: one.version, default=None)
    if newest is None:
        return 1
    in_prompt = {one.wish_id for one in active if one.state is WishState.PROMPT}
    rows = learnt_rows(newest.metrics)
    falls_short = any(row.get("retired") is False and row["wish_id"] in in_prompt for row in rows)
    learnt = {row["wish_id"] for row in rows}
    rejected = (
        _passes(one) // 2
        for one in versions
        if one.state in (AdapterState.REJECTED, AdapterState.REFUSED)
        and {row["wish_id"] for row in learnt_rows(one.metrics)} == learnt
    )
    wanted = 2 * _passes(newest) if falls_short else _passes(newest)
    return max(1, min(wanted, MOST_PASSES, *rejected))


def _passes(version: AdapterVersion) -> int:
    return int(version.metrics.get("passes", 1))
