"""What a step is made of beside the claimed turns: on the built-in model, which understands a complaint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from store.settings import read_settings
from store.values import ScoredTurn
from tests.trainer.test_worker import ScriptedGate
from tests.trainer.turns import sampled_turn
from trainer.checkpoint import read_state
from trainer.policy import LocalPolicy
from trainer.step import Prepared, prepare
from trainer.workshop import Workshop, ask_again

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


def test_the_rate_of_a_step_is_in_proportion_to_what_its_batch_asks_for(tmp_path: Path) -> None:
    shop = workshop(tmp_path, learning_rate=1e-3)
    one = complaint(shop.policy, "one", QUESTIONS[0])
    pleased = [thanks(shop.policy, f"thanks-{i}", QUESTIONS[0]) for i in range(3)]
    recent = [1, -1] * 8  # a mean of 0: thanks have the advantage .3, a complaint with its hint asks for all
    rates = []
    for number, turns in enumerate(([one], [one, *pleased], pleased, [one]), start=1):
        outcome = shop.attempt(turns, [], recent, number)
        assert outcome.written is not None
        rates.append(outcome.metrics["learning_rate"])
        shop.undo()
    assert rates == pytest.approx([1e-3, (1 + 3 * 0.3) / 4 * 1e-3, 0.3e-3, 1e-3])
    assert outcome.written is not None
    state = read_state(outcome.written.path)
    assert state["learning_rate"] == pytest.approx(1e-3)  # it is of one batch, and no rate to go on from

    whole = workshop(tmp_path / "other", learning_rate=1e-3, rate_by_signal=False)
    outcome = whole.attempt(pleased, [], recent, 1)
    assert outcome.metrics["learning_rate"] == pytest.approx(1e-3)
    shop.attempt(pleased, [], recent, 5)
    assert 0 < size(shop.policy) < size(whole.policy)


def size(policy: LocalPolicy) -> float:
    """Of what was learnt: the Frobenius norm of all lora_B."""
    parts = [
        value for name, value in policy.snapshot().items() if name.startswith("weight/") and "lora_B" in name
    ]
    return float(torch.cat([part.flatten() for part in parts]).norm())


def test_where_nothing_passes_the_gate_for_long_each_attempt_begins_nearer_to_the_base_model(
    tmp_path: Path,
) -> None:
    shop = workshop(tmp_path, learning_rate=1e-4)
    past = [complaint(shop.policy, f"past-{i}", question) for i, question in enumerate(QUESTIONS)]
    shop.attempt(past, [], [], 1)
    shop.adopt(1)
    learnt, live = size(shop.policy), shop.policy.snapshot()
    shop._gate = ScriptedGate("facts are forgotten: 88%, base 100%")  # type: ignore[assignment]  # same method
    kept = []
    for number in range(2, 8):
        outcome = shop.attempt(past, [], [-1] * 3, number)
        assert outcome.rejected
        kept.append(outcome.metrics["kept"])
        now = shop.policy.snapshot()
        assert all(torch.equal(live[name], now[name]) for name in live if name != "rng")
    assert kept == [1.0, 1.0, 1.0, 1.0, 0.9, pytest.approx(0.81)]
    shop._gate = ScriptedGate()  # type: ignore[assignment]  # same method
    outcome = shop.attempt(past, [], [-1] * 3, 8)
    assert outcome.reason.endswith(
        "; 6 versions in a row were rejected: 73% is left of what was learnt before"
    )
    assert outcome.metrics["learning_rate"] == pytest.approx(1e-4 / 4)
    shop.adopt(8)
    assert size(shop.policy) < learnt  # a step alone would have gone on
    outcome = shop.attempt(past, [], [-1] * 3, 9)
    assert (outcome.metrics["kept"], "in a row" in outcome.reason) == (1.0, False)


def test_after_a_rollback_the_rejections_before_it_count_no_more(tmp_path: Path) -> None:
    shop = workshop(tmp_path)
    shop._gate = ScriptedGate("facts are forgotten")  # type: ignore[assignment]  # same method
    past = [complaint(shop.policy, "past", QUESTIONS[0])]
    for number in range(1, 5):
        shop.attempt(past, [], [], number)
    shop.start_over()
    assert shop.attempt(past, [], [], 5).metrics["kept"] == 1.0


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


def test_the_teacher_hears_what_was_said_in_earlier_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = workshop(tmp_path)
    told: list[tuple[str, ...]] = []

    def listen(*given: Any, hints: tuple[str, ...], **more: Any) -> Prepared:
        told.append(hints)
        return prepare(*given, hints=hints, **more)

    monkeypatch.setattr("trainer.workshop.prepare", listen)
    first = complaint(shop.policy, "first", QUESTIONS[0])
    shop.attempt([first, thanks(shop.policy, "fine", QUESTIONS[1])], [], [], 1)
    shop.adopt(1)
    assert shop.remembered == ("first",)
    second = sampled_turn(shop.policy, "second", QUESTIONS[1], verdict={"value": -1, "hint": "No emoji."})
    shop.attempt([second], [first], [], 2, [first])
    assert told == [("Too long. Shorter, please.",)] * 2 + [("Too long. Shorter, please.", "No emoji.")] * 2
    for given in ({"method": "rl"}, {"teacher_hints": 1}):
        other = workshop(tmp_path / next(iter(given)), **given)
        other.attempt([first], [], [], 1)
        other.adopt(1)
        assert other.remembered == ()


def test_past_complaints_are_answered_by_the_policy_of_today_and_their_verdicts_stay_behind(
    tmp_path: Path,
) -> None:
    shop = workshop(tmp_path)
    old = complaint(shop.policy, "old", QUESTIONS[0])
    hintless = thanks(shop.policy, "hintless", QUESTIONS[1])
    (anew,) = ask_again(shop.policy, [old, hintless], seed=5, version=7)
    (reply,) = shop.policy.sample([old.prompt_token_ids], max_tokens=64, seed=5)
    assert anew.completion.token_ids == reply.token_ids
    assert anew.completion.sampling_logprobs == reply.logprobs
    assert (anew.turn_id, anew.prompt_token_ids) == (old.turn_id, old.prompt_token_ids)
    assert (anew.verdict.value, anew.verdict.hint) == (0, old.verdict.hint)
    assert (anew.adapter_version, anew.temperature) == (7, 1.0)
    assert ask_again(shop.policy, [hintless], seed=5, version=7) == []
