"""What to do with a version that serves a share of the new conversations: promote it, hold it, or roll it back. Pure.

The unit is the conversation, because its turns are alike and it is what chance gives to a version. Only conversations that were drawn while
the version was on trial count, of both versions: an older arm is never compared, because its time may have been an easier one. A conversation
counts once, `store.queries.canary.WINDOW_S` after it began, with its first `PER_CONVERSATION` judged turns; an empty reply counts as a complaint. The test
is `trainer.sequential_rates`; over a whole trial a version that is as good as the live one is rolled back with a probability of at most 1 / `LIMIT`.

Where three or more keys use the policy, there must be evidence without any one of them: a key that complains about the new version alone gets a good one
rolled back with a probability of at most 1 / `LIMIT_WITHOUT`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from store.values import CanaryRelease, DrawnConversation, Json
from trainer.sequential_rates import LIMIT, Bet

#: Judged turns of a conversation that count, the first ones.
PER_CONVERSATION = 6
#: Evidence below which a version is promoted: the conversations speak ten to one for the same rate.
PROMOTED_BELOW = 0.1
#: A trial ends without a finding when both versions have so many conversations, or after so many seconds: learning waits for it.
LONGEST, LONGEST_S = 60, 7 * 24 * 3600.0
#: From so many keys on the evidence without each of them counts, and what it has to reach.
_MANY_KEYS, LIMIT_WITHOUT = 3, 10.0
#: Share of trials of a worse version that are rolled back within so many conversations of each version: complaints in 10 % of the judged turns, then
#: in 50 % and in 25 %; one judged turn a conversation, and three that correlate by .3. `python -m lab.bench.canary --table` measures them.
FOUND = {
    1: {5: (0.12, 0.02), 10: (0.40, 0.07), 20: (0.77, 0.16), 40: (0.97, 0.33), 60: (0.99, 0.45)},
    3: {5: (0.27, 0.05), 10: (0.69, 0.13), 20: (0.95, 0.30), 40: (1.00, 0.54), 60: (1.00, 0.71)},
}


class Decision(StrEnum):
    HOLD = "hold"
    PROMOTE = "promote"
    ROLL_BACK = "roll_back"


@dataclass(slots=True)
class Arm:
    """What was counted of one version.

    Attributes:
        complaints: judged turns with one; `judged` of all.
    """

    conversations: int = 0
    complaints: int = 0
    judged: int = 0

    def __str__(self) -> str:
        return f"{self.complaints} of {self.judged} turns in {self.conversations} conversations"

    def to_json(self) -> Json:
        return {
            "conversations": self.conversations,
            "complaints": self.complaints,
            "judged": self.judged,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """A decision with what it rests on."""

    decision: Decision
    reason: str
    numbers: Json = field(default_factory=dict)


class Trial:
    """The conversations of a release so far. `add` each once, in the order in which they began."""

    def __init__(self, share: float) -> None:
        self.canary, self.baseline = Arm(), Arm()
        self._evidence = Bet(share)
        self._without: dict[str, Bet] = {}

    @property
    def least_without(self) -> float | None:
        """The least evidence without one of the keys; None: too few use the policy."""
        return min(one.money for one in self._without.values()) if len(self._without) >= _MANY_KEYS else None

    def add(self, key: str, *, is_on_trial: bool, complaints: int, judged: int) -> None:
        """Count a conversation; one without a judged turn says nothing."""
        if not judged:
            return
        arm = self.canary if is_on_trial else self.baseline
        arm.conversations += 1
        arm.complaints += complaints
        arm.judged += judged
        self._without.setdefault(key, self._evidence.copy())
        for one in (
            self._evidence,
            *(evidence for other, evidence in self._without.items() if other != key),
        ):
            one.add(is_on_trial=is_on_trial, complaints=complaints, judged=judged)

    def rule(self, age_s: float = 0.0) -> Ruling:
        """Decide.

        Args:
            age_s: seconds since the trial began.
        """
        canary, baseline = self.canary, self.baseline
        fewest = min(canary.conversations, baseline.conversations)
        without = self.least_without
        numbers: Json = {
            "evidence": self._evidence.money,
            "threshold": LIMIT,
            "evidence_without_one_key": without,
            "threshold_without": LIMIT_WITHOUT,
            "canary": canary.to_json(),
            "baseline": baseline.to_json(),
            "found": self._found(fewest),
        }
        if self._evidence.money >= LIMIT and (without is None or without >= LIMIT_WITHOUT):
            decision, reason = Decision.ROLL_BACK, f"complaints in {canary} against {baseline}"
        elif self._evidence.money < PROMOTED_BELOW:
            decision, reason = (
                Decision.PROMOTE,
                f"no more complaints than before: {canary} against {baseline}",
            )
        elif fewest >= LONGEST or age_s >= LONGEST_S:
            decision, reason = (
                Decision.PROMOTE,
                f"the trial ended without a finding: {canary} against {baseline}",
            )
        else:
            decision, reason = Decision.HOLD, ""
        return Ruling(decision=decision, reason=reason, numbers=numbers)

    def _found(self, conversations: int) -> Json:
        """Return how often a version that is much worse, and one that is worse, would have been found by now."""
        judged = self.canary.judged + self.baseline.judged
        turns = 3 if judged >= 2 * (self.canary.conversations + self.baseline.conversations) > 0 else 1
        known = [(0.0, 0.0), *(pair for count, pair in FOUND[turns].items() if count <= conversations)]
        return {"from_10_to_50": known[-1][0], "from_10_to_25": known[-1][1]}


def compare(release: CanaryRelease, conversations: list[DrawnConversation], now: float) -> Ruling:
    """Decide on a release by its conversations, in the order in which they began."""
    trial = Trial(release.share)
    for one in conversations:
        counted = one.complaints[:PER_CONVERSATION]
        trial.add(one.key_name, is_on_trial=one.is_on_trial, complaints=sum(counted), judged=len(counted))
    return trial.rule(now - release.started_at)
