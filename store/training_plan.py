"""How much of a version the trainer does on this machine and how long that takes, as the trainer measured it; kept in the home.

The trainer writes the file when it loads the model, and what a version took in fact after each one. Other processes only read it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from store.settings import Settings
from store.texts import counted
from store.training_schedule import ALWAYS, MANUAL
from store.values import Json
from store.version import COMMAND

_FILE = "training-plan.json"
#: Phases of a version: wishes and teacher; optimizer steps; gate.
PHASES = ("teach", "step", "gate")
#: A ratio of measured to estimated seconds is believed within these bounds, and moves half of the way with each version.
_RATIOS = (0.25, 4.0)
#: Bounds of the derived wait for a whole batch, in seconds.
_WAIT_S = (30.0, 600.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """What a version consists of here, and what it costs.

    Attributes:
        model: digest of the base model; "": not known.
        threads: CPU threads of the trainer.
        speed: `trainer.cost.Speed`, measured.
        seconds: expected seconds by phase, on idle cores; what a version took in fact is in its metrics.
        budget_s: seconds that a version should take at most.
        is_least: nothing can be left out any more.
        steps, anchors, probes: optimizer steps, anchors and gate prompts of a version.
        longest_text: tokens of the longest turn that is trained on; None: whatever the model can read.
        ratios: measured by estimated seconds of a version, by phase, over the last versions of this model.
    """

    model: str = ""
    threads: int = 0
    speed: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    budget_s: float = 0.0
    is_least: bool = False
    steps: int = 0
    anchors: int = 0
    probes: int = 0
    longest_text: int | None = None
    ratios: Mapping[str, float] = field(default_factory=dict)

    def is_of(self, model: str, threads: int) -> bool:
        """Whether it was measured for this model with so many threads."""
        return bool(self.speed) and (self.model, self.threads) == (model, threads)

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())

    def with_measured(self, estimated: Mapping[str, float], measured: Mapping[str, float]) -> TrainingPlan:
        """Return the plan that knows what a version took.

        Args:
            estimated: seconds by phase of that very version, without a correction.
        """
        ratios, seconds = dict(self.ratios), dict(self.seconds)
        for phase, took in measured.items():
            before = ratios.get(phase, 1.0)
            now = math.sqrt(before * max(took, 0.0) / estimated[phase])
            ratios[phase] = min(max(now, _RATIOS[0]), _RATIOS[1])
            seconds[phase] = seconds.get(phase, 0.0) * ratios[phase] / before
        return replace(self, ratios=ratios, seconds=seconds)

    def sentences(self) -> tuple[str, ...]:
        """Return what a person should know before the first version, in sentences."""
        by_phase = {name: duration(self.seconds.get(name, 0.0)) for name in PHASES}
        found = [
            f"A version takes about {duration(self.total_s)} on idle cores: {by_phase['teach']} for wishes and teacher, "
            f"{by_phase['step']} for {counted(self.steps, 'optimizer step')} with {counted(self.anchors, 'anchor')}, "
            f"{by_phase['gate']} for a gate of {counted(self.probes, 'prompt')}."
        ]
        if self.total_s > self.budget_s:
            found.append(
                f"That is more than the {duration(self.budget_s)} that a version should take"
                + (", and training does no less." if self.is_least else ".")
            )
        if self.longest_text is not None:
            found.append(
                f"Turns of more than {self.longest_text} tokens are dropped: there is no time or memory for them."
            )
        return tuple(found)


def training_threads(threads: int) -> int:
    """Return the CPU threads of the trainer: the setting, or 0: all cores, which it yields to everything else."""
    if threads:
        return threads
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def duration(seconds: float) -> str:
    """Return seconds as a person says them: "45 s", "2.5 min", "40 min"."""
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 30) / 2:g} min" if seconds < 600 else f"{round(seconds / 60)} min"


def wait_s(max_wait_s: float, plan: TrainingPlan | None) -> float:
    """Return the seconds that a complaint waits for a whole batch.

    Args:
        max_wait_s: the setting; 0: half as long as a version takes, since a complaint that comes later waits for the next one.
    """
    if max_wait_s > 0:
        return max_wait_s
    return min(max((plan.total_s if plan is not None else 0.0) / 2, _WAIT_S[0]), _WAIT_S[1])


def expectation(settings: Settings, took_s: float | None = None) -> str:
    """Return when a version is trained and how long that takes here, as a sentence; "" where nothing is trained.

    Args:
        took_s: what versions took here; None: what the plan says.
    """
    if not settings.trains_locally:
        return ""
    mode = settings.schedule.mode
    if mode == MANUAL:
        return f"`{COMMAND} train --now` trains what waits."
    plan = read_plan(settings.home)
    when = "" if mode == ALWAYS else f", as soon as the schedule ({settings.train_when}) allows"
    seconds = plan.total_s if took_s is None and plan is not None else took_s
    takes = (
        "how long that takes here is not known yet"
        if seconds is None
        else f"that takes about {duration(seconds)}"
    )
    return (
        f"A version is trained after {counted(settings.batch_size, 'reaction')} or when a complaint has waited "
        f"{duration(wait_s(settings.max_wait_s, plan))}{when}; {takes}."
    )


def read_plan(home: Path) -> TrainingPlan | None:
    """Return the plan of the newest training in this home; None: nothing was measured yet."""
    try:
        found: Any = json.loads((home / _FILE).read_text(encoding="utf-8"))
        return TrainingPlan(**found)
    except (OSError, ValueError, TypeError):
        return None  # measured again: the file is a cache


def write_plan(home: Path, plan: TrainingPlan) -> None:
    """Store the plan; readers see the old file or the new one."""
    home.mkdir(parents=True, exist_ok=True)
    fresh = home / f"{_FILE}.{os.getpid()}"
    fresh.write_text(json.dumps(to_json(plan)), encoding="utf-8")
    with contextlib.suppress(FileNotFoundError):
        fresh.replace(home / _FILE)


def to_json(plan: TrainingPlan) -> Json:
    return asdict(plan)
