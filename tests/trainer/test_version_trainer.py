"""What a step is made of beside the claimed turns: on the test model, which understands a complaint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from trainer.hint_selection import HintSelection
from trainer.playbook import Playbook
from trainer.wish_training import LOST_AT_ONCE, Shares, WishTraining

from store.lifecycle import DropReason
from store.manifest import read_attestation
from store.settings import read_settings
from store.values import ScoredTurn
from tests.trainer.gates import ScriptedGate, open_the_gate
from tests.trainer.turns import sampled_turn
from trainer.checkpoint import read_state
from trainer.policy import LocalPolicy
from trainer.protocol import Edit
from trainer.step import PreparedBatch, prepare
from trainer.version_trainer import LocalVersionTrainer, resample_replies

QUESTIONS = ("What is the capital of France?", "What is the capital of Peru?", "What is 2 plus 3?")


def make_trainer(tmp_path: Path, *, has_gate: bool = False, **given: Any) -> LocalVersionTrainer:
    usual = {"method": "combine", "anchors": 2, "replay": 3, "threads": 1, "steps_per_batch": 1}
    made = LocalVersionTrainer(read_settings({"home": tmp_path, **usual, **given}))
    if not has_gate:
        open_the_gate(made)
    return made


def complaint(policy: LocalPolicy, turn_id: str, question: str) -> ScoredTurn:
    return sampled_turn(
        policy,
        turn_id,
        question,
        verdict={"value": -1, "hint": "Too long. Shorter, please.", "wishes": ("shorter",)},
    )


def thanks(policy: LocalPolicy, turn_id: str, question: str) -> ScoredTurn:
    return sampled_turn(policy, turn_id, question, verdict={"value": 1, "hint": None})


@pytest.mark.slow
def test_a_batch_of_thanks_rehearses_what_was_asked_for(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, has_gate=True, steps_per_batch=6)
    past = [complaint(trainer.policy, f"past-{i}", question) for i, question in enumerate(QUESTIONS)]
    outcome = trainer.attempt(past, [], [], 1)
    assert outcome.written is not None
    assert outcome.metrics["replayed"] == 0
    attestation = read_attestation(outcome.written.path)
    assert attestation is not None
    assert attestation.version != attestation.parent == attestation.base  # made from the base model
    assert attestation.version == tuple(trainer.policy.trained_logprobs(attestation.token_ids))
    trainer.commit(1)
    assert trainer.remembered == ("past-0", "past-1", "past-2")
    short = [
        sampled_turn(
            trainer.policy,
            f"new-{i}",
            question,
            verdict={"value": 1, "hint": None},
        )
        for i, question in enumerate(QUESTIONS)
    ]
    outcome = trainer.attempt(short, [], [-1, -1, -1], 2, past)
    assert outcome.metrics["replayed"] == 3
    assert outcome.metrics["turns"] + len(outcome.refused) == 3


@pytest.mark.slow
def test_thanks_for_a_reply_that_breaks_a_wish_reinforce_nothing(tmp_path: Path) -> None:
    # At a lower rate the version stays near the base model, whose reply would be stale otherwise.
    trainer = make_trainer(tmp_path, learning_rate=2e-3)
    first = complaint(trainer.policy, "first", QUESTIONS[0])
    trainer.attempt([first], [], [], 1)
    trainer.commit(1)
    base = LocalVersionTrainer(read_settings({"home": tmp_path / "base", "threads": 1})).policy
    long = thanks(base, "long", QUESTIONS[1])  # a reply of the model that learnt nothing
    spoken = thanks(base, "again", QUESTIONS[1])
    short_ids = base.sample(
        [base.render([{"role": "user", "content": f"{QUESTIONS[1]} One short sentence, please."}])],
        max_tokens=64,
        temperature=0.0,
    )[0]
    short = replace(
        spoken,
        completion=replace(
            spoken.completion, token_ids=short_ids.token_ids, sampling_logprobs=short_ids.logprobs
        ),
    )
    outcome = trainer.attempt([long, short], [], [], 2, [first])
    assert outcome.refused["long"].reason is DropReason.NO_SIGNAL
    assert "does not follow" in outcome.refused["long"].detail
    assert "again" not in outcome.refused or "does not follow" not in outcome.refused["again"].detail


@pytest.mark.slow
def test_the_rate_of_a_step_is_in_proportion_to_what_its_batch_asks_for(tmp_path: Path) -> None:
    # without a playbook, which would leave out thanks for long replies
    trainer = make_trainer(tmp_path, learning_rate=1e-3, hint_gate=False)
    one = complaint(trainer.policy, "one", QUESTIONS[0])
    pleased = [thanks(trainer.policy, f"thanks-{i}", QUESTIONS[0]) for i in range(3)]
    recent = [1, -1] * 8  # a mean of 0: thanks have the advantage .3, a complaint with its hint asks for all
    rates = []
    for number, turns in enumerate(([one], [one, *pleased], pleased, [one]), start=1):
        outcome = trainer.attempt(turns, [], recent, number)
        assert outcome.written is not None
        rates.append(outcome.metrics["learning_rate"])
        trainer.revert()
    assert rates == pytest.approx([1e-3, (1 + 3 * 0.3) / 4 * 1e-3, 0.3e-3, 1e-3])
    assert outcome.written is not None
    state = read_state(outcome.written.path)
    assert state["learning_rate"] == pytest.approx(1e-3)  # it is of one batch, and no rate to go on from

    whole = make_trainer(tmp_path / "other", learning_rate=1e-3, rate_by_signal=False, hint_gate=False)
    outcome = whole.attempt(pleased, [], recent, 1)
    assert outcome.metrics["learning_rate"] == pytest.approx(1e-3)
    trainer.attempt(pleased, [], recent, 5)
    assert 0 < size(trainer.policy) < size(whole.policy)


def size(policy: LocalPolicy) -> float:
    """Of what was learnt: the Frobenius norm of all lora_B."""
    parts = [
        value for name, value in policy.snapshot().items() if name.startswith("weight/") and "lora_B" in name
    ]
    return float(torch.cat([part.flatten() for part in parts]).norm())


@pytest.mark.long_run
def test_where_nothing_passes_the_gate_for_long_each_attempt_begins_nearer_to_the_base_model(
    tmp_path: Path,
) -> None:
    trainer = make_trainer(tmp_path, has_gate=True, steps_per_batch=6, learning_rate=1e-4)
    past = [complaint(trainer.policy, f"past-{i}", question) for i, question in enumerate(QUESTIONS)]
    trainer.attempt(past, [], [], 1)
    trainer.commit(1)
    learnt, live = size(trainer.policy), trainer.policy.snapshot()
    trainer._gate = ScriptedGate("facts are forgotten: 88%, base 100%")  # type: ignore[assignment]  # same method
    kept = []
    for number in range(2, 8):
        outcome = trainer.attempt(past, [], [-1] * 3, number)
        assert outcome.rejected
        kept.append(outcome.metrics["kept"])
        now = trainer.policy.snapshot()
        assert all(torch.equal(live[name], now[name]) for name in live if name != "rng")
    assert kept == [1.0, 1.0, 1.0, 1.0, 0.9, pytest.approx(0.81)]
    open_the_gate(trainer)
    outcome = trainer.attempt(past, [], [-1] * 3, 8)
    assert outcome.reason.endswith(
        "; after 6 rejected versions in a row, 73% is left of what was learnt before"
    )
    assert outcome.metrics["learning_rate"] == pytest.approx(1e-4 / 4)
    trainer.commit(8)
    assert size(trainer.policy) < learnt  # a step alone would have gone on
    outcome = trainer.attempt(past, [], [-1] * 3, 9)
    assert (outcome.metrics["kept"], "in a row" in outcome.reason) == (1.0, False)


@pytest.mark.long_run
def test_what_a_step_back_takes_off_is_no_lost_wish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the live version each further attempt would lose the wish, for ever: 102 in a row were seen."""
    # At the usual rate one version makes the replies stale.
    trainer = make_trainer(tmp_path, has_gate=True, steps_per_batch=6, learning_rate=3e-3)
    past = [complaint(trainer.policy, f"past-{i}", question) for i, question in enumerate(QUESTIONS)]
    learnt = trainer.attempt(past, [], [], 1)
    assert not learnt.rejected
    trainer.commit(1)
    (live,) = learnt.metrics["wishes"]
    trainer.resume({"version": 1, "learning_rate": 0.0, "rejected_in_a_row": 20})
    weaken = trainer.policy.weaken
    monkeypatch.setattr(trainer.policy, "weaken", lambda share: weaken(share / 10))
    outcome = trainer.attempt(past, [], [-1] * 3, 2, past)
    (row,) = outcome.metrics["wishes"]
    assert outcome.metrics["kept"] == pytest.approx(0.7)
    assert row["before"] < live["now"] - LOST_AT_ONCE  # of the weights that the steps begin from
    assert row["now"] < live["now"] - LOST_AT_ONCE
    assert not outcome.rejected
    assert row["best"] == row["now"]  # the next version is compared with this one


class FewerAnchors:
    """A trainer of four anchors, two wishes and scripted shares of the replies that follow each."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        # At the usual rate three versions make the replies stale.
        self.trainer = make_trainer(tmp_path, anchors=4, learning_rate=2e-3)
        self.share = 1.0
        monkeypatch.setattr(WishTraining, "measure", lambda _, playbook: self.shares(playbook))
        monkeypatch.setattr(HintSelection, "broken_wish", lambda self, turn: None)
        spanish = {"value": -1, "hint": "In Spanish, please.", "wishes": ("spanish",)}
        self.past = [
            complaint(self.trainer.policy, "past", QUESTIONS[0]),
            sampled_turn(self.trainer.policy, "spanish", QUESTIONS[1], verdict=spanish),
        ]
        self.pleased = [thanks(self.trainer.policy, "pleased", QUESTIONS[1])]

    def shares(self, playbook: Playbook) -> Shares:
        wishes = (*playbook.active, *playbook.withdrawn)
        return Shares(now={one.text: self.share for one in wishes}, base={one.text: 0.0 for one in wishes})

    def attempt(self, share: float, turns: list[ScoredTurn], **more: Any) -> int:
        """Make a version before which this share follows the wish; returns its number of anchors."""
        self.trainer.revert()
        self.share = share
        outcome = self.trainer.attempt(turns, [], [-1] * 3, self.trainer.version + 1, self.past, **more)
        assert outcome.written is not None
        self.folder = outcome.written.path
        return int(outcome.metrics["anchors"])

    def publish(self, *, share: float = 1.0, is_intact: bool = True) -> None:
        self.trainer._gate = ScriptedGate(is_intact=is_intact)  # type: ignore[assignment]  # same method
        self.attempt(share, self.past)
        self.trainer.commit(self.trainer.version + 1)


@pytest.mark.slow
def test_thanks_have_half_of_the_anchors_while_a_wish_is_followed_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them took "no bold type" back from .96 to .65 of the replies."""
    given = FewerAnchors(tmp_path, monkeypatch)
    given.publish()
    live = given.folder
    assert given.attempt(0.9, given.pleased) == 2
    assert given.attempt(0.95, given.pleased) == 4
    assert given.attempt(0.9, [complaint(given.trainer.policy, "again", QUESTIONS[2])]) == 4
    unlearning = given.attempt(0.9, given.pleased, edits=[Edit(turn_id="past", text=None)])
    assert unlearning == 4  # a step that unlearns is a whole one
    given.trainer.reset(given.trainer.name)
    given.trainer._load(live)
    assert given.attempt(0.9, given.pleased) == 2  # also after a restart


@pytest.mark.slow
def test_all_anchors_hold_where_something_is_lost_or_a_wish_was_never_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = FewerAnchors(tmp_path, monkeypatch)
    given.publish(share=0.8)
    assert given.attempt(0.8, given.pleased) == 4  # it is learnt, and does not slip
    given.publish(is_intact=False)
    assert given.attempt(0.9, given.pleased) == 4
    given.publish()
    assert given.attempt(0.9, given.pleased) == 2
    given.trainer._gate = ScriptedGate("facts are forgotten")  # type: ignore[assignment]  # same method
    assert given.attempt(0.9, given.pleased) == 2
    assert given.attempt(0.9, given.pleased) == 4  # after a rejection


@pytest.mark.slow
def test_after_a_rollback_the_rejections_before_it_count_no_more(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    trainer._gate = ScriptedGate("facts are forgotten")  # type: ignore[assignment]  # same method
    past = [complaint(trainer.policy, "past", QUESTIONS[0])]
    for number in range(1, 5):
        trainer.attempt(past, [], [], number)
    trainer.reset(trainer.name)
    assert trainer.attempt(past, [], [], 5).metrics["kept"] == 1.0


def test_a_method_without_hints_repeats_turns_as_they_were(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, method="rl")
    few = [thanks(trainer.policy, "a", QUESTIONS[0]), complaint(trainer.policy, "b", QUESTIONS[1])]
    trainer.attempt(few, [], [], 1)
    trainer.commit(1)
    assert len(trainer.draw_replay([complaint(trainer.policy, "c", QUESTIONS[2])])) == 2


@pytest.mark.slow
def test_the_teacher_gets_the_wishes_of_earlier_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(tmp_path, steps_per_batch=2)
    books: list[list[str]] = []

    def noted(*given: Any, selection: HintSelection, **more: Any) -> PreparedBatch:
        prepared = prepare(*given, selection=selection, **more)
        books.append([wish.text for wish in selection.playbook.wishes])
        return prepared

    monkeypatch.setattr("trainer.version_trainer.prepare", noted)
    first = complaint(trainer.policy, "first", QUESTIONS[0])
    trainer.attempt([first, thanks(trainer.policy, "fine", QUESTIONS[1])], [], [], 1)
    trainer.commit(1)
    assert trainer.remembered == ("first",)
    second = sampled_turn(
        trainer.policy,
        "second",
        QUESTIONS[1],
        verdict={"value": -1, "hint": "Answer in Spanish, please.", "wishes": ("spanish",)},
    )
    trainer.attempt([second], [first], [], 2, [first])
    short, spanish = "Too long. Shorter, please.", "Answer in Spanish, please."
    assert books == [[short]] * 2 + [[short, spanish]] * 2
    for given in ({"method": "rl"}, {"hint_gate": False}):
        other = make_trainer(tmp_path / next(iter(given)), **given)
        monkeypatch.undo()
        other.attempt([first], [], [], 1)
        other.commit(1)
        assert other.remembered == ()


def test_a_batch_of_complaints_that_change_nothing_makes_no_version_and_keeps_what_was_learnt(
    tmp_path: Path,
) -> None:
    trainer = make_trainer(tmp_path)
    before = trainer.policy.snapshot()
    empty = sampled_turn(
        trainer.policy, "empty", QUESTIONS[0], verdict={"value": -1, "hint": "You are mistaken."}
    )
    bare = sampled_turn(trainer.policy, "bare", QUESTIONS[1], verdict={"value": -1, "hint": None})
    outcome = trainer.attempt([empty, bare], [], [], 1)
    assert outcome.written is None
    assert outcome.refused["empty"].reason is DropReason.HINT_IRRELEVANT
    assert outcome.refused["bare"].reason is DropReason.NO_SIGNAL
    assert all(torch.equal(value, before[name]) for name, value in trainer.policy.snapshot().items())


@pytest.mark.long_run  # learns a wish and unlearns it
def test_a_withdrawn_wish_is_unlearnt_without_a_new_turn(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, has_gate=True, anchors=4, steps_per_batch=6)
    spanish = [
        sampled_turn(
            trainer.policy,
            f"es-{i}",
            question,
            verdict={"value": -1, "hint": "answer me in Spanish", "wishes": ("spanish",)},
        )
        for i, question in enumerate(QUESTIONS)
    ]
    outcome = trainer.attempt(spanish, [], [], 1)
    assert not outcome.rejected
    trainer.commit(1)
    (row,) = outcome.metrics["wishes"]
    assert (row["state"], row["before"] < 0.3, row["now"] > 0.5) == ("active", True, True)
    assert not trainer.is_due()
    edits = [Edit(turn_id=turn_id, text=None) for turn_id in trainer.remembered]
    assert trainer.is_due(edits)
    shares = []
    for number in range(2, 6):
        if not trainer.is_due(edits):
            break
        outcome = trainer.attempt([], [], [], number, spanish, edits)
        assert outcome.written is not None
        assert outcome.metrics["unlearning"] > 0
        trainer.commit(number)
        (row,) = outcome.metrics["wishes"]
        assert row["state"] == ("unlearnt" if row["now"] < 0.2 else "withdrawn")
        shares.append(row["now"])
        edits = []
    assert shares[-1] < 0.3
    assert not trainer.is_due()
    assert trainer.remembered == ()


def test_past_complaints_are_answered_by_the_policy_of_today_and_their_verdicts_stay_behind(
    tmp_path: Path,
) -> None:
    trainer = make_trainer(tmp_path)
    old = complaint(trainer.policy, "old", QUESTIONS[0])
    hintless = thanks(trainer.policy, "hintless", QUESTIONS[1])
    (anew,) = resample_replies(trainer.policy, [old, hintless], seed=5, version=7)
    (reply,) = trainer.policy.sample([old.prompt_token_ids], max_tokens=64, seed=5)
    assert anew.completion.token_ids == reply.token_ids
    assert anew.completion.sampling_logprobs == reply.logprobs
    assert (anew.turn_id, anew.prompt_token_ids) == (old.turn_id, old.prompt_token_ids)
    assert (anew.verdict.value, anew.verdict.hint) == (0, old.verdict.hint)
    assert (anew.adapter_version, anew.temperature) == (7, 1.0)
    assert resample_replies(trainer.policy, [hintless], seed=5, version=7) == []


@pytest.mark.slow
def test_a_turn_of_forty_thousand_tokens_is_dropped_and_neither_read_nor_answered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(tmp_path)
    policy = trainer.policy
    first = complaint(policy, "first", QUESTIONS[0])
    trainer.attempt([first], [], [], 1)
    trainer.commit(1)
    ordinary = complaint(policy, "ordinary", QUESTIONS[1])
    planted = complaint(policy, "planted", QUESTIONS[2])
    text = f"{QUESTIONS[2]} {'word ' * 40_000}"
    planted = replace(
        planted,
        messages=({"role": "user", "content": text},),
        prompt_token_ids=tuple(policy.render([{"role": "user", "content": text}])),
    )
    assert len(planted.prompt_token_ids) > 40_000
    sample = policy.sample
    lengths: list[int] = []

    def watched(prompts: Any, **given: Any) -> Any:
        lengths.extend(len(prompt) for prompt in prompts)
        assert max(lengths) <= policy.max_context  # before there is no memory left
        return sample(prompts, **given)

    monkeypatch.setattr(policy, "sample", watched)
    outcome = trainer.attempt([ordinary, planted], [], [], 2, [first])
    assert outcome.refused["planted"].reason is DropReason.TOO_LONG
    assert outcome.written is not None
    assert outcome.metrics["turns"] == 1
