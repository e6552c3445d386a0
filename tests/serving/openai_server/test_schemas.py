"""Request bodies to values, pieces to replies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from serving.openai_server.engine import EngineLimits
from serving.openai_server.schemas import (
    ChatBody,
    ChatChoice,
    CompletionBody,
    OutputForm,
    RequestError,
    build_completion_logprobs,
    check_context_length,
    check_token_ids,
    merge_chunks,
    output_form,
    parse_body,
)
from serving.openai_server.toolcalls import ToolCallParser
from serving.openai_server.values import OutputChunk, SamplingDefaults, SamplingParams, TokenLogprob
from serving.openai_server.vocabulary import Vocabulary

LIMITS = EngineLimits(name="the built-in engine", max_sequences=16)
HI = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


@pytest.fixture(scope="module")
def vocabulary(tiny_model: Path) -> Vocabulary:
    from transformers import AutoTokenizer

    return Vocabulary(AutoTokenizer.from_pretrained(tiny_model), 0)


def chat(**fields: Any) -> ChatBody:
    return parse_body(ChatBody, orjson.dumps({"messages": HI} | fields), LIMITS)


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": 9}, "temperature"),
        ({"temperature": 2.01}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"n": 0}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 1.5}, "max_completion_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"stop": 5}, "stop"),
        ({"logprobs": 3}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"best_of": 3}, "best_of"),
    ],
)
def test_a_field_that_is_wrong_is_named(fields: dict[str, Any], where: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat(**fields)
    assert caught.value.param == where
    assert caught.value.status == 400


def test_bodies_that_are_no_json_or_lack_messages_are_refused() -> None:
    with pytest.raises(RequestError, match="Invalid JSON"):
        parse_body(ChatBody, b"{", LIMITS)
    with pytest.raises(RequestError, match="messages: Field required"):
        parse_body(ChatBody, b"{}", LIMITS)


def test_what_no_one_knows_is_ignored_and_nulls_are_defaults() -> None:
    body = chat(frobnicate=1, temperature=None, stop=None, response_format={"type": "text"}, store=False)
    params = body.sampling_params(
        SamplingDefaults(temperature=0.6, top_k=20),
        100,
        logprobs=False,
        top_logprobs=0,
    )
    assert params == SamplingParams(max_tokens=100, temperature=0.6, top_k=20)


def test_wishes_become_parameters() -> None:
    body = chat(
        temperature=0, top_p=0.5, top_k=-1, seed=4, stop=["a", ""], logit_bias={"3": -5}, ignore_eos=True
    )
    params = body.sampling_params(SamplingDefaults(top_k=20), 7, logprobs=True, top_logprobs=2)
    assert params == SamplingParams(
        max_tokens=7,
        temperature=0.0,
        top_p=0.5,
        top_k=0,
        seed=4,
        stop=("a",),
        logit_bias={3: -5.0},
        ignore_eos=True,
        logprobs=True,
        top_logprobs=2,
    )


def test_ids_outside_the_vocabulary_are_refused(vocabulary: Vocabulary) -> None:
    beyond = vocabulary.size
    for body in (
        chat(stop_token_ids=[beyond]),
        chat(logit_bias={str(beyond): 1}),
        parse_body(CompletionBody, orjson.dumps({"prompt": [1, beyond]}), LIMITS),
        parse_body(CompletionBody, orjson.dumps({"prompt": [[1], [-1]]}), LIMITS),
    ):
        with pytest.raises(RequestError, match="outside the vocabulary"):
            check_token_ids(body, vocabulary)


def test_the_context_is_checked_before_the_engine_sees_the_prompt() -> None:
    assert check_context_length(10, None, 16) == 6
    assert check_context_length(10, 6, 16) == 6
    assert check_context_length(10, 16, 16) == 6  # as vLLM, which gives what is left
    for prompt, requested_tokens in ((10, 17), (16, None), (20, 1)):
        with pytest.raises(RequestError, match=f"maximum context length is 16 tokens.*{prompt} tokens"):
            check_context_length(prompt, requested_tokens, 16)
    with pytest.raises(RequestError, match="prompt is empty"):
        check_context_length(0, None, 16)


def test_without_a_grammar_a_forced_call_is_opened_for_the_model() -> None:
    def form(**fields: Any) -> OutputForm:
        return output_form(chat(**fields), LIMITS, tags_are_tokens=True)

    assert not form().parses_calls
    assert form(tools=TOOLS).parses_calls
    assert not form(tools=TOOLS, tool_choice="none").parses_calls
    assert form(tools=TOOLS, tool_choice="required").forced == "<tool_call>"
    named = {"type": "function", "function": {"name": "f"}}
    assert form(tools=TOOLS, tool_choice=named).forced == '<tool_call>\n{"name": "f", "arguments":'
    for wrong in ("sometimes", {"function": {"name": "g"}}):
        with pytest.raises(RequestError, match="tool_choice must be"):
            form(tools=TOOLS, tool_choice=wrong)
    with pytest.raises(RequestError, match="needs tools"):
        form(tool_choice="required")


def chunk(vocabulary: Vocabulary, text: str, **more: Any) -> OutputChunk:
    ids = vocabulary.encode(text, add_special_tokens=False)
    entries = tuple(TokenLogprob(token_id=one, logprob=-1.5, top=((one, -1.5),)) for one in ids)
    return OutputChunk(text=text, token_ids=tuple(ids), logprobs=entries, **more)


def choice(vocabulary: Vocabulary, *, tools: bool = False, ids: bool = True, **more: Any) -> ChatChoice:
    return ChatChoice(
        index=0,
        vocabulary=vocabulary,
        head={"id": "x"},
        parser=ToolCallParser() if tools else None,
        wants_logprobs=ids,
        wants_ids=ids,
        as_token_ids=False,
        **more,
    )


def test_ids_and_logprobs_ride_on_the_chunk_of_their_text(vocabulary: Vocabulary) -> None:
    one = choice(vocabulary)
    assert one.first_chunk([1, 2]) == {
        "id": "x",
        "choices": [
            {
                "index": 0,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": None,
                "finish_reason": None,
            }
        ],
        "prompt_token_ids": [1, 2],
    }
    part = chunk(vocabulary, "é", finish_reason="length")
    (sent,) = one.chunks(part)
    got = sent["choices"][0]
    assert got["delta"] == {"content": "é"}
    assert got["token_ids"] == list(part.token_ids)
    assert got["finish_reason"] == "length"
    content = got["logprobs"]["content"]
    assert bytes(byte for entry in content for byte in entry["bytes"]) == "é".encode()
    assert [entry["logprob"] for entry in content] == [-1.5] * len(part.token_ids)
    assert content[0]["top_logprobs"][0].keys() == {"token", "logprob", "bytes"}
    assert one.whole()["token_ids"] == list(part.token_ids)


def test_held_back_text_still_brings_its_ids_but_only_to_those_who_asked(vocabulary: Vocabulary) -> None:
    held = OutputChunk(text="", token_ids=(9,), logprobs=())
    (chunk,) = choice(vocabulary).chunks(held)
    assert chunk["choices"][0]["token_ids"] == [9]
    assert chunk["choices"][0]["delta"] == {"content": ""}
    assert choice(vocabulary, ids=False).chunks(held) == []


def test_a_call_becomes_deltas_and_ends_the_turn_with_tool_calls(vocabulary: Vocabulary) -> None:
    one = choice(vocabulary, tools=True)
    text = 'Look.\n<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    chunks = one.chunks(chunk(vocabulary, text, finish_reason="stop"))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"content": "Look."}
    opened, arguments = deltas[1]["tool_calls"][0], deltas[2]["tool_calls"][0]
    assert opened["function"] == {"name": "f", "arguments": ""}
    assert opened["id"].startswith("chatcmpl-tool-")
    assert arguments == {"index": 0, "function": {"arguments": '{"a": 1}'}}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "tool_calls"]
    assert [len(chunk["choices"][0].get("token_ids", ())) > 0 for chunk in chunks] == [True, False, False]
    whole = one.whole()
    assert whole["message"]["content"] == "Look."
    assert whole["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}
    assert whole["message"]["tool_calls"][0]["id"] == opened["id"]


def test_a_turn_cut_off_after_a_call_ends_with_length_and_content_is_null(vocabulary: Vocabulary) -> None:
    one = choice(vocabulary, tools=True, one_call=True)
    call = '<tool_call>{"name": "f"}</tool_call>'
    one.take(chunk(vocabulary, call + call, finish_reason="length"))
    assert one.whole()["finish_reason"] == "length"
    assert one.whole()["message"]["content"] is None
    assert len(one.whole()["message"]["tool_calls"]) == 1


def test_steps_that_waited_are_merged_in_order(vocabulary: Vocabulary) -> None:
    parts = [chunk(vocabulary, "ab"), chunk(vocabulary, "c", finish_reason="stop", stop_reason="x")]
    merged = merge_chunks(parts)
    assert merged.text == "abc"
    assert merged.token_ids == parts[0].token_ids + parts[1].token_ids
    assert len(merged.logprobs) == len(merged.token_ids)
    assert (merged.finish_reason, merged.stop_reason) == ("stop", "x")


def test_the_older_logprobs_are_columns_with_offsets_that_go_on(vocabulary: Vocabulary) -> None:
    ids = vocabulary.encode("ok", add_special_tokens=False)
    entries = [TokenLogprob(token_id=one, logprob=-1.0, top=()) for one in ids]
    columns, offset = build_completion_logprobs(entries, vocabulary, 5, as_token_ids=True)
    assert columns["tokens"] == [f"token_id:{one}" for one in ids]
    assert columns["text_offset"][0] == 5
    assert columns["token_logprobs"] == [-1.0] * len(ids)
    assert offset == 7
