"""What is added to a request leaves the reply again, byte for byte; what does not add up is never trained."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.errors import WireError
from store.lifecycle import DropReason
from tests.proxy.upstream import Upstream
from wire.chat_request import Injection, build_request, parse_chat
from wire.reply_assembly import AssembledReply, Assembler, token_drop_reason
from wire.reply_strip import (
    NullFieldStyle,
    find_first_addition,
    is_tokens_only,
    is_usage_only,
    observe_null_style,
    refused_fields,
    strip_reply,
)
from wire.sse import EventSplitter, event_data

ALL = frozenset({"logprobs", "return_token_ids", "stream_options"})
ASKED = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


def chat(**more: Any) -> Any:
    return parse_chat(orjson.dumps({**ASKED, **more}))


def build_request_of(asked: Any, **how: Any) -> tuple[bytes, Injection]:
    return build_request(orjson.dumps(asked.body), asked, **how)


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[1]", b'"x"', b"{}", b'{"messages":[]}', b'{"messages":"x"}', b'{"messages":[1]}', b'{"a":\xff}'],
)  # fmt: skip
def test_what_is_no_chat_request_is_left_to_the_backend(raw: bytes) -> None:
    with pytest.raises(WireError):
        parse_chat(raw)


def test_only_what_the_client_did_not_ask_for_is_added() -> None:
    body, injection = build_request_of(chat(stream=True), fields=ALL)
    assert orjson.loads(body) == {
        **ASKED,
        "stream": True,
        "logprobs": True,
        "return_token_ids": True,
        "stream_options": {"include_usage": True},
    }
    assert injection == Injection(logprobs=True, token_ids=True, usage=True)
    asked = chat(
        stream=True, logprobs=True, return_token_ids=True, stream_options={"include_usage": True, "x": 1}
    )
    body, injection = build_request_of(asked, fields=ALL)
    assert orjson.loads(body) == asked.body
    assert injection == Injection()
    assert not injection.changes_reply


def test_usage_is_asked_for_in_streams_only_and_keeps_other_options() -> None:
    assert "stream_options" not in orjson.loads(build_request_of(chat(), fields=ALL)[0])
    body, _ = build_request_of(chat(stream=True, stream_options={"x": 1}), fields=ALL)
    assert orjson.loads(body)["stream_options"] == {"x": 1, "include_usage": True}


def test_a_clients_own_error_stays_an_error() -> None:
    body, injection = build_request_of(chat(top_logprobs=3), fields=ALL)
    assert "logprobs" not in orjson.loads(body)
    assert not injection.logprobs


def test_the_model_is_renamed_for_the_backend_and_back() -> None:
    body, injection = build_request_of(chat(), fields=frozenset(), served_model="tiny@3")
    assert orjson.loads(body)["model"] == "tiny@3"
    reply = b'{"id":"x", "model" : "tiny@3","choices":[{"message":{"content":"\\"model\\":\\"tiny@3\\""}}]}'
    assert strip_reply(reply, orjson.loads(reply), injection) == reply.replace(
        b'"tiny@3","choices', b'"tiny","choices'
    )


def test_a_cut_leaves_every_other_byte_as_it_was() -> None:
    reply = (
        b'{ "prompt_token_ids" : [1, 2], "id":"\\u00e9 \xc3\xa9", "big": 1.50, "choices":[ {"index":0 ,'
        b'"message":{"content":"a \\"token_ids\\":[9] b"},"logprobs" : {"content":[{"token":"]}","logprob":-0.5}]} ,'
        b' "token_ids": [7 , 8],"finish_reason":"stop"}]}'
    )
    expected = (
        b'{ "id":"\\u00e9 \xc3\xa9", "big": 1.50, "choices":[ {"index":0 ,'
        b'"message":{"content":"a \\"token_ids\\":[9] b"},"logprobs" : null'
        b',"finish_reason":"stop"}]}'
    )
    assert strip_reply(reply, orjson.loads(reply), Injection(logprobs=True, token_ids=True)) == expected


def test_members_that_stand_alone_or_side_by_side_leave_valid_json() -> None:
    for raw, left in [
        (b'{"prompt_token_ids":[1]}', b"{}"),
        (b'{"prompt_token_ids":[1],"usage":null}', b"{}"),
        (b'{"prompt_token_ids":[1], "usage":null, "x":1}', b'{"x":1}'),
        (b'{"x":1,"prompt_token_ids":[1],"usage":null}', b'{"x":1}'),
    ]:
        assert strip_reply(raw, orjson.loads(raw), Injection(token_ids=True, usage=True)) == left


def test_a_name_that_occurs_in_an_unknown_field_is_left_there() -> None:
    raw = b'{"extra":{"token_ids":[5]},"choices":[{"index":0,"token_ids":[1]}]}'
    stripped = orjson.loads(strip_reply(raw, orjson.loads(raw), Injection(token_ids=True)))
    assert stripped == {"extra": {"token_ids": [5]}, "choices": [{"index": 0}]}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=8) | st.sampled_from(['"logprobs":', "\\", '\\"']),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@given(json_values, st.booleans(), st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " : ")]))
def test_stripping_gives_what_the_backend_would_have_written_without_our_fields(
    content: Any, ascii_only: bool, separators: tuple[str, str]
) -> None:
    def write(value: Any) -> bytes:
        return json.dumps(value, ensure_ascii=ascii_only, separators=separators).encode(
            "utf-8", "surrogatepass"
        )

    choice = {"index": 0, "message": {"content": content}, "logprobs": None, "finish_reason": "stop"}
    plain = {"id": "x", "choices": [choice], "model": "m"}
    full = {
        "id": "x",
        "prompt_token_ids": [1, 2],
        "choices": [
            {**choice, "token_ids": [3], "logprobs": {"content": [{"token": content, "logprob": -1.0}]}}
        ],
        "model": "m",
        "usage": None,
    }
    try:
        parsed = orjson.loads(write(full))
    except orjson.JSONDecodeError:
        return  # lone surrogates are no JSON: such a reply is passed on untouched
    assert strip_reply(write(full), parsed, Injection(logprobs=True, token_ids=True, usage=True)) == write(
        plain
    )


def test_a_refusal_is_recognised_by_the_field_it_names() -> None:
    injection = Injection(logprobs=True, token_ids=True)
    assert refused_fields(b'{"error":{"message":"Unrecognized argument: return_token_ids"}}', injection) == (
        "return_token_ids",
    )
    assert refused_fields(b'{"error":{"message":"too long"}}', injection) == ()


# ------------------------------------------------------------------ assembling

SCRIPTS: list[dict[str, Any]] = [
    {"text": "Paris is the capital"},
    {"text": "with thoughts", "reasoning": "let me think"},
    {"text": "", "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Rome"}'}},
        {"id": "c2", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}}]},
    {"text": "cut at the limit", "finish": "length"},
]  # fmt: skip


def assemble_stream(chunks: list[dict[str, Any]], n: int, pieces: int) -> AssembledReply:
    data = b"".join(b"data: " + orjson.dumps(c) + b"\n\n" for c in chunks) + b"data: [DONE]\n\n"
    splitter, assembler = EventSplitter(), Assembler(n)
    for start in range(0, len(data), pieces):
        for event in splitter.feed(data[start : start + pieces]):
            payload = event_data(event)
            if payload and payload != b"[DONE]":
                assembler.consume(orjson.loads(payload), part="delta")
    return assembler.close()


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_stream_in_every_chunking_assembles_to_the_reply_that_was_not_streamed(script: Any, n: int) -> None:
    upstream = Upstream()
    body = {
        **ASKED,
        "n": n,
        "logprobs": True,
        "return_token_ids": True,
        "stream_options": {"include_usage": True},
    }
    whole = Assembler(n)
    whole.consume(upstream._whole(body, "tiny", script["text"], script), part="message")
    expected = whole.close()
    chunks = upstream.chunks(body, "tiny", script["text"], script)
    for pieces in (1, 7, 64, 1000, 10**6):
        found = assemble_stream(chunks, n, pieces)
        for a, b in zip(found.completions, expected.completions, strict=True):
            assert (a.token_ids, a.sampling_logprobs, a.finish_reason) == (
                b.token_ids,
                b.sampling_logprobs,
                b.finish_reason,
            )
            assert (a.tool_calls, a.reasoning) == (b.tool_calls, b.reasoning)
        assert found.completions[0].text == expected.completions[0].text == script["text"]
        assert (found.prompt_token_ids, found.usage, found.completion_id) == (
            expected.prompt_token_ids,
            expected.usage,
            expected.completion_id,
        )
        assert found.is_finished
        assert not found.problem
        assert token_drop_reason(found.completions[0], found.completions, found.usage) is None
    assert is_usage_only(chunks[-1])


def test_tool_call_arguments_in_pieces_are_joined() -> None:
    assembler = Assembler()
    for delta in (
        {
            "tool_calls": [
                {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}
            ]
        },
        {
            "tool_calls": [
                {"index": 1, "id": "b", "type": "function", "function": {"name": "g", "arguments": "{"}}
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"x"'}}]},
        {
            "tool_calls": [
                {"index": 0, "function": {"arguments": ":1}"}},
                {"index": 1, "function": {"arguments": "}"}},
            ]
        },
    ):
        assembler.consume({"choices": [{"index": 0, "delta": delta}]}, part="delta")
    calls = assembler.close().completions[0].tool_calls
    assert [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in calls] == [
        ("a", "f", '{"x":1}'),
        ("b", "g", "{}"),
    ]


def test_a_stream_without_finish_reason_is_not_finished() -> None:
    assembler = Assembler()
    assembler.consume({"choices": [{"index": 0, "delta": {"content": "half"}}]}, part="delta")
    assert not assembler.close().is_finished


def test_an_error_inside_a_stream_is_kept_as_what_it_is() -> None:
    assembler = Assembler()
    assembler.consume({"error": {"message": "out of memory"}}, part="delta")
    assert assembler.close().error == "out of memory"


def reply(ids: list[int], logprobs: list[float], usage: int | None = None) -> AssembledReply:
    assembler = Assembler()
    choice = {
        "index": 0,
        "message": {"content": "x"},
        "finish_reason": "stop",
        "token_ids": ids,
        "logprobs": {"content": [{"logprob": v} for v in logprobs]},
    }
    usage_field = {} if usage is None else {"usage": {"completion_tokens": usage}}
    assembler.consume({"choices": [choice], **usage_field}, part="message")
    return assembler.close()


@pytest.mark.parametrize(
    ("ids", "logprobs", "usage", "reason"),
    [
        ([1, 2], [-0.5, 0.0], 2, None),
        ([1, 2], [-0.5, -0.5], None, None),
        ([], [-0.5], 1, DropReason.NO_TOKENS),
        ([1], [], 1, DropReason.NO_TOKENS),
        ([1, 2], [-0.5], 2, DropReason.TOKEN_MISMATCH),
        ([1, 2], [-0.5, -0.5], 3, DropReason.TOKEN_MISMATCH),
        ([1, 2], [-0.5, 0.7], 2, DropReason.TOKEN_MISMATCH),
    ],
)
def test_tokens_that_do_not_add_up_are_never_repaired(
    ids: Any, logprobs: Any, usage: Any, reason: Any
) -> None:
    found = reply(ids, logprobs, usage)
    fault = token_drop_reason(found.completions[0], found.completions, found.usage)
    assert (fault[0] if fault else None) == reason


@given(json_values)
def test_any_json_can_be_taken_without_an_exception(value: Any) -> None:
    assembler = Assembler()
    for part in ("message", "delta"):
        assembler.consume(value, part=part)
        assembler.consume({"choices": [value]}, part=part)
        assembler.consume(
            {"choices": [{"index": 0, part: value, "logprobs": {"content": [value]}}]}, part=part
        )
        assembler.consume({"choices": [{"index": value, part: {"tool_calls": [value]}}]}, part=part)
    assembler.close()


def tokens_only(**more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": None, "token_ids": [1], **more}
    return {"object": "chat.completion.chunk", "choices": [choice]}


def test_a_chunk_that_only_tells_tokens_is_there_for_those_who_asked() -> None:
    assert is_tokens_only(tokens_only(), {})
    assert is_tokens_only(tokens_only(delta={"content": ""}), {})
    assert not is_tokens_only(tokens_only(), {"logprobs": True})
    assert not is_tokens_only(tokens_only(), {"return_token_ids": True})
    for more in (
        {"delta": {"content": "x"}}, {"delta": {"role": "assistant", "content": ""}}, {"finish_reason": "stop"}, {"token_ids": None},
    ):  # fmt: skip
        assert not is_tokens_only(tokens_only(**more), {})
    assert not is_tokens_only({"choices": []}, {})


def test_a_backend_that_writes_every_field_writes_null_for_what_nobody_asked() -> None:
    reply = {"object": "x", "prompt_logprobs": None, "choices": [{"finish_reason": "stop", "logprobs": {}}]}
    asked = Injection(logprobs=True, token_ids=True)
    assert observe_null_style(NullFieldStyle(), reply, asked, {}).token_ids is True


@pytest.mark.parametrize("name", ["logprobs", "token_ids", "prompt_token_ids"])
@pytest.mark.parametrize("colon", [":", " : "])
def test_wherever_a_reply_is_cut_nothing_shows_of_a_name_that_only_we_asked_for(
    name: str, colon: str
) -> None:
    before = b'{"choices":[{"index":0'
    whole = before + f', "{name}"{colon}[1'.encode()
    for end in range(len(before), len(whole) + 1):
        assert find_first_addition(whole[:end], Injection(logprobs=True, token_ids=True)) == len(before)
