"""How many examples a Hypothesis test draws under the active profile."""

from __future__ import annotations

from hypothesis import settings

FULL = 100


def examples(count: int) -> int:
    """Return ``count`` under a full profile, in proportion fewer under a smaller one."""
    return max(1, count * settings().max_examples // FULL)
