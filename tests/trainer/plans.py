"""Step plans for tests: a bare one, in which every extra is off, and what a test changes in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trainer.objective import Objective
from trainer.plan import StepPlan
from trainer.protocol import Weights

_BARE = StepPlan(
    method="combine",
    objective=Objective(),
    teacher=Weights.BASE,
    begins_at_base=False,
    reads_wishes=True,
    reads_verdicts=True,
    only_explicit=False,
    w_rl=0.3,
    w_opd=1.0,
    opd_support="topk",
    opd_clip=1.0,
    baseline="running",
    samples=40,
    anchors=0,
    step_samples=1_000,
    passes=2,
    max_staleness=8,
)


def bare_plan(**changes: Any) -> StepPlan:
    """Return combine with two passes of one optimizer step each that reads every verdict and goes on from the live version."""
    return replace(_BARE, **changes)
