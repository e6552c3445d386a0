"""What in a request forces tokens on the sampler."""

from typing import Any

import pytest

from store.errors import AlignmentError
from store.values import LogprobMode
from trainer.advantages import Streams, build_streams, mask_constrained
from trainer.batch import Sample, forced_tokens
from trainer.decoding_constraint import decoding_constraint


@pytest.mark.parametrize(
    ("body", "values"),
    [
        ({"tool_choice": "required"}, "tool_choice forces a call"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice forces a call"),
        ({"response_format": {"type": "json_schema"}}, "response_format json_schema"),
        ({"response_format": {"type": "json_object"}}, "response_format json_object"),
        ({"guided_regex": "a+"}, "guided_regex"),
        ({"function_call": {"name": "f"}}, "function_call forces a call"),
        ({"tool_choice": "auto", "function_call": "auto"}, ""),
        ({"tool_choice": "none", "response_format": {"type": "text"}}, ""),
        ({"tool_choice": None, "response_format": None}, ""),
        ({}, ""),
    ],
)
def test_a_request_that_forces_tokens_is_known_as_such(body: dict[str, Any], values: str) -> None:
    assert decoding_constraint(body) == values


def sample(mode: LogprobMode) -> Sample:
    return Sample(
        turn_id="t",
        prompt_ids=(1,),
        completion_ids=(5, 6, 7),
        sampling_logprobs=(0.0, -0.5, -1e-9),
        logprob_mode=mode,
    )


def test_processed_logprobs_tell_which_tokens_were_forced_and_raw_ones_do_not() -> None:
    assert forced_tokens(sample(LogprobMode.PROCESSED)) == (True, False, True)
    assert forced_tokens(sample(LogprobMode.RAW)) is None
    assert forced_tokens(sample(LogprobMode.UNKNOWN)) is None


def test_a_verdict_does_not_judge_forced_tokens_and_the_teachers_term_stays() -> None:
    streams = Streams(advantages=(-1.0, -1.0, -1.0), advantage_mask=(True, True, True), directive_weight=0.5)
    masked = mask_constrained(streams, (True, False, True))
    assert (masked.advantages, masked.advantage_mask) == ((0.0, -1.0, 0.0), (False, True, False))
    hint_only = mask_constrained(streams, None)
    assert (hint_only.advantages, hint_only.advantage_mask) == ((0.0,) * 3, (False,) * 3)
    assert (masked.directive_weight, hint_only.directive_weight, hint_only.is_effective) == (0.5, 0.5, True)
    with pytest.raises(AlignmentError):
        mask_constrained(streams, (True,))


def test_a_share_scales_the_verdicts_term_alone() -> None:
    def advantages(share: float) -> tuple[float, ...]:
        return build_streams(-1, baseline=0.5, weight=share, completion_length=2).advantages

    assert advantages(1.0) == (-1.5, -1.5)
    assert advantages(0.2) == pytest.approx((-0.3, -0.3))
