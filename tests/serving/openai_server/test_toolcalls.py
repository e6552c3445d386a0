"""Tool calls in text, in every chunking."""

from __future__ import annotations

import pytest

from serving.openai_server.toolcalls import ToolCall, ToolCallParser, parse_call

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Größe 😀"}}\n</tool_call>'
PARSED = ToolCall(name="weather", arguments='{"city": "Größe 😀"}')


def run(text: str, size: int = 10_000) -> list[str | ToolCall]:
    """The parser's output with neighbouring content joined."""
    parser = ToolCallParser()
    raw: list[str | ToolCall] = []
    for i in range(0, len(text), size):
        raw += parser.feed(text[i : i + size])
    raw += parser.flush()
    joined: list[str | ToolCall] = []
    for part in raw:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        else:
            joined.append(part)
    return joined


CASES = {
    "no call": ("just text, a < b\n", ["just text, a < b\n"]),
    "only a call": (CALL, [PARSED]),
    "text around": (f"I look.\n{CALL}\nDone.", ["I look.", PARSED, "Done."]),
    "two calls": (f"{CALL}\n{CALL}\n", [PARSED, PARSED]),
    "invalid JSON": ("a\n<tool_call>{nope}</tool_call> b", ["a\n<tool_call>{nope}</tool_call> b"]),
    "no name": ('<tool_call>{"arguments": {}}</tool_call>', ['<tool_call>{"arguments": {}}</tool_call>']),
    "not closed but whole": (CALL.removesuffix("</tool_call>"), [PARSED]),
    "cut off": ('see <tool_call>{"name": "wea', ['see <tool_call>{"name": "wea']),
    "almost a tag": ("x <tool_cal", ["x <tool_cal"]),
    "invalid then valid": (f"<tool_call>[]</tool_call>\n{CALL}", ["<tool_call>[]</tool_call>", PARSED]),
    "an end tag in a string": (
        '<tool_call>{"name": "f", "arguments": {"a": "x</tool_call> \\"y\\""}}</tool_call>',
        [ToolCall(name="f", arguments='{"a": "x</tool_call> \\"y\\""}')],
    ),
    "a string without an end": (
        f'<tool_call>{{"name": "f}}\n</tool_call>\n{CALL}',
        ['<tool_call>{"name": "f}\n</tool_call>', PARSED],
    ),
    "empty": ("", []),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 10_000])
def test_calls_and_content_come_apart_whatever_the_chunks(name: str, size: int) -> None:
    text, expected = CASES[name]
    assert run(text, size) == expected


def test_content_before_a_call_is_not_held_until_the_call_is_over() -> None:
    parser = ToolCallParser()
    assert parser.feed("I look. ") == ["I look."]
    assert parser.feed("<tool") == []
    assert parser.feed('_call>{"name":') == []


def test_arguments_may_be_missing_or_quoted_once_more() -> None:
    assert parse_call('{"name": "now"}') == ToolCall(name="now", arguments="{}")
    assert parse_call('{"name": "f", "arguments": "{\\"a\\": 1}"}') == ToolCall(
        name="f", arguments='{"a": 1}'
    )
    assert parse_call('{"name": "f", "arguments": [1]}') is None
    assert parse_call('{"name": "f", "arguments": "x"}') is None


def test_a_forced_call_that_is_cut_off_keeps_the_part_of_its_arguments() -> None:
    parser = ToolCallParser()
    assert parser.feed('<tool_call>\n{"name": "f", "arguments": {"a": "b') == []
    assert parser.flush(takes_part=True) == [ToolCall(name="f", arguments='{"a": "b')]
    assert parser.feed('<tool_call>\n{"nam') == []
    assert parser.flush(takes_part=True) == ['<tool_call>\n{"nam']
