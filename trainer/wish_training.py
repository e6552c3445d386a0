"""What training does for the playbook: rehearse its wishes, unlearn withdrawn ones, and measure both before a version goes live.

Rehearsal     past complaints whose prompts are answered again; their teacher's prompt holds the whole playbook (`trainer.step`)
Unlearning    prompts on which a withdrawn wish showed, and reference questions, answered again; the teacher is the base model that reads
              the remaining wishes and carries nothing along
Contexts      the person's questions below other system prompts, answered again (`trainer.contexts`)
Measuring     `HintMeter.compliance` of every wish, of the parent version and of the candidate
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

from store.errors import AlignmentError
from store.values import Json, ScoredTurn
from trainer.advantages import directive_streams
from trainer.batch import Sample, SampleKind
from trainer.contexts import in_other_contexts
from trainer.cost import MOST
from trainer.hindsight import after_hints
from trainer.hint_effect import MAX_TOKENS, PROBES, REFERENCES, HintMeter
from trainer.hint_selection import HintSelection, effective_wording
from trainer.playbook import Playbook, Wish
from trainer.protocol import Edit, Policy, Weights
from trainer.wish_state import WishState

#: Prompts of a step on which withdrawn wishes are unlearnt.
UNLEARNING_SAMPLES = 8
#: Messages that ask for nothing, and how many of them a step has.
SMALL_TALK = (
    "Thanks!", "Many thanks to you.", "Great, that helps.", "Perfect.", "Good afternoon!", "Hi again.", "Bye for now.",
    "See you tomorrow.", "That was quick!", "Nice.", "I like that.", "You are very kind.", "Have a good evening.", "Excellent.",
    "Okay, got it.", "Gracias.", "Danke schön!", "Merci beaucoup.",
)  # fmt: skip
SMALL_TALK_SAMPLES = 2
#: Longest prompt of a question below another system prompt, in tokens.
MAX_CONTEXT_TOKENS = 768
#: Questions that are asked at least, however slow the model is.
LEAST_QUESTIONS = 4
#: A withdrawn wish is gone when so few more of the policy's replies follow it than of the base model's.
RESIDUE = 0.15
#: A version is rejected that follows a wish in so many fewer replies than its parent, or than the best version so far.
LOST_AT_ONCE, LOST_IN_ALL = 0.25, 0.35


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Shares of replies that follow each wish, by its newest wording. Withdrawn wishes are among them.

    Attributes:
        now, base: of the policy; of the base model, withdrawn wishes only.
        count: replies behind each share.
    """

    now: Mapping[str, float]
    base: Mapping[str, float] = field(default_factory=dict)
    count: int = PROBES


class WishTraining(WishState):
    """The playbook of one policy between steps.

    Args:
        model: whose canaries list the reference questions.
        seed: of the replies that are measured.
        share: of the reference and probe questions, for models that cannot afford all.
        max_tokens: longest reply to any of them.
        contexts: questions that a step asks below another system prompt.
    """

    def __init__(
        self,
        policy: Policy,
        model: str,
        *,
        seed: int,
        share: float = 1.0,
        max_tokens: int = MAX_TOKENS,
        contexts: int = MOST.contexts,
    ) -> None:
        super().__init__()
        self._contexts = contexts
        self._policy = policy
        self._seed = seed
        self._max_tokens = max_tokens
        self._meter = HintMeter(
            policy,
            model,
            references=max(LEAST_QUESTIONS, math.ceil(REFERENCES * share)),
            probes=max(LEAST_QUESTIONS, math.ceil(PROBES * share)),
            max_tokens=max_tokens,
        )

    def begin(
        self, remembered: Sequence[ScoredTurn], *, version: int, edits: Sequence[Edit] = ()
    ) -> HintSelection:
        """The hints of an attempt at ``version``, from the playbook as the record has its words now."""
        # A wish that is removed keeps its edited words: it is unlearnt by them. "" leaves a wording out.
        changed = {edit.turn_id: edit.text for edit in edits if edit.text is not None}
        self._edits = {turn_id: zlib.crc32(text.encode()) for turn_id, text in changed.items() if text}
        stated = {
            turn.turn_id: effective_wording(self._meter, turn.turn_id, turn.verdict.hint, turn.verdict.wishes)
            for turn in remembered
            if turn.verdict.hint
        }
        wordings = {
            # The owner's own words may state another wish than the person's did.
            turn_id: effective_wording(self._meter, turn_id, changed[turn_id], ())
            if changed.get(turn_id)
            else wording
            for turn_id, wording in stated.items()
            if changed.get(turn_id) != ""
        }
        playbook = Playbook.from_json(self._state, wordings, stated)
        taken_over = self._state.get("edits", {})
        new = {turn_id for turn_id, checksum in self._edits.items() if taken_over.get(turn_id) != checksum}
        if new:
            playbook = playbook.edited(Playbook.from_json(self._state, stated), new, self._meter)
        removed = {edit.turn_id for edit in edits if edit.text is None}
        playbook = playbook.without([wish for wish in playbook.wishes if removed & {*wish.turn_ids}])
        return HintSelection(self._meter, playbook, version=version, decode=self._policy.decode)

    def rehearsal(
        self,
        playbook: Playbook,
        shares: Shares,
        *,
        taught: AbstractSet[str],
        past: Sequence[ScoredTurn],
        idle: Sequence[ScoredTurn],
        least: int,
        step: int,
    ) -> list[ScoredTurn]:
        """Turns whose prompts are answered again so that the wishes stay: each with a wording of the wish as its hint.

        A step has as many samples with a teacher as there are wishes, and ``least`` of them. Wishes that the step says nothing of come
        first, those that the policy follows least before others.

        Args:
            shares: of the parent version.
            taught: turns of the step that have a teacher.
            past: the turns of the playbook, those that are still in the record.
            idle: turns of the step that teach nothing: what the person asks about now.
        """
        count = max(least, len(playbook.active)) - len(taught) if playbook.active else 0
        rng = random.Random(f"rehearsal/{self._seed}/{step}")
        order = sorted(
            playbook.active,
            key=lambda wish: (not taught.isdisjoint(wish.turn_ids), shares.now.get(wish.text, 0.0)),
        )
        known = {turn.turn_id: turn for turn in past if self._has_room(turn)}
        others = [turn for turn in idle if self._has_room(turn)]
        rng.shuffle(others)
        chosen: list[ScoredTurn] = []
        for place in range(max(0, count)):
            wish = order[place % len(order)]
            own = [known[i] for i in wish.turn_ids if i in known]
            turn = others.pop() if others and (place % 2 or not own) else rng.choice(own) if own else None
            if turn is not None:
                hint = rng.choice(wish.wordings).text
                # A prompt may come twice, with another answer each time.
                name = f"{turn.turn_id}/{place}"
                chosen.append(replace(turn, turn_id=name, verdict=replace(turn.verdict, value=0, hint=hint)))
        return chosen

    def unlearning(self, playbook: Playbook, turns: Sequence[ScoredTurn], *, number: int) -> list[Sample]:
        """Samples on which withdrawn wishes are unlearnt; none where there are none.

        Args:
            turns: the turns of the withdrawn wishes, those that are still in the record.
            number: of the attempt; others are sampled for each.
        """
        if not playbook.withdrawn:
            return []
        ids = {turn_id for wish in playbook.withdrawn for turn_id in wish.turn_ids}
        own = [turn for turn in turns if turn.turn_id in ids and self._has_room(turn)]
        own = own[: UNLEARNING_SAMPLES // 2]
        hints = [wish.text for wish in playbook.active]
        pairs = [pair for turn in own if (pair := self._pair(turn.messages, hints, turn.prompt_token_ids))]
        for question in self._meter.questions(UNLEARNING_SAMPLES - len(pairs), skip=number):
            if pair := self._pair(question, hints, None):
                pairs.append(pair)
        return self._samples(pairs, f"unlearning-{number}", seed=self._seed + number)

    def small_talk(self, playbook: Playbook, *, number: int) -> list[Sample]:
        """Thanks and greetings, answered as the base model that reads the playbook answers them.

        Such replies get no complaints and are like no other prompt of a step: without these they fall to pieces.
        """
        rng = random.Random(f"small talk/{self._seed}/{number}")
        hints = [wish.text for wish in playbook.active]
        pairs = []
        for text in rng.sample(SMALL_TALK, SMALL_TALK_SAMPLES):
            before = self._meter.answered(skip=rng.randrange(self._meter.probes))
            if pair := self._pair([*before, {"role": "user", "content": text}], hints, None):
                pairs.append(pair)
        return self._samples(pairs, f"small-talk-{number}", seed=self._seed + number)

    def other_contexts(
        self, playbook: Playbook, turns: Sequence[ScoredTurn], *, step: int
    ) -> list[ScoredTurn]:
        """The person's questions below other system prompts, each with a wording of a wish as its hint; answered as rehearsal is.

        A person has several programs, and a program changes its system prompt. What is taught below one alone is hardly followed below
        another (lab/research/2026-11-27-contexts.md).

        Args:
            turns: of the step and of the playbook.
        """
        if not playbook.active:
            return []
        rng = random.Random(f"contexts/{self._seed}/{step}")
        # Half of the context is the reply's.
        longest = min(MAX_CONTEXT_TOKENS, self._policy.max_context // 2)
        found: list[ScoredTurn] = []
        for turn, chat in in_other_contexts(turns, 2 * self._contexts, rng):
            if len(found) == self._contexts:
                break
            wording = rng.choice(rng.choice(playbook.active).wordings).text
            fitted = chat.fitted(self._policy, max_tokens=longest)
            if fitted is None:
                continue
            read, ids = fitted
            name = f"context-{len(found)}"
            found.append(
                replace(
                    turn,
                    turn_id=f"{turn.turn_id}/{name}",
                    session_id=f"{turn.session_id}/{name}",
                    messages=tuple(read.messages),
                    request=read.request,
                    prompt_token_ids=tuple(ids),
                    verdict=replace(turn.verdict, value=0, hint=wording, hint_is_reaction=True),
                )
            )
        return found

    def _samples(
        self, pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], name: str, *, seed: int
    ) -> list[Sample]:
        """What the policy answers to these prompts; the teacher is the base model that reads the second of each pair."""
        prompts = [prompt for prompt, _ in pairs]
        replies = self._policy.sample(prompts, max_tokens=self._max_tokens, seed=seed) if prompts else []
        return [
            Sample(
                turn_id=f"{name}-{i}",
                kind=SampleKind.ANCHOR,
                prompt_ids=prompt,
                completion_ids=reply.token_ids,
                sampling_logprobs=None,  # as of every anchor: there is no sampler to be stale against
                teacher_prompt_ids=hinted,
                streams=directive_streams(completion_length=len(reply.token_ids)),
            )
            for i, ((prompt, hinted), reply) in enumerate(zip(pairs, replies, strict=True))
            if reply.token_ids
        ]

    def _has_room(self, turn: ScoredTurn) -> bool:
        """Whether a turn has a prompt that can be answered again."""
        return 0 < len(turn.prompt_token_ids) <= self._policy.max_context - self._max_tokens

    def _pair(
        self, messages: Sequence[Mapping[str, Any]], hints: Sequence[str], prompt: Sequence[int] | None
    ) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """A prompt with and without the remaining wishes; None where it cannot be rendered or has no room."""
        try:
            plain = tuple(prompt if prompt is not None else self._policy.render(messages))
            hinted = tuple(self._policy.render(after_hints(messages, hints))) if hints else plain
        except (AlignmentError, ValueError):
            return None
        room = self._policy.max_context - self._max_tokens
        return (plain, hinted) if max(len(plain), len(hinted)) <= room else None

    def measure(self, playbook: Playbook) -> Shares:
        """How many of the policy's replies follow each wish now; of withdrawn ones also how many of the base model's do."""
        active = [wish.text for wish in playbook.active]
        withdrawn = [wish.text for wish in playbook.withdrawn]
        now = dict(zip(active, self._meter.compliance(active, seed=self._seed), strict=True))
        base: dict[str, float] = {}
        for text in withdrawn:
            for weights, shares in ((Weights.STUDENT, now), (Weights.BASE, base)):
                shares[text] = self._meter.compliance([*active, text], seed=self._seed, weights=weights)[-1]
        return Shares(now=now, base=base, count=self._meter.probes)

    def after(self, playbook: Playbook, shares: Shares) -> Playbook:
        """The playbook of a version with these shares: the best of each wish, and without wishes that are unlearnt."""
        return replace(
            playbook,
            wishes=tuple(
                replace(one, best=max(one.best, shares.now.get(one.text, 0.0))) for one in playbook.wishes
            ),
            withdrawn=tuple(one for one in playbook.withdrawn if not _is_unlearnt(one, shares)),
        )


def _is_unlearnt(wish: Wish, shares: Shares) -> bool:
    return shares.now[wish.text] <= shares.base[wish.text] + RESIDUE


def lost_wishes(playbook: Playbook, before: Shares, now: Shares) -> tuple[str, ...]:
    """Why a version may not be published, one sentence for each wish that it follows less. Pure.

    Args:
        before: of the parent version.
    """
    reasons = []
    for wish in playbook.active:
        then, here = before.now.get(wish.text, 0.0), now.now.get(wish.text, 0.0)
        best = max(wish.best, then)
        least = 2 / now.count  # two replies of few are no loss yet
        at_once, in_all = max(LOST_AT_ONCE, least), max(LOST_IN_ALL, least)
        if here < then - at_once or (here < then and here < best - in_all):
            reasons.append(
                f"a wish is followed less: in {here:.0%} of the replies, before {then:.0%}, best {best:.0%}"
            )
    return tuple(reasons)


def wish_rows(playbook: Playbook, before: Shares, now: Shares) -> list[Json]:
    """What a version's metrics say of its wishes: ids and numbers, no words.

    A withdrawn wish is "unlearnt" in the version that shows it no more; its successor has no row of it.
    """

    def row(wish: Wish, state: str) -> Json:
        return {
            "turns": list(wish.turn_ids),
            "labels": [list(one.labels) for one in wish.wordings],
            "as_stated": wish.is_as_stated,
            "state": state,
            "overruled_by": wish.overruled_by,
            "version": wish.version,
            "before": before.now.get(wish.text),
            "now": now.now.get(wish.text),
            "best": max(wish.best, now.now.get(wish.text, 0.0)),
        }

    return [
        *(row(wish, "overruled" if wish.overruled_by else "active") for wish in playbook.wishes),
        *(row(wish, "unlearnt" if _is_unlearnt(wish, now) else "withdrawn") for wish in playbook.withdrawn),
    ]
