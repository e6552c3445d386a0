"""A conversation is recognised whatever its client did to it, and never by somebody else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorder.canonical import _TextCache, canonical_arguments, parse_history, reply_key
from store.values import Completion

KEY_NAME = "alice"


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: Any, calls: Any = None, **more: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text, **more}
    return {**message, "tool_calls": calls} if calls else message


def call(name: str, arguments: str, call_id: str = "c1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def key(*messages: dict[str, Any], key_name: str = KEY_NAME, who: str | None = None) -> str:
    return parse_history(messages, key_name, who).request_key


def after(history: list[dict[str, Any]], completion: Completion) -> str:
    return reply_key(parse_history(history, KEY_NAME), completion)


CALLS = (call("weather", '{"city": "Rome", "unit": "C"}'), call("weather", '{"city":"Oslo"}', "c2"))


@pytest.mark.parametrize(
    "echo",
    [
        assistant("Paris."),
        assistant(" Paris.\n"),
        assistant([{"type": "text", "text": "Paris."}]),
        assistant("<think>France, so</think>\nParis."),
        assistant("Paris.", reasoning_content="France, so"),
    ],
)
def test_an_echoed_answer_is_the_answer_that_was_given(echo: dict[str, Any]) -> None:
    given_answer = Completion(text="\nParis.", reasoning="France, so")
    assert after([user("capital of France?")], given_answer) == key(user("capital of France?"), echo)


@pytest.mark.parametrize(
    "echo",
    [
        assistant(None, list(CALLS)),
        assistant("", list(CALLS)),
        {"role": "assistant", "tool_calls": list(CALLS)},
        assistant(
            None,
            [call("weather", '{"unit":"C","city":"Rome"}', "x"), call("weather", '{ "city" : "Oslo" }', "y")],
        ),
    ],
)
def test_tool_calls_are_their_names_and_parsed_arguments(echo: dict[str, Any]) -> None:
    assert after([user("weather?")], Completion(tool_calls=CALLS)) == key(user("weather?"), echo)


def test_results_of_parallel_calls_come_in_any_order_and_under_any_id() -> None:
    start = [user("weather?"), assistant(None, list(CALLS))]
    one = {"role": "tool", "tool_call_id": "c1", "content": "12 C"}
    two = {"role": "tool", "tool_call_id": "c2", "content": "3 C"}
    assert key(*start, one, two) == key(*start, {**two, "tool_call_id": "x"}, {**one, "tool_call_id": "y"})


def test_system_messages_are_no_part_of_the_chain() -> None:
    normalise_line = key(user("hi"), assistant("hello"), user("bye"))
    dressed = key(
        {"role": "system", "content": "It is 12:01"},
        {"role": "developer", "content": "x"},
        user("hi"),
        assistant("hello"),
        {"role": "system", "content": "be brief"},
        user("bye"),
    )
    assert normalise_line == dressed


def test_split_and_merged_messages_of_one_role_are_the_same_words() -> None:
    assert key(user("one"), user("two"), assistant("x")) == key(user("one\n\ntwo"), assistant("x"))
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert key(user(parts), assistant("x")) == key(user("one two"), assistant("x"))


def test_context_that_is_gone_one_turn_later_does_not_count() -> None:
    noisy = key(user("shorter"), user("<system-reminder>today is Friday</system-reminder>"))
    assert noisy == key(user("[Fri 2026-11-20 21:29 UTC] shorter"))


def test_an_image_is_part_of_what_was_asked() -> None:
    def picture(url: str) -> dict[str, Any]:
        return user(
            [{"type": "text", "text": "what is this?"}, {"type": "image_url", "image_url": {"url": url}}]
        )

    assert key(picture("a")) == key(picture("a"))
    assert key(picture("a")) != key(picture("b"))


def test_different_words_roles_and_order_differ() -> None:
    keys = [
        key(user("a")),
        key(user("b")),
        key(assistant("a")),
        key(user("a"), assistant("b")),
        key(user("b"), assistant("a")),
        key(user("a"), assistant("b"), user("c")),
        key({"role": "system", "content": "a"}),
        key({"role": "system", "content": "b"}),
    ]
    assert len(set(keys)) == len(keys)


def test_two_people_with_the_same_words_never_meet() -> None:
    assert key(user("hi")) != key(user("hi"), key_name="bob")
    assert key(user("hi"), who="x") != key(user("hi"), who="y")
    assert key(user("hi"), key_name="ab", who="c") != key(user("hi"), key_name="a", who="bc")


def test_a_prefill_is_continued_as_one_message_or_two() -> None:
    history = [user("a poem"), assistant("Roses are")]
    completion = Completion(text="red")
    assert after(history, completion) == key(user("a poem"), assistant("Roses are red"))
    assert after(history, completion) == key(*history, assistant("red"))


def test_arguments_that_are_no_json_only_lose_their_blanks() -> None:
    assert canonical_arguments('{"a": 1}{"b": 2}') == '{"a":1}{"b":2}'
    assert canonical_arguments('{"b":1,"a":[1, 2]}') == canonical_arguments({"a": [1, 2], "b": 1})


messages = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["system", "user", "assistant", "tool", "function", "odd", 7, None]),
            "content": st.none() | st.text(max_size=12) | st.integers() | st.lists(st.none() | st.text(max_size=5) | st.fixed_dictionaries({"text": st.text(max_size=5)})),
        },
        optional={"tool_calls": st.none() | st.integers() | st.lists(st.none() | st.fixed_dictionaries({"function": st.none() | st.fixed_dictionaries({"name": st.none() | st.text(max_size=3), "arguments": st.none() | st.text(max_size=5) | st.integers()})}))},
    ),
    max_size=8,
)  # fmt: skip


@given(messages)
def test_any_messages_can_be_read_and_a_prefix_of_them_is_a_prefix_of_the_chain(found: Any) -> None:
    history = parse_history(found, KEY_NAME)
    for mark in history.runs[:-1]:
        assert parse_history(found[: mark.end], KEY_NAME).request_key == mark.key
    assert reply_key(history, Completion(text="x"))


def test_what_is_remembered_of_short_messages_is_bounded_by_what_it_takes() -> None:
    memory = _TextCache(capacity=200_000)
    for i in range(2000):
        memory.text("user", f"question {i}")
    assert 300 < len(memory._texts) < 500  # of 20 characters each
    candidates = memory.text("user", "question 1999")
    assert memory.text("user", "question 1999") is candidates
    memory.text("assistant", "ä" * 200_000)
    assert not memory._texts
