"""Reviews the canary releases as verdicts come in, and says whether a new version begins as one."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

from store.record import Record
from store.settings import Settings
from store.values import AdapterState, CanaryRelease, ReleaseStage, adapter_name
from trainer.canary_release import Decision, compare

#: Interval of the reviews.
_REVIEW_S = 5.0
#: Shares of the new conversations where one key uses a policy, and where several do.
SHARE_OF_ONE, SHARE_OF_MANY = 0.5, 0.1
_ACTIVE_S = 30 * 24 * 3600.0

_NEXT: Mapping[Decision, ReleaseStage] = {
    Decision.PROMOTE: ReleaseStage.KEPT,
    Decision.ROLL_BACK: ReleaseStage.ROLLED_BACK,
}


class ReleaseWatch:
    """The canary releases of one record."""

    def __init__(self, record: Record, settings: Settings) -> None:
        self._record = record
        self._settings = settings
        self._reviewed_at = -_REVIEW_S
        self._running: dict[str, int] = {}

    async def review(self, now: float | None = None) -> Mapping[str, int]:
        """Decide on every release that runs; returns the policies whose next step waits, each with the version that is tried."""
        if time.monotonic() - self._reviewed_at < _REVIEW_S:
            return self._running
        self._reviewed_at = time.monotonic()
        self._running = {
            release.policy: release.version
            for release in await self._record.canary_releases(stages=(ReleaseStage.RUNNING,))
            if not await self._settle(release, time.time() if now is None else now)
        }
        return self._running

    async def _settle(self, release: CanaryRelease, now: float) -> bool:
        """Decide on a release; returns whether it is over. It stays open where it was moved meanwhile: the next review sees it."""
        ruling = compare(release, await self._record.drawn_conversations(release, now), now)
        is_over = ruling.decision is not Decision.HOLD
        if not is_over and ruling.numbers == release.numbers:
            return False
        stage = _NEXT.get(ruling.decision, release.stage)
        done = await self._record.settle_release(release, stage, numbers=ruling.numbers, reason=ruling.reason)
        if done and stage is ReleaseStage.ROLLED_BACK:
            name = adapter_name(release.policy, release.version)
            print(f"patina: {name} is rolled back: {ruling.reason}", file=sys.stderr, flush=True)
        return done and is_over

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
