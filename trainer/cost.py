"""What a version costs on this machine, and how much of it is done so that it ends in time. Pure; the speed is measured elsewhere.

A version reads and samples the turns of its batch and the anchors several times, and the gate samples and reads its prompts. Each is a
number of tokens times the time of a forward pass, or a number of decoding steps. `LEVELS` are how much is done, from all to the
documented minimum; `affordable` takes the first whose estimate is within the budget.

The estimate is rough (prompts and replies of typical length, no contention); it is there to tell seconds from minutes from hours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from store.values import Json

#: Seconds that a version may take by the estimate, so that it takes less than twice as many: the estimate is rough, and a core is
#: seldom one's own. A person waits so long for an effect.
BUDGET_S = 150.0
#: Typical tokens of a prompt, of a prompt with hints, of a question below another system prompt, and of a reply.
PROMPT, HINTED, CONTEXT, REPLY = 120, 240, 280, 96
#: Prompts of the whole gate, and passes that read its replies.
GATE_PROMPTS, GATE_READS = 60, 4
#: Questions that show which wishes the policy follows, and passes that read each reply: three wishes, together and one left out.
WISH_PROBES, WISH_READS = 24, 4
#: Rows of the decoding step that `Speed.decode_s` is of.
DECODE_ROWS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Seconds of a model's operations.

    Attributes:
        read_s: a token of a forward pass, without the output layer.
        logits_s: a position of the output layer.
        decode_s: a decoding step of `DECODE_ROWS` rows.
        learn_factor: forward and backward pass, in forward passes: 3, with gradient checkpointing 4.
    """

    read_s: float
    logits_s: float
    decode_s: float
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


#: From all to the least.
LEVELS = (
    Effort(steps=6, anchors=16),
    Effort(steps=6, anchors=16, canaries=0.6, resample_tokens=256),
    Effort(steps=4, anchors=12, canaries=0.5, resample_tokens=128, contexts=2),
    Effort(steps=3, anchors=8, canaries=0.4, gate_tokens=64, resample_tokens=64, anchor_tokens=48, contexts=2),
    Effort(steps=2, anchors=6, canaries=0.3, gate_tokens=48, resample_tokens=64, anchor_tokens=32, contexts=1),
    Effort(steps=2, anchors=4, canaries=0.2, gate_tokens=32, resample_tokens=48, anchor_tokens=32, contexts=1),
    Effort(steps=1, anchors=4, canaries=0.2, gate_tokens=24, resample_tokens=32, anchor_tokens=24, contexts=1),
)  # fmt: skip


def anchor_steps(steps: int) -> int:
    """Optimizer steps on the anchors alone that follow so many on a batch."""
    return steps // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Seconds of a version."""

    teach_s: float
    step_s: float
    gate_s: float

    @property
    def total_s(self) -> float:
        return self.teach_s + self.step_s + self.gate_s

    def to_json(self) -> Json:
        return {"estimate_s": round(self.total_s, 3)}


def estimate(speed: Speed, effort: Effort, *, turns: int) -> Estimate:
    """Seconds of a version of so many turns."""

    def reads(rows: float, prompt: int, reply: int, passes: float) -> float:
        return rows * passes * ((prompt + reply) * speed.read_s + reply * speed.logits_s)

    def samples(rows: float, prompt: int, reply: int) -> float:
        decoding = reply * speed.decode_s * max(1.0, rows / DECODE_ROWS)
        return rows * prompt * speed.read_s + decoding if rows else 0.0

    reply = min(effort.resample_tokens, REPLY)
    anchors, anchor_reply = effort.anchors, effort.anchor_tokens
    # policy, then teacher, base model and policy again
    teach = reads(turns, PROMPT, reply, 3) + reads(turns, HINTED, reply, 1)
    contexts = effort.contexts
    teach += samples(contexts, CONTEXT, reply) + reads(contexts, CONTEXT, reply, 4)
    # candidates are sampled and read, those that are chosen answered
    candidates = 2 * anchors
    step = samples(candidates, PROMPT, anchor_reply) + reads(candidates, PROMPT, anchor_reply, 1)
    step += samples(anchors, PROMPT, anchor_reply)
    # forward and backward, base model, the teacher behind its hints, and how far it went
    each = reads(turns, PROMPT, reply, speed.learn_factor + 2) + reads(turns, HINTED, reply, 1)
    each += reads(anchors, PROMPT, anchor_reply, speed.learn_factor + 2)
    each += reads(contexts, CONTEXT, reply, speed.learn_factor + 3)
    resampling = samples(turns + contexts + anchors, PROMPT, max(reply, anchor_reply))
    step += effort.steps * each + (effort.steps - 1) * resampling
    # the steps on the anchors alone
    alone = reads(anchors, PROMPT, anchor_reply, speed.learn_factor + 2) + samples(
        anchors, PROMPT, anchor_reply
    )
    step += anchor_steps(effort.steps) * alone
    prompts = math.ceil(GATE_PROMPTS * effort.canaries)
    gate = samples(prompts, PROMPT, effort.gate_tokens) + reads(
        prompts, PROMPT, effort.gate_tokens, GATE_READS
    )
    # the wishes of the playbook are measured before and after: as many probes, each read with and without the wishes
    probes = math.ceil(WISH_PROBES * effort.canaries)
    gate += 2 * (samples(probes, PROMPT, anchor_reply) + reads(probes, HINTED, anchor_reply, WISH_READS))
    return Estimate(teach_s=teach, step_s=step, gate_s=gate)


def affordable(speed: Speed, *, turns: int, budget_s: float = BUDGET_S) -> tuple[Effort, Estimate]:
    """The most effort whose estimate is within the budget, or the least there is, with its estimate."""
    for effort in LEVELS:
        found = estimate(speed, effort, turns=turns)
        if found.total_s <= budget_s:
            return effort, found
    return LEVELS[-1], estimate(speed, LEVELS[-1], turns=turns)


def longest_text(speed: Speed, *, budget_s: float = BUDGET_S) -> int:
    """Tokens of a turn one pass of which with its gradient takes a quarter of the budget; attention is not counted."""
    return max(256, int(budget_s / 4 / (speed.learn_factor * speed.read_s)))
