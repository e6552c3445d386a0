"""The parts of a chat completion: each character once, in order, one output at a time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from store.values import Completion, ReplyOutcome
from wire.chat_reply import CallArguments, CallOpened, ChatReplyReader, Reasoning, Text, assistant_message
from wire.reply_assembly import AssembledReply, Assembler


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
    reader = ChatReplyReader()
    choice = {"message": assistant_message("text", "hm", calls), "finish_reason": "stop"}
    assert reader.feed({"choices": [choice]}, part="message") + reader.finish() == [
        Reasoning("hm"),
        Text("text"),
        CallOpened(0, "c", "one"),
        CallArguments('{"a":  1}'),
    ]


def test_an_error_inside_a_stream_is_kept_as_such() -> None:
    reader = ChatReplyReader()
    assert reader.feed({"error": {"message": "out of memory"}}) == []
    assert reader.error == {"message": "out of memory"}
    assert reader.outcome is ReplyOutcome.FAILED


# ---- the record of a reply


def recorded(*chunks: Any, part: str = "delta") -> AssembledReply:
    assembler = Assembler()
    for chunk in chunks:
        raw = chunk if isinstance(chunk, bytes) else json.dumps(chunk).encode()
        assembler.read(raw, part=part)
    return assembler.close()


def calls_of(*lists: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Return id, name and arguments of each recorded call of a stream whose chunks hold these lists; it has no problem."""
    reply = recorded(*(delta(tool_calls=calls) for calls in lists), end("tool_calls"))
    assert reply.problem == ""
    return [
        (call.get("id", ""), call["function"]["name"], call["function"]["arguments"])
        for call in reply.completions[0].tool_calls
    ]


def end(reason: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}


def piece(name: str | None, arguments: Any, **more: Any) -> dict[str, Any]:
    function = {
        **({} if name is None else {"name": name}),
        **({} if arguments is None else {"arguments": arguments}),
    }
    return {**more, "function": function}


OSLO, ROME = '{"city":"Oslo"}', '{"city":"Rome"}'
TWO = [("a", "f", OSLO), ("b", "g", ROME)]
SAME = [("a", "f", OSLO), ("b", "f", ROME)]


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        pytest.param([[piece("f", OSLO, id="a", index=0)], [piece("g", ROME, id="b", index=1)]], TWO, id="by index"),
        pytest.param([[piece("f", OSLO, id="a")], [piece("g", ROME, id="b")]], TWO, id="no index"),
        pytest.param([[piece("f", OSLO, id="a", index=None)], [piece("g", ROME, id="b", index=None)]], TWO, id="null"),
        pytest.param([[piece("f", OSLO, id="a", index=0)], [piece("g", ROME, id="b", index=0)]], TWO, id="same index"),
        pytest.param([[piece("f", OSLO, id="a", index=0)], [piece("f", ROME, id="b", index=0)]], SAME, id="same name"),
        pytest.param([[piece("f", OSLO, id="a"), piece("g", ROME, id="b")]], TWO, id="one chunk"),
        pytest.param([[piece("f", OSLO, id="a", index="0"), piece("g", ROME, id="b", index="1")]], TWO, id="text"),
        pytest.param(
            [[piece("f", "", id="a")], [piece(None, OSLO)], [piece("g", "", id="b")], [piece(None, ROME)]], TWO, id="pieces follow the last"
        ),
        pytest.param(
            [[piece("f", "", id="a"), piece("g", "", id="b")], [piece(None, ROME, id="b")], [piece(None, OSLO, id="a")]], TWO, id="pieces by id"
        ),
        pytest.param(
            [[piece("f", "", id="a", index=0)], [piece("g", "", id="b", index=1)], [piece(None, ROME, index=1), piece(None, OSLO, index=0)]],
            TWO,
            id="interleaved",
        ),
        pytest.param(
            [[piece("f", "", id="a"), piece("g", "", id="b")], [piece(None, OSLO), piece(None, ROME)]], TWO, id="by place in the chunk"
        ),
        pytest.param([[piece("f", OSLO[:5], id="a", index=0)], [piece("f", OSLO[5:], id="a", index=0)]], TWO[:1], id="name repeated"),
        pytest.param([[piece("f", OSLO[:5], id="a", index=0)], [piece(None, OSLO[5:], id="x", index=0)]], TWO[:1], id="made-up id"),
        pytest.param([[piece("f", OSLO, index=0)], [piece("g", ROME, index=0)]], [("", "f", OSLO), ("", "g", ROME)], id="no id"),
        pytest.param([[piece("f", OSLO)], [piece("f", ROME)]], [("", "f", OSLO), ("", "f", ROME)], id="neither"),
        pytest.param([[piece("f", {"city": "Oslo"}, id="a")], [piece("g", {"city": "Rome"}, id="b")]], TWO, id="objects"),
        pytest.param([[piece("get_", "", id="a", index=0)], [piece("time", "", index=0)], [piece(None, "{}", index=0)]], [("a", "get_time", "{}")], id="name in pieces"),
        pytest.param([[piece("f", None, id="a", index=0)]], [("a", "f", "")], id="no arguments"),
        pytest.param([[piece("f", '{"a":"}{\\"', id="a")], [piece(None, '"}')]], [("a", "f", '{"a":"}{\\""}')], id="brackets in a string"),
    ],
)  # fmt: skip
def test_calls_are_told_apart_by_id_and_index(
    chunks: list[Any], expected: list[tuple[str, str, str]]
) -> None:
    assert calls_of(*chunks) == expected
    reader = ChatReplyReader()
    parts = [part for calls in chunks for part in reader.feed(delta(tool_calls=calls))] + reader.finish()
    opened = [part.name for part in parts if isinstance(part, CallOpened)]
    assert opened == [name for _, name, _ in expected]
    assert "".join(p.text for p in parts if isinstance(p, CallArguments)) == "".join(
        given for *_, given in expected
    )


@pytest.mark.parametrize("more", ["{}", ROME, "x", "}"])
def test_a_call_that_goes_on_after_its_end_is_a_problem_and_gets_no_verdict(more: str) -> None:
    """Nothing tells two calls apart here: what Patina would make of them is no call of the model's."""
    reply = recorded(
        delta(tool_calls=[piece("f", OSLO, id="a", index=0)]),
        delta(tool_calls=[piece(None, more, index=0)]),
        end("stop"),
    )
    assert "goes on after the end" in reply.problem


@pytest.mark.parametrize("part", ["delta", "message"])
@pytest.mark.parametrize(
    ("fields", "call"),
    [
        ({"tool_calls": [{"id": "a", "type": "custom", "custom": {"name": "run", "input": "print(1)"}}]}, {"id": "a", "type": "custom", "custom": {"name": "run", "input": "print(1)"}}),
        ({"function_call": {"name": "f", "arguments": OSLO}}, {"type": "function", "function": {"name": "f", "arguments": OSLO}}),
        ({"tool_calls": [piece("f", {"city": "Oslo"}, id="a")]}, {"id": "a", "type": "function", "function": {"name": "f", "arguments": OSLO}}),
        ({"tool_calls": piece("f", OSLO, id="a")}, {"id": "a", "type": "function", "function": {"name": "f", "arguments": OSLO}}),
    ],
)  # fmt: skip
def test_every_form_of_a_call_is_recorded(fields: dict[str, Any], call: dict[str, Any], part: str) -> None:
    reply = recorded({"choices": [{"index": 0, part: fields, "finish_reason": "tool_calls"}]}, part=part)
    assert reply.problem == ""
    assert reply.completions[0].tool_calls == (call,)


def test_a_custom_tools_input_and_a_legacy_call_come_in_pieces() -> None:
    pieces = [
        {"index": 0, "id": "a", "type": "custom", "custom": {"name": "run", "input": ""}},
        {"index": 0, "custom": {"input": "{1} "}},
        {"index": 0, "custom": {"input": "x"}},
    ]
    reply = recorded(*(delta(tool_calls=[one]) for one in pieces), end("tool_calls"))
    assert (reply.problem, reply.completions[0].tool_calls[0]["custom"]) == (
        "",
        {"name": "run", "input": "{1} x"},
    )
    old = recorded(
        delta(function_call={"name": "f", "arguments": ""}),
        delta(function_call={"arguments": OSLO[:4]}),
        delta(function_call={"arguments": OSLO[4:]}),
        end("function_call"),
    )
    assert (old.problem, old.completions[0].tool_calls[0]["function"]) == (
        "",
        {"name": "f", "arguments": OSLO},
    )


@pytest.mark.parametrize("part", ["delta", "message"])
@pytest.mark.parametrize(
    ("message", "reasoning", "text"),
    [
        ({"reasoning_content": "", "reasoning": "hm", "content": "Yes."}, "hm", "Yes."),
        ({"reasoning_content": "hm", "reasoning": "hm", "content": "Yes."}, "hm", "Yes."),
        ({"reasoning": None, "reasoning_content": "hm", "content": ["Yes."]}, "hm", "Yes."),
        ({"reasoning": {"content": "hm"}, "content": "Yes."}, "hm", "Yes."),
        ({"reasoning_details": [{"type": "reasoning.text", "text": "h"}, {"type": "reasoning.summary", "summary": "m"}], "content": "Yes."}, "hm", "Yes."),
        ({"thinking": "hm", "content": {"type": "text", "text": "Yes."}}, "hm", "Yes."),
        ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "Yes."}]}, "hm", "Yes."),
        ({"content": [{"type": "refusal", "refusal": "No."}]}, "", "No."),
        ({"reasoning_details": [{"type": "reasoning.encrypted", "data": "xx"}], "content": "Yes."}, "", "Yes."),
    ],
)  # fmt: skip
def test_text_and_reasoning_are_kept_under_any_name(
    message: dict[str, Any], reasoning: str, text: str, part: str
) -> None:
    reply = recorded({"choices": [{"index": 0, part: message, "finish_reason": "stop"}]}, part=part)
    completion: Completion = reply.completions[0]
    assert (reply.problem, completion.reasoning, completion.text) == ("", reasoning, text)


@pytest.mark.parametrize(
    "message",
    [
        {"content": [{"type": "output_audio", "data": "x"}]}, {"content": 5}, {"audio": {"id": "a", "data": "x"}}, {"reasoning": {"x": 1}},
        {"tool_calls": ["f"]}, {"tool_calls": [{"id": "a", "type": "mcp", "mcp": {"name": "f"}}]}, {"images": [{"type": "image_url"}]},
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_a_problem(message: dict[str, Any]) -> None:
    assert recorded(
        {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}, part="message"
    ).problem
    assert recorded(delta(**message), end("stop")).problem


@pytest.mark.parametrize(
    "chunk",
    [
        {"choices": None, "usage": {"prompt_tokens": 1, "completion_tokens": 1}}, {"usage": {"completion_tokens": 1}}, {"choices": []}, {"type": "ping"}, {},
        {"choices": {}}, {"choices": [None]}, {"choices": [], "prompt_filter_results": [{"prompt_index": 0}]}, {"error": None, "choices": None},
        {"choices": [{"index": 0, "finish_reason": None, "content_filter_results": {}}]}, b"null", b"[]", b'"ping"', b"", b"ping", b"1",
    ],
)  # fmt: skip
@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_a_chunk_without_a_choice_carries_no_part_of_the_reply(chunk: Any, at: int) -> None:
    chunks: list[Any] = [delta(content="Hav"), delta(content="ana."), end("stop")]
    reply = recorded(*chunks[:at], chunk, *chunks[at:])
    assert (reply.problem, reply.error, reply.is_finished) == ("", None, True)
    assert reply.completions[0].text == "Havana."


@pytest.mark.parametrize(
    ("last", "outcome", "message"),
    [
        *((end(reason), ReplyOutcome.WHOLE, None) for reason in ("stop", "length", "tool_calls", "STOP", "eos", "max_tokens", "end_turn")),
        *((end(reason), ReplyOutcome.CUT, None) for reason in (None, "", " ", "sdfg", 5, {"type": "stop"})),
        *((end(reason), ReplyOutcome.FAILED, f"finish reason {reason!r}") for reason in ("error", "abort", "ERROR", "cancelled", "insufficient_system_resource")),
        ({"error": {"message": "gone", "code": 502}, **end("error")}, ReplyOutcome.FAILED, "gone"),
        ({"error": {"message": "gone"}, **end("stop")}, ReplyOutcome.FAILED, "gone"),
        ({"error": "gone"}, ReplyOutcome.FAILED, "gone"),
        ({"error": {"message": "gone"}, "choices": []}, ReplyOutcome.FAILED, "gone"),
        ({"object": "error", "message": "gone", "code": 500}, ReplyOutcome.FAILED, "gone"),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "gone"}}, ReplyOutcome.FAILED, "gone"),
        ({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "error": {"message": "gone"}}]}, ReplyOutcome.FAILED, "gone"),
    ],
)  # fmt: skip
def test_a_reply_is_whole_cut_or_failed(last: Any, outcome: ReplyOutcome, message: str | None) -> None:
    reply = recorded(delta(content="Half"), last, {"choices": [], "usage": {}})
    assert reply.is_finished == (outcome is ReplyOutcome.WHOLE)
    assert (reply.error is not None) == (outcome is ReplyOutcome.FAILED)
    assert message is None or message in str(reply.error)
    reader = ChatReplyReader()
    reader.feed(delta(content="Half"))
    reader.feed(last)
    assert (reader.outcome, reader.failure is None) == (outcome, outcome is ReplyOutcome.WHOLE)


def test_a_failure_stays_one_whatever_follows_it() -> None:
    assert not recorded(end("abort"), end("stop")).is_finished
    assert not recorded({"error": "gone"}, delta(content="x"), end("stop")).is_finished


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (b"\\ud83d", b"\\ude00"),
        ("😀".encode()[:1], "😀".encode()[1:]),
        ("😀".encode()[:2], "😀".encode()[2:]),
        ("😀".encode()[:3], "😀".encode()[3:]),
    ],
)
@pytest.mark.parametrize("field", ["content", "reasoning_content", "refusal", "arguments"])
def test_a_character_in_two_chunks_is_joined(first: bytes, second: bytes, field: str) -> None:
    def chunk(text: bytes) -> bytes:
        inner = b'"%b":"%b"' % (field.encode(), text)
        if field == "arguments":
            inner = b'"tool_calls":[{"index":0,"id":"a","function":{"name":"f",%b}}]' % inner
        return b'{"choices":[{"index":0,"delta":{%b}}]}' % inner

    reply = recorded(chunk(b"Hi " + first), {"choices": [], "usage": {}}, chunk(second + b"!"), end("stop"))
    completion = reply.completions[0]
    found = [
        completion.text,
        completion.reasoning,
        *(call["function"]["arguments"] for call in completion.tool_calls),
    ]
    assert reply.problem == ""
    assert "Hi 😀!" in found


@pytest.mark.parametrize("text", [b"a \\ud83d b", b"a \\ude00", b"a \\ud83d", b"a \xf0\x9f b", b"a \xff"])
def test_half_a_character_is_replaced_and_said(text: bytes) -> None:
    reply = recorded(b'{"choices":[{"index":0,"delta":{"content":"%b"}}]}' % text, end("stop"))
    assert "\ufffd" in reply.completions[0].text
    assert "lone surrogate" in reply.problem
