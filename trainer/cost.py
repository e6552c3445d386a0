"""What a version costs on this machine, and how much of it is done so that it ends in time. Pure; the speed is measured elsewhere.

A version reads and samples the turns of its batch, the anchors and the gate's prompts. Each is a number of tokens times the time of a forward
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
#: Typical tokens of a prompt, of a prompt with hints, of a question below another system prompt, and of a reply.
PROMPT, HINTED, CONTEXT, REPLY = 120, 240, 280, 96
#: Tokens of a question that the trainer asks itself, and of the same behind a hint.
QUESTION, HINTED_QUESTION = 48, 96
#: Prompts of the whole gate, and the share of them that is read again.
GATE_PROMPTS, READ_AGAIN = 60, 0.5
#: Reference questions, contexts of hints that are compared for each complaint, and questions that show which wishes the policy follows.
REFERENCES, EFFECTS, WISH_PROBES = 8, 3, 24
#: Passes that read the replies to the latter: three wishes, together and one left out.
WISH_READS = 4
#: Replies to small talk in a step.
SMALL_TALK = 2
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
        steps: optimizer steps at most.
        anchors: at most.
        canaries: share of the gate's prompts.
        gate_tokens: longest reply the gate waits for.
        resample_tokens: longest new answer to a complaint.
        anchor_tokens: longest answer to an anchor.
        contexts: questions of the person that a step asks again below another system prompt.
    """

    steps: int
    anchors: int
    canaries: float = 1.0
    gate_tokens: int = 96
    resample_tokens: int = 512
    anchor_tokens: int = 64
    contexts: int = 4


MOST = Effort(steps=6, anchors=16)
#: Below this a version learns hardly anything, or its gate sees nothing.
LEAST = Effort(
    steps=1, anchors=4, canaries=0.25, gate_tokens=48, resample_tokens=48, anchor_tokens=32, contexts=1
)


def effort_at(share: float) -> Effort:
    """Return the effort at this share of the way from `LEAST` to `MOST`."""
    low: dict[str, float] = asdict(LEAST)
    high: dict[str, float] = asdict(MOST)

    def between(name: str) -> float:
        value = low[name] + share * (high[name] - low[name])
        return round(value, 3) if isinstance(high[name], float) else round(value)

    return Effort(**{name: between(name) for name in low})  # type: ignore[arg-type]  # floats stay floats


def anchor_steps(steps: int) -> int:
    """Optimizer steps on the anchors alone that follow so many on a batch."""
    return steps // 2


def gate_prompts(effort: Effort) -> int:
    """Prompts of the gate, about."""
    return math.ceil(GATE_PROMPTS * effort.canaries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Seconds of a version by phase: hints, teacher and the choice of anchors; optimizer steps; gate."""

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


def estimate(speed: Speed, effort: Effort, *, turns: int) -> Estimate:
    """Seconds of a version of so many turns."""

    def reads(rows: float, prompt: int, reply: int, passes: float) -> float:
        return rows * passes * ((prompt + reply) * speed.read_s + reply * speed.logits_s)

    def samples(rows: float, prompt: int, reply: int) -> float:
        if not rows:
            return 0.0
        return rows * prompt * speed.read_s + reply * (speed.step_s + (rows - 1) * speed.row_s)

    reply = min(effort.resample_tokens, REPLY)
    anchors, short = effort.anchors, effort.anchor_tokens
    references = max(4, math.ceil(REFERENCES * effort.canaries))
    probes = max(4, math.ceil(WISH_PROBES * effort.canaries))
    wishes = samples(probes, QUESTION, short) + reads(probes, HINTED_QUESTION, short, WISH_READS)
    own = effort.contexts
    # each hint along the references, which are read without one once; policy, then teacher, base model and policy again; wishes; contexts
    teach = turns * EFFECTS * reads(references, HINTED_QUESTION, short, 1)
    teach += reads(turns, PROMPT, reply, 3) + reads(turns, HINTED, reply, 1) + wishes
    teach += samples(own, CONTEXT, reply) + reads(own, CONTEXT, reply, 4)
    # candidates for anchors are sampled and read, those that are chosen answered
    teach += samples(2 * anchors, PROMPT, short) + reads(2 * anchors, PROMPT, short, 1)
    teach += samples(anchors + SMALL_TALK, PROMPT, short)
    # forward and backward, base model, the teacher behind its hints, and how far it went
    each = reads(turns, PROMPT, reply, speed.learn_factor + 2) + reads(turns, HINTED, reply, 1)
    each += reads(anchors + SMALL_TALK, PROMPT, short, speed.learn_factor + 2)
    each += reads(own, CONTEXT, reply, speed.learn_factor + 3)
    resampling = samples(turns + own + anchors, PROMPT, max(reply, short))
    step = effort.steps * each + (effort.steps - 1) * resampling
    # the steps on the anchors alone
    alone = reads(anchors, PROMPT, short, speed.learn_factor + 1) + samples(anchors, PROMPT, short)
    step += anchor_steps(effort.steps) * alone
    # base model and candidate
    prompts = gate_prompts(effort)
    gate = 2 * samples(prompts, QUESTION, effort.gate_tokens)
    gate += reads(READ_AGAIN * prompts, QUESTION, effort.gate_tokens, 4)
    return Estimate(teach_s=teach, step_s=step, gate_s=gate + wishes)


def affordable(
    speed: Speed, *, turns: int, budget_s: float = BUDGET_S, ratios: Mapping[str, float] | None = None
) -> tuple[Effort, Estimate]:
    """The most effort whose corrected estimate is within the budget, or the least there is, with its estimate."""
    for level in range(LEVELS, -1, -1):
        effort = effort_at(level / LEVELS)
        found = estimate(speed, effort, turns=turns).corrected(ratios or {})
        if found.total_s <= budget_s:
            break
    return effort, found


def longest_text(speed: Speed, *, budget_s: float = BUDGET_S) -> int:
    """Tokens of a turn one pass of which with its gradient takes a quarter of the budget; attention is not counted."""
    return max(256, int(budget_s / 4 / (speed.learn_factor * speed.read_s)))
