"""How soon a canary release finds a worse version, and how often it accuses a good one: simulated trials through the product's own test.

Each run is a stream of conversations. A conversation has a number of judged turns, whose complaints are beta-binomial with a correlation; chance gives it
to a version by the share. `trainer.canary_release.Trial` counts it and decides.

    python -m lab.bench.canary [--runs 5000] [--table]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import numpy.typing as npt

from trainer.canary_release import FOUND, LONGEST, PER_CONVERSATION, Decision, Trial

Array = npt.NDArray[np.float64]
#: Multiplier of both versions' rates over a trial, from its begin to its end.
_DRIFTS: dict[str, Callable[[Array], Array]] = {
    "none": lambda at: np.ones_like(at),
    "worse times": lambda at: np.where(at < 1 / 3, 0.3, 1.7),
    "better times": lambda at: np.where(at < 1 / 3, 1.7, 0.3),
    "waves": lambda at: 1 + 0.8 * np.sin(12 * np.pi * at),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialScenario:
    """What a trial meets.

    Attributes:
        live, tried: complaints by judged turn of the two versions.
        turns: mean judged turns of a conversation, at least one.
        correlation: of the complaints of two turns of a conversation.
        keys: that use the policy, with different rates.
        liar: one key complains about each reply of the version on trial and about none of the live one.
        most: conversations of each version after which the stream ends.
    """

    live: float
    tried: float
    turns: float = 3
    correlation: float = 0.3
    share: float = 0.5
    drift: str = "none"
    keys: int = 1
    liar: bool = False
    most: int = LONGEST

    def name(self) -> str:
        extra = [f"share {self.share:g}"] if self.share != 0.5 else []
        extra += [self.drift] if self.drift != "none" else []
        extra += [f"{self.keys} keys"] if self.keys > 1 else []
        extra += ["one lies"] if self.liar else []
        about = ", ".join([f"{self.turns:g} turns, correlation {self.correlation:g}", *extra])
        return f"{self.live:.2f} / {self.tried:.2f} | {about}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """How one trial ended; `conversations`: of the live version and of the one on trial."""

    decision: Decision
    conversations: tuple[int, int]


def play(scenario: TrialScenario, runs: int, seed: int) -> Iterator[Played]:
    """Yield how each trial ends."""
    random = np.random.default_rng(seed)
    length = round(scenario.most / min(scenario.share, 1 - scenario.share) * 1.3) + 20
    drift = _DRIFTS[scenario.drift](np.arange(length) / length)
    for _ in range(runs):
        on_trial = random.random(length) < scenario.share
        key = random.integers(scenario.keys, size=length)
        rates = np.where(on_trial, scenario.tried, scenario.live) * drift
        rates = np.clip(rates * (1 + (key - (scenario.keys - 1) / 2) / scenario.keys), 0.0, 0.98)
        judged = (
            1 + random.poisson(scenario.turns - 1, length) if scenario.turns > 1 else np.ones(length, int)
        )
        judged = np.minimum(judged, PER_CONVERSATION)
        complaints = random.binomial(judged, _correlated(random, rates, scenario.correlation))
        if scenario.liar:
            complaints = np.where(key == 0, np.where(on_trial, judged, 0), complaints)
        yield _decided(
            zip(key.tolist(), on_trial.tolist(), complaints.tolist(), judged.tolist(), strict=True), scenario
        )


def _correlated(random: np.random.Generator, rates: Array, correlation: float) -> Array:
    """Return the rate of each conversation: beta-distributed around the mean, so that two turns correlate."""
    if not correlation:
        return rates
    size = 1 / correlation - 1
    inner = np.clip(rates, 1e-9, 1 - 1e-9)
    return random.beta(inner * size, (1 - inner) * size)


def _decided(stream: Iterable[tuple[int, bool, int, int]], scenario: TrialScenario) -> Played:
    trial = Trial(scenario.share)
    ruling = trial.rule()
    for key, is_on_trial, complaints, judged in stream:
        trial.add(f"key{key}", is_on_trial=is_on_trial, complaints=complaints, judged=judged)
        ruling = trial.rule()
        fewest = min(trial.canary.conversations, trial.baseline.conversations)
        if ruling.decision is not Decision.HOLD or fewest >= scenario.most:
            break
    return Played(
        decision=ruling.decision, conversations=(trial.baseline.conversations, trial.canary.conversations)
    )


def scenarios() -> list[TrialScenario]:
    """Return the rows of the note: versions that are as good as the live one, and worse ones."""
    good = TrialScenario(live=0.1, tried=0.1)
    found = [
        replace(good, live=rate, tried=rate, turns=turns, correlation=correlation)
        for rate in (0.1, 0.4)
        for turns, correlation in ((1, 0.0), (3, 0.0), (3, 0.3), (3, 0.5), (6, 0.5))
    ]
    found += [
        replace(good, live=0.3, tried=0.3, correlation=0.5, drift=drift)
        for drift in _DRIFTS
        if drift != "none"
    ]
    several = replace(good, keys=3, share=0.1)
    found += [
        several,
        replace(several, drift="worse times", correlation=0.5),
        replace(several, share=0.5),
        replace(several, keys=4, liar=True),
        replace(good, most=10),
    ]
    worse = [(0.1, 0.5), (0.1, 0.25), (0.2, 0.4)]
    shapes: list[dict[str, float | str]] = [
        {"turns": 1, "correlation": 0.0},
        {"correlation": 0.0},
        {"correlation": 0.3},
        {"correlation": 0.5},
        {"turns": 6, "correlation": 0.5},
        {"correlation": 0.5, "drift": "waves"},
        {"keys": 3, "share": 0.1},
        {"keys": 3, "share": 0.5},
    ]
    return found + [
        replace(good, live=live, tried=tried, **shape)  # type: ignore[arg-type]  # each field has its type
        for live, tried in worse
        for shape in shapes
    ]


def row(scenario: TrialScenario, runs: int, seed: int) -> str:
    played = list(play(scenario, runs, seed))
    found = [one.conversations for one in played if one.decision is Decision.ROLL_BACK]
    # A trial that finds nothing counts as longer than any other: the median is of all trials.
    unseen = [float("inf")] * (runs - len(found))
    arms = [median([*(arm[i] for arm in found), *unseen]) for i in (0, 1)]
    ended = [sum(one.conversations) for one in played if one.decision is Decision.PROMOTE]
    cells = [f"{len(found) / runs:.3f}", *("–" if arm == float("inf") else f"{arm:g}" for arm in arms)]
    return f"| {scenario.name()} | {' | '.join(cells)} | {f'{median(ended):g}' if ended else '–'} |"


def found_within(runs: int, seed: int) -> dict[int, dict[int, tuple[float, float]]]:
    """Measure `trainer.canary_release.FOUND`."""
    table: dict[int, dict[int, tuple[float, float]]] = {}
    for turns, counts in FOUND.items():
        shape = TrialScenario(live=0.1, tried=0.5, turns=turns, correlation=0.0 if turns == 1 else 0.3)
        pairs = []
        for tried in (0.5, 0.25):
            played = list(play(replace(shape, tried=tried), runs, seed))
            ends = [min(one.conversations) for one in played if one.decision is Decision.ROLL_BACK]
            pairs.append([round(sum(end <= count for end in ends) / runs, 2) for count in counts])
        table[turns] = {count: (pairs[0][i], pairs[1][i]) for i, count in enumerate(counts)}
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="print FOUND instead")
    given = parser.parse_args()
    if given.table:
        print(found_within(given.runs, given.seed))
        return
    print(
        "| complaints, live / on trial | conversations | rolled back | median live | median on trial | promoted after |"
    )
    print("|---|---|---|---|---|---|")
    began = time.monotonic()
    for scenario in scenarios():
        print(row(scenario, given.runs, given.seed), flush=True)
    print(f"\n{given.runs} trials a row, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
