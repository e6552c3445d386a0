"""A trainer that starts again from a published version: what it remembers, and what it refuses to load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from store.errors import AdapterError
from store.settings import Settings, read_settings
from store.values import AdapterState, AdapterVersion
from tests.trainer.gates import open_the_gate
from tests.trainer.turns import sampled_turn
from trainer.version_trainer import LocalVersionTrainer

NAMES = ("a", "b", "c", "d", "e")


@pytest.fixture
def settings(tiny_model: Path, tmp_path: Path) -> Settings:
    return read_settings(
        {
            "home": tmp_path,
            "model_name": str(tiny_model),
            "learning_rate": 4e-4,
            "method": "rl",  # on random weights a hint has nothing to say
            "lora_rank": 4,
            "anchors": 1,
            "replay": 4,
            "teacher_hints": 1,
        }
    )


def publish(trainer: LocalVersionTrainer) -> AdapterVersion:
    """Train version 1 on a turn of each name, and adopt it."""
    open_the_gate(trainer)
    turns = [sampled_turn(trainer.policy, name, f"Question {name}?") for name in NAMES]
    outcome = trainer.attempt(turns, [], [], 1)
    assert outcome.written is not None
    trainer.commit(1)
    return AdapterVersion(
        policy="patina-tiny",
        version=1,
        path=str(outcome.written.path),
        content_hash=outcome.written.content_hash,
        manifest_hash=outcome.written.manifest_hash,
        parent_version=0,
        state=AdapterState.PUBLISHED,
        reason="",
        method="rl",
        metrics={},
        created_at=1_000.0,
    )


def test_a_restarted_workshop_repeats_the_turns_that_the_one_before_it_would_have(settings: Settings) -> None:
    before = LocalVersionTrainer(settings)
    adapter = publish(before)
    after = LocalVersionTrainer(settings)
    assert after.draw_replay([]) == ()
    after.load(adapter)
    drawn = after.draw_replay([])
    assert len(drawn) == 4
    assert set(drawn) <= set(NAMES)
    assert drawn == before.draw_replay([])
    assert after._reservoir == before._reservoir  # also the newest, whose hints the teacher gets


def test_weights_that_are_not_those_that_were_published_are_not_loaded(settings: Settings) -> None:
    trainer = LocalVersionTrainer(settings)
    adapter = publish(trainer)
    other = LocalVersionTrainer(settings)
    start = other.policy.snapshot()
    with pytest.raises(AdapterError, match="is not what was published"):
        other.load(replace(adapter, content_hash="0" * 64))
    assert other.version == 0
    assert all(torch.equal(value, other.policy.snapshot()[name]) for name, value in start.items())
