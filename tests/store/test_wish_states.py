"""How the state of a wish is said, and which wishes are in a prompt."""

from __future__ import annotations

import pytest

from store.values import Json, WishState
from store.wish_states import MAX_WISHES, describe_state, in_prompt
from tests.making import make_wish


@pytest.mark.parametrize(
    ("state", "measures", "said"),
    [
        (WishState.PROMPT, {}, "in the prompt"),
        (WishState.PROMPT, {"told": 0.9, "base": 0.1, "weights": 0.75}, "in the prompt, in the weights 75%"),
        (WishState.RETIRED, {"weights": 1.0}, "retired: the weights follow it alone, in the weights 100%"),
        (WishState.WITHDRAWN, {}, "withdrawn"),
        (
            WishState.PROMPT, {"told": 0.25, "base": 0.125},
            "in the prompt, this model hardly follows it when asked (25% of replies, 12% without)",
        ),
    ],
)  # fmt: skip
def test_a_state_is_said_in_words(state: WishState, measures: Json, said: str) -> None:
    assert describe_state(make_wish(1, "Shorter.", state, measures=measures), is_in_prompt=True) == said


def test_the_wishes_that_were_stated_last_are_in_the_prompt_the_newest_at_the_end() -> None:
    wishes = [make_wish(number, f"wish {number}") for number in range(1, MAX_WISHES + 3)]
    wishes[0] = make_wish(1, "wish 1", changed_at=5_000.0)
    wishes[5] = make_wish(6, "wish 6", WishState.RETIRED)
    found = [wish.wish_id for wish in in_prompt(wishes)]
    assert found == [3, 4, 5, 7, 8, 9, 10, 1]
