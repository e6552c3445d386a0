"""Training files are read line by line, and what is wrong is named with its line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from wire.training_file import BadLine, read_examples

USER, REPLY = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}  # fmt: skip
GOOD = {"messages": [USER, REPLY]}
PAIR = {"input": {"messages": [USER]}, "preferred_output": [REPLY], "non_preferred_output": [CALL]}


def read(*rows: Any, most_lines: int = 10) -> Any:
    return read_examples("\n".join(json.dumps(row) for row in rows), most_lines=most_lines)


def test_every_reply_with_a_weight_is_an_example_of_what_came_before_it() -> None:
    silent = {**REPLY, "weight": 0}
    method, found = read(
        {"messages": [USER, silent, USER, CALL, USER, REPLY], "tools": [{"type": "function"}]}
    )
    assert method == "supervised"
    assert [(len(one.messages), one.reply) for one in found] == [(3, CALL), (5, REPLY)]
    assert found[0].tools == ({"type": "function"},)


def test_preferences_have_a_better_and_a_worse_reply() -> None:
    method, (found,) = read(PAIR)
    assert (method, found.messages, found.reply, found.rejected) == ("dpo", (USER,), REPLY, CALL)


def test_empty_lines_and_windows_line_ends_are_no_lines() -> None:
    text = json.dumps(GOOD) + "\r\n\r\n" + json.dumps(GOOD) + "\r\n"
    assert len(read_examples(text, most_lines=2)[1]) == 2


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "Line 1: the file is empty."),
        ([GOOD, [1]], "Line 2: it must be a JSON object."),
        ([{"prompt": "a"}], "Line 1: it needs 'messages' (supervised), or 'input' with two outputs (DPO)."),
        ([GOOD, PAIR], "Line 2: it is for the method dpo, and the lines before are for supervised."),
        ([{"messages": []}], "Line 1: messages must be a list with a message at least."),
        ([{"messages": [USER, "b"]}], "Line 1: messages[1] must be an object."),
        ([{"messages": [{"role": "bot", "content": "a"}]}], "Line 1: messages[0].role must be one of assistant, developer, system, tool, user, not 'bot'."),
        ([{"messages": [{"role": "user", "content": 3}]}], "Line 1: messages[0].content must be a text."),
        ([{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}], "Line 1: messages[0].content must hold text parts only."),
        ([{"messages": [USER, {"role": "assistant", "content": ""}]}], "Line 1: messages[1] has neither a content nor tool_calls."),
        ([{"messages": [{**CALL, "role": "user"}]}], "Line 1: messages[0].tool_calls must be a list of an assistant's calls of functions."),
        ([{"messages": [USER]}], "Line 1: messages needs an assistant message whose weight is not 0."),
        ([{"messages": [REPLY, USER]}], "Line 1: messages must not begin with an assistant message."),
        ([{"messages": [USER, {**REPLY, "weight": 2}]}], "Line 1: messages[1].weight must be 0 or 1."),
        ([{**GOOD, "tools": {"a": 1}}], "Line 1: tools must be a list of objects."),
        ([{**PAIR, "input": []}], "Line 1: input must be an object with 'messages'."),
        ([{**PAIR, "preferred_output": [USER]}], "Line 1: preferred_output must hold one assistant message."),
        ([{**PAIR, "preferred_output": [CALL]}], "Line 1: preferred_output and non_preferred_output are the same."),
        ([GOOD] * 11, "Line 11: a file holds at most 10 lines."),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_line(rows: list[Any], message: str) -> None:
    with pytest.raises(BadLine) as caught:
        read(*rows)
    assert str(caught.value) == message


def test_a_line_that_is_no_json_is_named() -> None:
    with pytest.raises(BadLine, match="Line 2: it is not valid JSON"):
        read_examples(json.dumps(GOOD) + "\n{", most_lines=10)
