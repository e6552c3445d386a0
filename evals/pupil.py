"""A policy that learns in this process from what people say to it: no HTTP, no record, no scorer process.

The step, its anchors and its gate are the trainer's own (`trainer.workshop`), the verdicts those of `scorers.rules`; what is left out
is transport. Who talks, and what is measured, is decided elsewhere (`evals.learning`, `evals.fast`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evals.client import MAX_REPLY_TOKENS
from scorers.base import compose
from scorers.rules import RULES, opens_new_topic
from store.lifecycle import DropReason
from store.settings import Settings
from store.values import AnsweredTurn, Completion, LogprobMode, NextState, Relation, ScoredTurn
from trainer.checkpoint import remove_version
from trainer.policy import LocalPolicy, Reply
from trainer.step import StepPlan
from trainer.workshop import Outcome, Workshop

#: Verdicts the baseline may look back on.
_RECENT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A reply that waits for the person's reaction."""

    turn: AnsweredTurn
    prompt_ids: tuple[int, ...]
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """An attempt at version ``number``; its folder is gone."""

    number: int
    outcome: Outcome


class Pupil:
    """Answers, hears reactions, and takes steps when told.

    Raises:
        ConfigError: no such model.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._plan = StepPlan.of(settings)
        self._workshop = Workshop(settings)
        self._claimed: list[ScoredTurn] = []
        self._verdicts: list[int] = []
        self._past: dict[str, ScoredTurn] = {}
        self._number = self._turns = 0

    @property
    def policy(self) -> LocalPolicy:
        return self._workshop.policy

    @property
    def version(self) -> int:
        return self._workshop.version

    def sample(self, prompts: Sequence[Sequence[int]], *, seed: int, **more: Any) -> list[Reply]:
        """Replies at temperature 1, as clients get them that set nothing."""
        return self.policy.sample(prompts, max_tokens=MAX_REPLY_TOKENS, temperature=1.0, seed=seed, **more)

    def say(
        self, *, session: str, messages: Sequence[Mapping[str, Any]], prompt_ids: Sequence[int], reply: Reply
    ) -> Said:
        """Take down a reply to ``messages`` as a turn that waits for a reaction."""
        self._turns += 1
        turn = AnsweredTurn(
            turn_id=f"turn-{self._turns:05d}",
            session_id=session,
            policy=self._settings.policy,
            scope="",
            messages=tuple(dict(message) for message in messages),
            request={},
            completion=Completion(
                text=self.policy.decode(reply.token_ids),
                token_ids=reply.token_ids,
                sampling_logprobs=reply.logprobs,
                finish_reason="stop" if reply.finished else "length",
            ),
            next_states=(),
            feedback=(),
            created_at=float(self._turns),
        )
        return Said(turn=turn, prompt_ids=tuple(prompt_ids), version=self.version)

    def hear(self, said: Said, words: str) -> DropReason | None:
        """Score a reply by the words that followed it; returns why nothing can be learnt from it, None when something can."""
        state = NextState(
            turn_id=said.turn.turn_id,
            by_turn_id="",
            role="user",
            text=words,
            messages=({"role": "user", "content": words},),
            relation=Relation.NEXT,
            created_at=said.turn.created_at,
        )
        turn = replace(said.turn, next_states=(state,))
        opinions = [opinion for rule in RULES if (opinion := rule.read(turn)) is not None]
        verdict, drop = compose(
            turn, opinions, now=turn.created_at, follow_up_is_question=opens_new_topic(words)
        )
        if drop is not None:
            return drop
        self._claimed.append(
            ScoredTurn(
                turn_id=turn.turn_id,
                session_id=turn.session_id,
                turn_index=len(turn.messages) // 2,
                policy=turn.policy,
                scope=turn.scope,
                adapter_version=said.version,
                messages=turn.messages,
                request=turn.request,
                completion=turn.completion,
                prompt_token_ids=said.prompt_ids,
                temperature=1.0,
                logprob_mode=LogprobMode.RAW,
                verdict=verdict,
                next_text=words,
                created_at=turn.created_at,
            )
        )
        return None

    def learn(self) -> Lesson | None:
        """Take a step if there is a batch, as the trainer's worker does; None: there is none."""
        batch = self._batch()
        if not batch:
            return None
        self._number += 1
        replayed = [self._past[turn_id] for turn_id in self._workshop.draw_replay(batch)]
        remembered = [self._past[turn_id] for turn_id in self._workshop.remembered]
        outcome = self._workshop.attempt(batch, replayed, self._verdicts[-_RECENT:], self._number, remembered)
        self._verdicts += [turn.verdict.value for turn in batch if turn.verdict.value is not None]
        if outcome.written is not None:
            if not outcome.rejected:
                self._workshop.adopt(self._number)
                self._past.update((t.turn_id, t) for t in batch if t.turn_id not in outcome.refused)
            remove_version(outcome.written.path)
        return Lesson(number=self._number, outcome=outcome)

    def _batch(self) -> list[ScoredTurn]:
        ready = 0
        for end, turn in enumerate(self._claimed, 1):
            ready += self._plan.has_signal(turn)
            if ready >= self._settings.batch_size:
                batch, self._claimed = self._claimed[:end], self._claimed[end:]
                return batch
        return []
