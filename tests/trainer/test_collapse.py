"""What breaks a policy on purpose never goes live: the worker, the test model and its real gate, on a real record.

Over several versions and seeds: lab/research/2026-11-23-collapse-and-gate.md.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import pytest
import pytest_asyncio
import torch
from torch import Tensor

from cli.main import main
from store.record import Record
from store.settings import read_settings
from store.values import AdapterState, WishReading, WishScope
from tests.fixtures import PATINA_TINY
from tests.trainer.turns import as_recorded, sampled_turn
from trainer.batch import Sample, SampleKind
from trainer.gate import Gate, GateVerdict
from trainer.plan import StepPlan
from trainer.policy import LocalPolicy
from trainer.protocol import TeacherScore, Weights
from trainer.step import train
from trainer.version_trainer import LocalVersionTrainer
from trainer.worker import TrainerWorker

QUESTIONS = (
    "What is the capital of Peru?",
    "What is 3 plus 4?",
    "What is the opposite of hot?",
    "What colour is grass?",
)


@contextmanager
def open_gate() -> Iterator[None]:
    """Inside, the gate measures as ever and lets everything through."""
    examine = Gate.examine

    def letting_through(gate: Gate, *given: Any, **named: Any) -> GateVerdict:
        return replace(examine(gate, *given, **named), rejected=())

    with (
        patch("trainer.gate.Gate.examine", letting_through),
        patch("trainer.version_trainer.falls_behind", lambda rows, live: ()),
    ):
        yield


def other_tokens(policy: LocalPolicy, teacher: Literal["liar", "babbler"], seed: int) -> Tensor:
    """[V], for each token the one that the planted teacher says instead.

    A babbler takes any other. A liar stays fluent: only what opens a name or is a number is exchanged, for another such.
    """
    count = policy.vocabulary_size
    if teacher == "babbler":
        chosen = list(range(count))
    else:
        pieces = [policy.decode([token]).strip() for token in range(count)]
        chosen = [i for i, piece in enumerate(pieces) if piece[:1].isupper() or piece.isdigit()]
    # Each one's neighbour in a shuffled circle: nothing stays where it is.
    random.Random(f"other tokens/{seed}").shuffle(chosen)
    instead = torch.arange(count)
    instead[torch.tensor(chosen)] = torch.tensor([*chosen[1:], chosen[0]])
    return instead


@contextmanager
def poisoned_teacher(
    policy: LocalPolicy, teacher: Literal["liar", "babbler"], *, seed: int = 0
) -> Iterator[None]:
    """Within this context the teacher of wishes says another token for each that it would."""
    instead = other_tokens(policy, teacher, seed)
    scores = policy.teacher_scores

    def planted(
        prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], weights: Weights, **more: Any
    ) -> list[TeacherScore]:
        found = scores(prompts, responses, weights, **more)
        return [
            replace(one, support_ids=None if one.support_ids is None else instead[one.support_ids])
            for one in found
        ]

    with patch.object(policy, "teacher_scores", planted):
        yield


def nan_in_a_weight(policy: LocalPolicy, *rest: Any, **more: Any) -> dict[str, float]:
    found = train(policy, *rest, **more)
    weights = policy.snapshot()
    name = next(name for name in weights if "lora_B" in name)
    policy.restore({**weights, name: torch.full_like(weights[name], math.nan)})
    return found


def hundredfold_rate(
    policy: LocalPolicy, samples: Sequence[Sample], plan: StepPlan, **more: Any
) -> dict[str, float]:
    policy.learning_rate = 0.5
    return train(policy, samples, plan, **more)


def nothing_holds_it(
    policy: LocalPolicy, samples: Sequence[Sample], plan: StepPlan, **more: Any
) -> dict[str, float]:
    """No anchors."""
    return train(policy, [one for one in samples if one.kind is not SampleKind.ANCHOR], plan, **more)


@dataclass(slots=True)
class RunningTrainer:
    """A worker of the test model on a record, version 1 learnt from honest complaints."""

    record: Record
    worker: TrainerWorker
    trainer: LocalVersionTrainer

    async def complain(self, name: str) -> None:
        policy = self.trainer.policy
        assert isinstance(policy, LocalPolicy)
        for number, question in enumerate(QUESTIONS):
            stated = WishReading(text="Please keep your answers short.", scope=WishScope.LASTING)
            turn = sampled_turn(
                policy,
                f"{name}-{number}",
                question,
                adapter_version=self.trainer.version,
                verdict={"value": -1, "wish": stated},
            )
            await self.record.write_turns(as_recorded(turn))
            await self.record.add_verdict(turn.verdict)

    async def learn(self) -> None:
        while await self.worker.work_once():  # turns of a rejected version get one more chance
            pass

    async def live(self) -> int:
        return (await self.record.aliases())["patina-tiny"].version


@pytest_asyncio.fixture
async def running(record: Record, tmp_path: Path) -> AsyncIterator[RunningTrainer]:
    settings = read_settings(
        {
            "home": tmp_path,
            "batch_size": 4,
            "threads": 1,
        }
    )
    worker = TrainerWorker(record, settings)
    trainer = worker._trainer = LocalVersionTrainer(settings)
    made = RunningTrainer(record=record, worker=worker, trainer=trainer)
    await made.complain("healthy")
    assert await worker.work_once()
    assert await made.live() == 1
    yield made
    worker._thread.shutdown()


PLANTS: dict[str, tuple[Callable[..., dict[str, float]], str]] = {
    "nan": (nan_in_a_weight, "a weight is not a finite number"),
    "rate": (hundredfold_rate, "facts are forgotten"),
}


@pytest.mark.long_run
@pytest.mark.timeout(900)
async def test_a_planted_collapse_is_rejected_with_its_reason_and_the_version_before_it_stays_live(
    running: RunningTrainer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, (plant, _) in PLANTS.items():
        monkeypatch.setattr("trainer.version_trainer.train", plant)
        await running.complain(name)
        await running.learn()
        assert await running.live() == 1
    first, *others = await running.record.adapters("patina-tiny")
    assert first.state is AdapterState.PUBLISHED
    assert {adapter.state for adapter in others} == {AdapterState.REJECTED}
    capsys.readouterr()
    assert await asyncio.to_thread(main, ["versions", "--json", "--home", str(tmp_path)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["live"] == 1
    reasons = [version["reason"] for version in shown["versions"][1:]]
    for _, expected in PLANTS.values():
        assert any(expected in reason for reason in reasons)


@pytest.mark.long_run
@pytest.mark.timeout(900)
async def test_a_teacher_that_lies_ruins_what_nothing_guards_and_is_stopped_by_the_gate(
    running: RunningTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says other names and numbers, fluently."""
    policy = running.trainer.policy
    assert isinstance(policy, LocalPolicy)
    monkeypatch.setattr("trainer.version_trainer.train", nothing_holds_it)
    with poisoned_teacher(policy, "liar"):
        await running.complain("guarded")
        assert await running.worker.work_once()
        *_, newest = await running.record.adapters("patina-tiny")
        assert newest.state is AdapterState.REJECTED
        assert "facts are forgotten" in newest.reason
        assert await running.live() == 1
        with open_gate():
            await running.complain("open")
            assert await running.worker.work_once()
            *_, newest = await running.record.adapters("patina-tiny")
            assert newest.version == await running.live()
            assert newest.metrics["gate"]["after"]["facts"] <= 0.8


@pytest.fixture(scope="module")
def fresh() -> LocalPolicy:
    return LocalPolicy(str(PATINA_TINY), rank=4, learning_rate=1e-3, seed=0, device="cpu")


def test_what_a_planted_teacher_says_instead_is_another_token_for_each_and_lies_keep_to_names(
    fresh: LocalPolicy,
) -> None:
    every, count = torch.arange(fresh.vocabulary_size), fresh.vocabulary_size
    babble, lies = other_tokens(fresh, "babbler", 0), other_tokens(fresh, "liar", 0)
    assert sorted(babble.tolist()) == sorted(lies.tolist()) == list(range(count))
    assert not bool((babble == every).any())
    assert 0.01 * count < int((lies != every).sum()) < 0.5 * count
    assert lies[fresh.tokenizer.eos_token_id] == fresh.tokenizer.eos_token_id
