"""Explicit feedback on a turn that is trained or stale: its prompt is answered anew, and the words are the hint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scorers.rules import read_feedback
from store.lifecycle import DropReason, Stage, may_teach
from store.record import Record
from store.settings import read_settings
from store.values import EXPLICIT_SOURCE, Feedback, ScoredTurn, StepRole
from tests.making import make_verdict
from tests.trainer.test_worker import POLICY, Bench, bench, settings
from tests.trainer.turns import sampled_turn
from trainer.version_trainer import LocalVersionTrainer

__all__ = ["bench", "settings"]


def feedback(turn_id: str, text: str, score: float | None = None) -> Feedback:
    key = f"{turn_id}/{text}/{score}"
    return Feedback(
        feedback_id=key, turn_id=turn_id, score=score, text=text, idempotency_key=key, created_at=2_000.0
    )


async def give(record: Record, turn_id: str, text: str, score: float | None = None) -> None:
    """Record feedback and score its turn, as the scorer does."""
    assert await record.add_feedback(feedback(turn_id, text, score))
    for turn in await record.answered(limit=10):
        opinion = read_feedback(turn)
        assert opinion is not None
        value = 0 if opinion.value is None else opinion.value
        await record.add_verdict(
            make_verdict(turn.turn_id, value, hint=opinion.hint, source=opinion.source, created_at=2_001.0)
        )


async def test_words_about_a_trained_turn_are_trained_in_a_further_version(bench: Bench) -> None:
    await bench.add("a", "b")
    assert await bench.worker.work_once()
    assert await bench.stages("a", "b") == [Stage.TRAINED, Stage.TRAINED]
    await give(bench.record, "a", "Shorter, please.")
    assert await bench.stages("a", "b") == [Stage.SCORED, Stage.TRAINED]
    assert await bench.record.verify() == []
    (late,) = await bench.record.scored_turns(["a"])
    assert (late.is_late, late.verdict.hint) == (True, "Shorter, please.")
    await bench.add("c")
    assert await bench.worker.work_once()
    fates = await bench.record.fates(["a", "b", "c"])
    assert {name: fate.trained_in_version for name, fate in fates.items()} == {"a": 2, "b": 1, "c": 2}
    first, second = await bench.record.lineage(POLICY, 2)
    of_first = [one for one in first.inputs.turns[StepRole.BATCH] if one[0] == "a"]
    of_second = [one for one in second.inputs.turns[StepRole.BATCH] if one[0] == "a"]
    assert of_first != of_second
    (replayed,) = await bench.record.turns_as_scored(of_first)
    assert (replayed.is_late, replayed.verdict.hint) == (
        False,
        None,
    )  # a replay of version 1 sees what it saw
    assert await bench.record.verify() == []


@pytest.mark.parametrize(("text", "score"), [("", -1.0), ("Thank you!", 1.0), ("Thank you!", None)])
async def test_a_trained_turn_stays_trained_where_the_feedback_holds_no_hint(
    bench: Bench, text: str, score: float | None
) -> None:
    await bench.add("a", "b")
    assert await bench.worker.work_once()
    await give(bench.record, "a", text, score)
    fate = (await bench.record.fates(["a"]))["a"]
    assert (fate.stage, fate.trained_in_version) == (Stage.TRAINED, 1)
    assert await bench.record.verify() == []


@pytest.mark.parametrize(
    ("reason", "stage"), [(DropReason.STALE, Stage.SCORED), (DropReason.OPTED_OUT, Stage.DROPPED)]
)
async def test_words_revive_a_stale_turn_and_none_that_must_not_train(
    bench: Bench, reason: DropReason, stage: Stage
) -> None:
    await bench.add("a")
    await bench.record.claim(POLICY, 1, worker="w", lease_s=60)
    await bench.record.drop(["a"], reason, worker="w")
    await give(bench.record, "a", "Shorter, please.")
    assert await bench.stages("a") == [stage]


def test_a_late_turn_and_a_stale_one_are_answered_by_todays_policy(tiny_model: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "home": tmp_path,
        "model_name": str(tiny_model),
        "lora_rank": 4,
        "learning_rate": 4e-4,
        "method": "opd",
    }
    trainer = LocalVersionTrainer(read_settings({**given, "anchors": 1}))
    trainer.version = 100
    hint = {"hint": "Shorter, please.", "value": -1}
    explicit = {**hint, "source": EXPLICIT_SOURCE}
    late = replace(
        sampled_turn(trainer.policy, "late", "What is a bee?", adapter_version=99, verdict=hint), is_late=True
    )
    stale, old, young = (
        sampled_turn(trainer.policy, name, "What is a bee?", adapter_version=version, verdict=verdict)
        for name, version, verdict in (("stale", 1, explicit), ("old", 1, hint), ("young", 99, explicit))
    )
    *anew, same, fresh = trainer._answer_anew([late, stale, old, young])
    for before, now in zip((late, stale), anew, strict=True):
        assert (now.adapter_version, now.prompt_token_ids) == (100, before.prompt_token_ids)
        assert (now.verdict.hint, now.verdict.value) == ("Shorter, please.", 0)
        assert now.completion.token_ids
    assert (same, fresh) == (old, young)  # an old turn without explicit feedback stays stale


def test_words_about_a_reply_that_todays_policy_would_hardly_give_are_taught_on_another(
    tiny_model: Path, tmp_path: Path
) -> None:
    given: dict[str, Any] = {
        "home": tmp_path,
        "model_name": str(tiny_model),
        "lora_rank": 4,
        "learning_rate": 4e-4,
        "method": "opd",
    }
    trainer = LocalVersionTrainer(read_settings({**given, "anchors": 1}))
    trainer.version = 3

    def turn(name: str, shift: float, **verdict: Any) -> ScoredTurn:
        """A turn that a policy sampled whose log-probabilities are higher by ``shift``."""
        made = sampled_turn(
            trainer.policy, name, "What is a bee?", adapter_version=2, verdict={"hint": "Shorter.", **verdict}
        )
        assert made.completion.sampling_logprobs is not None
        shifted = [value + shift for value in made.completion.sampling_logprobs]
        return replace(made, completion=replace(made.completion, sampling_logprobs=tuple(shifted)))

    unlike, alike = (
        turn(name, shift, source=EXPLICIT_SOURCE) for name, shift in (("unlike", 1.2), ("alike", 0.1))
    )
    unsaid = turn("unsaid", 1.2)
    anew, *same = trainer._answer_anew([unlike, alike, unsaid])
    assert (anew.adapter_version, anew.verdict.value, anew.verdict.hint) == (3, 0, "Shorter.")
    assert same == [alike, unsaid]


@pytest.mark.parametrize("has_words", [True, False])
def test_what_may_still_teach(has_words: bool) -> None:
    assert may_teach(Stage.SCORED, None, has_words=has_words)
    assert may_teach(Stage.DROPPED, DropReason.NO_SIGNAL, has_words=has_words)
    assert may_teach(Stage.TRAINED, None, has_words=has_words) is has_words
    assert may_teach(Stage.DROPPED, DropReason.STALE, has_words=has_words) is has_words
    assert not may_teach(Stage.CLAIMED, None, has_words=has_words)
    assert not may_teach(Stage.DROPPED, DropReason.SIDE_TURN, has_words=has_words)
