"""What breaks a policy on purpose never goes live: the worker, the built-in model and its real gate, on a real record.

What it takes for each plant to be caught over several versions and seeds is measured by `bench.collapse`; see docs/learning.md.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cli.main import main
from store.record import Record
from store.settings import BUILTIN_FOLDER, read_settings
from store.values import AdapterState
from tests.trainer.turns import as_recorded, sampled_turn
from trainer.policy import LocalPolicy
from trainer.step import train
from trainer.worker import Worker
from trainer.workshop import Workshop

QUESTIONS = (
    "What is the capital of Peru?",
    "What is 3 plus 4?",
    "What is the opposite of hot?",
    "What colour is grass?",
)


def nan_in_a_weight(policy: LocalPolicy, *rest: Any) -> dict[str, float]:
    found = train(policy, *rest)
    weights = policy.snapshot()
    name = next(name for name in weights if "lora_B" in name)
    policy.restore({**weights, name: torch.full_like(weights[name], math.nan)})
    return found


def hundredfold_rate(policy: LocalPolicy, *rest: Any) -> dict[str, float]:
    policy.learning_rate = 0.1  # whatever a rejection before has cut it to
    return train(policy, *rest)


PLANTS: dict[str, tuple[Callable[..., dict[str, float]], str]] = {
    "nan": (nan_in_a_weight, "a weight is not a finite number"),
    "rate": (hundredfold_rate, "nat/token away from the base model"),
}


@pytest.mark.timeout(900)
async def test_a_planted_collapse_is_rejected_with_its_reason_and_the_version_before_it_stays_live(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = read_settings(
        {
            "home": tmp_path,
            "model_name": str(BUILTIN_FOLDER),
            "served_model_name": "patina-tiny",
            "batch_size": 4,
            "threads": 1,
        }
    )
    worker = Worker(record, settings)
    workshop = worker._workshop = Workshop(settings)
    policy = workshop.policy
    assert isinstance(policy, LocalPolicy)

    async def complain(name: str) -> None:
        for number, question in enumerate(QUESTIONS):
            hint = {"value": -1, "hint": "Too long, keep it short please."}
            turn = sampled_turn(
                policy, f"{name}-{number}", question, adapter_version=workshop.version,
                verdict=hint,
            )  # fmt: skip
            await record.write_turns(as_recorded(turn))
            await record.add_verdict(turn.verdict)

    try:
        await complain("healthy")
        assert await worker.work_once()
        live = policy.snapshot()
        for name, (plant, _) in PLANTS.items():
            monkeypatch.setattr("trainer.workshop.train", plant)
            await complain(name)
            while await worker.work_once():  # turns of a rejected version get one more chance
                pass
            assert (await record.aliases())[settings.policy].version == 1
            assert all(torch.equal(live[key], value) for key, value in policy.snapshot().items())
    finally:
        worker._thread.shutdown()
    first, *others = await record.adapters(settings.policy)
    assert first.state is AdapterState.PUBLISHED
    assert {adapter.state for adapter in others} == {AdapterState.REJECTED}
    capsys.readouterr()
    assert await asyncio.to_thread(main, ["versions", "--json", "--home", str(tmp_path)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["live"] == 1
    reasons = [version["reason"] for version in told["versions"][1:]]
    for _, expected in PLANTS.values():
        assert any(expected in reason for reason in reasons)
