"""The Messages API, translated: requests to one chat request, chat completions to messages and their events."""

from __future__ import annotations

import itertools
from typing import Any

import orjson
import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from tests.wire.test_responses_api import JSON, REPLIES, TURN, call, stream_of, whole
from wire.api_translation import StreamTranslator, Untranslatable
from wire.messages_api.reply import MessageSynthesizer, message_id, translate_error
from wire.messages_api.request import translate_request
from wire.responses_api.reply import ResponseSynthesizer

EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
TOOL = {"name": "weather", "description": "D", "input_schema": {"type": "object"}}
USER = [{"role": "user", "content": "a"}]


def raw(**fields: Any) -> bytes:
    return orjson.dumps({"model": "m", "max_tokens": 9, "messages": USER, **fields})


def chat_of(body: bytes) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(translate_request(body).chat)
    return found


# ---- requests


def test_blocks_become_chat_messages_and_results_come_first() -> None:
    messages = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "Weather?", "cache_control": {"type": "ephemeral"}}],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "Let me see. "},
                {"type": "tool_use", "id": "c0", "name": "weather", "input": {"city": "Oslo"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "And?"},
                {
                    "type": "tool_result",
                    "tool_use_id": "c0",
                    "content": [{"type": "text", "text": "5 °C"}],
                    "is_error": False,
                },
            ],
        },
    ]
    found = chat_of(raw(messages=messages, system=[{"type": "text", "text": "S"}]))["messages"]
    assert found == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "Let me see. ",
            "reasoning_content": "hm",
            "tool_calls": [call_of("c0", '{"city":"Oslo"}')],
        },
        {"role": "tool", "tool_call_id": "c0", "content": "5 °C"},
        {"role": "user", "content": "And?"},
    ]


def test_a_failed_tool_is_named_as_failed() -> None:
    def result(content: Any, **more: Any) -> Any:
        block = {"type": "tool_result", "tool_use_id": "c", "content": content, **more}
        asked = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]}
        messages = [*USER, asked, {"role": "user", "content": [block]}]
        return chat_of(raw(messages=messages))["messages"][-1]["content"]

    assert result("no such file", is_error=True) == "Error: no such file"
    assert result("no such file", is_error=False) == "no such file"
    image = {"type": "image", "source": {"type": "url", "url": "u"}}
    assert result([image], is_error=True)[0] == {"type": "text", "text": "Error: "}


def test_an_assistant_message_at_the_end_is_continued_where_the_backend_can() -> None:
    def continued(content: Any) -> Any:
        body = raw(messages=[*USER, {"role": "assistant", "content": content}])
        return orjson.loads(translate_request(body, can_continue=True).chat)

    chat = continued("It is")
    assert chat["messages"][-1] == {"role": "assistant", "content": "It is"}
    assert (chat["add_generation_prompt"], chat["continue_final_message"]) == (False, True)
    for wrong in ("", [{"type": "tool_use", "id": "c", "name": "weather", "input": {}}]):
        with pytest.raises(Untranslatable, match="end with a user message"):
            continued(wrong)


def call_of(name: str, arguments: str) -> dict[str, Any]:
    return {"id": name, "type": "function", "function": {"name": "weather", "arguments": arguments}}


def test_the_input_of_a_call_keeps_its_bytes() -> None:
    body = (
        b'{"model":"m","max_tokens":9,"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"c","name":"weather","input": '
        + JSON.encode()
        + b'}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"x"}]}]}'
    )
    assert chat_of(body)["messages"][0]["tool_calls"] == [call_of("c", JSON)]


def test_tools_choices_and_limits_are_those_of_chat() -> None:
    found = chat_of(
        raw(
            tools=[TOOL, {"type": "web_search_20250305", "name": "web_search"}], tool_choice={"type": "any", "disable_parallel_tool_use": True},
            stop_sequences=["END"], temperature=0.5, top_k=3, stream=True, metadata={"user_id": "u"},
        )
    )  # fmt: skip
    del found["messages"]
    function = {"name": "weather", "description": "D", "parameters": {"type": "object"}}
    assert found == {
        "model": "m",
        "temperature": 0.5,
        "top_k": 3,
        "max_tokens": 9,
        "stop": ["END"],
        "stream": True,
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "user": "u",
    }
    named = chat_of(raw(tools=[TOOL], tool_choice={"type": "tool", "name": "weather"}))
    assert named["tool_choice"] == {"type": "function", "function": {"name": "weather"}}


@pytest.mark.parametrize(
    "given_id",
    [
        "user_abc_account_def_session_0f0e0d0c-0000-4000-8000-000000000000",
        '{"device_id":"abc","account_uuid":"def","session_id":"0f0e0d0c-0000-4000-8000-000000000000"}',
    ],
)
def test_claude_codes_user_id_is_a_user_and_what_names_the_conversation(given_id: str) -> None:
    options = translate_request(raw(metadata={"user_id": given_id, "patina_train": "off"})).option_fields
    assert options["agent_session_id"] == "0f0e0d0c-0000-4000-8000-000000000000"
    assert "0f0e0d0c" not in options["user"]
    assert "abc" in options["user"]
    assert options["metadata"] == {"patina_train": "off"}


def test_images_are_those_of_chat() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    content = [{"type": "text", "text": "See"}, {"type": "image", "source": source}]
    [message] = chat_of(raw(messages=[{"role": "user", "content": content}]))["messages"]
    assert message["content"][1] == {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"max_tokens": None}, "max_tokens: Field required"),
        ({"max_tokens": 0}, "at least 1"),
        ({"messages": []}, "at least one message"),
        ({"messages": [*USER, {"role": "assistant", "content": "Well"}]}, "end with a user message"),
        ({"messages": [{"role": "tool", "content": "x"}]}, r"messages\.0\.role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "base64"}}]}]},
            "document",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c9"}]}]},
            r"messages\.0\.content\.0: unexpected `tool_use_id` found in `tool_result` blocks: c9\.",
        ),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "run at Anthropic"),
        ({"tools": [TOOL], "tool_choice": {"type": "maybe"}}, "tool_choice"),
        ({"model": None}, "model: Field required"),
    ],
)
def test_what_cannot_be_served_is_refused_with_a_sentence(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(Untranslatable, match=reason):
        translate_request(raw(**fields))


# ---- replies


def test_a_message_is_valid_for_the_sdk_in_strict_mode() -> None:
    made = MessageSynthesizer("m", thinks=True)
    reply = whole(reasoning_content="hm", tool_calls=[call(0, JSON)])
    reply["choices"][0]["finish_reason"] = "tool_calls"
    body = made.whole(TURN, reply)[1]
    message = Message.model_validate_json(body, strict=True)
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
    assert (message.id, message.stop_reason) == (message_id(TURN), "tool_use")
    assert JSON.encode() in body


@pytest.mark.parametrize(
    ("finish", "stop", "expected"),
    [
        ("stop", None, ("end_turn", None)),
        ("stop", "END", ("stop_sequence", "END")),
        ("stop", "other", ("end_turn", None)),
        ("length", None, ("max_tokens", None)),
        ("content_filter", None, ("refusal", None)),
    ],
)
def test_the_finish_reason_is_the_stop_reason(
    finish: str, stop: str | None, expected: tuple[str, str | None]
) -> None:
    reply = whole()
    reply["choices"][0] |= {"finish_reason": finish, "stop_reason": stop}
    found = orjson.loads(MessageSynthesizer("m", stop_sequences=["END"]).whole(TURN, reply)[1])
    assert (found["stop_reason"], found["stop_sequence"]) == expected


def test_reasoning_is_shown_only_to_who_asked_for_it() -> None:
    found = orjson.loads(MessageSynthesizer("m").whole(TURN, whole(reasoning_content="hm"))[1])
    assert [block["type"] for block in found["content"]] == ["text"]


def test_arguments_that_are_no_json_are_named_as_such() -> None:
    found = orjson.loads(MessageSynthesizer("m").whole(TURN, whole(tool_calls=[call(0, "{city")]))[1])
    assert found["content"][1]["input"] == {"invalid_json": "{city"}


@given(
    reply=REPLIES,
    sizes=st.lists(st.integers(0, 5), max_size=5),
    cuts=st.lists(st.integers(0, 4000), max_size=8),
)
def test_any_chunking_of_a_stream_gives_the_message_of_the_whole_reply(
    reply: dict[str, Any], sizes: list[int], cuts: list[int]
) -> None:
    expected = orjson.loads(MessageSynthesizer("m", thinks=True).whole(TURN, reply)[1])
    made = MessageSynthesizer("m", thinks=True)
    translator = StreamTranslator(made)
    stream = stream_of(reply, sizes)
    bounds = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    out = (
        made.begin(TURN)
        + b"".join(translator.feed(stream[a:b]) for a, b in itertools.pairwise(bounds))
        + translator.close()
    )
    written = [event.partition(b"data: ")[2] for event in out.split(b"\n\n") if event]
    events = [orjson.loads(event) for event in written]
    assert [event["type"] for event in events[:2]] == ["message_start", "ping"]
    assert events[-1] == {"type": "message_stop"}
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for event in written:
        if event != b'{"type":"ping"}':
            snapshot = accumulate_event(
                event=EVENTS.validate_json(event, strict=True), current_snapshot=snapshot, json_bufs=buffers
            )
    assert snapshot is not None
    shown = snapshot.to_dict()
    assert [block.get("text", block.get("thinking", block.get("input"))) for block in shown["content"]] == [
        block.get("text", block.get("thinking", block.get("input"))) for block in expected["content"]
    ]
    assert shown["stop_reason"] == expected["stop_reason"]
    assert shown["usage"]["output_tokens"] == expected["usage"]["output_tokens"] == 4


def test_an_overflow_is_named_as_clients_recognise_it() -> None:
    body = orjson.dumps({"error": {"message": "context", "code": "context_length_exceeded"}})
    assert orjson.loads(translate_error(400, body)) == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "prompt is too long: context"},
    }


def test_a_failing_stream_ends_with_an_error_event() -> None:
    made = MessageSynthesizer("m")
    made.begin(TURN)
    translator = StreamTranslator(made)
    out = translator.feed(b'data: {"error": {"message": "out of memory", "code": 500}}\n\ndata: [DONE]\n\n')
    assert out.startswith(b"event: error\n")
    assert orjson.loads(out.partition(b"data: ")[2]) == {
        "type": "error",
        "error": {"type": "api_error", "message": "out of memory"},
    }


@pytest.mark.parametrize(
    ("change", "status", "kind"),
    [
        ({"error": {"message": "gone", "code": 529}}, 529, "overloaded_error"),
        ({"error": "gone"}, 502, "api_error"),
        ({"choices": [{"message": {"content": "Half"}, "finish_reason": "abort"}]}, 502, "api_error"),
        ({"choices": [{"message": {"content": "Half"}, "finish_reason": None}]}, 502, "api_error"),
        ({"choices": []}, 502, "api_error"),
    ],
)
def test_a_whole_reply_that_failed_or_was_cut_is_an_error(
    change: dict[str, Any], status: int, kind: str
) -> None:
    found, body = MessageSynthesizer("m").whole(TURN, {**whole(), **change})
    error = orjson.loads(body)
    assert (found, error["type"], error["error"]["type"]) == (status, "error", kind)
    response = orjson.loads(
        ResponseSynthesizer({}, {}, instructions=None).whole(TURN, {**whole(), **change})[1]
    )
    assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
