"""How the owner's edits change the playbook of an attempt: test model."""

from __future__ import annotations

from store.settings import read_settings
from tests.trainer.turns import sampled_turn
from trainer.playbook import Wish, Wording
from trainer.policy import LocalPolicy
from trainer.protocol import Edit
from trainer.wish_training import WishTraining


def test_edits_replace_leave_out_and_withdraw_and_a_withdrawn_wish_keeps_its_edited_words() -> None:
    model = read_settings({}).model_path
    policy = LocalPolicy(model, rank=4, device="cpu", learning_rate=1e-4)
    training = WishTraining(policy, model, seed=0)
    hints = {"old": "Too long.", "new": "Make it shorter."}
    turns = [
        sampled_turn(policy, turn_id, "What is 2 plus 3?", verdict={"value": -1, "hint": hint})
        for turn_id, hint in hints.items()
    ]
    wish = Wish(wordings=tuple(Wording(turn_id=i, text=text) for i, text in hints.items()), version=1)
    playbook = training.begin([], version=1).playbook
    training.load({**type(playbook)(wishes=(wish,)).to_json(), "unlearning_versions": 0})

    words = [Edit(turn_id="old", text=""), Edit(turn_id="new", text="Answer me in Spanish.")]
    (edited,) = training.begin(turns, version=2, edits=words).playbook.wishes
    assert [(one.turn_id, one.text) for one in edited.wordings] == [("new", "Answer me in Spanish.")]
    assert not training.is_unlearning(words)

    removed = [*words, Edit(turn_id="old", text=None), Edit(turn_id="new", text=None)]
    assert training.is_unlearning(removed)
    after = training.begin(turns, version=2, edits=removed).playbook
    assert after.wishes == ()
    assert [one.text for one in after.withdrawn] == ["Make it shorter.", "Answer me in Spanish."]


def test_a_wish_that_is_edited_into_another_is_withdrawn_once_in_its_own_words() -> None:
    model = read_settings({}).model_path
    policy = LocalPolicy(model, rank=4, device="cpu", learning_rate=1e-4)
    training = WishTraining(policy, model, seed=0)
    turn = sampled_turn(
        policy,
        "one",
        "What is 2 plus 3?",
        verdict={"value": -1, "hint": "Make it shorter.", "wishes": ("shorter",)},
    )
    wish = Wish(
        wordings=(Wording(turn_id="one", text="Make it shorter.", labels=("shorter",)),), version=1, best=0.9
    )
    playbook = training.begin([], version=1).playbook
    state = {**type(playbook)(wishes=(wish,)).to_json(), "unlearning_versions": 0}
    training.load(state)

    again = [Edit(turn_id="one", text="Be more concise, please.")]
    assert training.begin([turn], version=2, edits=again).playbook.withdrawn == ()

    other = [Edit(turn_id="one", text="Answer me in Spanish.")]
    edited = training.begin([turn], version=2, edits=other).playbook
    assert [(one.text, one.best) for one in edited.wishes] == [("Answer me in Spanish.", 0.0)]
    assert [(one.text, one.is_as_stated) for one in edited.withdrawn] == [("Make it shorter.", True)]
    assert training.unlearning(edited, [turn], number=2)

    saved = training.to_json(edited, taught=True)
    training.load(saved)
    assert training.is_unlearning(other)
    kept = training.begin([turn], version=3, edits=other).playbook
    assert kept.withdrawn == edited.withdrawn
    training.load({**saved, "withdrawn": []})
    assert training.begin([turn], version=4, edits=other).playbook.withdrawn == ()
