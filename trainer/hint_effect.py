"""What a hint does to the base model, measured: along the reply that it is about, and along replies to other questions.

A complaint teaches through a teacher that has its words in context. Words that change nothing in the base model ("That is wrong, check
again.") teach nothing, and distilling that teacher takes back what earlier hints taught. So each hint is measured before it is used:

=================  ==========================================================================================
effect             largest Jensen-Shannon divergence [nat] over the tokens of a reply, base model with the hint against without
on other replies   mean effect over the reference questions: high for a wish about how to answer, low for a correction of one answer
direction          change of the token probabilities along the reference replies; rewordings of one wish point the same way
compliance         share of the policy's own replies, without the hint, that the base model finds likelier with the hint than without
=================  ==========================================================================================

Measured with the 2 M test model (12 reference questions): wishes .22 to .68, corrections and empty complaints .001 to .05, rewordings
of one wish have cosines of .95 to 1, different wishes at most .45.

The reference questions are facts that the model's canaries list; the gate asks the first ones, the references are the ones after.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from store.errors import AlignmentError
from store.values import ScoredTurn
from trainer.canaries import load_canaries
from trainer.gate import MAX_FACTS
from trainer.hindsight import after_hints
from trainer.protocol import Change, Policy, Weights
from trainer.teacher import teacher_prompt

#: Reference questions and the longest reply to each, in tokens.
REFERENCES, MAX_TOKENS = 8, 64
#: Questions that the policy answers to see which wishes it follows.
PROBES = 24
#: Log-likelihood, in nats, by which a reply speaks against a wish.
EVIDENCE = 0.5
#: Words that reject a reply and ask for nothing. What acts as they do teaches nothing and withdraws nothing.
EMPTY_COMPLAINTS = ("That is wrong.", "Please check that again.", "I do not think that is right.")
#: Contexts whose change along the references is kept.
_CACHED = 256

Hints = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a context does along the reference replies.

    Attributes:
        peaks: largest divergence of a token, nats, of each reply.
        shifts: change of probability by (reply, position, token); those of at least `trainer.protocol.LEAST_SHIFT`.
    """

    peaks: tuple[float, ...]
    shifts: Mapping[tuple[int, int, int], float]

    @classmethod
    def of(cls, changes: Sequence[Change]) -> Effect:
        return cls(
            peaks=tuple(change.peak for change in changes),
            shifts={
                (row, *place): value
                for row, change in enumerate(changes)
                for place, value in change.shifts.items()
            },
        )

    @classmethod
    def along(cls, several: Sequence[Sequence[Change]]) -> Effect:
        """The effect along several replies to each question: the largest peak counts."""
        rows = len(several[0])
        parts = [cls.of(changes) for changes in several]
        return cls(
            peaks=tuple(max(part.peaks[row] for part in parts) for row in range(rows)),
            shifts={
                (number * rows + row, place, token): value
                for number, part in enumerate(parts)
                for (row, place, token), value in part.shifts.items()
            },
        )

    @property
    def size(self) -> float:
        """Mean over the replies of the largest divergence, nats."""
        return sum(self.peaks) / len(self.peaks) if self.peaks else 0.0

    @property
    def norm(self) -> float:
        return math.sqrt(sum(value * value for value in self.shifts.values()))

    def dot(self, other: Effect) -> float:
        few, many = sorted((self.shifts, other.shifts), key=len)
        return sum(value * many.get(place, 0.0) for place, value in few.items())

    def share_of(self, other: Effect) -> float:
        """How much of another effect, which changes something, this one has: 1 where it does the same."""
        return self.dot(other) / other.norm**2

    def cosine(self, other: Effect) -> float:
        """Cosine of the two directions; 0 where one of them changes nothing."""
        scale = self.norm * other.norm
        return self.dot(other) / scale if scale else 0.0


class HintMeter:
    """Measures hints on the base model of a policy. The base model never changes, so results are kept.

    Args:
        model: whose canaries list the reference questions.
        references, probes: questions along whose replies effects are measured, and that the policy answers.
        max_tokens: longest reply.
    """

    def __init__(
        self,
        policy: Policy,
        model: str,
        *,
        references: int = REFERENCES,
        probes: int = PROBES,
        max_tokens: int = MAX_TOKENS,
    ) -> None:
        self._policy = policy
        self._references, self.probes = references, probes
        self._max_tokens = max_tokens
        facts = load_canaries(model).facts
        # The gate measures by the first ones.
        chosen = (*facts[MAX_FACTS:], *facts[:MAX_FACTS])[: max(references, probes)]
        self._questions = [[{"role": "user", "content": fact.prompt}] for fact in chosen]
        self._prompts: dict[Hints, list[tuple[int, ...]] | None] = {}
        self._replies: dict[Hints, list[tuple[int, ...]]] = {}
        self._effects: dict[Hints, Effect] = {}
        self._left_over: dict[Hints, float] = {}

    def effect(self, *hints: str) -> Effect:
        """What these hints, accepted as earlier turns, do along the base model's own replies to the reference questions."""
        if hints not in self._effects:
            _make_room(self._effects)
            self._effects[hints] = self._between((), hints, ())
        return self._effects[hints]

    @property
    def compares(self) -> bool:
        """Whether the effects of two hints are along the same replies, so that one can be a share of the other; see `_between`."""
        return self._policy.sees_distributions

    def effect_under(self, old: str, new: str) -> float:
        """What the old hint still does where the new one follows it, along replies to both; nats.

        Near 0 where the new one contradicts it, or asks for so much that the old one adds nothing.
        """
        pair = (old, new)
        if pair not in self._left_over:
            _make_room(self._left_over)
            self._left_over[pair] = self._between((new,), pair, pair).size
        return self._left_over[pair]

    def questions(self, count: int, *, skip: int = 0) -> list[list[dict[str, Any]]]:
        """So many of the probe questions as messages, others for each ``skip``."""
        start = skip * count % len(self._questions)
        return [*self._questions[start:], *self._questions[:start]][:count]

    def answered(self, *, skip: int = 0) -> list[dict[str, Any]]:
        """One of the reference questions with the base model's answer to it, as messages."""
        replies = self._replies_to(())
        place = skip % len(replies)
        return [
            *self._questions[place],
            {"role": "assistant", "content": self._policy.decode(replies[place])},
        ]

    def compliance(
        self, wishes: Sequence[str], *, seed: int = 0, weights: Weights = Weights.STUDENT
    ) -> list[float]:
        """Share of the policy's own replies to the probe questions that follow each wish, none of which stands in the prompt.

        A reply follows a wish unless the base model that reads all wishes finds it less likely than the base model that reads all but
        this one, by `EVIDENCE` nats or more. So the base model judges, and no predicate is needed.

        Args:
            wishes: as the teacher reads them, the newest last.
            seed: of the replies; the same weights and seed give the same shares.
            weights: whose replies.
        """
        texts = tuple(wishes)
        if not texts:
            return []
        probes = self._questions[: self.probes]
        plain, together = self._rendered(probes, ()), self._rendered(probes, texts)
        if plain is None or together is None:
            return [math.nan] * len(texts)
        replies = self._policy.sample(plain, max_tokens=self._max_tokens, seed=seed, weights=weights)
        answered = [(row, reply.token_ids) for row, reply in enumerate(replies) if reply.token_ids]
        whole = self._likelihoods([together[row] for row, _ in answered], [ids for _, ids in answered])
        shares = []
        for i in range(len(texts)):
            rest = self._rendered(probes, texts[:i] + texts[i + 1 :])
            assert rest is not None  # shorter than all of them
            without = self._likelihoods([rest[row] for row, _ in answered], [ids for _, ids in answered])
            followed = sum(a - b > -EVIDENCE for a, b in zip(whole, without, strict=True))
            shares.append(followed / len(probes))  # an empty reply follows nothing
        return shares

    def _likelihoods(self, prompts: Sequence[Sequence[int]], replies: Sequence[Sequence[int]]) -> list[float]:
        """Log-probability of each reply under the base model, nats, summed over its tokens."""
        if not replies:
            return []
        values, mask = self._policy.response_logprobs(prompts, replies, Weights.BASE)
        return [float(row[live].sum()) for row, live in zip(values, mask, strict=True)]

    def effect_on_turn(self, turn: ScoredTurn, hint: str, *, is_reaction: bool = True) -> Change | None:
        """What a hint does along the very reply that it is about; None where its prompt cannot be rendered again."""
        try:
            ids = self._with_hints(turn, [hint], is_reaction=is_reaction)
            (change,) = self._policy.changes([turn.prompt_token_ids], [ids], [turn.completion.token_ids])
        except AlignmentError:
            return None
        return change

    def likeness_to_empty_complaints(
        self, turn: ScoredTurn, change: Change, *, is_reaction: bool = True
    ) -> float:
        """Largest cosine between a change along a turn's reply and what `EMPTY_COMPLAINTS` do there."""
        own = Effect.of([change])
        empty = [self.effect_on_turn(turn, words, is_reaction=is_reaction) for words in EMPTY_COMPLAINTS]
        return max((own.cosine(Effect.of([one])) for one in empty if one is not None), default=0.0)

    def broken_wishes(self, turn: ScoredTurn, wishes: Sequence[str]) -> list[str]:
        """Those of the wishes that a turn's reply speaks against, by the measure of `compliance`; none where it cannot be known."""
        texts = list(wishes)
        if not texts:
            return []
        contexts = [texts, *(texts[:i] + texts[i + 1 :] for i in range(len(texts)))]
        try:
            prompts = [self._with_hints(turn, hints) for hints in contexts]
            values = self._likelihoods(prompts, [turn.completion.token_ids] * len(prompts))
        except AlignmentError:
            return []
        together, *without = values
        return [text for text, other in zip(texts, without, strict=True) if together - other <= -EVIDENCE]

    def _with_hints(
        self, turn: ScoredTurn, hints: Sequence[str], *, is_reaction: bool = True
    ) -> Sequence[int]:
        """The turn's prompt with these hints in context. Raises: AlignmentError."""
        if not hints:
            return turn.prompt_token_ids
        return teacher_prompt(
            self._policy.render,
            messages=turn.messages,
            request=turn.request,
            hint=hints[-1],
            is_reaction=is_reaction,
            recorded_prompt_ids=turn.prompt_token_ids,
            max_tokens=self._policy.max_context - len(turn.completion.token_ids),
            others=hints[:-1],
            window=self._policy.window,
        )

    # ------------------------------------------------------------------ references

    def _between(self, before: Hints, after: Hints, along: Hints) -> Effect:
        """The change from one context to another along greedy replies of the base model to a third; none where it has no room."""
        first, second = self._prompts_with(before), self._prompts_with(after)
        if first is None or second is None or self._prompts_with(along) is None:
            return Effect(peaks=(), shifts={})
        contexts: tuple[Hints, ...] = (along,)
        if not self._policy.sees_distributions:
            # Of tokens that only one context gives, nothing shows along the replies to the other.
            contexts = tuple(dict.fromkeys((along, before, after)))
        return Effect.along([self._policy.changes(first, second, self._replies_to(one)) for one in contexts])

    def _prompts_with(self, hints: Hints) -> list[tuple[int, ...]] | None:
        if hints not in self._prompts:
            _make_room(self._prompts)
            self._prompts[hints] = self._rendered(self._questions[: self._references], hints)
        return self._prompts[hints]

    def _rendered(
        self, questions: Sequence[list[dict[str, Any]]], hints: Hints
    ) -> list[tuple[int, ...]] | None:
        room = self._policy.max_context - self._max_tokens
        found = []
        for question in questions:
            messages = after_hints(question, hints) if hints else question
            try:
                ids = tuple(self._policy.render(messages))
            except AlignmentError:
                return None
            if len(ids) > room:
                return None
            found.append(ids)
        return found

    def _replies_to(self, hints: Hints) -> list[tuple[int, ...]]:
        if hints not in self._replies:
            _make_room(self._replies)
            prompts = self._prompts_with(hints)
            assert prompts is not None  # the caller has asked
            replies = self._policy.sample(
                prompts, max_tokens=self._max_tokens, temperature=0.0, weights=Weights.BASE
            )
            self._replies[hints] = [reply.token_ids for reply in replies]
        return self._replies[hints]


def _make_room(kept: dict[Hints, Any]) -> None:
    """Let the oldest entry go where there are too many; the one without hints stays."""
    if len(kept) >= _CACHED:
        del kept[next(hints for hints in kept if hints)]
