"""An always-valid sequential test: is an event more frequent in one of two groups? Pure.

The evidence is an e-process by universal inference (Wasserman, Ramdas and Balakrishnan, "Universal inference", PNAS 2020, section 8): the
likelihood under a fixed mixture of pairs of rates with the second above the first, divided by the greatest likelihood under one common
rate. While both groups have one rate, that quotient is at most a nonnegative martingale that begins at 1, so by Ville's inequality it ever
reaches 1 / alpha with a probability of at most alpha, however often and whenever it is looked at, in whatever order the groups are
observed, and whatever share each of them has. A weighted mean of such quotients is one as well.

The quotient depends on four counts only, so a process that restarts goes on where it was. What the bound assumes: each observation has the
rate of its group, independent of the others; `trainer.canary_release` limits what one conversation and one person contribute.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate

#: Rates of the mixture, and how far the second is above the first at least, in steps of the grid.
_RATES = tuple((i + 0.5) / 40 for i in range(40))
_GAP = 3
#: Weight of a lower rate: low rates of complaints are the usual ones.
_WEIGHTS = tuple(math.exp(-4.0 * rate) for rate in _RATES)


@dataclass(frozen=True, slots=True)
class Counts:
    """How often something happened: ``events`` of ``trials``."""

    events: int
    trials: int

    def __post_init__(self) -> None:
        if not 0 <= self.events <= self.trials:
            raise ValueError(f"{self.events} events of {self.trials} trials")

    @property
    def rate(self) -> float | None:
        return self.events / self.trials if self.trials else None


NOTHING = Counts(0, 0)


def evidence_of_increase(reference: Counts, other: Counts) -> float:
    """Return the e-value that the event is more frequent in ``other`` than in ``reference``; 0 to infinity, 1: no evidence."""
    if not reference.trials or not other.trials:
        return 1.0
    events, trials = reference.events + other.events, reference.trials + other.trials
    most_likely = _log_likelihood(Counts(events, trials), events / trials)
    low = [w * math.exp(v) for w, v in zip(_WEIGHTS, _scaled(reference), strict=True)]
    high = [math.exp(v) for v in _scaled(other)]
    above = list(accumulate(reversed(high)))[::-1]  # [i]: the sum over all rates from i on
    mixture = sum(a * b for a, b in zip(low, above[_GAP:], strict=False))
    if mixture == 0.0:
        return 0.0
    log_mixture = math.log(mixture / _TOTAL) + _peak(reference) + _peak(other)
    return math.exp(min(log_mixture - most_likely, 700.0))


def _scaled(counts: Counts) -> list[float]:
    """Return the log-likelihood at each rate of the grid, less that at the best rate of all, so that `exp` does not underflow."""
    peak = _peak(counts)
    return [_log_likelihood(counts, rate) - peak for rate in _RATES]


def _peak(counts: Counts) -> float:
    return _log_likelihood(counts, counts.events / counts.trials)


def _log_likelihood(counts: Counts, rate: float) -> float:
    misses = counts.trials - counts.events
    value = counts.events * math.log(rate) if counts.events else 0.0
    return value + (misses * math.log1p(-rate) if misses else 0.0)


_TOTAL = sum(weight * (len(_RATES) - i - _GAP) for i, weight in enumerate(_WEIGHTS) if i + _GAP < len(_RATES))
