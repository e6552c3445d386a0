"""How far a version may move: the share of a weight change at which a measured divergence reaches its target.

A learning rate says how far weights move, not what that does to what the model says, and what is right for one model is a hundred
times too much for another. Here the learning rate is a cap, and the change that the optimizer steps made is scaled by what it did.
"""

from __future__ import annotations

import math
from collections.abc import Callable

#: A divergence of at least this share of the target is near enough.
NEAR_ENOUGH = 0.85
#: Evaluations of the divergence at most: each is a forward pass over the batch.
EVALUATIONS = 5


def share_within(
    target: float, measured: float, divergence_at: Callable[[float], float], *, evaluations: int = EVALUATIONS
) -> tuple[float, float]:
    """Return the largest share of a weight change found whose divergence is within the target, and that divergence.

    The whole change where it is within. Otherwise a bracketed search that expects the divergence to grow with the square of the share
    (as a KL divergence does for a small change), with bisection where there is no finite number to go by.

    Args:
        target: positive, nats a token.
        measured: divergence of the whole change; NaN counts as beyond every target.
        divergence_at: divergence at a share in (0, 1).

    Returns:
        (0, 0) where nothing that was tried is within.
    """
    if measured <= target:
        return 1.0, measured
    low, high, within = 0.0, 1.0, 0.0
    beyond = measured
    for _ in range(evaluations):
        share = 0.5 * (low + high)
        if math.isfinite(beyond):
            margin = 0.02 * (high - low)
            expected = high * math.sqrt(0.95 * target / beyond)
            share = min(high - margin, max(low + margin, expected))
        found = divergence_at(share)
        if found <= target:
            low, within = share, found
            if found >= NEAR_ENOUGH * target:
                break
        else:
            high, beyond = share, found
    return low, within
