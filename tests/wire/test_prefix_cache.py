"""Long requests read as far as they are new: what is read is what reading all of it gives."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recorder.canonical import body_key, parse_history
from recorder.turns import request_parameters
from store.errors import WireError
from store.values import Json
from tests.examples import examples
from wire.chat_request import parse_chat
from wire.prefix_cache import MAX_BYTES, MIN_BYTES, PrefixCache

PADDING = {"role": "system", "content": "You are helpful. " * (MIN_BYTES // 10)}


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def said(text: str) -> Json:
    return {"role": "assistant", "content": text}


def call(name: str) -> Json:
    function = {"name": name, "arguments": '{"a": 1}'}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": function}],
    }


def same(raw: bytes, requests: PrefixCache) -> bool:
    """Read a request both ways and compare everything; whether only the rest was parsed."""
    whole, quick = parse_chat(raw), parse_chat(raw, requests)
    assert orjson.dumps(quick.body) == orjson.dumps(whole.body)  # the order of names, too
    assert orjson.dumps(quick.messages) == orjson.dumps(whole.messages)
    assert (quick.model, quick.n, quick.stream, quick.temperature) == (
        whole.model,
        whole.n,
        whole.stream,
        whole.temperature,
    )
    previous = quick.previous.history if quick.previous is not None else None
    found = parse_history(quick.messages, "s", None, previous)
    wanted = parse_history(whole.messages, "s")
    assert (found.runs, found.system_key, found.root) == (wanted.runs, wanted.system_key, wanted.root)
    assert body_key(found, request_parameters(quick)) == body_key(wanted, request_parameters(whole))
    if quick.cached is not None:
        quick.cached.history = found
    return quick.previous is not None


messages = st.sampled_from(
    [
        user("one"), user("two \u00e4\n\"q\""), user(""), user("[Fri 2026-11-20 21:29 UTC] hi"), user("<context>x</context>"),
        said("yes"), said(""), said("<think>hm</think>no"), call("f"), {"role": "tool", "tool_call_id": "c", "content": "12"},
        {"role": "system", "content": "now"}, {"role": None, "content": 1}, {"content": [{"type": "text", "text": "part"}], "role": "user"},
        {"role": "user", "content": 'a "messages": [ {'}, {"role": "assistant", "content": None, "refusal": "no"},
        {"x": 1.50, "role": "user", "content": "é"}, {"role": "user", "content": "\\u006dessages"},
    ]
)  # fmt: skip
members = st.dictionaries(
    st.sampled_from(["model", "temperature", "n", "stream", "metadata", "api_key", "messages_x", "ü"]),
    st.sampled_from(["gpt", 1, 0.5, True, None, {"messages": [1]}, ["messages"], {"api_key": "k"}]),
    max_size=3,
)


@settings(max_examples=examples(300))
@given(
    leading_members=members,
    back=members,
    turns=st.lists(st.lists(messages, min_size=1, max_size=4), min_size=2, max_size=5),
    separators=st.sampled_from([(",", ":"), (", ", ": "), (" , ", " : ")]),
    ascii=st.booleans(),
    changes=st.sampled_from([None, None, "front", "back", "history"]),
)
def test_a_conversation_reads_the_same_whether_or_not_its_beginning_is_known(
    leading_members: Json,
    back: Json,
    turns: list[list[Json]],
    separators: tuple[str, str],
    ascii: bool,
    changes: str | None,
) -> None:
    requests = PrefixCache()
    history = [PADDING]
    for number, new in enumerate(turns):
        history = [*history, *new]
        if number == len(turns) - 1 and changes == "front":
            leading_members = {**leading_members, "seed": 1}
        if number == len(turns) - 1 and changes == "back":
            back = {**back, "seed": 1}
        if number == len(turns) - 1 and changes == "history":
            history = [PADDING, user("edited"), *history[2:]]
        body = {
            **leading_members,
            "messages": history,
            **{k: v for k, v in back.items() if k not in leading_members},
        }
        raw = json.dumps(body, separators=separators, ensure_ascii=ascii).encode()
        went_on = same(raw, requests)
        if number and changes is None:
            escaped = ascii and any(not name.isascii() for name in back)
            assert went_on or escaped or "messages" in json.dumps(back)


def text_of(history: list[Json], behind: str = "") -> bytes:
    return b'{"model":"m","messages":' + orjson.dumps(history) + behind.encode() + b"}"


@pytest.mark.parametrize(
    "behind",
    [
        ',"messages":[{"role":"user","content":"other"}]',
        ',"m\\u0065ssages":[{"role":"user","content":"other"}]',
        ',"messages":5',
        ',"model":"n","model":"o"',
        ',"model":null',
        ',"m\\u006fdel":"n"',
        ',"n\\u0061me":"n","user":"name"',
        ' , "x":"messages", "name":["name"]',
        ',"stream":true,"stream":false,"x":{"messages":1}',
    ],
)
def test_names_that_stand_twice_are_read_as_ever(behind: str) -> None:
    first, second = [PADDING, user("a")], [PADDING, user("a"), said("b"), user("c")]
    for kinds in ((behind, behind), ("", behind), (behind, "")):
        requests = PrefixCache()
        for history, what in (
            (first, kinds[0]),
            (second, kinds[1]),
            ([*second, said("d"), user("e")], kinds[1]),
        ):
            raw = text_of(history, what)
            try:
                parse_chat(raw)
            except WireError as exc:
                with pytest.raises(WireError, match=str(exc)):
                    parse_chat(raw, requests)
            else:
                same(raw, requests)


@pytest.mark.parametrize(
    "torn",
    [
        b"",
        b"]",
        b",",
        b",]}",
        b',{"role":"user"}',
        b',{"role":"user"}]',
        b",5]}",
        b',{"role":7}]}',
        b',{"role":"user"}]}x',
    ],
)
def test_what_cannot_be_read_is_refused_as_ever(torn: bytes) -> None:
    requests = PrefixCache()
    for history in ([PADDING, user("a")], [PADDING, user("a"), said("b"), user("c")]):
        assert parse_chat(text_of(history), requests).cached is not None
    raw = text_of([PADDING, user("a"), said("b"), user("c")])[:-2] + torn
    with pytest.raises(WireError) as whole:
        parse_chat(raw)
    with pytest.raises(WireError) as quick:
        parse_chat(raw, requests)
    assert str(quick.value) == str(whole.value)


def test_what_is_nested_too_deeply_behind_a_known_beginning_is_refused() -> None:
    requests = PrefixCache()
    history: list[Any] = [PADDING, user("a")]
    for _ in range(2):
        history = [*history, said("b"), user("c")]
        parse_chat(text_of(history), requests)
    deep = b'{"role":"user","content":' + b"[" * 245 + b"]" * 245 + b"}]}"
    with pytest.raises(WireError, match="nested too deeply"):
        parse_chat(text_of(history)[:-2] + b"," + deep, requests)


def test_the_messages_of_a_known_beginning_are_the_very_same_objects() -> None:
    requests = PrefixCache()
    history = [PADDING, user("a")]
    chats = []
    for number in range(5):
        chats.append(parse_chat(text_of(history, ',"temperature":1'), requests))
        history = [*history, said(f"b{number}"), user(f"c{number}")]
    assert [chat.previous is not None for chat in chats] == [False, True, True, True, True]
    assert all(one is other for one, other in zip(chats[3].messages, chats[4].messages, strict=False))
    assert len(requests) == 1


def test_what_takes_many_times_its_size_once_it_is_read_is_not_remembered() -> None:
    requests = PrefixCache()
    dense = b'{"messages":[{"role":"user","content":"hi","x":[' + b"0," * MIN_BYTES + b"0]}]}"
    huge = text_of([user("x" * MAX_BYTES)])
    for raw in (dense, huge):
        assert parse_chat(raw, requests).cached is None
    assert len(requests) == 0


def test_short_requests_are_not_remembered_and_memory_is_bounded() -> None:
    requests = PrefixCache(capacity=20 * MIN_BYTES)
    assert parse_chat(b'{"messages":[{"role":"user","content":"hi"}]}', requests).cached is None
    for number in range(60):
        parse_chat(text_of([user(f"{number}"), PADDING, user("a")]), requests)
    assert 0 < len(requests) <= 20
    for number in range(100):  # the same beginning, over and over
        parse_chat(text_of([PADDING, user(f"{number}")]), requests)
    assert 0 < len(requests) <= 20


def test_conversations_with_one_long_system_prompt_are_told_apart() -> None:
    requests = PrefixCache()
    for round_ in range(4):
        for number in range(20):
            history = [PADDING, user(f"question {number}")]
            for step in range(round_):
                history += [said(f"answer {number}.{step}"), user(f"and {number}.{step}?")]
            went_on = same(text_of(history), requests)
            assert went_on or not round_
