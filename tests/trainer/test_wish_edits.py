"""How the owner's edits change the playbook of an attempt: built-in model."""

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
    hints = {"old": "Too long.", "new": "Shorter, please."}
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
    assert [one.text for one in after.withdrawn] == ["Answer me in Spanish."]
