"""What words do to the base model, measured by its probabilities alone: which wishes are alike, and which replies follow one.

============  ================================================================================================================
effect        how a wish in the prompt changes the next-token probabilities along the base model's own replies to the probe
              questions, less what neutral words change there. Rewordings of a wish point in the same direction
follows       a reply follows a wish when the base model finds it likelier with the wish in the prompt than without, and than with
              neutral words in its place: the log of the ratio is above 0 (a likelihood-ratio test with equal priors). So the
              share among replies with the wish less the share among those without is a distance of the two distributions
way           how far replies are from the base model's to the teacher's: their mean log-ratio (with the wish, without), 0 where it is
              the base model's and 1 where it is the teacher's. Their distance is Jeffreys' divergence of the two. The test above
              is too strict a judge of a third model: a reply with the base model's words that ends in time counts as none
============  ================================================================================================================

Replies are greedy: of a dozen sampled ones a share is off by .14. The base model never changes, so its replies and the effects are kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainer.canaries import as_message
from trainer.protocol import Policy, Reply, Weights
from wire.wish_text import add_wishes

#: Replies by which it is measured whether a wish is followed, and their longest, in tokens.
PROBES, MAX_TOKENS = 12, 48
#: Of these, the replies by which effects are compared, and how much of them.
_EFFECT_PROBES, _EFFECT_TOKENS = 4, 32
#: Likeliest tokens of a position whose probabilities are compared.
_EFFECT_TOP = 8
#: Nats by which the log-probability of one reply differs from batch to batch at most: float32 sums in another order.
_ROUNDING = 1e-3
#: Words behind a question that ask for nothing.
NEUTRAL = ("It is raining here today.", "I have a question.", "Here is the next one.")

Ids = tuple[int, ...]
#: Change of a probability, by (reply, position, token).
Effect = dict[tuple[int, int, int], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """Shares of replies that follow a wish, in [0, 1], by the base model's own judgement.

    Attributes:
        base: of the base model's replies without the wish.
        told: of the teacher's replies, who reads it.
        weights: of the policy's replies without it: as far from ``base`` to ``told`` as the replies are; None: not measured.
        replies: fewest replies behind a share.
    """

    base: float
    told: float
    weights: float | None = None
    replies: int = 0


class WishMeter:
    """Measures wishes on the base model of a policy.

    Args:
        questions: that are never trained on; the first `PROBES` are used.
        place: where wishes stand in the prompt; see `wire.wish_text.add_wishes`.
    """

    def __init__(self, policy: Policy, questions: Sequence[str], place: str) -> None:
        self._policy = policy
        self._questions = tuple(questions[:PROBES])
        self.place = place
        self._replies: list[Reply] = []
        self._effects: dict[str, Effect] = {}
        self._changes: dict[str, Effect] = {}
        self._plain: Effect = {}
        #: Log-probabilities of whole replies by (text of wishes, question, reply).
        self._whole: dict[tuple[str, str, Ids], float] = {}

    def prompt(self, question: str, text: str = "") -> Ids:
        """Prompt ids of a question with this text of wishes."""
        return tuple(self._policy.render(add_wishes([as_message(question)], text, self.place)))

    @property
    def probes(self) -> list[tuple[str, Reply]]:
        """The questions with the base model's replies."""
        if not self._replies:
            self._replies = self._policy.sample(
                [self.prompt(one) for one in self._questions],
                max_tokens=MAX_TOKENS,
                temperature=0.0,
                weights=Weights.BASE,
            )
        return [
            (one, reply) for one, reply in zip(self._questions, self._replies, strict=True) if reply.token_ids
        ]

    def effect(self, text: str) -> Effect:
        """Change of the probabilities along the probe replies, by (reply, position, token), less the mean change by neutral words."""
        if text not in self._effects:
            neutral = [self._change(words) for words in NEUTRAL if words != text]
            found = dict(self._change(text))
            for change in neutral:
                for place, value in change.items():
                    found[place] = found.get(place, 0.0) - value / len(neutral)
            self._effects[text] = found
        return self._effects[text]

    def cosine(self, one: str, other: str) -> float:
        """Cosine of two effects, 0 where one of them is nothing."""
        a, b = self.effect(one), self.effect(other)
        scale = math.hypot(*a.values()) * math.hypot(*b.values())
        return _dot(a, b) / scale if scale else 0.0

    def clearest(self, texts: Iterable[str]) -> str:
        """Of several wordings of one wish, the one that changes most of what the others change too, and least besides; the first of equal ones.

        A complaint about one answer ("Still too long for me") changes little of it, words that give an answer away much besides.
        """
        effects = {text: self.effect(text) for text in texts}
        shared: Effect = {}
        for effect in effects.values():
            _add(shared, effect)

        def clarity(text: str) -> float:
            others = _add(dict(shared), effects[text], sign=-1.0) if len(effects) > 1 else shared
            size = math.hypot(*effects[text].values())
            scale = size * math.hypot(*others.values())
            return size * (_dot(effects[text], others) / scale) ** 2 if scale else 0.0

        return max(effects, key=clarity)

    def size(self, text: str) -> float:
        """Length of an effect, by token: the root of its mean square sum over the positions."""
        positions = sum(
            min(len(reply.token_ids), _EFFECT_TOKENS) for _, reply in self.probes[:_EFFECT_PROBES]
        )
        return math.hypot(*self.effect(text).values()) / math.sqrt(max(1, positions))

    def _change(self, text: str) -> Effect:
        if text not in self._changes:
            self._plain = self._plain or self._read("")
            now = self._read(text)
            self._changes[text] = {
                place: now.get(place, 0.0) - self._plain.get(place, 0.0)
                for place in now.keys() | self._plain.keys()
            }
        return self._changes[text]

    def _read(self, text: str) -> Effect:
        """Probabilities along the probe replies: of the likeliest tokens, where they can be told, and of the replies' own."""
        probes = self.probes[:_EFFECT_PROBES]
        replies = [reply.token_ids[:_EFFECT_TOKENS] for _, reply in probes]
        scores = self._policy.teacher_scores(
            [self.prompt(question, text) for question, _ in probes],
            replies,
            Weights.BASE,
            temperature=[1.0] * len(probes),
            top_k=_EFFECT_TOP,
        )
        found: dict[tuple[int, int, int], float] = {}
        for row, (reply, score) in enumerate(zip(replies, scores, strict=True)):
            if score.support_ids is not None and score.support_logprobs is not None:
                pairs = zip(score.support_ids.tolist(), score.support_logprobs.exp().tolist(), strict=True)
                for column, (ids, values) in enumerate(pairs):
                    found |= {(row, column, token): value for token, value in zip(ids, values, strict=True)}
            for column, (token, value) in enumerate(zip(reply, score.logprobs.exp().tolist(), strict=True)):
                found[row, column, token] = value
        return found

    def follows(self, text: str, replies: Sequence[tuple[str, Ids]]) -> list[bool]:
        """Whether each reply to a question, given with its tokens, follows a wish."""
        read = zip(*(self._read_whole(words, replies) for words in (text, "", NEUTRAL[0])), strict=True)
        return [wished > max(plain, neutral) + _ROUNDING for wished, plain, neutral in read]

    def log_ratio(self, text: str, replies: Sequence[tuple[str, Ids]]) -> float:
        """Mean of log p(reply with the wish in the prompt) − log p(reply without), in nats; 0 of no reply."""
        pairs = zip(self._read_whole(text, replies), self._read_whole("", replies), strict=True)
        return sum(wished - plain for wished, plain in pairs) / max(1, len(replies))

    def base_share(self, text: str) -> float:
        """Share of the base model's plain replies that follow a wish."""
        return share(self.follows(text, self.plain))

    @property
    def plain(self) -> list[tuple[str, Ids]]:
        """The questions with the tokens of the base model's replies."""
        return [(question, reply.token_ids) for question, reply in self.probes]

    def _read_whole(self, text: str, replies: Sequence[tuple[str, Ids]]) -> list[float]:
        """Log-probabilities of whole replies with this text in the prompt; each is read once."""
        unread = [one for one in dict.fromkeys(replies) if (text, *one) not in self._whole]
        if unread:
            prompts, ids = [self.prompt(question, text) for question, _ in unread], [ids for _, ids in unread]
            values, _ = self._policy.response_logprobs(prompts, ids, Weights.BASE)
            for row, one in enumerate(unread):
                self._whole[(text, *one)] = float(values[row, : len(one[1])].sum())
        return [self._whole[(text, *one)] for one in replies]


def _add(total: Effect, effect: Effect, sign: float = 1.0) -> Effect:
    """Add the direction of an effect, a vector of length 1."""
    length = math.hypot(*effect.values()) or 1.0
    for place, value in effect.items():
        total[place] = total.get(place, 0.0) + sign * value / length
    return total


def _dot(one: Effect, other: Effect) -> float:
    return sum(value * other.get(place, 0.0) for place, value in one.items())


def share(values: Sequence[bool]) -> float:
    """Return the share of True; 0 of nothing."""
    return sum(values) / len(values) if values else 0.0
