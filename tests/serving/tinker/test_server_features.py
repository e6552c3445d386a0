"""What a Tinker server can do, from what it answered."""

from __future__ import annotations

import pytest

from serving.tinker.server_features import ServerFeatures, detect_logprobs_mode

HOT, COOL = [-9.0, -4.0, -0.5], [-5.0, -3.0, -1.2]


def test_raw_is_what_is_read_again_however_hot_it_was_drawn() -> None:
    assert detect_logprobs_mode(HOT, [value + 0.03 for value in HOT], HOT, HOT) == "raw_logprobs"


def test_processed_agrees_at_temperature_1_only() -> None:
    assert detect_logprobs_mode(COOL, HOT, HOT, HOT) == "processed_logprobs"


@pytest.mark.parametrize(
    ("at_two", "at_two_rescored", "at_one", "at_one_rescored"),
    [(COOL, HOT, COOL, HOT), (HOT, None, HOT, None), (None, None, None, None), (HOT, HOT[:2], HOT, [])],
)
def test_what_agrees_nowhere_is_not_guessed(
    at_two: list[float] | None,
    at_two_rescored: list[float] | None,
    at_one: list[float] | None,
    at_one_rescored: list[float] | None,
) -> None:
    assert detect_logprobs_mode(at_two, at_two_rescored, at_one, at_one_rescored) is None


def test_missing_features_are_refused_with_a_reason() -> None:
    full = ServerFeatures(mode="raw_logprobs", prompt_logprobs=True, top_logprobs=True)
    poor = ServerFeatures(mode=None, prompt_logprobs=False, top_logprobs=False)
    assert poor.limits.unsupported - full.limits.unsupported == {
        "top_logprobs",
        "forced_call",
        "prompt_logprobs",
    }
    assert "logit_bias" in full.limits.unsupported
    assert len(poor.notes) == len(full.notes) + 3
    assert any("token stream" in note for note in full.notes)
