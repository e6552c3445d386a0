"""What to do with a version that serves a share of the new conversations: promote it, hold it, or roll it back. Pure.

A version is compared with the live one of the time (the baseline) in three rates: complaints among judged turns, empty or cut replies among
replies, and prompts that a person sent again among turns that something followed. It is compared in complaints with versions of some
releases before as well, because each of many small steps may pass where their sum does not. The four e-values of
`trainer.sequential_rates` are averaged with `WEIGHTS`, which is an e-value again: a version that is as good as the others is rolled back
with a probability of at most `ALPHA`, over the trial and the watch together.

One conversation counts with its first `PER_CONVERSATION` turns, because its turns are alike. Where three or more keys use the policy, the
evidence must stand without any one of them (the least of such e-values is at most an e-value), and a key counts with at most half of what
all others count together: no key decides alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from store.values import BASE_VERSION, CanaryRelease, Json, ReleaseStage, ServedTurn
from trainer.sequential_rates import NOTHING, Counts, evidence_of_increase

ALPHA = 0.05
#: Judged turns of the canary from which on it is promoted while there is no evidence against it, and of both versions after which the
#: trial ends whatever the evidence is: the watch goes on with the same counts.
TRIAL_TURNS, LONGEST_TRIAL_TURNS = 12, 96
#: Judged turns of a version, those of its trial included, after which its watch ends.
WATCH_TURNS = 72
#: Evidence of more complaints below which a version is promoted: the turns speak five to one for the same rate.
_UNSUSPICIOUS = 0.2
PER_CONVERSATION = 6
_MANY_KEYS, _PER_KEY = 3, 4
#: Keys without which the evidence must stand: the busiest ones.
_LEFT_OUT = 16
#: Weights of the e-values.
WEIGHTS: Mapping[str, float] = {"complaints": 0.7, "faulty": 0.1, "retries": 0.1, "complaints_before": 0.1}
#: How many releases back the older versions of the comparison are.
OLDER = range(8, 16)


class Decision(StrEnum):
    HOLD = "hold"
    PROMOTE = "promote"
    KEEP = "keep"  #: the watch ends
    ROLL_BACK = "roll_back"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmCounts:
    """The counts of one version, or of several together.

    Attributes:
        judged: all judged turns, those over the limits of a conversation or key included.
    """

    complaints: Counts = NOTHING
    faulty: Counts = NOTHING
    retries: Counts = NOTHING
    judged: int = 0

    def to_json(self) -> Json:
        counts = {"complaints": self.complaints, "faulty": self.faulty, "retries": self.retries}
        return {name: [one.events, one.trials] for name, one in counts.items()} | {"judged": self.judged}


EMPTY = ArmCounts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Arms:
    """What is compared.

    Attributes:
        baseline: the version that was live when the trial began.
        older: versions some releases before; empty where there are none.
    """

    canary: ArmCounts
    baseline: ArmCounts
    older: ArmCounts = EMPTY

    def evidence(self) -> dict[str, float]:
        """Return the e-value of each rate: that the canary's is above the others'."""
        return {
            "complaints": evidence_of_increase(self.baseline.complaints, self.canary.complaints),
            "faulty": evidence_of_increase(self.baseline.faulty, self.canary.faulty),
            "retries": evidence_of_increase(self.baseline.retries, self.canary.retries),
            "complaints_before": evidence_of_increase(self.older.complaints, self.canary.complaints),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """A decision with what it rests on."""

    decision: Decision
    reason: str
    numbers: Json = field(default_factory=dict)


def count(turns: Sequence[ServedTurn], versions: Iterable[int]) -> ArmCounts:
    """Count the turns of some versions; ``turns`` are those of all versions of the comparison, oldest first."""
    wanted = set(versions)
    counted = _limited(turns)
    mine = [turn for turn in counted if turn.version in wanted]
    judged = [turn for turn in mine if turn.verdict is not None]
    followed = [turn for turn in mine if turn.is_followed]
    return ArmCounts(
        complaints=Counts(sum(turn.verdict == -1 for turn in judged), len(judged)),
        faulty=Counts(sum(turn.is_faulty for turn in mine), len(mine)),
        retries=Counts(sum(turn.is_retried for turn in followed), len(followed)),
        judged=sum(turn.verdict is not None and turn.version in wanted for turn in turns),
    )


def compare(
    release: CanaryRelease, turns: Sequence[ServedTurn], past: Sequence[ServedTurn]
) -> tuple[Arms, list[Arms]]:
    """Return the counts of a release, and those without each key where several use the policy.

    Args:
        turns: of the version and its baseline since the release began, oldest first.
        past: of the older versions.
    """
    keys = Counter(turn.key_name for turn in turns)
    left_out = [key for key, _ in keys.most_common(_LEFT_OUT)] if len(keys) >= _MANY_KEYS else []

    def arms(without: str | None) -> Arms:
        of = [turn for turn in turns if turn.key_name != without]
        before = [turn for turn in past if turn.key_name != without]
        return Arms(
            canary=count(of, {release.version}),
            baseline=count(of, {release.baseline_version}),
            older=count(before, {turn.version for turn in before}),
        )

    return arms(None), [arms(key) for key in left_out]


def decide(release: CanaryRelease, arms: Arms, without: Sequence[Arms] = ()) -> Ruling:
    """Decide on a release.

    Args:
        without: the counts without each key; empty where few use the policy.
    """
    found = arms.evidence()
    evidence = min(_mean(one) for one in (found, *(part.evidence() for part in without)))
    canary, baseline, older = arms.canary, arms.baseline, arms.older
    numbers: Json = {
        "evidence": evidence,
        "threshold": 1 / ALPHA,
        "evidence_by_rate": found,
        "canary": canary.to_json(),
        "baseline": baseline.to_json(),
        "older": older.to_json(),
    }

    def ruling(decision: Decision, reason: str = "") -> Ruling:
        return Ruling(decision=decision, reason=reason, numbers=numbers)

    if evidence >= 1 / ALPHA:
        worst = max(found, key=lambda name: WEIGHTS[name] * found[name])
        other = older if worst == "complaints_before" else baseline
        return ruling(Decision.ROLL_BACK, f"{_rate(worst, canary)} against {_rate(worst, other)}")
    passed = f"{canary.judged} judged turns without evidence against it"
    if release.stage is ReleaseStage.WATCHED:
        return ruling(Decision.KEEP, passed) if canary.judged >= WATCH_TURNS else ruling(Decision.HOLD)
    if canary.judged >= TRIAL_TURNS and found["complaints"] < _UNSUSPICIOUS:
        return ruling(Decision.PROMOTE, passed)
    both = canary.judged + baseline.judged
    if both >= LONGEST_TRIAL_TURNS:
        return ruling(Decision.PROMOTE, f"the trial ended after {both} judged turns without a finding")
    return ruling(Decision.HOLD)


def _mean(found: Mapping[str, float]) -> float:
    return sum(WEIGHTS[name] * value for name, value in found.items())


def older_versions(parents: Mapping[int, int], version: int) -> list[int]:
    """Return the ancestors of a version that are `OLDER` steps before it."""
    chain = [version]
    while chain[-1] != BASE_VERSION and len(chain) < OLDER.stop:
        chain.append(parents.get(chain[-1], BASE_VERSION))
    return chain[OLDER.start :]


def _limited(turns: Sequence[ServedTurn]) -> list[ServedTurn]:
    """Return the turns that count: of a conversation the first, of a key no more than the others allow."""
    seen: Counter[tuple[int, str]] = Counter()
    first = []
    for turn in turns:
        place = (turn.version, turn.session_id)
        seen[place] += 1
        if seen[place] <= PER_CONVERSATION:
            first.append(turn)
    per_key = Counter((turn.version, turn.key_name) for turn in first)
    totals = Counter(turn.version for turn in first)
    if len({turn.key_name for turn in first}) < _MANY_KEYS:
        return first
    used: Counter[tuple[int, str]] = Counter()
    kept = []
    for turn in first:
        key = (turn.version, turn.key_name)
        used[key] += 1
        if used[key] <= max(_PER_KEY, (totals[turn.version] - per_key[key]) // 2):
            kept.append(turn)
    return kept


def _rate(name: str, arm: ArmCounts) -> str:
    counts = arm.complaints if name.startswith("complaints") else getattr(arm, name)
    what = {"faulty": "empty or cut replies in", "retries": "repeated prompts in"}.get(name, "complaints in")
    of = "replies" if name == "faulty" else "turns"
    return f"{what} {counts.events} of {counts.trials} {of}"
