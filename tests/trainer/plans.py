"""Step plans for tests: a bare one, in which every extra is off, and what a test changes in it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from trainer.losses import NO_RESIDUAL
from trainer.objective import Objective
from trainer.protocol import Weights
from trainer.step import StepPlan

_BARE = StepPlan(
    method="combine",
    objective=Objective(),
    teacher=Weights.BASE,
    residual=NO_RESIDUAL,
    most_hints=1,
    w_rl=0.3,
    w_opd=1.0,
    opd_support="topk",
    opd_clip=1.0,
    opd_centred=False,
    baseline="running",
    blames=False,
    gates_hints=True,
    min_shift=0.0,
    min_overlap=0.0,
    steps_per_batch=2,
    lr_decay=False,
    resample=False,
    max_kl_step=10.0,
    kl_target=math.inf,
    max_staleness=8,
)


def bare_plan(**changes: Any) -> StepPlan:
    """Return combine with two plain optimizer steps: no decay, no resampling, no residual, no bounds on hints."""
    return replace(_BARE, **changes)
