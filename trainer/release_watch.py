"""Reviews the canary releases as verdicts come in, and says whether a new version begins as one."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

from store.record import Record
from store.settings import Settings
from store.values import OPEN_RELEASES, AdapterState, CanaryRelease, ReleaseStage, adapter_name
from trainer.canary_release import Decision, Ruling, compare, decide, older_versions

#: Interval of the reviews.
_REVIEW_S = 1.0
#: Shares of the new conversations where one key uses a policy, and where several do.
SHARE_OF_ONE, SHARE_OF_MANY = 0.5, 0.1
_ACTIVE_S = 30 * 24 * 3600.0

_NEXT: Mapping[Decision, ReleaseStage] = {
    Decision.PROMOTE: ReleaseStage.WATCHED,
    Decision.KEEP: ReleaseStage.KEPT,
    Decision.ROLL_BACK: ReleaseStage.ROLLED_BACK,
}


class ReleaseWatch:
    """The canary releases of one record."""

    def __init__(self, record: Record, settings: Settings) -> None:
        self._record = record
        self._settings = settings
        self._reviewed_at = -_REVIEW_S
        self._running: dict[str, int] = {}

    async def review(self) -> Mapping[str, int]:
        """Decide on every open release; returns the policies whose next step waits, each with the version that is tried."""
        if time.monotonic() - self._reviewed_at < _REVIEW_S:
            return self._running
        self._reviewed_at = time.monotonic()
        running = {}
        for release in await self._record.canary_releases(stages=OPEN_RELEASES):
            decision = await self._settle(release)
            if release.stage is ReleaseStage.RUNNING and decision is Decision.HOLD:
                running[release.policy] = release.version
        self._running = running
        return running

    async def _settle(self, release: CanaryRelease) -> Decision:
        ruling = await self._rule(release)
        if ruling.decision is Decision.HOLD and ruling.numbers == release.numbers:
            return ruling.decision
        stage = _NEXT.get(ruling.decision, release.stage)
        done = await self._record.settle_release(release, stage, numbers=ruling.numbers, reason=ruling.reason)
        if done and stage is ReleaseStage.ROLLED_BACK:
            name = adapter_name(release.policy, release.version)
            print(f"patina: {name} is rolled back: {ruling.reason}", file=sys.stderr, flush=True)
        return ruling.decision if done else Decision.HOLD

    async def _rule(self, release: CanaryRelease) -> Ruling:
        """Compare the version with the live one of the time and with older ones."""
        parents = {a.version: a.parent_version for a in await self._record.adapters(release.policy)}
        older = older_versions(parents, release.version)
        versions = (release.version, release.baseline_version)
        turns = await self._record.served_turns(release.policy, versions, release.started_at)
        past = await self._record.served_turns(release.policy, older, 0.0) if older else []
        arms, without = compare(release, turns, past)
        return decide(release, arms, without)

    async def share_of_next(self, policy: str) -> float:
        """Return the share of the new conversations that the next version of a policy serves first; 0: it goes live at once."""
        share = self._settings.canary_share
        if share == 0:
            return 0.0
        adapters = await self._record.adapters(policy)
        passed = sum(a.state in (AdapterState.PUBLISHED, AdapterState.PRUNED) for a in adapters)
        if passed < self._settings.canary_after:
            return 0.0
        if share is not None:
            return share
        keys = await self._record.active_keys(policy, time.time() - _ACTIVE_S)
        return SHARE_OF_ONE if keys <= 1 else SHARE_OF_MANY
