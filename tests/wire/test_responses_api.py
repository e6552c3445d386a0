"""The Responses API, translated: requests to one chat request, chat completions to responses and their events."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import openai
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.conversations import ConversationItem
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from store.values import RecordedTurn
from wire.api_translation import StreamTranslator, Untranslatable
from wire.responses_api.items import input_items, item_id, messages_of, shown_item, turn_of
from wire.responses_api.reply import ResponseSynthesizer, history_of
from wire.responses_api.request import referenced_turns, translate_request
from wire.user_text import strip_client_context

TURN = "turn_0123456789abcdef012345"
JSON = '{"city":  "Oslo",\n "days": 1.50}'
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True}


def turn(**more: Any) -> RecordedTurn:
    made = RecordedTurn(
        turn_id=TURN, created_at=1.0, finished_at=2.0, status_code=200, messages=({"role": "user", "content": "hi"},), request={},
        text="Hello", reasoning="", tool_calls=(), finish_reason="stop", usage=None, api={"name": "responses", "store": True},
    )  # fmt: skip
    return replace(made, **more)


def chat_of(body: dict[str, Any], **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(translate_request({"model": "m", **body}, {}, **more).chat)
    return found


# ---- requests


def test_a_string_is_a_user_message_and_instructions_are_the_system_message() -> None:
    assert chat_of({"input": " Hi \n", "instructions": "Be brief.", "temperature": 0.5}) == {
        "model": "m",
        "temperature": 0.5,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Hi \n"}],
    }


def test_the_items_of_one_reply_are_one_assistant_message() -> None:
    items: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {"type": "reasoning", "id": item_id("rs", TURN), "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "id": item_id("msg", TURN), "role": "assistant", "content": [{"type": "output_text", "text": "Let me see. "}]},
        {"type": "function_call", "id": item_id("fc", TURN, 0), "call_id": "c0", "name": "weather", "arguments": JSON},
        {"type": "function_call", "id": item_id("fc", TURN, 1), "call_id": "c1", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c0", "output": "5 °C"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
    ]  # fmt: skip

    def call(name: str, arguments: str) -> dict[str, Any]:
        return {"id": name, "type": "function", "function": {"name": "weather", "arguments": arguments}}

    assert messages_of(items, {}) == [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "Let me see. ",
            "reasoning_content": "hm",
            "tool_calls": [call("c0", JSON), call("c1", "{}")],
        },
        {"role": "tool", "tool_call_id": "c0", "content": "5 °C"},
        {
            "role": "tool",
            "tool_call_id": "c1",
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        },
    ]
    without_ids = [{k: v for k, v in item.items() if k != "id"} for item in items]
    assert messages_of(without_ids, {}) == messages_of(items, {})


def test_two_replies_in_a_row_stay_two_messages() -> None:
    items = [{"role": "assistant", "content": "one"}, {"role": "assistant", "content": "two"}]
    assert [m["content"] for m in messages_of(items, {})] == ["one", "two"]


def test_there_is_one_system_message_at_the_front() -> None:
    items = [
        {"role": "developer", "content": "A"}, {"role": "system", "content": "B"}, {"role": "user", "content": "C"}, {"role": "developer", "content": "D"},
        {"role": "assistant", "content": "E"}, {"role": "developer", "content": "F"},
    ]  # fmt: skip
    messages = chat_of({"input": items, "instructions": "I"})["messages"]
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user"]
    assert [part["text"] for part in messages[0]["content"]] == ["I", "A", "B"]
    assert [part["text"] for part in messages[1]["content"]] == [
        "C",
        "<system-reminder>\nD\n</system-reminder>",
    ]
    assert messages[3]["content"] == "<system-reminder>\nF\n</system-reminder>"
    assert strip_client_context("C\n" + messages[1]["content"][1]["text"]).strip() == "C"


def test_instructions_are_not_inherited() -> None:
    system = {"role": "system", "content": [{"type": "text", "text": "I"}, {"type": "text", "text": "A"}]}
    user = {"role": "user", "content": "hi"}
    api = {"name": "responses", "instructions": True}
    reply = {"role": "assistant", "content": "Hello"}
    assert history_of(turn(messages=(system, user), api=api)) == [
        {"role": "system", "content": "A"},
        user,
        reply,
    ]
    assert history_of(turn(messages=({"role": "system", "content": "I"}, user), api=api)) == [user, reply]
    found = translate_request({"model": "m", "input": "more", "instructions": "J"}, {}, previous=turn())
    assert [m["content"] for m in orjson.loads(found.chat)["messages"]] == ["J", "hi", "Hello", "more"]
    assert (found.continues, found.detail["inherited"]) == (TURN, 2)


def test_an_item_reference_is_the_reply_that_it_names_once() -> None:
    calls = ({"id": "c", "type": "function", "function": {"name": "weather", "arguments": JSON}},)
    known = {TURN: turn(tool_calls=calls, text="")}
    items = [
        {"type": "item_reference", "id": item_id("rs", TURN)},
        {"type": "item_reference", "id": item_id("fc", TURN, 0)},
    ]
    assert referenced_turns({"input": items}) == {TURN}
    assert messages_of(items, known) == [{"role": "assistant", "content": None, "tool_calls": list(calls)}]
    with pytest.raises(Untranslatable, match="not found"):
        messages_of(items, {})


def test_tools_choices_and_formats_are_those_of_chat() -> None:
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    found = chat_of(
        {
            "input": "a", "tools": [TOOL], "tool_choice": {"type": "function", "name": "weather"}, "parallel_tool_calls": False,
            "text": {"format": schema, "verbosity": "low"}, "max_output_tokens": 7, "reasoning": {"effort": "low"},
            "include": ["message.output_text.logprobs"], "top_logprobs": 2, "top_k": 3, "metadata": {"a": "b"}, "stream": True,
        }
    )  # fmt: skip
    del found["messages"]
    assert found == {
        "model": "m",
        "top_k": 3,  # unknown to the API: the backend's own
        "stream": True,
        "max_tokens": 7,
        "reasoning_effort": "low",
        "logprobs": True,
        "top_logprobs": 2,
        "response_format": {
            "type": "json_schema",
            "json_schema": {k: v for k, v in schema.items() if k != "type"},
        },
        "tools": [{"type": "function", "function": {k: v for k, v in TOOL.items() if k != "type"}}],
        "parallel_tool_calls": False,
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
    }


def test_hosted_tools_are_left_out_beside_function_tools_and_refused_alone() -> None:
    found = translate_request({"model": "m", "input": "a", "tools": [TOOL, {"type": "web_search"}]}, {})
    assert found.left_out == ("web_search",)
    assert len(orjson.loads(found.chat)["tools"]) == 1
    with pytest.raises(Untranslatable, match="web_search"):
        translate_request({"model": "m", "input": "a", "tools": [{"type": "web_search"}]}, {})


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"input": "a", "background": True}, "background"),
        ({"input": "a", "prompt": {"id": "p"}}, "template"),
        ({"input": ""[:0] or []}, "empty"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "function tools only"),
        ({"input": [{"role": "tool", "content": "x"}]}, "role"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
            "stores no files",
        ),
        ({"input": "a", "conversation": "c", "previous_response_id": "r"}, "not both"),
        ({"input": "a", "text": {"format": {"type": "xml"}}}, "unknown type"),
    ],
)
def test_what_cannot_be_served_is_refused_with_a_sentence(body: dict[str, Any], reason: str) -> None:
    with pytest.raises(Untranslatable, match=reason):
        translate_request({"model": "m", **body}, {})


def test_ids_name_their_turn_and_others_name_none() -> None:
    assert turn_of(item_id("resp", TURN)) == turn_of(item_id("fc", TURN, 3)) == TURN
    assert [turn_of(other) for other in ("resp_1", "turn_0123456789abcdef012345", None, 5, "")] == [None] * 5


def test_reasoning_that_the_client_keeps_comes_back() -> None:
    detail = {"name": "responses", "include": ["reasoning.encrypted_content"], "store": False}
    made = ResponseSynthesizer({"model": "m"}, detail, instructions=None)
    [item, _] = orjson.loads(made.whole(TURN, whole(reasoning_content="hm"))[1])["output"]
    kept = {"type": "reasoning", "summary": [], "encrypted_content": item["encrypted_content"]}
    assert messages_of([kept], {}) == [{"role": "assistant", "content": "", "reasoning_content": "hm"}]


# ---- replies


def whole(**message: Any) -> dict[str, Any]:
    return {
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "In  Norway \n", **message},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
    }


def synthesizer(**detail: Any) -> ResponseSynthesizer:
    return ResponseSynthesizer(
        {"model": "m"}, {"name": "responses", **detail}, instructions=None, created_at=5.0
    )


def stream_of(reply: dict[str, Any], sizes: list[int]) -> bytes:
    """Write a reply as a chat stream, its texts in pieces of these sizes."""
    choice = reply["choices"][0]
    message = choice["message"]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]

    def pieces(text: str) -> list[str]:
        found, at = [], 0
        for size in [*sizes, len(text)]:
            found.append(text[at : at + size])
            at += size
        return found

    deltas += [{"reasoning_content": piece} for piece in pieces(message.get("reasoning_content") or "")]
    deltas += [{"content": piece} for piece in pieces(message["content"] or "")]
    for index, call in enumerate(message.get("tool_calls") or ()):
        opened = {**call, "index": index, "function": {"name": call["function"]["name"], "arguments": ""}}
        deltas.append({"tool_calls": [opened]})
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": p}}]}
            for p in pieces(call["function"]["arguments"])
        ]
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": d, "finish_reason": None}]} for d in deltas
    ]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]})
    chunks.append({"choices": [], "usage": reply["usage"]})
    return b"".join(b"data: " + orjson.dumps(chunk) + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"


def call(number: int, arguments: str) -> dict[str, Any]:
    return {"id": f"c{number}", "type": "function", "function": {"name": "weather", "arguments": arguments}}


#: White space, escapes and characters of several bytes.
TEXTS = st.text(st.sampled_from(' \n\t"\\aé😀{}:'), max_size=30)
REPLIES = st.builds(
    lambda text, reasoning, calls: whole(
        content=text, reasoning_content=reasoning, tool_calls=[call(i, orjson.dumps({"a": a}).decode()) for i, a in enumerate(calls)]
    ),
    TEXTS, TEXTS, st.lists(TEXTS, max_size=3),
)  # fmt: skip


def test_a_response_is_valid_for_the_sdk_in_strict_mode() -> None:
    reply = whole(reasoning_content="hm", tool_calls=[call(0, JSON)])
    made = ResponseSynthesizer(
        {
            "model": "m",
            "tools": [{"type": "function", "function": {"name": "weather", "parameters": {}}}],
            "logprobs": True,
        },
        {
            "name": "responses",
            "metadata": {"a": "b"},
            "reasoning": {"effort": "low"},
            "previous_response_id": "resp_x",
        },
        instructions="I",
    )
    response = Response.model_validate_json(made.whole(TURN, reply)[1], strict=True)
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
    assert response.output_text == "In  Norway \n"
    assert response.usage is not None
    assert response.usage.total_tokens == 7


@pytest.mark.parametrize(
    ("reason", "status", "why"),
    [
        ("length", "incomplete", "max_output_tokens"),
        ("content_filter", "incomplete", "content_filter"),
        ("stop", "completed", None),
    ],
)
def test_the_finish_reason_is_the_status(reason: str, status: str, why: str | None) -> None:
    reply = whole()
    reply["choices"][0]["finish_reason"] = reason
    found = orjson.loads(synthesizer().whole(TURN, reply)[1])
    assert (found["status"], found["incomplete_details"]) == (status, why and {"reason": why})


@given(
    reply=REPLIES,
    sizes=st.lists(st.integers(0, 5), max_size=5),
    cuts=st.lists(st.integers(0, 4000), max_size=8),
)
def test_any_chunking_of_a_stream_gives_the_response_of_the_whole_reply(
    reply: dict[str, Any], sizes: list[int], cuts: list[int]
) -> None:
    expected = orjson.loads(synthesizer().whole(TURN, reply)[1])
    made = synthesizer()
    translator = StreamTranslator(made)
    raw = stream_of(reply, sizes)
    bounds = sorted({0, len(raw), *(cut for cut in cuts if cut < len(raw))})
    out = (
        made.begin(TURN)
        + b"".join(translator.feed(raw[a:b]) for a, b in itertools.pairwise(bounds))
        + translator.close()
    )
    written = [event.partition(b"data: ")[2] for event in out.split(b"\n\n") if event]
    events = [orjson.loads(event) for event in written]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    final = events[-1]["response"]
    assert {**final, "completed_at": 0} == {**expected, "completed_at": 0}
    state = ResponseStreamState(input_tools=[], text_format=openai.omit)
    for event in written:
        state.handle_event(EVENTS.validate_json(event, strict=True))
    snapshot = state._completed_response
    assert snapshot is not None
    assert snapshot.output_text == (reply["choices"][0]["message"]["content"] or "")
    deltas = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
    calls = reply["choices"][0]["message"]["tool_calls"]
    assert "".join(deltas) == "".join(one["function"]["arguments"] for one in calls)


def test_a_failing_stream_ends_with_a_failed_response() -> None:
    made = synthesizer()
    made.begin(TURN)
    translator = StreamTranslator(made)
    out = (
        translator.feed(b'data: {"error": {"message": "out of memory", "code": 500}}\n\ndata: [DONE]\n\n')
        + translator.close()
    )
    event = EVENTS.validate_json(out.partition(b"data: ")[2], strict=True)
    assert (event.type, event.response.error.message) == ("response.failed", "out of memory")


def test_a_tool_of_free_text_is_called_with_its_text() -> None:
    body = {
        "model": "m",
        "input": "a",
        "tools": [
            {
                "type": "custom",
                "name": "patch",
                "description": "D",
                "format": {"type": "grammar", "syntax": "lark", "definition": "G"},
            }
        ],
    }
    request = translate_request(body, {})
    chat = orjson.loads(request.chat)
    assert "lark grammar:\nG" in chat["tools"][0]["function"]["description"]
    reply = whole(
        content=None,
        tool_calls=[
            {
                "id": "c",
                "type": "function",
                "function": {"name": "patch", "arguments": '{"input": "*** Begin\\n"}'},
            }
        ],
    )
    [item] = orjson.loads(ResponseSynthesizer(chat, request.detail, instructions=None).whole(TURN, reply)[1])[
        "output"
    ]
    assert (item["type"], item["input"]) == ("custom_tool_call", "*** Begin\n")
    [message] = messages_of([item], {})
    assert orjson.loads(message["tool_calls"][0]["function"]["arguments"]) == {"input": "*** Begin\n"}


def test_recorded_messages_are_read_back_as_items() -> None:
    calls = [call(0, JSON)]
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c0", "content": "b"},
    ]
    items = input_items(messages, TURN)
    assert [item["type"] for item in items] == ["message", "function_call", "function_call_output"]
    assert messages_of(items, {}) == messages


def test_a_tool_of_a_namespace_keeps_it() -> None:
    inner = {"type": "function", "name": "search", "parameters": {"type": "object"}}
    request = translate_request(
        {
            "model": "m",
            "input": "a",
            "tools": [
                {"type": "namespace", "name": "mcp__a__", "tools": [inner]},
                {"type": "namespace", "name": "b", "tools": [inner]},
            ],
        },
        {},
    )
    chat = orjson.loads(request.chat)
    assert [tool["function"]["name"] for tool in chat["tools"]] == ["mcp__a__search", "b__search"]
    reply = whole(
        content=None,
        tool_calls=[{"id": "c", "type": "function", "function": {"name": "b__search", "arguments": "{}"}}],
    )
    [item] = orjson.loads(ResponseSynthesizer(chat, request.detail, instructions=None).whole(TURN, reply)[1])[
        "output"
    ]
    assert (item["name"], item["namespace"]) == ("search", "b")
    [message] = messages_of([item], {})
    assert message["tool_calls"][0]["function"]["name"] == "b__search"


@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": "a"},
        {"role": "developer", "content": [{"type": "input_text", "text": "a"}]},
        {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AA"}]},
        {"role": "assistant", "content": "a", "id": None},
        {"role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c", "name": "weather", "arguments": JSON},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "5"}]},
        {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "5"},
    ],
)
def test_what_a_client_sent_is_read_back_as_the_sdk_declares_it(item: dict[str, Any]) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(ConversationItem)
    assert adapter.validate_python(shown_item(item, "item_1")).id == "item_1"
