"""The learner without transport: it gives the step what the trainer's worker gives it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lab.evals.in_process import InProcessLearner
from store.settings import read_settings
from store.values import ScoredTurn
from trainer.protocol import Outcome, Reply


def test_the_baseline_of_a_batch_holds_no_verdict_of_the_batch_or_of_those_behind_it(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = InProcessLearner(
        read_settings({"home": tmp_path, "model_name": str(tiny_model), "method": "rl", "batch_size": 2})
    )
    seen: list[list[int]] = []

    def attempt(turns: Sequence[ScoredTurn], replay: Any, recent: Sequence[int], *_: Any) -> Outcome:
        seen.append(list(recent))
        return Outcome(refused={}, parent_version=0)

    monkeypatch.setattr(learner._trainer, "attempt", attempt)
    messages = [{"role": "user", "content": "Hi"}]
    reply = Reply(token_ids=(5, 6), logprobs=(-0.5, -0.5), finished=True)
    complaint, praise, neutral = "Too long, shorter please.", "Perfect, thank you!", "What is 2 plus 2?"
    for words in (complaint, neutral, praise, complaint, praise, praise, praise):
        turn = learner.record_reply(session="s", messages=messages, prompt_ids=(1, 2), reply=reply)
        assert learner.add_reaction(turn, words) is None
    for _ in range(3):
        assert learner.train() is not None
    assert seen == [[], [-1, 1], [-1, 1, -1, 1]]


def test_a_withdrawn_wish_is_unlearned_without_turns_and_once_from_each_version(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = InProcessLearner(read_settings({"home": tmp_path, "model_name": str(tiny_model)}))
    attempts: list[int] = []

    def attempt(turns: Sequence[ScoredTurn], *_: Any) -> Outcome:
        attempts.append(len(turns))
        return Outcome(refused={}, parent_version=learner.version)

    monkeypatch.setattr(learner._trainer, "attempt", attempt)
    assert learner.train() is None
    monkeypatch.setattr(learner._trainer, "is_due", lambda: True)
    assert learner.train() is not None
    assert learner.train() is None  # what came to nothing is not repeated
    learner._trainer.version = 1
    assert learner.train() is not None
    assert attempts == [0, 0]
