"""Anchors: samples that hold the policy on unrelated prompts.

A preference that is only ever rewarded grows until an explicit wish for the opposite is ignored (measured: obeyed .98 of the time
before, .03 after 120 interactions, whatever the method). So every step also trains on prompts that say in so many words how
to answer, and on requests that need a tool, with the base model as the teacher, without a hint: there, stay what you were.

Prompts: the canaries' training anchors and their tool requests (of those that the gate measures by, half), and the person's own questions with an explicit
instruction behind (where the canaries list instructions).

Candidates are three prompts of each style and the user's own questions. Three of four anchors are the candidates whose base reply the policy has
moved away from most, the rest are drawn at random. What a preference breaks is thus held without being named. Measured (JSON, two
seeds): with one candidate of each style and half of the anchors chosen by drift, .42 and .81 of the explicit requests for the
opposite are obeyed after teaching; with three and three of four, .94 and .97. Two prompts besides ask for the opposite of each wish that
is taught: a narrow wish spreads to them before the drift of the others shows it (lab/research/2026-11-24-opposite-and-reader.md). They are
drawn from the canaries and from the person's questions with such an instruction behind: with those of the canaries alone fewer such
requests were obeyed on two of three seeds, .78 and .86 on average (lab/research/2026-11-27-opposite-of-own-questions.md).

Its replies are resampled at every step, so that the correction sits where it goes wrong, and weighs more the shorter the wrong reply.
Measured against the base model's own answer, learnt again and again (2 M test model after 620 steps of pre-training, "concise", one
seed; compliance and share of detailed answers on request after 32, 64, 96 interactions, before: 0 and .94): the policy's answers
.79 .58 .90 and .41 .78 .72, the base model's .81 .90 .69 and .13 .34 .69, without the choice by drift .85 and .09 after 32.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from store.errors import AlignmentError
from store.texts import whole_text
from store.values import ScoredTurn
from store.wishes import OPPOSITES
from trainer.advantages import directive_streams
from trainer.batch import Sample, SampleKind
from trainer.canaries import load_canaries
from trainer.gate import MAX_TOOLS
from trainer.protocol import Policy, Reply, Weights

_Prompt = tuple[int, ...]

#: Longest anchor reply, in tokens. The first ones decide on language, form and tone.
MAX_TOKENS = 64
#: Longest prompt of an anchor, in tokens: anchors are to be cheap beside the feedback they stand against.
MAX_PROMPT_TOKENS = 512
#: Of the anchors, one in so many is a tool request.
_TOOLS_EVERY = 4
#: Candidates of each style, and the share of anchors that are chosen by drift.
_CANDIDATES, _FOCUS = 3, 0.75
#: Anchors that ask for the opposite of a wish, for each wish that is taught; all of them at most this share of the anchors.
_AGAINST, _MOST_AGAINST = 2, 0.25
#: Style of an anchor -> label of the wish that it states, where their names differ.
_LABELS = {
    "concise": "shorter",
    "short": "shorter",
    "verbose": "longer",
    "long": "longer",
    "plain": "plain_text",
}
#: At most so many of the person's own questions are asked again in a step, of so many turns: each is rendered with several instructions.
_MOST_OWN, _MOST_TURNS = 4, 8
#: Nats a reply below which the policy has not moved away from it.
_LEAST_DRIFT = 0.05
#: Padded tokens of one scoring pass, and base replies kept.
_MICRO_TOKENS, _KEPT_REPLIES = 8_192, 2_048


class Anchors:
    """The anchors of one model.

    Args:
        model: whose canaries to use; see `trainer.canaries`.
        seed: of the choice; the same seed and step give the same anchors.
        max_tokens: longest reply to an anchor.
        most_candidates: prompts that are asked before some are chosen, for models that are slow here; None: no bound.
    """

    def __init__(
        self,
        policy: Policy,
        model: str,
        *,
        seed: int = 0,
        max_tokens: int = MAX_TOKENS,
        most_candidates: int | None = None,
    ) -> None:
        self._max_tokens = max_tokens
        self._most_candidates = most_candidates
        canaries = load_canaries(model)
        self._policy, self._seed = policy, seed
        self._styles: dict[str, list[_Prompt]] = {}
        for anchor in canaries.split()[0]:
            ids = tuple(policy.render([{"role": "user", "content": anchor.prompt}]))
            self._styles.setdefault(anchor.style, []).append(ids)
        # The gate measures by the first ones; of those, half. Few requests are learnt by heart, and others break.
        requests = (*canaries.tools[1:MAX_TOOLS:2], *canaries.tools[MAX_TOOLS:])
        self._tools = [tuple(policy.render(case.messages, case.tools)) for case in requests]
        self._instructions = canaries.instructions
        self._base: dict[_Prompt, Reply] = {}

    def draw(
        self, count: int, step: int, *, turns: Sequence[ScoredTurn] = (), labels: Collection[str] = ()
    ) -> list[Sample]:
        """``count`` samples for a step, of as many different wishes as there are.

        Args:
            step: number of the step.
            turns: the person's turns, to ask their questions again with another wish.
            labels: of the wishes that are taught; some prompts ask for the opposite of each.
        """
        if count < 1:
            return []
        rng = random.Random(f"{self._seed}/{step}")
        if len(turns) > _MOST_TURNS:
            turns = rng.sample(turns, _MOST_TURNS)
        prompts = self._choose(count, step, self._candidates(turns, rng), self._opposed(labels, turns), rng)
        return [
            Sample(
                turn_id=f"anchor-{step}-{i}",
                kind=SampleKind.ANCHOR,
                prompt_ids=prompt,
                completion_ids=reply,
                # The weights as they are answer: there is no sampler to be stale against.
                sampling_logprobs=None,
                teacher_prompt_ids=prompt,
                streams=directive_streams(completion_length=len(reply)),
            )
            for i, (prompt, reply) in enumerate(zip(prompts, self._answer(prompts, step), strict=True))
            if reply
        ]

    def _candidates(self, turns: Sequence[ScoredTurn], rng: random.Random) -> list[_Prompt]:
        """Prompts of each style, and the user's own questions."""
        found = [
            prompt
            for _, prompts in sorted(self._styles.items())
            for prompt in rng.sample(prompts, min(_CANDIDATES, len(prompts)))
        ]
        own = self._own_prompts(turns, rng)[:_MOST_OWN]
        several = list(dict.fromkeys([*found, *own]))
        if self._most_candidates is not None and len(several) > self._most_candidates:
            return rng.sample(several, self._most_candidates)
        return several

    def _opposed(self, labels: Collection[str], turns: Sequence[ScoredTurn]) -> list[list[_Prompt]]:
        """The prompts that ask for the opposite of each of these wishes, by style: the canaries', and the person's own questions."""
        opposites = {opposite for label in labels for opposite in OPPOSITES.get(label, ())}
        found = []
        for style, prompts in self._styles.items():
            if _LABELS.get(style, style) in opposites:
                texts = self._instructions.get(style, ())
                own = [self._asked_again(turn, text) for turn in turns for text in texts]
                found.append(list(dict.fromkeys([*prompts, *(prompt for prompt in own if prompt)])))
        return found

    def _choose(
        self,
        count: int,
        step: int,
        candidates: Sequence[_Prompt],
        opposed: Sequence[Sequence[_Prompt]],
        rng: random.Random,
    ) -> list[_Prompt]:
        """``count`` prompts: the tool requests that are due, those that ask for the opposite of a wish, of the others mostly those that
        drifted most, the rest at random."""
        numbers = range(step * count, (step + 1) * count)
        tools = [
            rng.choice(self._tools) for n in numbers if self._tools and n % _TOOLS_EVERY == _TOOLS_EVERY - 1
        ]
        against = [prompt for some in opposed for prompt in rng.sample(some, min(_AGAINST, len(some)))]
        against = rng.sample(against, min(len(against), int(count * _MOST_AGAINST)))
        candidates = [prompt for prompt in candidates if prompt not in against]
        wanted = count - len(tools) - len(against)
        drift = self._drift(candidates)
        ranked = sorted(drift, key=lambda prompt: drift[prompt], reverse=True)
        focused = [prompt for prompt in ranked if drift[prompt] > _LEAST_DRIFT][: int(wanted * _FOCUS)]
        others = [prompt for prompt in candidates if prompt not in focused]
        rng.shuffle(others)
        chosen = [*focused, *others][:wanted]
        # more anchors than wishes: some wishes come twice
        everything = list(drift)
        chosen += [rng.choice(everything) for _ in range(wanted - len(chosen))]
        return [*against, *chosen, *tools]

    def _asked_again(self, turn: ScoredTurn, instruction: str) -> _Prompt | None:
        """The question of a turn with an instruction behind it, with what went before it where that fits; None: the person wrote
        nothing, it is too long, or the template refuses such a history. There are other anchors."""
        messages = with_wish(turn.messages, instruction)
        if not messages:
            return None
        for context in (messages, messages[-1:]):
            try:
                ids = tuple(self._policy.render(context))
            except AlignmentError:
                continue
            if len(ids) <= MAX_PROMPT_TOKENS:
                return ids
        return None

    def _drift(self, prompts: Sequence[_Prompt]) -> dict[_Prompt, float]:
        """Nats by which the policy makes the base model's reply to each prompt less likely, summed over the reply: an estimate
        of KL(base ‖ policy). A lost wish shows at one token (to stop or to go on); a mean over tokens would hide it."""
        self._learn_base_replies(prompts)
        asked = [p for p in prompts if self._base[p].token_ids]
        found = dict.fromkeys(prompts, 0.0)
        rows = max(1, _MICRO_TOKENS // max((len(ids) + self._max_tokens for ids in asked), default=1))
        for start in range(0, len(asked), rows):
            part = asked[start : start + rows]
            own, mask = self._policy.response_logprobs(
                part, [self._base[prompt].token_ids for prompt in part]
            )
            for row, prompt in enumerate(part):
                found[prompt] = sum(self._base[prompt].logprobs) - float(own[row][mask[row]].sum())
        return found

    def _own_prompts(self, turns: Sequence[ScoredTurn], rng: random.Random) -> list[_Prompt]:
        instructions = [text for texts in self._instructions.values() for text in texts]
        if not instructions:
            return []
        asked = (self._asked_again(turn, rng.choice(instructions)) for turn in turns)
        found = [prompt for prompt in asked if prompt is not None]
        rng.shuffle(found)
        return found

    def _answer(self, prompts: Sequence[_Prompt], step: int) -> list[tuple[int, ...]]:
        fresh = self._policy.sample(prompts, max_tokens=self._max_tokens, seed=self._seed + step)
        return [reply.token_ids for reply in fresh]

    def _learn_base_replies(self, prompts: Sequence[_Prompt]) -> None:
        for old in list(self._base)[: max(0, len(self._base) - _KEPT_REPLIES)]:
            del self._base[old]
        new = [prompt for prompt in dict.fromkeys(prompts) if prompt not in self._base]
        if new:
            # Greedy, so that a reply does not depend on what it was asked together with: a restarted worker has the same.
            replies = self._policy.sample(
                new, max_tokens=self._max_tokens, temperature=0.0, weights=Weights.BASE
            )
            self._base |= dict(zip(new, replies, strict=True))


def with_wish(messages: Sequence[Mapping[str, Any]], instruction: str) -> list[dict[str, Any]]:
    """The conversation up to the person's last words, with an instruction behind them; empty when they sent no text."""
    last = max((i for i, message in enumerate(messages) if message.get("role") == "user"), default=-1)
    if last < 0:
        return []
    text = whole_text(messages[last].get("content"))
    if not text.strip():
        return []
    kept = [dict(message) for message in messages[:last]]
    return [*kept, {"role": "user", "content": f"{text.rstrip()} {instruction}"}]
