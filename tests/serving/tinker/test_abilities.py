"""What a Tinker server can do, from what it answered."""

from __future__ import annotations

import pytest

from serving.tinker.abilities import Abilities, mode_of

HOT, COOL = [-9.0, -4.0, -0.5], [-5.0, -3.0, -1.2]


def test_raw_is_what_is_read_again_however_hot_it_was_drawn() -> None:
    assert mode_of(HOT, [value + 0.03 for value in HOT], HOT, HOT) == "raw_logprobs"


def test_processed_agrees_at_temperature_1_only() -> None:
    assert mode_of(COOL, HOT, HOT, HOT) == "processed_logprobs"


@pytest.mark.parametrize(
    ("hot", "hot_read", "plain", "plain_read"),
    [(COOL, HOT, COOL, HOT), (HOT, None, HOT, None), (None, None, None, None), (HOT, HOT[:2], HOT, [])],
)
def test_what_agrees_nowhere_is_not_guessed(
    hot: list[float] | None,
    hot_read: list[float] | None,
    plain: list[float] | None,
    plain_read: list[float] | None,
) -> None:
    assert mode_of(hot, hot_read, plain, plain_read) is None


def test_what_is_missing_is_refused_and_said() -> None:
    full = Abilities(mode="raw_logprobs", prompt_logprobs=True, top_logprobs=True)
    poor = Abilities(mode=None, prompt_logprobs=False, top_logprobs=False)
    assert poor.limits.lacks - full.limits.lacks == {"top_logprobs", "forced_call"}
    assert "logit_bias" in full.limits.lacks
    assert len(poor.notes) == len(full.notes) + 3
    assert any("token stream" in note for note in full.notes)
