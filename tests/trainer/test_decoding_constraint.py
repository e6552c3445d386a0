"""What in a request forces tokens on the sampler."""

from typing import Any

import pytest

from trainer.decoding_constraint import decoding_constraint


@pytest.mark.parametrize(
    ("body", "values"),
    [
        ({"tool_choice": "required"}, "tool_choice forces a call"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice forces a call"),
        ({"response_format": {"type": "json_schema"}}, "response_format json_schema"),
        ({"response_format": {"type": "json_object"}}, "response_format json_object"),
        ({"guided_regex": "a+"}, "guided_regex"),
        ({"tool_choice": "auto"}, ""),
        ({"tool_choice": "none", "response_format": {"type": "text"}}, ""),
        ({"tool_choice": None, "response_format": None}, ""),
        ({}, ""),
    ],
)
def test_a_request_that_forces_tokens_is_known_as_such(body: dict[str, Any], values: str) -> None:
    assert decoding_constraint(body) == values
