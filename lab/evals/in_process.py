"""A policy that learns in this process from users' reactions, without HTTP, record or scorer process.

The step, its anchors and its gate are the trainer's own (`trainer.version_trainer`), the verdicts those of `scorers.reader`.
`lab.evals.fast` and `lab.bench.collapse` supply the users and the measurements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lab.evals.client import MAX_REPLY_TOKENS
from scorers.reader import read_turn
from store.lifecycle import DropReason
from store.settings import Settings
from store.values import AnsweredTurn, Completion, LogprobMode, NextState, Relation, ScoredTurn
from trainer.checkpoint import remove_version
from trainer.cost import BUDGET_S
from trainer.policy import LocalPolicy
from trainer.protocol import Outcome, Reply
from trainer.step import StepPlan
from trainer.version_trainer import LocalVersionTrainer

#: Verdicts that the baseline takes into account.
_RECENT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingReply:
    """A reply that waits for the user's reaction."""

    turn: AnsweredTurn
    prompt_ids: tuple[int, ...]
    version: int
    temperature: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingAttempt:
    """An attempt at version ``number``; its folder is gone."""

    number: int
    outcome: Outcome


class InProcessLearner:
    """Samples replies, scores reactions, and takes training steps on request.

    Args:
        budget_s: see `LocalVersionTrainer`.

    Raises:
        ConfigError: no such model.
    """

    def __init__(self, settings: Settings, *, budget_s: float = BUDGET_S) -> None:
        self._settings = settings
        self._plan = StepPlan.of(settings)
        self._trainer = LocalVersionTrainer(settings, budget_s=budget_s)
        self._claimed: list[ScoredTurn] = []
        self._verdicts: list[int] = []
        self._past: dict[str, ScoredTurn] = {}
        self._number = self._turns = 0
        self._unlearned_from: int | None = None

    @property
    def policy(self) -> LocalPolicy:
        return self._trainer.policy

    @property
    def notes(self) -> tuple[str, ...]:
        """The trainer's notes on how it trains on this machine."""
        return self._trainer.notes

    @property
    def version(self) -> int:
        return self._trainer.version

    def sample(self, prompts: Sequence[Sequence[int]], *, seed: int, **more: Any) -> list[Reply]:
        """Return replies at temperature 1, the default of the API."""
        return self.policy.sample(prompts, max_tokens=MAX_REPLY_TOKENS, temperature=1.0, seed=seed, **more)

    def record_reply(
        self, *, session: str, messages: Sequence[Mapping[str, Any]], prompt_ids: Sequence[int], reply: Reply
    ) -> PendingReply:
        """Record a reply to ``messages`` as a turn that waits for a reaction."""
        self._turns += 1
        turn = AnsweredTurn(
            turn_id=f"turn-{self._turns:05d}",
            session_id=session,
            policy=self._settings.policy,
            key_name="",
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
        return PendingReply(turn=turn, prompt_ids=tuple(prompt_ids), version=self.version)

    def add_reaction(self, reply: PendingReply, words: str) -> DropReason | None:
        """Score a reply by the user's reaction; returns the reason where it cannot be trained on, else None."""
        state = NextState(
            turn_id=reply.turn.turn_id,
            by_turn_id="",
            role="user",
            text=words,
            messages=({"role": "user", "content": words},),
            relation=Relation.NEXT,
            created_at=reply.turn.created_at,
        )
        turn = replace(reply.turn, next_states=(state,))
        verdict, drop = read_turn(turn, now=turn.created_at)
        if drop is not None:
            return drop
        self._claimed.append(
            ScoredTurn(
                turn_id=turn.turn_id,
                session_id=turn.session_id,
                turn_index=len(turn.messages) // 2,
                policy=turn.policy,
                key_name=turn.key_name,
                adapter_version=reply.version,
                messages=turn.messages,
                request=turn.request,
                completion=turn.completion,
                prompt_token_ids=reply.prompt_ids,
                temperature=reply.temperature,
                logprob_mode=LogprobMode.RAW,
                verdict=verdict,
                next_text=words,
                created_at=turn.created_at,
            )
        )
        return None

    def train(self) -> TrainingAttempt | None:
        """Take a training step, as the trainer's worker does, if a batch is ready or a wish is to be unlearned; None: neither.

        A version that is made of withdrawn wishes alone is attempted once from each version.
        """
        batch = self._batch()
        if not batch:
            if self._unlearned_from == self.version or not self._trainer.is_due():
                return None
            self._unlearned_from = self.version
        self._number += 1
        replayed = [self._past[turn_id] for turn_id in self._trainer.draw_replay(batch)]
        remembered = [self._past[turn_id] for turn_id in self._trainer.remembered]
        outcome = self._trainer.attempt(batch, replayed, self._verdicts[-_RECENT:], self._number, remembered)
        self._verdicts += [turn.verdict.value for turn in batch if turn.verdict.value]
        if outcome.written is not None:
            if not outcome.rejected:
                self._trainer.commit(self._number)
                # The playbook may name a turn that was not trained on.
                self._past.update((turn.turn_id, turn) for turn in batch)
            remove_version(outcome.written.path)
        return TrainingAttempt(number=self._number, outcome=outcome)

    def _batch(self) -> list[ScoredTurn]:
        ready = 0
        for end, turn in enumerate(self._claimed, 1):
            ready += self._plan.has_signal(turn)
            if ready >= self._settings.batch_size:
                batch, self._claimed = self._claimed[:end], self._claimed[end:]
                return batch
        return []
