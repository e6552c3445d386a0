"""Anchors: samples that hold the policy where nobody asked it to move.

A preference that is only ever rewarded grows until an explicit wish for the opposite is ignored (measured: obeyed .98 of the time
before, .03 after 120 interactions, whatever the method). So every step also trains on prompts that say in so many words how
to answer, and on requests that need a tool, with the base model as the teacher, without a hint: there, stay what you were.

Prompts: the canaries' training anchors and their tool requests (of those that the gate measures by, half), and the person's own questions with an explicit
instruction behind (where the canaries list instructions).

Which, by drift: of one prompt of each wish, half of the anchors are those whose base reply the policy has moved away from most, the
rest are drawn blindly. What undoes a preference is what the preference breaks, and nobody has to name it.

Which, by unexcused drift: a preference shows in the replies to nearly every wish, and rightly: whoever wants Spanish wants bold
Spanish and plain Spanish, but not "in English, please" in Spanish. What tells them apart is what the base model itself says after
hearing the newest hints as earlier turns: where that takes it away from its reply too, the policy is excused, token by token.
Those that are chosen so are taught by the forward KL (where the policy is certain of the wrong word, the Jensen-Shannon divergence
has next to no gradient left) and weigh more the further they are beyond a bound. Explicit wishes are kept best by it, and
preferences are learnt more slowly (docs/learning-history.md).

Who speaks: with `source="policy"` the policy answers anew at every step, so that the correction sits where it goes wrong, and
weighs more the shorter the wrong reply; with ``"base"`` the base model's own answer is learnt again and again. Measured (built-in
model after 620 steps of pre-training, "concise", one seed; compliance and share of detailed answers on request after 32, 64, 96
interactions, before: 0 and .94): "policy" .79 .58 .90 and .41 .78 .72, "base" .81 .90 .69 and .13 .34 .69; "base" without the
choice by drift .85 and .09 after 32.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from store.errors import AlignmentError
from store.values import ScoredTurn
from trainer.advantages import FORWARD_KL, directive_streams
from trainer.batch import Sample, SampleKind
from trainer.canaries import load_canaries
from trainer.gate import MAX_TOOLS
from trainer.hindsight import after_hints
from trainer.protocol import Policy, Reply, Weights

Source = Literal["base", "policy"]
Choice = Literal["drift", "unexcused"]
_Prompt = tuple[int, ...]

#: Longest anchor reply, in tokens. The first ones decide on language, form and tone.
MAX_TOKENS = 64
#: Longest prompt of an anchor, in tokens: anchors are to be cheap beside the feedback they stand against.
MAX_PROMPT_TOKENS = 512
#: Of the anchors, one in so many is a tool request.
_TOOLS_EVERY = 4
#: At most so many of the person's own questions are asked again in a step.
_MOST_OWN = 4
#: Nats a reply below which the policy has not moved away from it.
_LEAST_DRIFT = 0.05
#: Candidates of a choice by unexcused drift: prompts of each wish, instructions behind the person's own questions, tool requests.
_EACH, _MOST_WISHES, _MOST_TOOLS = 2, 24, 8
#: Hints that excuse drift, and what they may add to a prompt, in tokens.
_MOST_HINTS, _MOST_HINT_TOKENS = 8, 512
#: Padded tokens of one scoring pass, and base replies kept.
_MICRO_TOKENS, _KEPT_REPLIES = 8_192, 2_048


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A prompt that may become an anchor. `messages`: what it is made of; None for a tool request, which no hint is about."""

    prompt: _Prompt
    messages: tuple[Mapping[str, Any], ...] | None = None


class Anchors:
    """The anchors of one model.

    Args:
        model: whose canaries to use; see `trainer.canaries`.
        seed: of the choice; the same seed and step give the same anchors.
        alpha: which divergence from the teacher.
        choice: by which drift; see the head of this file.
        bound: unexcused: nats a reply of drift up to which an anchor weighs 1; 0: all weigh 1.
        most_weight: unexcused: of one anchor. Beyond a few the weights of one step fill Adam's second moment, and the steps after it
            learn nothing.
        excuse: unexcused: how many times what hints do to the base model excuses the policy: 1 / (1 - the teacher's carry), where it
            comes to rest.
        max_tokens: longest reply to an anchor.
    """

    def __init__(
        self,
        policy: Policy,
        model: str,
        *,
        seed: int = 0,
        source: Source = "policy",
        alpha: float = 0.5,
        choice: Choice = "drift",
        bound: float = 0.0,
        most_weight: float = 1.0,
        excuse: float = 2.0,
        max_tokens: int = MAX_TOKENS,
    ) -> None:
        self._max_tokens = max_tokens
        canaries = load_canaries(model)
        self._policy, self._seed, self._source, self._alpha = policy, seed, source, alpha
        self._choice = choice
        self._bound, self._most_weight, self._excuse = bound, most_weight, excuse
        self._styles: dict[str, list[_Prompt]] = {}
        self._messages: dict[_Prompt, tuple[Mapping[str, Any], ...]] = {}
        for anchor in canaries.split()[0]:
            ids = tuple(policy.render([{"role": "user", "content": anchor.prompt}]))
            self._styles.setdefault(anchor.style, []).append(ids)
            self._messages[ids] = (_said("user", anchor.prompt),)
        # The gate measures by the first ones; of those, half. Few requests are learnt by heart, and others break.
        requests = (*canaries.tools[1:MAX_TOOLS:2], *canaries.tools[MAX_TOOLS:])
        self._tools = [tuple(policy.render(case.messages, case.tools)) for case in requests]
        self._instructions = canaries.instructions
        self._base: dict[_Prompt, Reply] = {}
        self._hints: dict[str, None] = {}

    def draw(
        self,
        count: int,
        step: int,
        *,
        turns: Sequence[ScoredTurn] = (),
        replayed: Sequence[ScoredTurn] = (),
    ) -> list[Sample]:
        """``count`` samples for a step, of as many different wishes as there are.

        Args:
            step: number of the step.
            turns: the person's turns, to ask their questions again with another wish, and for what they hint at.
            replayed: unexcused: older ones, for the same.
        """
        if count < 1:
            return []
        rng = random.Random(f"{self._seed}/{step}")
        drift: dict[_Prompt, float] = {}
        if self._choice == "unexcused":
            prompts, drift = self._choose_unexcused(count, step, [*turns, *replayed], rng)
        else:
            prompts = self._choose(count, step, self._candidates(turns, rng), rng)
        return [
            Sample(
                turn_id=f"anchor-{step}-{i}",
                kind=SampleKind.ANCHOR,
                prompt_ids=prompt,
                completion_ids=reply,
                # No version of the policy said this: there is no sampler to be stale against.
                sampling_logprobs=None,
                teacher_prompt_ids=prompt,
                streams=directive_streams(
                    completion_length=len(reply),
                    weight=self._weight(drift.get(prompt, 0.0)),
                    alpha=FORWARD_KL if prompt in drift else self._alpha,
                ),
            )
            for i, (prompt, reply) in enumerate(zip(prompts, self._answer(prompts, step), strict=True))
            if reply
        ]

    def _candidates(self, turns: Sequence[ScoredTurn], rng: random.Random) -> list[_Prompt]:
        """One prompt of each wish, and the person's own questions."""
        found = [rng.choice(prompts) for _, prompts in sorted(self._styles.items())]
        own = self._own_prompts(turns, rng)[:_MOST_OWN]
        return list(dict.fromkeys([*found, *own]))

    def _choose(
        self, count: int, step: int, candidates: Sequence[_Prompt], rng: random.Random
    ) -> list[_Prompt]:
        tools = self._due_tools(count, step, rng)
        chosen, _ = self._mixed(count - len(tools), self._drift(candidates), candidates, rng)
        return [*chosen, *tools]

    def _due_tools(self, count: int, step: int, rng: random.Random) -> list[_Prompt]:
        numbers = range(step * count, (step + 1) * count)
        return [
            rng.choice(self._tools) for n in numbers if self._tools and n % _TOOLS_EVERY == _TOOLS_EVERY - 1
        ]

    def _mixed(
        self, wanted: int, drift: Mapping[_Prompt, float], blind: Sequence[_Prompt], rng: random.Random
    ) -> tuple[list[_Prompt], list[_Prompt]]:
        """So many prompts, up to half of them those that drifted most, the rest drawn from ``blind``; and which those were."""
        ranked = sorted(drift, key=lambda prompt: drift[prompt], reverse=True)
        focused = [prompt for prompt in ranked if drift[prompt] > _LEAST_DRIFT][: wanted // 2]
        others = [prompt for prompt in blind if prompt not in focused]
        rng.shuffle(others)
        chosen = [*focused, *others][:wanted]
        # more anchors than wishes: some wishes come twice
        everything = list(drift)
        chosen += [rng.choice(everything) for _ in range(wanted - len(chosen))]
        return chosen, focused

    def _weight(self, drift: float) -> float:
        return max(1.0, min(self._most_weight, drift / self._bound)) if self._bound else 1.0

    def _choose_unexcused(
        self, count: int, step: int, turns: Sequence[ScoredTurn], rng: random.Random
    ) -> tuple[list[_Prompt], dict[_Prompt, float]]:
        """The prompts of a step; of those that were chosen for it, the unexcused drift."""
        tools = self._due_tools(count, step, rng)
        styles = [rng.sample(some, min(_EACH, len(some))) for _, some in sorted(self._styles.items())]
        candidates = [
            *(_Candidate(prompt=ids, messages=self._messages[ids]) for some in styles for ids in some),
            *self._own(turns, rng),
            *(_Candidate(prompt=ids) for ids in rng.sample(self._tools, min(_MOST_TOOLS, len(self._tools)))),
        ]
        drift = self._unexcused_drift(candidates, turns)
        chosen, focused = self._mixed(count - len(tools), drift, [some[0] for some in styles], rng)
        return [*chosen, *tools], {prompt: drift[prompt] for prompt in focused}

    def _unexcused_drift(
        self, candidates: Sequence[_Candidate], turns: Sequence[ScoredTurn]
    ) -> dict[_Prompt, float]:
        """Nats by which the policy makes the base model's reply to each prompt less likely, token by token less those by which
        the turns' hints make the base model itself do so; what is left above 0 summed over the reply.

        A lost wish shows at one token (to stop or to go on, the first one of a language); a mean over tokens would hide it, and
        in a sum before the excuse so would another token that is excused by more than was lost.
        """
        known = {one.prompt: one for one in candidates}
        self._learn_base_replies(list(known))
        asked = [prompt for prompt in known if self._base[prompt].token_ids]
        lost = self._lost(asked, asked, Weights.STUDENT)
        hints = self._remember(turns)
        most = min(MAX_PROMPT_TOKENS + _MOST_HINT_TOKENS, self._room)
        moved: list[_Prompt] = []
        told: list[_Prompt] = []
        for prompt in asked:
            if hints and _above_zero(lost[prompt]) > _LEAST_DRIFT and (messages := known[prompt].messages):
                ids = self._render(after_hints(messages, hints), most)
                if ids is not None:
                    moved.append(prompt)
                    told.append(ids)
        for prompt, excuse in self._lost(moved, told, Weights.BASE).items():
            lost[prompt] = lost[prompt] - self._excuse * excuse.clamp(min=0.0)
        return {prompt: _above_zero(lost[prompt]) if prompt in lost else 0.0 for prompt in known}

    def _remember(self, turns: Sequence[ScoredTurn]) -> list[str]:
        """The newest hints, those of earlier steps too: what was learnt of them shows in batches that say nothing of them."""
        for turn in turns:
            if hint := turn.verdict.hint:
                self._hints.pop(hint, None)
                self._hints[hint] = None
        for old in list(self._hints)[:-_MOST_HINTS]:
            del self._hints[old]
        return list(self._hints)

    def _lost(
        self, prompts: Sequence[_Prompt], contexts: Sequence[_Prompt], weights: Weights
    ) -> dict[_Prompt, Tensor]:
        """Nats by which these weights make each token of the base replies to the prompts less likely behind these contexts, [C]."""
        read = self._read(prompts, contexts, weights)
        return {prompt: torch.tensor(self._base[prompt].logprobs) - own.cpu() for prompt, own in read}

    def _read(
        self, prompts: Sequence[_Prompt], contexts: Sequence[_Prompt], weights: Weights = Weights.STUDENT
    ) -> Iterator[tuple[_Prompt, Tensor]]:
        """Each prompt with the log-probabilities [C] that these weights give to its base reply behind its context."""
        rows = max(1, _MICRO_TOKENS // max((len(ids) + self._max_tokens for ids in contexts), default=1))
        for start in range(0, len(prompts), rows):
            part = prompts[start : start + rows]
            said = [self._base[prompt].token_ids for prompt in part]
            own, mask = self._policy.response_logprobs(contexts[start : start + rows], said, weights)
            for row, prompt in enumerate(part):
                yield prompt, own[row][mask[row]]

    def _own(self, turns: Sequence[ScoredTurn], rng: random.Random) -> list[_Candidate]:
        """Instructions, each behind one of the person's own questions."""
        if not turns:
            return []
        found = []
        for instruction in rng.sample(self._instructions, min(_MOST_WISHES, len(self._instructions))):
            asked = self._asked_again(rng.choice(turns), instruction, min(MAX_PROMPT_TOKENS, self._room))
            if asked is not None:
                found.append(asked)
        return found

    @property
    def _room(self) -> int:
        """Tokens of a prompt behind which the longest reply still fits."""
        return self._policy.max_context - self._max_tokens

    def _asked_again(self, turn: ScoredTurn, instruction: str, most: int) -> _Candidate | None:
        """The question of a turn with an instruction behind it, with what went before it where that fits."""
        messages = with_wish(turn.messages, instruction)
        for context in (messages, messages[-1:]):
            ids = self._render(context, most)
            if ids is not None:
                return _Candidate(prompt=ids, messages=tuple(context))
        return None

    def _render(self, messages: Sequence[Mapping[str, Any]], most: int) -> _Prompt | None:
        """None: nothing was said, it is too long, or the template refuses such a history; there are other anchors."""
        if not messages:
            return None
        try:
            ids = tuple(self._policy.render(messages))
        except AlignmentError:
            return None
        return ids if len(ids) <= most else None

    def _drift(self, prompts: Sequence[_Prompt]) -> dict[_Prompt, float]:
        """Nats by which the policy makes the base model's reply to each prompt less likely, summed over the reply: an estimate
        of KL(base ‖ policy). A lost wish shows at one token (to stop or to go on); a mean over tokens would hide it."""
        self._learn_base_replies(prompts)
        asked = [p for p in prompts if self._base[p].token_ids]
        found = dict.fromkeys(prompts, 0.0)
        for prompt, own in self._read(asked, asked):
            found[prompt] = sum(self._base[prompt].logprobs) - float(own.sum())
        return found

    def _own_prompts(self, turns: Sequence[ScoredTurn], rng: random.Random) -> list[_Prompt]:
        if not self._instructions:
            return []
        asked = (self._asked_again(turn, rng.choice(self._instructions), MAX_PROMPT_TOKENS) for turn in turns)
        found = [one.prompt for one in asked if one is not None]
        rng.shuffle(found)
        return found

    def _answer(self, prompts: Sequence[_Prompt], step: int) -> list[tuple[int, ...]]:
        if self._source == "policy":
            fresh = self._policy.sample(prompts, max_tokens=self._max_tokens, seed=self._seed + step)
            return [reply.token_ids for reply in fresh]
        self._learn_base_replies(prompts)
        return [self._base[prompt].token_ids for prompt in prompts]

    def _learn_base_replies(self, prompts: Sequence[_Prompt]) -> None:
        for old in list(self._base)[: max(0, len(self._base) - _KEPT_REPLIES)]:
            del self._base[old]
        new = [prompt for prompt in dict.fromkeys(prompts) if prompt not in self._base]
        if new:
            # Greedy, so that a reply does not depend on what it was asked together with: a worker that starts anew has the same.
            said = self._policy.sample(
                new, max_tokens=self._max_tokens, temperature=0.0, weights=Weights.BASE
            )
            self._base |= dict(zip(new, said, strict=True))


def _above_zero(values: Tensor) -> float:
    return float(values.clamp(min=0.0).sum())


def _said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


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
