"""Verdicts, wishes, teacher log-probabilities -> the per-token streams of a sample. Sans-IO, plain floats.

The method (rl, opd, combine, sdpo) exists in this file and nowhere after it: it becomes numbers on the
sample, and the objective that reads them does not know which method wrote them.

Rules of the room:
- A missing, short or non-finite teacher is an error that drops the sample. It never becomes zeros: a
  log-probability of 0.0 means "certain", and a teacher certain of whatever was sampled praises all of it.
- Nothing is centred or scaled within a sequence: that would remove a signal which all its tokens share, such as "this should have been in
  Spanish".

Shape letters: C completion tokens. Notation: r verdict, o the trainer's log-probabilities of the sampled
tokens before the step, q the teacher's, both at the sampling temperature.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from store.errors import AlignmentError
from store.values import Baseline, Method

#: How many verdicts the running baseline looks back on.
BASELINE_WINDOW = 32
#: The baseline starts as if so many neutral verdicts had been seen. Without them the second complaint of a
#: person's life would be "as bad as expected" and teach nothing; with them no verdict ever has an advantage
#: of exactly 0.
BASELINE_PRIOR = 4
#: Thanks whose advantage is smaller are no news: of the last 32 opinions three in four were thanks, or of a young policy's all five.
MIN_NEWS = 0.5
#: A log-probability may exceed 0 by rounding only.
LOGPROB_SLACK = 1e-3
#: Divergence of the opd method on a token support: reverse KL, the exact expectation of its sampled-token
#: form.
REVERSE_KL = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """What one sample teaches, token by token.

    Attributes:
        advantages: [C] enters the clipped surrogate; positive makes a token likelier.
        advantage_mask: [C] where that term is live at all. An advantage of 0 that is masked is not part of
            any mean.
        directive_weight: weight of the divergence from the teacher; 0 = none.
        directive_alpha: which divergence: 0 forward KL, 1 reverse KL, between: Jensen-Shannon.
    """

    advantages: tuple[float, ...]
    advantage_mask: tuple[bool, ...]
    directive_weight: float
    directive_alpha: float = 0.5

    def __post_init__(self) -> None:
        if not self.advantages or len(self.advantages) != len(self.advantage_mask):
            raise AlignmentError(
                f"{len(self.advantages)} advantages and {len(self.advantage_mask)} mask entries "
                "for one completion"
            )
        if not all(math.isfinite(value) for value in self.advantages):
            raise ValueError("an advantage is not finite")
        if not (math.isfinite(self.directive_weight) and self.directive_weight >= 0.0):
            raise ValueError(f"directive_weight must be finite and not negative, not {self.directive_weight}")
        if not 0.0 <= self.directive_alpha <= 1.0:
            raise ValueError(f"directive_alpha must lie in [0, 1], not {self.directive_alpha}")

    @property
    def is_live(self) -> bool:
        """Whether any term reads this sample. One that is not live belongs in no batch."""
        return self.directive_weight > 0.0 or any(self.advantage_mask)

    @property
    def is_effective(self) -> bool:
        """Whether the sample asks for a change: a nonzero advantage, or a teacher."""
        return self.directive_weight > 0.0 or any(
            live and value != 0.0 for value, live in zip(self.advantages, self.advantage_mask, strict=True)
        )


def mask_constrained(streams: Streams, forced: Sequence[bool] | None) -> Streams:
    """Return streams without a verdict's term on tokens that a grammar forced: such a token was not chosen, so it is not to be judged.

    The divergence from the teacher stays: it compares distributions and asks nothing about how the token was drawn.

    Args:
        forced: [C] which tokens the grammar left no choice; None: the backend does not tell, so any may be.
    """
    blocked = (True,) * len(streams.advantages) if forced is None else forced
    if len(blocked) != len(streams.advantages):
        raise AlignmentError(f"{len(blocked)} forced flags for {len(streams.advantages)} completion tokens")
    return replace(
        streams,
        advantages=tuple(0.0 if b else a for a, b in zip(streams.advantages, blocked, strict=True)),
        advantage_mask=tuple(m and not b for m, b in zip(streams.advantage_mask, blocked, strict=True)),
    )


def running_baseline(
    recent: Sequence[int | None], *, kind: Baseline = "running", window: int = BASELINE_WINDOW
) -> float:
    """What verdict to expect of this policy by now, in (-1, 1); a verdict minus it is the advantage.

    The mean of the last ``window`` verdicts other than 0, drawn towards 0 by ``BASELINE_PRIOR``
    neutral ones. Neutral verdicts and abstentions are left out, as their turns are left out of the term
    itself.

    Args:
        recent: earlier verdicts of the policy, oldest first; never the one it is subtracted from.
        kind: "none" gives 0, so that A = r.
    """
    if kind == "none":
        return 0.0
    nonzero = [verdict for verdict in recent if verdict][-window:]
    return sum(nonzero) / (len(nonzero) + BASELINE_PRIOR)


def is_expected(verdict: int | None, baseline: float) -> bool:
    """Whether a verdict is thanks as mostly of late.

    A batch of nothing else is not to be trained on. Its advantages are next to nothing, but Adam takes a full-size step out of
    however small a gradient: what the person is content with would wear away.
    """
    return verdict == 1 and verdict - baseline < MIN_NEWS


def build_streams(
    verdict: int | None, *, baseline: float, weight: float = 1.0, completion_length: int
) -> Streams:
    """The streams of a rated reply: ``weight (r - baseline)`` on every token; a verdict of 0 or none masks the term.

    Args:
        verdict: r in {-1, 0, +1}; None = abstained.
        baseline: see :func:`running_baseline`.

    Raises:
        ValueError: a verdict outside {-1, 0, +1}, an empty completion.
    """
    if verdict not in (-1, 0, 1, None):
        raise ValueError(f"a verdict is -1, 0, +1 or None, not {verdict!r}")
    if completion_length < 1:
        raise ValueError("an empty completion teaches nothing")
    value = weight * (verdict - baseline) if verdict else 0.0
    return Streams(
        advantages=(value,) * completion_length,
        advantage_mask=(bool(verdict and weight),) * completion_length,
        directive_weight=0.0,
    )


def wish_streams(
    method: Method, completion_length: int, *, weight: float = 1.0, alpha: float = 0.5
) -> Streams:
    """The streams of a reply that follows a teacher who reads the wishes: opd's divergence is the reverse KL."""
    return directive_streams(
        completion_length=completion_length, weight=weight, alpha=REVERSE_KL if method == "opd" else alpha
    )


def token_streams(
    streams: Streams, teacher_logprobs: Sequence[float], trainer_logprobs: Sequence[float], *, clip: float
) -> Streams:
    """The directive term on the sampled tokens alone, for a teacher that tells no others: ``weight clip(q - o, ±C)``.

    Args:
        teacher_logprobs, trainer_logprobs: q and o, [C].

    Raises:
        AlignmentError: a number is missing: the sample has to be dropped.
    """
    count = len(streams.advantages)
    teacher = _checked("teacher", teacher_logprobs, count)
    trainer = _checked("trainer", trainer_logprobs, count)
    directive = token_directive_advantages(teacher, trainer, clip=clip)
    return Streams(
        advantages=tuple(
            a + streams.directive_weight * d for a, d in zip(streams.advantages, directive, strict=True)
        ),
        advantage_mask=(True,) * count,
        directive_weight=0.0,
        directive_alpha=streams.directive_alpha,
    )


def directive_streams(*, completion_length: int, weight: float = 1.0, alpha: float = 0.5) -> Streams:
    """Streams of a sample that only follows a teacher."""
    return Streams(
        advantages=(0.0,) * completion_length,
        advantage_mask=(False,) * completion_length,
        directive_weight=weight,
        directive_alpha=alpha,
    )


def token_directive_advantages(
    teacher_logprobs: Sequence[float], trainer_logprobs: Sequence[float], *, clip: float
) -> tuple[float, ...]:
    """What the wishes change about each sampled token: ``clip(q - o, ±C)``, [C].

    Positive where the policy, with the wishes in context, would have been more likely to say it. Only differences enter,
    never a value on its own, so that an unchanged token gets exactly 0.
    """
    return tuple(
        max(-clip, min(clip, q - o)) for q, o in zip(teacher_logprobs, trainer_logprobs, strict=True)
    )


def _checked(whose: str, logprobs: Sequence[float] | None, length: int) -> Sequence[float]:
    if logprobs is None:
        raise AlignmentError(
            f"no {whose} log-probabilities for a sample with a teacher: it has to be dropped"
        )
    if len(logprobs) != length:
        raise AlignmentError(f"{len(logprobs)} {whose} log-probabilities for {length} completion tokens")
    for position, value in enumerate(logprobs):
        # A remote teacher reports None where it has no number.
        if value is None or not math.isfinite(value) or value > LOGPROB_SLACK:
            raise AlignmentError(
                f"{whose} log-probability {value!r} at completion token {position} of {length}"
            )
    return logprobs
