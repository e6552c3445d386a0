"""The methods as presets over one objective, and the sizes of a step. Values only.

========  ==================================================  ==========================================  =============
preset    learns from wishes                                  learns from verdicts                        begins from
========  ==================================================  ==========================================  =============
rl        no                                                  clipped surrogate on every verdict          its parent
opd       reverse KL to the teacher (or its sampled tokens)   no                                          the base model
combine   forward KL to the teacher                           surrogate on thumbs, rewards, tool errors   the base model
sdpo      Jensen-Shannon divergence from the teacher          no                                          the base model
========  ==================================================  ==========================================  =============

The teacher is the base model (or ``--teacher-model-name``) that reads the wishes of the person in its prompt; the student does not
read them (context distillation). A version that begins from the base model depends on the record and the wishes alone, not on the
versions before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from store.settings import Settings
from store.values import EXPLICIT_SOURCES, Baseline, Method, OpdSupport, ScoredTurn
from trainer.objective import Objective
from trainer.protocol import Weights

#: Padded tokens of one forward and backward pass.
MICRO_TOKENS = 8_192
#: Replies of an optimizer step: here, and on a Tinker server, where each step is several requests. With as many readings, steps of two learn
#: more and lose less than steps of eight: lab/research/2026-12-01-small-steps.md.
STEP_SAMPLES = (2, 8)
#: Trust region of the surrogate: PPO's lower bound, DAPO's upper one (Yu et al. 2025), and the dual clip (Ye et al. 2020).
CLIP_LOW, CLIP_HIGH, DUAL_CLIP = 0.8, 1.28, 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """What of the settings a version's training reads.

    Attributes:
        begins_at_base: the version is built from the base model, not from the version before it.
        reads_wishes, reads_verdicts: see the table above.
        only_explicit: of the verdicts only those of thumbs, reward functions and failed tool calls; words teach by their wish.
        samples, anchors: wish samples and anchors of a version, at most.
        step_samples: samples of an optimizer step.
        passes: how often each sample is used.
        micro_tokens: padded tokens of a forward and backward pass.
    """

    method: Method
    objective: Objective
    teacher: Weights
    begins_at_base: bool
    reads_wishes: bool
    reads_verdicts: bool
    only_explicit: bool
    w_rl: float
    w_opd: float
    opd_support: OpdSupport
    opd_clip: float
    baseline: Baseline
    samples: int
    anchors: int
    step_samples: int
    passes: int
    max_staleness: int
    micro_tokens: int = MICRO_TOKENS

    @classmethod
    def of(cls, settings: Settings) -> StepPlan:
        """Return the plan that these settings ask for."""
        learning, method, sources = settings.learning, settings.method, settings.verdict_sources
        clipped = settings.loss_fn == "ppo"
        return cls(
            method=method,
            objective=Objective(
                alpha=settings.resolved_alpha,
                top_k=learning.top_k,
                support_of="teacher",
                clip_low=CLIP_LOW if clipped else 0.0,
                clip_high=CLIP_HIGH if clipped else math.inf,
                dual_clip=DUAL_CLIP if clipped else None,
                kl_coef=settings.kl_loss_coef if method == "rl" else 0.0,
            ),
            teacher=Weights.TEACHER if settings.teacher_model_name else Weights.BASE,
            begins_at_base=method != "rl",
            reads_wishes=settings.learns_wishes,
            reads_verdicts=sources != (),
            only_explicit=bool(sources),
            w_rl=settings.w_rl if method == "combine" else 1.0,
            w_opd=settings.w_opd if method == "combine" else 1.0,
            opd_support=learning.opd_support,
            opd_clip=learning.opd_clip,
            baseline=learning.baseline,
            samples=learning.samples,
            anchors=learning.anchors,
            step_samples=learning.step_samples or STEP_SAMPLES[settings.backend == "tinker"],
            passes=learning.passes,
            max_staleness=learning.max_staleness,
        )

    def reads_verdict_of(self, turn: ScoredTurn) -> bool:
        """Whether the turn's verdict enters the surrogate."""
        verdict = turn.verdict
        return (
            self.reads_verdicts
            and bool(verdict.value)
            and (not self.only_explicit or verdict.source.startswith(EXPLICIT_SOURCES))
        )

    def has_signal(self, turn: ScoredTurn) -> bool:
        """Whether a turn counts towards a batch: it states a lasting wish, or has a verdict that the method reads."""
        return (self.reads_wishes and turn.verdict.states_wish) or self.reads_verdict_of(turn)

    def rates(self, count: int) -> Sequence[float]:
        """Return the learning rate of each of so many optimizer steps, as a share of the whole: linear decay to a tenth."""
        return [1.0 - 0.9 * number / max(1, count - 1) for number in range(count)]
