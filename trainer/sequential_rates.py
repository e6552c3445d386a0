"""An always-valid test: do conversations that chance gave to a version draw more complaints than the others? Pure.

Which version serves a conversation is drawn with a known probability, the share. A version that changes nothing cannot depend on how its
conversations went. So after each conversation its outcome is read first, and then money is bet on who served it: under the null
hypothesis the odds are the share, whatever the outcomes are. The money is a nonnegative martingale that begins at 1, and by Ville's inequality
it ever reaches `LIMIT` with a probability of at most 1 / `LIMIT`, however often it is looked at. This is a test by betting (Shekhar and
Ramdas, "Nonparametric two-sample testing by betting", IEEE Trans. Inf. Theory 2024) against a design that is known ("model-X": Grünwald,
Henzi and Lardy, "Anytime-valid tests of conditional independence under model-X", JASA 2024).

The bet is the likelihood ratio of two proportions, p(outcome | who served) / p(outcome), whose denominator is the mixture of both by the share (Turner,
Ly and Grünwald, "Generic E-variables for exact sequential k-sample tests", J. Stat. Plan. Inference 2024), averaged over `HYPOTHESES`. An outcome is a
number of complaints among a number of judged turns, beta-binomial: turns of one conversation are alike, and a conversation of one mind tells less than
as many turns of different ones. What a bet would win beyond `LIMIT` is moved to its other side (Fischer and Ramdas, "Improving the (approximate)
sequential probability ratio test by avoiding overshoot", 2024).

What the bound assumes: the draws are independent of each other and of what would happen. It does not assume that outcomes are independent, nor that their
rate stays the same: the hypotheses decide how much is found, not how much is false.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import product

#: What the money has to reach.
LIMIT = 22.0
#: Share of judged turns with a complaint of the live version; by how much the log-odds of the other are above it; correlation of two turns of one conversation.
_RATES, _SHIFTS, _CORRELATION = (0.08, 0.15, 0.35), (1.1, 2.2), 0.45


def _shifted(rate: float, shift: float) -> float:
    odds = rate / (1 - rate) * math.exp(shift)
    return odds / (1 + odds)


#: Pairs of rates: of the live version, and of one that is worse.
HYPOTHESES = tuple((rate, _shifted(rate, shift)) for rate, shift in product(_RATES, _SHIFTS))


class Bet:
    """Money bet on who served each conversation, from 1 on.

    Args:
        share: probability that a conversation is given to the version on trial.
    """

    __slots__ = ("_share", "_weights", "money")

    def __init__(self, share: float) -> None:
        self.money = 1.0
        self._share = share
        self._weights = [1 / len(HYPOTHESES)] * len(HYPOTHESES)

    def copy(self) -> Bet:
        other = Bet(self._share)
        other.money, other._weights = self.money, self._weights
        return other

    def add(self, *, is_on_trial: bool, complaints: int, judged: int) -> None:
        """Bet on the next conversation; once the limit is reached nothing is bet.

        Raises:
            ValueError: more complaints than judged turns.
        """
        if self.money >= LIMIT:
            return
        factors = _factors(complaints, judged, self._share)
        share, pairs = self._share, list(zip(self._weights, factors, strict=True))
        tried = self.money * sum(weight * one[0] for weight, one in pairs)
        other = self.money * sum(weight * one[1] for weight, one in pairs)
        if tried > LIMIT:
            other += share / (1 - share) * (tried - LIMIT)
            tried = LIMIT
        elif other > LIMIT:
            tried += (1 - share) / share * (other - LIMIT)
            other = LIMIT
        self.money = tried if is_on_trial else other
        weights = [weight * one[0 if is_on_trial else 1] for weight, one in pairs]
        total = sum(weights)
        self._weights = [weight / total for weight in weights]


@lru_cache(maxsize=4096)
def _factors(complaints: int, judged: int, share: float) -> tuple[tuple[float, float], ...]:
    """Return by what an outcome multiplies the money where the version on trial served it, and where the other did, for each hypothesis."""
    if not 0 <= complaints <= judged:
        raise ValueError(f"{complaints} complaints in {judged} judged turns")
    found = []
    for rate, worse in HYPOTHESES:
        other, tried = _probability(complaints, judged, rate), _probability(complaints, judged, worse)
        either = share * tried + (1 - share) * other
        found.append((tried / either, other / either))
    return tuple(found)


def _probability(events: int, trials: int, rate: float) -> float:
    """Beta-binomial probability of this many events, but for the binomial coefficient, which the quotients do not need."""
    size = 1 / _CORRELATION - 1
    a, b = rate * size, (1 - rate) * size
    return math.exp(_log_beta(a + events, b + trials - events) - _log_beta(a, b))


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
