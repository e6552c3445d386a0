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
from store.values import BASE_VERSION, Json, Waiting, adapter_name
from trainer.protocol import Edit
from trainer.release_watch import ReleaseWatch

#: So many attempts in a row to unlearn a withdrawn wish may be rejected or fail, before something else has to change: a new version,
#: or an edit. After each of them the next one waits: so many seconds, doubled every time.
MAX_UNLEARNING_FAILURES, _UNLEARNING_PAUSE_S = 4, 60.0
#: Pause after a step that failed, doubled up to the longest with every failure in a row.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A version that is to be attempted.

    Attributes:
        edits: what the owner changed in the playbook.
        edit_id: number of the newest edit.
        takes_turns: False: it is made of withdrawn wishes alone.
        is_asked_for: a person asked to train what waits now.
        quiet_s: seconds since the last main request; 0 while one is in flight.
        since: when its oldest verdict, or its withdrawn wish, came.
    """

    policy: str
    edits: tuple[Edit, ...]
    edit_id: int
    takes_turns: bool
    is_asked_for: bool
    quiet_s: float
    since: float


@dataclass(slots=True)
class Unlearning:
    """Attempts in a row to make a version of withdrawn wishes alone that came to nothing.

    Attributes:
        version, edits: the live version and the owner's edits that they began from; with others the count restarts.
        is_needed: False where the trainer found nothing to unlearn there.
        after: `time.monotonic` before which none is made.
        since: `time.time` at which the need was noticed.
    """

    version: int = BASE_VERSION
    edits: tuple[Edit, ...] = ()
    is_needed: bool = True
    failures: int = 0
    after: float = 0.0
    since: float = field(default_factory=time.time)

    def may_begin(self) -> bool:
        return self.is_needed and self.failures < MAX_UNLEARNING_FAILURES and time.monotonic() >= self.after

    def begin(self) -> None:
        """An attempt begins; it counts as failed until another version is live."""
        self.after = time.monotonic() + _UNLEARNING_PAUSE_S * 2**self.failures
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
        unlearning: attempts at versions of withdrawn wishes alone, by policy.
        releases: the canary releases of the record.
    """

    def __init__(self, record: Record, settings: Settings) -> None:
        self._record = record
        self._settings = settings
        #: As `trainer.step.StepPlan` has them, which needs torch.
        self._reads_verdicts = settings.method in ("rl", "combine")
        self._selects_hints = settings.method != "rl" and settings.learning.hint_gate
        self.state = "waiting"
        self.has_complaints = False
        self.waits_for_time = False
        self.served_at: dict[str, float] = {}
        self.pauses: dict[str | None, Pause] = {}
        self.unlearning: dict[str, Unlearning] = {}
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
        due = await self._next(tried)
        if due is None:
            now = time.monotonic()
            times = [
                *(one.until for one in self.pauses.values()),
                *(one.after for one in self.unlearning.values()),
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
        """Return what to attempt next, but for policies with a version on trial: of the policies with a batch or a wish to unlearn, the one that waits longest."""
        waiting = await self._record.waiting(hint_only=not self._reads_verdicts)
        self.has_complaints = any(one.complaint_since is not None for one in waiting.values())
        edit_id = await self._record.newest_wish_edit()
        edits = await self._record.all_wish_edits(edit_id) if self._selects_hints else {}
        live = {policy: move.version for policy, move in (await self._record.aliases()).items()}
        stopped = {*await self._record.paused_policies(), *tried}
        now = time.time()
        activity = await self._record.activity(now)
        found: list[tuple[float, Due]] = []
        for policy in policies_of(self._settings.policy, {*waiting, *live}):
            if policy in stopped or self._is_pausing(policy):
                continue
            changed = tuple(Edit(turn_id=edit.turn_id, text=edit.text) for edit in edits.get(policy, ()))
            one = waiting.get(policy)
            is_asked_for = (
                one is not None and one.oldest_since is not None and one.oldest_since <= activity.asked_at
            )
            since = one.oldest_since if one is not None and is_asked_for else self._batch_since(one, now)
            has_batch = since is not None
            if since is None and await self._may_unlearn(policy, live.get(policy, BASE_VERSION), changed):
                since = self.unlearning[policy].since
            if since is not None:
                due = Due(
                    policy=policy,
                    edits=changed,
                    edit_id=edit_id,
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

    async def _may_unlearn(self, policy: str, live: int, edits: tuple[Edit, ...]) -> bool:
        """Whether the live version may have a withdrawn wish to unlearn, by the record alone: the device need not be waited for."""
        if not self._selects_hints or live == BASE_VERSION:
            return False
        known = self.unlearning.get(policy)
        if known is None or (known.version, known.edits) != (live, edits):
            adapter = await self._record.adapter(policy, live)
            known = Unlearning(
                version=live,
                edits=edits,
                is_needed=adapter is not None and has_withdrawn_wish(adapter.metrics, edits),
            )
            self.unlearning[policy] = known
        return known.may_begin()


def has_withdrawn_wish(metrics: Json, edits: Sequence[Edit]) -> bool:
    """Whether a version still has a withdrawn wish, or one that an edit withdraws. Pure.

    Args:
        metrics: of the version; see `trainer.wish_training.wish_rows`.
    """
    removed = {edit.turn_id for edit in edits if edit.text is None}
    return any(
        row["state"] == "withdrawn" or (row["state"] != "unlearnt" and removed & {*row["turns"]})
        for row in metrics.get("wishes", ())
    )
