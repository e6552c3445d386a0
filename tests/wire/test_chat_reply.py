"""The parts of a chat completion: each character once, in order, one output at a time."""

from __future__ import annotations

from typing import Any

from wire.chat_reply import CallArguments, CallOpened, ChatReplyReader, Reasoning, Text, completion_parts


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


def call(index: int, arguments: str, **fields: Any) -> dict[str, Any]:
    return {"index": index, "function": {"arguments": arguments, **fields}}


def test_text_and_reasoning_are_parts_and_empty_deltas_are_none() -> None:
    reader = ChatReplyReader()
    assert reader.feed(delta(role="assistant", content="")) == []
    assert reader.feed(delta(reasoning_content="hm")) == [Reasoning("hm")]
    assert reader.feed(delta(reasoning=" so")) == [Reasoning(" so")]
    assert reader.feed(delta(content=" \n ")) == [Text(" \n ")]


def test_calls_that_arrive_interleaved_are_given_out_one_after_the_other() -> None:
    reader = ChatReplyReader()
    first = reader.feed(delta(tool_calls=[call(0, '{"a"', name="one"), call(1, '{"b"', name="two")]))
    assert first == [CallOpened(0, "call_0", "one"), CallArguments('{"a"')]
    assert reader.feed(delta(tool_calls=[call(1, ":2}")])) == []
    assert reader.feed(delta(tool_calls=[call(0, ":1}")])) == [
        CallArguments(":1}"),
        CallOpened(1, "call_1", "two"),
        CallArguments('{"b":2}'),
    ]
    assert reader.finish() == []


def test_a_call_without_an_end_does_not_hide_the_next_one() -> None:
    reader = ChatReplyReader()
    reader.feed(delta(tool_calls=[call(0, '{"a', name="one")]))
    assert reader.feed(delta(tool_calls=[call(1, "{}", name="two")])) == []
    assert reader.finish() == [CallOpened(1, "call_1", "two"), CallArguments("{}")]


def test_a_whole_reply_has_the_parts_of_its_stream() -> None:
    calls = [{"id": "c", "type": "function", "function": {"name": "one", "arguments": '{"a":  1}'}}]
    assert completion_parts("text", "hm", calls) == [
        Reasoning("hm"),
        Text("text"),
        CallOpened(0, "c", "one"),
        CallArguments('{"a":  1}'),
    ]


def test_an_error_inside_a_stream_is_kept_as_such() -> None:
    reader = ChatReplyReader()
    assert reader.feed({"error": {"message": "out of memory"}}) == []
    assert reader.error == {"message": "out of memory"}
    assert not reader.is_finished
