"""Anchors: samples that hold the policy where nobody asked it to move.

A preference that is only ever rewarded grows until an explicit wish for the opposite is ignored (measured: obeyed .98 of the time
before, .03 after 120 interactions, whatever the method). So every step also trains on prompts that say in so many words how
to answer, and on requests that need a tool, with the base model as the teacher, without a hint: there, stay what you were.

Prompts: the canaries' training anchors and half of their tool requests, and the person's own questions with an explicit
instruction behind (where the canaries list instructions).

Who speaks: `source="base"` lets the base model answer once for each prompt and keeps the answer; ``"policy"`` asks the
policy anew at every step, which puts the correction where the policy goes wrong. See docs/log.md for what was measured.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from store.errors import AlignmentError
from store.values import ScoredTurn
from trainer.advantages import directive_streams
from trainer.batch import Sample, SampleKind
from trainer.canaries import load_canaries
from trainer.policy import LocalPolicy, Weights

Source = Literal["base", "policy"]

#: Longest anchor reply, in tokens. The first ones decide on language, form and tone.
MAX_TOKENS = 64
#: Longest prompt of an anchor, in tokens: anchors are to be cheap beside the feedback they stand against.
MAX_PROMPT_TOKENS = 512
#: Of the anchors of a step, one in so many is a tool request, and one in so many the person's own question.
_TOOLS_EVERY, _OWN_EVERY = 8, 4


class Anchors:
    """The anchors of one model.

    Args:
        model: whose canaries to use; see `trainer.canaries`.
        seed: of the choice; the same seed and step give the same anchors.
        alpha: which divergence from the teacher.
    """

    def __init__(
        self, policy: LocalPolicy, model: str, *, seed: int = 0, source: Source = "base", alpha: float = 0.5
    ) -> None:
        canaries = load_canaries(model)
        self._policy, self._seed, self._source, self._alpha = policy, seed, source, alpha
        self._styles: dict[str, list[tuple[int, ...]]] = {}
        for anchor in canaries.split()[0]:
            ids = tuple(policy.render([{"role": "user", "content": anchor.prompt}]))
            self._styles.setdefault(anchor.style, []).append(ids)
        self._tools = [tuple(policy.render(case.messages, case.tools)) for case in canaries.tools[1::2]]
        self._instructions = canaries.instructions
        self._replies: dict[tuple[int, ...], tuple[int, ...]] = {}

    def draw(self, count: int, step: int, *, turns: Sequence[ScoredTurn] = ()) -> list[Sample]:
        """``count`` samples for a step, of as many different wishes as there are.

        Args:
            step: number of the step.
            turns: the person's turns, to ask their questions again with another wish.
        """
        if count < 1:
            return []
        rng = random.Random(f"{self._seed}/{step}")
        prompts = self._choose(count, step, turns, rng)
        replies = self._answer(prompts, step)
        return [
            Sample(
                turn_id=f"anchor-{step}-{i}",
                kind=SampleKind.ANCHOR,
                prompt_ids=prompt,
                completion_ids=reply,
                # No version of the policy said this: there is no sampler to be stale against.
                sampling_logprobs=None,
                teacher_prompt_ids=prompt,
                streams=directive_streams(completion_length=len(reply), alpha=self._alpha),
            )
            for i, (prompt, reply) in enumerate(zip(prompts, replies, strict=True))
            if reply
        ]

    def _choose(
        self, count: int, step: int, turns: Sequence[ScoredTurn], rng: random.Random
    ) -> list[tuple[int, ...]]:
        own = self._own_prompts(turns, rng)
        styles = sorted(self._styles)
        rng.shuffle(styles)
        chosen: list[tuple[int, ...]] = []
        for i in range(count):
            number = step * count + i
            if self._tools and number % _TOOLS_EVERY == _TOOLS_EVERY - 1:
                chosen.append(rng.choice(self._tools))
            elif own and number % _OWN_EVERY == 0:
                chosen.append(own.pop())
            else:
                chosen.append(rng.choice(self._styles[styles[i % len(styles)]]))
        return chosen

    def _own_prompts(self, turns: Sequence[ScoredTurn], rng: random.Random) -> list[tuple[int, ...]]:
        if not self._instructions:
            return []
        found = []
        for turn in turns:
            messages = with_wish(turn.messages, rng.choice(self._instructions))
            for context in (messages, messages[-1:]):
                if not context:
                    continue
                try:
                    ids = tuple(self._policy.render(context))
                except AlignmentError:
                    continue  # a template that refuses a shortened history; there are other anchors
                if len(ids) <= MAX_PROMPT_TOKENS:
                    found.append(ids)
                    break
        rng.shuffle(found)
        return found

    def _answer(self, prompts: Sequence[tuple[int, ...]], step: int) -> list[tuple[int, ...]]:
        policy = self._policy
        if self._source == "policy":
            fresh = policy.sample(prompts, max_tokens=MAX_TOKENS, seed=self._seed + step)
            return [reply.token_ids for reply in fresh]
        new = [prompt for prompt in dict.fromkeys(prompts) if prompt not in self._replies]
        if new:
            said = policy.sample(new, max_tokens=MAX_TOKENS, seed=self._seed + step, weights=Weights.BASE)
            self._replies |= {prompt: reply.token_ids for prompt, reply in zip(new, said, strict=True)}
        return [self._replies[prompt] for prompt in prompts]


def with_wish(messages: Sequence[Mapping[str, Any]], instruction: str) -> list[dict[str, Any]]:
    """The conversation up to the person's last words, with an instruction behind them; empty when they said nothing in text."""
    last = max((i for i, message in enumerate(messages) if message.get("role") == "user"), default=-1)
    if last < 0:
        return []
    content = messages[last].get("content")
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, Mapping)]
        if not all(isinstance(text, str) for text in texts):
            return []
        content = "\n".join(str(text) for text in texts)
    if not isinstance(content, str) or not content.strip():
        return []
    kept = [dict(message) for message in messages[:last]]
    return [*kept, {"role": "user", "content": f"{content.rstrip()} {instruction}"}]
