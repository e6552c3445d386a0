"""Verdicts, hints, teacher log-probabilities -> the per-token streams of a sample. Sans-IO, plain floats.

The method (rl, opd, combine, sdpo) exists in this file and nowhere after it: it becomes numbers on the
sample, and the objective that reads them does not know which method wrote them.

Rules of the room:
- No hint contributes exactly 0 at every position, the first included.
- A missing, short or non-finite teacher is an error that drops the sample. It never becomes zeros: a
  log-probability of 0.0 means "certain", and a teacher certain of whatever was sampled praises all of it.
- Nothing is centred or scaled within a sequence (but for comparison, `opd_centred`): that would remove a signal which all its tokens share, such
  as "this should have been in Spanish".

Shape letters: C completion tokens. Notation: r verdict, o the trainer's log-probabilities of the sampled
tokens before the step, q the teacher's, both at the sampling temperature.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from store.errors import AlignmentError
from store.values import Baseline, Method, OpdSupport

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
    def size(self) -> float:
        """How much of a whole step the sample asks for, in [0, 1]: all of it where a teacher speaks, else its mean |advantage|."""
        live = [abs(value) for value, here in zip(self.advantages, self.advantage_mask, strict=True) if here]
        return min(1.0, self.directive_weight + (sum(live) / len(live) if live else 0.0))

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
    method: Method,
    *,
    verdict: int | None,
    baseline: float,
    has_hint: bool,
    teacher_logprobs: Sequence[float] | None,
    trainer_logprobs: Sequence[float] | None,
    w_rl: float,
    w_opd: float,
    opd_support: OpdSupport,
    opd_clip: float,
    completion_length: int,
    alpha: float = 0.5,
    opd_centred: bool = False,
    blames: bool = True,
    share: float = 1.0,
) -> Streams:
    """The streams of one sample under a method.

    =========  ========================================  ==========================  =====
    method     advantages                                directive_weight            alpha
    =========  ========================================  ==========================  =====
    rl         r - baseline                              0
    opd token  clip(q - o, ±C)                           0
    opd topk   none                                      1 with a hint               1
    combine    w_rl (r - baseline), and on token          topk: w_opd with a hint     alpha
               support + w_opd clip(q - o, ±C)
    sdpo       none                                      1 with a hint               alpha
    =========  ========================================  ==========================  =====

    A verdict of 0 or none at all masks the verdict's term. opd and sdpo never read the verdict: what a
    complaint reinforces is the teacher's business there.

    Args:
        method: "rl", "opd", "combine" or "sdpo".
        verdict: r in {-1, 0, +1}; None = abstained.
        baseline: see :func:`running_baseline`.
        has_hint: whether a hint that passed the gates is in the teacher's context.
        teacher_logprobs: [C] q; needed whenever the hint enters, also where the divergence is computed
            elsewhere: they are the evidence that the teacher answered for these very tokens.
        trainer_logprobs: [C] o; needed with them.
        w_rl, w_opd: weights of the two terms of combine.
        opd_support: "topk" puts the hint into the divergence, "token" into the advantage of the sampled
            tokens.
        opd_clip: C, bound of a token's directive advantage, in nats.
        completion_length: C.
        alpha: divergence of sdpo and combine.
        opd_centred: subtract a reply's mean from its directive advantages. Off, see the rules of the room; here for
            comparison with user_interactions.
        blames: whether combine puts a complaint on every token. Without, a hint alone says what was wrong: -1 on all tokens takes
            back what earlier complaints taught about them.
        share: of the verdict's term; see `store.values.Verdict`.

    Raises:
        AlignmentError: a hinted sample without usable teacher or trainer log-probabilities.
        ValueError: an unknown method or support, a verdict outside {-1, 0, +1}, an empty completion.
    """
    _check_streams(method, opd_support, verdict, completion_length)
    w_verdict = {"rl": 1.0, "combine": w_rl}.get(method, 0.0) if verdict else 0.0
    w_hint = {"opd": 1.0, "combine": w_opd, "sdpo": 1.0}.get(method, 0.0) if has_hint else 0.0
    if method == "combine" and w_opd > 0.0 and verdict == -1 and not blames:
        w_verdict = 0.0
    on_tokens = method in ("opd", "combine") and opd_support == "token"

    advantages = [0.0] * completion_length
    if w_verdict and verdict:
        advantages = [share * w_verdict * (verdict - baseline)] * completion_length
    if w_hint:
        teacher = _checked("teacher", teacher_logprobs, completion_length)
        trainer = _checked("trainer", trainer_logprobs, completion_length)
        if on_tokens:
            directive = token_directive_advantages(teacher, trainer, clip=opd_clip, centred=opd_centred)
            advantages = [value + w_hint * extra for value, extra in zip(advantages, directive, strict=True)]
    return Streams(
        advantages=tuple(advantages),
        advantage_mask=(bool(w_verdict) or bool(w_hint and on_tokens),) * completion_length,
        directive_weight=0.0 if on_tokens else w_hint,
        directive_alpha=REVERSE_KL if method == "opd" else alpha,
    )


def _check_streams(method: str, opd_support: str, verdict: int | None, completion_length: int) -> None:
    """Raises: ValueError, see `build_streams`."""
    if method not in ("rl", "opd", "combine", "sdpo"):
        raise ValueError(f"unknown method {method!r}")
    if opd_support not in ("topk", "token"):
        raise ValueError(f"unknown opd support {opd_support!r}")
    if verdict not in (-1, 0, 1, None):
        raise ValueError(f"a verdict is -1, 0, +1 or None, not {verdict!r}")
    if completion_length < 1:
        raise ValueError("an empty completion teaches nothing")


def directive_streams(*, completion_length: int, weight: float = 1.0, alpha: float = 0.5) -> Streams:
    """Streams of a sample that only follows a teacher.

    Such are anchors (the teacher is the base model without hint) and at-least-one turns.
    """
    return Streams(
        advantages=(0.0,) * completion_length,
        advantage_mask=(False,) * completion_length,
        directive_weight=weight,
        directive_alpha=alpha,
    )


def token_directive_advantages(
    teacher_logprobs: Sequence[float],
    trainer_logprobs: Sequence[float],
    *,
    clip: float,
    centred: bool = False,
) -> tuple[float, ...]:
    """What the hint changes about each sampled token: ``clip(q - o, ±C)``, [C]; ``centred``: less their mean.

    Positive where the policy, with the hint in context, would have been more likely to say it. Only differences enter,
    never a value on its own, so that an unchanged token gets exactly 0.
    """
    values = [max(-clip, min(clip, q - o)) for q, o in zip(teacher_logprobs, trainer_logprobs, strict=True)]
    mean = sum(values) / len(values) if centred and values else 0.0
    return tuple(value - mean for value in values)


def _checked(whose: str, logprobs: Sequence[float] | None, length: int) -> Sequence[float]:
    if logprobs is None:
        raise AlignmentError(f"no {whose} log-probabilities for a hinted sample: it has to be dropped")
    if len(logprobs) != length:
        raise AlignmentError(f"{len(logprobs)} {whose} log-probabilities for {length} completion tokens")
    for position, value in enumerate(logprobs):
        # A remote teacher reports None where it has no number.
        if value is None or not math.isfinite(value) or value > LOGPROB_SLACK:
            raise AlignmentError(
                f"{whose} log-probability {value!r} at completion token {position} of {length}"
            )
    return logprobs


def directive_refusal(
    *, mean_shift: float, overlap: float | None, min_shift: float, min_overlap: float = 0.5
) -> str | None:
    """Why a hint should not teach although its teacher answered; None when it may.

    A topic change or a "thanks" shifts next to nothing, and so does a wish that the reply follows as far as the teacher
    would; a hint that makes the teacher speak of something else leaves it with few of the student's likely tokens. All teach noise.
    Source: OpenClaw-RL v2 (overlap gate at one half).

    Args:
        mean_shift: mean of |q - o| over the completion, nats.
        overlap: share of the student's top-K tokens that are in the teacher's too, mean over the completion; None: the
            teacher cannot tell.
    """
    if not mean_shift >= min_shift:
        return f"the reply is about as likely with these words in context: mean shift {mean_shift:.3f} nat below {min_shift:g}"
    if overlap is not None and not overlap >= min_overlap:
        return f"the hint changes the subject: top-K overlap {overlap:.2f} below {min_overlap:g}"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionTurn:
    """An answered turn of a session, as the at-least-one rule sees it.

    Attributes:
        verdict: -1, 0, +1 or None.
        hint: a scorer's hint, or None.
        follow_up: the person's raw next message, or None.
        support: how well the evidence bears the hint, such as the share of judges behind it or the shift it
            causes; 0 or less, or NaN: not at all.
    """

    turn_id: str
    verdict: int | None
    hint: str | None = None
    follow_up: str | None = None
    support: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AtLeastOne:
    """The turn that stands for its session; to be trained by :func:`directive_streams` with this hint."""

    turn_id: str
    hint: str
    is_reaction: bool  #: the hint is the person's own words


def at_least_one(candidates: Sequence[SessionTurn]) -> AtLeastOne | None:
    """The turn that keeps a session from teaching nothing, or None.

    A session whose verdicts are all 0 would enter the batch as rows without a gradient. Instead its
    best-supported turn is trained towards a teacher that has the hint (or else the raw follow-up) in context.
    Support decides, then having a scorer's hint, then the order of the session. **The length of a hint never
    does**: the longest one is the one that gives most of the answer away.

    Returns:
        None when a verdict already teaches, and when no turn has both support and something to learn from.
    """
    if any(candidate.verdict for candidate in candidates):
        return None
    best: AtLeastOne | None = None
    best_key = (0.0, False)
    for candidate in candidates:
        own_hint = _text(candidate.hint)
        hint = own_hint or _text(candidate.follow_up)
        key = (candidate.support, own_hint is not None)
        if hint is not None and candidate.support > 0.0 and key > best_key:
            best = AtLeastOne(turn_id=candidate.turn_id, hint=hint, is_reaction=own_hint is None)
            best_key = key
    return best


def _text(value: str | None) -> str | None:
    return value if value and value.strip() else None
