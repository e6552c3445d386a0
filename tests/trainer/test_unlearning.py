"""A wish is taught, listed, removed and unlearnt: test model, real worker, real record, the real command."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from cli.main import main
from store.record import Record
from store.settings import read_settings
from store.values import AdapterState
from tests.trainer.turns import as_recorded, sampled_turn
from trainer.version_trainer import LocalVersionTrainer
from trainer.wish_state import MAX_UNLEARNING_VERSIONS
from trainer.wish_training import RESIDUE
from trainer.worker import TrainerWorker

QUESTIONS = (
    "What is the capital of France?",
    "What is the capital of Peru?",
    "What is 2 plus 3?",
    "What is the capital of Japan?",
)


@pytest.mark.long_run
@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_a_removed_wish_is_unlearnt_and_facts_stay(
    record: Record, record_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = read_settings(
        {"home": tmp_path, "database": record_url, "method": "combine", "batch_size": 4, "threads": 1}
    )
    worker = TrainerWorker(record, settings)
    trainer = LocalVersionTrainer(settings)
    worker._trainer = trainer
    policy = settings.policy
    where = ["--home", str(tmp_path), "--database", record_url]

    async def command(*argv: str) -> Any:
        """What a command prints as JSON; it opens the record by itself, as beside a running Patina."""
        assert await asyncio.to_thread(main, [*argv, "--json", *where]) == 0
        return json.loads(capsys.readouterr().out)

    assert (await command("wishes"))["wishes"] == []
    for i, question in enumerate(QUESTIONS):
        turn = sampled_turn(
            trainer.policy,
            f"turn-{i}",
            question,
            verdict={"value": -1, "hint": "Answer me in Spanish.", "wishes": ("spanish",)},
        )
        await record.write_turns(as_recorded(turn))
        await record.add_verdict(turn.verdict)
    capsys.readouterr()
    assert await worker.work_once()
    taught = await command("wishes")
    (wish,) = taught["wishes"]
    assert taught["live"] == 1
    assert (wish["text"], wish["state"], wish["stated"]) == ("Answer me in Spanish.", "active", 4)
    assert wish["now"] > 0.5
    assert wish["before"] < 0.2

    assert not await worker.work_once()
    await command("wishes", "remove", "1")
    for _ in range(MAX_UNLEARNING_VERSIONS):
        if not await worker.work_once():
            break
    assert not await worker.work_once()

    versions = [a for a in await record.adapters(policy) if a.version > 1]
    assert {adapter.state for adapter in versions} == {AdapterState.PUBLISHED}
    assert {adapter.reason for adapter in versions} == {"unlearns a withdrawn wish"}
    (gone,) = (await command("wishes"))["wishes"]
    assert gone["state"] == "unlearnt"
    assert gone["now"] <= wish["before"] + RESIDUE
    facts = versions[-1].metrics["gate"]
    assert facts["after"]["facts"] >= facts["base"]["facts"] - 0.05
    worker._thread.shutdown()
