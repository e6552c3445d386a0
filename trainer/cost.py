"""What a version costs on this machine, and how much of it is done so that it ends in time. Pure; the speed is measured elsewhere.

A version reviews its wishes, samples the teacher, trains, and asks the gate's prompts. Each is a number of tokens times the time of a forward
pass, or a number of decoding steps. `affordable` takes the most effort between `LEAST` and `MOST` whose estimate is within the budget.

The estimate counts prompts and replies of typical length. What versions of the same model took in fact corrects it, phase by phase
(`store.training_plan.TrainingPlan.ratios`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from store.values import Json

#: Seconds that a version should take: a person waits so long for an effect.
BUDGET_S = 150.0
#: Typical tokens of a question, of a question with wishes behind it, and of a reply.
QUESTION, WISHED, REPLY = 40, 52, 48
#: Prompts of the whole gate, tokens of its longest reply, and questions by which wishes are measured.
GATE_PROMPTS, GATE_REPLY, PROBES = 48, 96, 12
#: Wishes that are typically measured, and readings of a reply without any.
WISHES, WITHOUT = 2, 2
#: Between `LEAST` and `MOST` there are so many levels.
LEVELS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Seconds of a model's operations.

    Attributes:
        read_s: a token of a forward pass, without the output layer.
        logits_s: a position of the output layer.
        step_s: a decoding step of one row; row_s: each further row.
        learn_factor: forward and backward pass, in forward passes.
    """

    read_s: float
    logits_s: float
    step_s: float
    row_s: float
    learn_factor: float = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is done for a version.

    Attributes:
        samples, anchors: at most.
        gate: share of the gate's prompts.
    """

    samples: int
    anchors: int
    gate: float = 1.0


MOST = Effort(samples=80, anchors=64)
#: Below this a version learns hardly anything, or its gate sees nothing.
LEAST = Effort(samples=12, anchors=8, gate=0.25)


def effort_at(share: float) -> Effort:
    """Return the effort at this share of the way from `LEAST` to `MOST`."""
    low: dict[str, float] = asdict(LEAST)
    high: dict[str, float] = asdict(MOST)

    def between(name: str) -> float:
        value = low[name] + share * (high[name] - low[name])
        return round(value, 3) if isinstance(high[name], float) else round(value)

    return Effort(**{name: between(name) for name in low})  # type: ignore[arg-type]  # floats stay floats


def gate_prompts(effort: Effort) -> int:
    """Prompts of the gate, about."""
    return math.ceil(GATE_PROMPTS * effort.gate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Seconds of a version by phase: wishes and teacher; optimizer steps; gate."""

    teach_s: float
    step_s: float
    gate_s: float

    @property
    def total_s(self) -> float:
        return self.teach_s + self.step_s + self.gate_s

    @property
    def by_phase(self) -> dict[str, float]:
        return {"teach": self.teach_s, "step": self.step_s, "gate": self.gate_s}

    def corrected(self, ratios: Mapping[str, float]) -> Estimate:
        """Return the estimate times what earlier versions took in fact."""
        return Estimate(
            teach_s=self.teach_s * ratios.get("teach", 1.0),
            step_s=self.step_s * ratios.get("step", 1.0),
            gate_s=self.gate_s * ratios.get("gate", 1.0),
        )

    def to_json(self) -> Json:
        return {"estimate_s": round(self.total_s, 3)}


def estimate(speed: Speed, effort: Effort, *, passes: int = 1) -> Estimate:
    """Seconds of a version that takes so many passes over its samples, all of which the teacher has to give."""

    def reads(rows: float, prompt: int, passes: float) -> float:
        return rows * passes * ((prompt + REPLY) * speed.read_s + REPLY * speed.logits_s)

    def samples(rows: float, prompt: int, reply: int) -> float:
        return rows * prompt * speed.read_s + reply * (speed.step_s + (rows - 1) * speed.row_s)

    wishes = samples(PROBES, WISHED, REPLY) + reads(2 * PROBES, WISHED, WISHES + WITHOUT)
    teach = wishes + samples(effort.samples, WISHED, REPLY)
    rows = effort.samples + effort.anchors
    step = reads(effort.samples, WISHED, 1) + reads(effort.anchors, QUESTION, 1)
    step += passes * reads(rows, QUESTION, speed.learn_factor)
    gate = samples(gate_prompts(effort), QUESTION, GATE_REPLY)
    gate += samples(PROBES, QUESTION, REPLY) + reads(PROBES, WISHED, WISHES + WITHOUT)
    return Estimate(teach_s=teach, step_s=step, gate_s=gate)


def affordable(
    speed: Speed, *, passes: int = 1, budget_s: float = BUDGET_S, ratios: Mapping[str, float] | None = None
) -> tuple[Effort, Estimate]:
    """The most effort whose corrected estimate is within the budget, or the least there is, with its estimate."""
    for level in range(LEVELS, -1, -1):
        effort = effort_at(level / LEVELS)
        found = estimate(speed, effort, passes=passes).corrected(ratios or {})
        if found.total_s <= budget_s:
            break
    return effort, found


def longest_text(speed: Speed, *, budget_s: float = BUDGET_S) -> int:
    """Tokens of a turn one pass of which with its gradient takes a quarter of the budget; attention is not counted."""
    return max(256, int(budget_s / 4 / (speed.learn_factor * speed.read_s)))
