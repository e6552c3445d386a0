"""What a step is made of beside the claimed turns: on the built-in model, which understands a complaint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from store.settings import read_settings
from store.values import ScoredTurn
from tests.trainer.turns import sampled_turn
from trainer.policy import LocalPolicy
from trainer.workshop import Workshop, answer_anew

QUESTIONS = ("What is the capital of France?", "What is the capital of Peru?", "What is 2 plus 3?")


def workshop(tmp_path: Path, **given: Any) -> Workshop:
    return Workshop(
        read_settings(
            {"home": tmp_path, "method": "combine", "anchors": 2, "replay": 3, "threads": 1, **given}
        )
    )


def complaint(policy: LocalPolicy, turn_id: str, question: str) -> ScoredTurn:
    return sampled_turn(
        policy, turn_id, question, verdict={"value": -1, "hint": "Too long. Shorter, please."}
    )


def thanks(policy: LocalPolicy, turn_id: str, question: str) -> ScoredTurn:
    return sampled_turn(policy, turn_id, question, verdict={"value": 1, "hint": None})


def test_a_batch_of_thanks_is_filled_up_with_past_complaints_and_a_full_one_is_not(tmp_path: Path) -> None:
    shop = workshop(tmp_path)
    past = [complaint(shop.policy, f"past-{i}", question) for i, question in enumerate(QUESTIONS)]
    assert shop.draw_replay(past) == ()
    outcome = shop.attempt(past, [], [], 1)
    assert outcome.written is not None
    assert outcome.metrics["replayed"] == 0
    shop.adopt(1)
    pleased = [thanks(shop.policy, f"new-{i}", question) for i, question in enumerate(QUESTIONS)]
    assert shop.draw_replay([*past, *pleased]) == ()
    one = complaint(shop.policy, "new", QUESTIONS[0])
    assert len(shop.draw_replay([one, *pleased])) == 2
    drawn = shop.draw_replay(pleased)
    assert sorted(drawn) == [turn.turn_id for turn in past]
    outcome = shop.attempt(pleased, past, [-1, -1, -1], 2)
    assert outcome.metrics["replayed"] > 0
    assert outcome.metrics["turns"] == 3
    shop.adopt(2)
    # Thanks without a hint have nothing to say another time.
    assert sorted(shop.draw_replay(pleased)) == [turn.turn_id for turn in past]


def test_a_method_without_hints_repeats_turns_as_they_were(tmp_path: Path) -> None:
    shop = workshop(tmp_path, method="rl")
    few = [thanks(shop.policy, "a", QUESTIONS[0]), complaint(shop.policy, "b", QUESTIONS[1])]
    shop.attempt(few, [], [], 1)
    shop.adopt(1)
    assert len(shop.draw_replay([complaint(shop.policy, "c", QUESTIONS[2])])) == 2


def test_no_replay_is_no_replay(tmp_path: Path) -> None:
    shop = workshop(tmp_path, replay=0)
    shop.attempt([complaint(shop.policy, "a", QUESTIONS[0])], [], [], 1)
    shop.adopt(1)
    assert shop.draw_replay([thanks(shop.policy, "b", QUESTIONS[1])]) == ()


def test_past_complaints_are_answered_by_the_policy_of_today_and_their_verdicts_stay_behind(
    tmp_path: Path,
) -> None:
    shop = workshop(tmp_path)
    old = complaint(shop.policy, "old", QUESTIONS[0])
    hintless = thanks(shop.policy, "hintless", QUESTIONS[1])
    (anew,) = answer_anew(shop.policy, [old, hintless], seed=5, version=7)
    (reply,) = shop.policy.sample([old.prompt_token_ids], max_tokens=64, seed=5)
    assert anew.completion.token_ids == reply.token_ids
    assert anew.completion.sampling_logprobs == reply.logprobs
    assert (anew.turn_id, anew.prompt_token_ids) == (old.turn_id, old.prompt_token_ids)
    assert (anew.verdict.value, anew.verdict.hint) == (0, old.verdict.hint)
    assert (anew.adapter_version, anew.temperature) == (7, 1.0)
    assert answer_anew(shop.policy, [hintless], seed=5, version=7) == []
