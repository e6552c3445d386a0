"""What words do to the base model, measured by log-probabilities alone: which wishes are alike, and which replies follow one.

============  ================================================================================================================
effect        how a wish in the prompt changes the log-probability of each token of the base model's own replies to the probe
              questions, less what neutral words change there. Rewordings of a wish point in the same direction
follows       a reply follows a wish when the base model finds it likelier with the wish in the prompt than without: the log
              of the ratio is above 0 (a likelihood-ratio test with equal priors)
============  ================================================================================================================

The base model never changes, so its replies and the effects are kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainer.protocol import Policy, Reply, Weights
from wire.wish_text import add_wishes

#: Replies by which it is measured whether a wish is followed, and their longest, in tokens.
PROBES, MAX_TOKENS = 12, 48
#: Of these, the replies by which effects are compared, and how much of them.
_EFFECT_PROBES, _EFFECT_TOKENS = 4, 32
#: Words behind a question that ask for nothing.
NEUTRAL = ("It is raining here today.", "I have a question.", "Here is the next one.")

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """Shares of replies that follow a wish, in [0, 1], by the base model's own judgement.

    Attributes:
        base: of the base model's replies without the wish.
        told: of the teacher's replies, who reads it.
        weights: of the policy's replies without it; None: not measured.
        replies: fewest replies behind a share.
    """

    base: float
    told: float
    weights: float | None = None
    replies: int = 0


class WishMeter:
    """Measures wishes on the base model of a policy.

    Args:
        questions: that nobody taught on; the first `PROBES` are used.
        place: where wishes stand in the prompt; see `wire.wish_text.add_wishes`.
    """

    def __init__(self, policy: Policy, questions: Sequence[str], place: str) -> None:
        self._policy = policy
        self._questions = tuple(questions[:PROBES])
        self.place = place
        self._replies: list[Reply] = []
        self._effects: dict[str, tuple[float, ...]] = {}
        self._plain: list[list[float]] = []
        #: Log-probabilities of replies to questions without a wish.
        self._without: dict[tuple[str, Ids], float] = {}

    def prompt(self, question: str, text: str = "") -> Ids:
        """Prompt ids of a question with this text of wishes."""
        return tuple(self._policy.render(add_wishes([_asked(question)], text, self.place)))

    @property
    def probes(self) -> list[tuple[str, Reply]]:
        """The questions with the base model's replies."""
        if not self._replies:
            self._replies = self._policy.sample(
                [self.prompt(one) for one in self._questions],
                max_tokens=MAX_TOKENS,
                weights=Weights.BASE,
                seed=1,
            )
        return [
            (one, reply) for one, reply in zip(self._questions, self._replies, strict=True) if reply.token_ids
        ]

    def effect(self, text: str) -> tuple[float, ...]:
        """Change [N] of the log-probabilities of the probe replies' tokens, less the mean change by neutral words."""
        if text not in self._effects:
            neutral = [self._change(words) for words in NEUTRAL if words != text]
            middle = [sum(column) / len(neutral) for column in zip(*neutral, strict=True)]
            self._effects[text] = tuple(a - b for a, b in zip(self._change(text), middle, strict=True))
        return self._effects[text]

    def cosine(self, one: str, other: str) -> float:
        """Cosine of two effects, 0 where one of them is nothing."""
        a, b = self.effect(one), self.effect(other)
        scale = math.hypot(*a) * math.hypot(*b)
        return sum(x * y for x, y in zip(a, b, strict=True)) / scale if scale else 0.0

    def size(self, text: str) -> float:
        """Root mean square of an effect, nats a token."""
        values = self.effect(text)
        return math.hypot(*values) / math.sqrt(len(values))

    def _change(self, text: str) -> list[float]:
        if not self._plain:
            self._plain = self._read("")
        with_text = self._read(text)
        return [
            b - a
            for row, plain in zip(with_text, self._plain, strict=True)
            for a, b in zip(plain, row, strict=True)
        ]

    def _read(self, text: str) -> list[list[float]]:
        probes = self.probes[:_EFFECT_PROBES]
        prompts = [self.prompt(question, text) for question, _ in probes]
        return self._logprobs(prompts, [reply.token_ids[:_EFFECT_TOKENS] for _, reply in probes])

    def follows(self, text: str, replies: Sequence[tuple[str, Ids]]) -> list[bool]:
        """Whether each reply to a question, given with its tokens, follows a wish."""
        if not replies:
            return []
        unread = [one for one in replies if one not in self._without]
        if unread:
            read = self._logprobs(
                [self.prompt(question) for question, _ in unread], [ids for _, ids in unread]
            )
            self._without |= {one: sum(row) for one, row in zip(unread, read, strict=True)}
        wished = self._logprobs(
            [self.prompt(question, text) for question, _ in replies], [ids for _, ids in replies]
        )
        return [sum(row) > self._without[one] for one, row in zip(replies, wished, strict=True)]

    def base_share(self, text: str) -> float:
        """Share of the base model's plain replies that follow a wish."""
        return share(self.follows(text, [(question, reply.token_ids) for question, reply in self.probes]))

    def _logprobs(self, prompts: Sequence[Ids], replies: Sequence[Sequence[int]]) -> list[list[float]]:
        values, _ = self._policy.response_logprobs(prompts, replies, Weights.BASE)
        return [values[row, : len(reply)].tolist() for row, reply in enumerate(replies)]


def share(values: Sequence[bool]) -> float:
    """Return the share of True; 0 of nothing."""
    return sum(values) / len(values) if values else 0.0


def _asked(question: str) -> dict[str, Any]:
    return {"role": "user", "content": question}
