"""Wishes in a prompt: the same by bytes and by messages, and only where a person speaks."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.values import Json, TurnKind
from wire.chat_request import parse_chat
from wire.wish_text import (
    BEFORE,
    BEHIND,
    PLACES,
    SYSTEM,
    add_wishes,
    join_wishes,
    prompt_text,
    splice_wishes,
    takes_wishes,
)

TEXT = 'Call me "Captain".\nAnswer in French – kürzer.'

strings = st.text(max_size=6) | st.sampled_from(['"content":', "\\", '"}]', "\n", "messages"])
contents = strings | st.lists(
    st.builds(lambda text: {"type": "text", "text": text}, strings)
    | st.just({"type": "image_url", "image_url": {"url": "data:x"}}),
    max_size=3,
)
messages_of_all_kinds = st.lists(
    st.builds(
        lambda role, content, more: {"role": role, **more, "content": content},
        st.sampled_from(["system", "developer", "user", "assistant", "tool"]),
        contents,
        st.dictionaries(st.sampled_from(["name", "tool_calls"]), strings, max_size=1),
    ),
    min_size=1,
    max_size=5,
)


@given(
    messages=messages_of_all_kinds,
    place=st.sampled_from(PLACES),
    separators=st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t:\r")]),
    ascii_only=st.booleans(),
)
def test_the_bytes_get_the_same_messages_and_lose_nothing(
    messages: list[Json], place: str, separators: tuple[str, str], ascii_only: bool
) -> None:
    body = {"model": "m", "metadata": {"messages": [1]}, "messages": messages, "n": 10**30, "x": 1.50}
    raw = json.dumps(body, separators=separators, ensure_ascii=ascii_only).encode()
    if place != SYSTEM and all(message["role"] != "user" for message in messages):
        with pytest.raises(ValueError, match="no user message"):
            splice_wishes(raw, messages, TEXT, place)
        return
    made = splice_wishes(raw, messages, TEXT, place)
    expected = {**body, "messages": list(add_wishes(messages, TEXT, place))}
    assert json.loads(made) == expected
    added = len(made) - len(raw)
    start = next((i for i in range(len(raw)) if made[i] != raw[i]), len(raw))
    assert any(made[:i] + made[i + added :] == raw for i in range(max(0, start - added), start + 1))
    assert messages == body["messages"]  # unchanged
    assert splice_wishes(raw, messages, "", place) == raw


def test_the_last_of_repeated_members_is_extended() -> None:
    raw = b'{"messages":[],"messages":[{"role":"user","content":"a","content":"b"}]}'
    made = splice_wishes(raw, orjson.loads(raw)["messages"], "W", BEHIND)
    assert (
        made
        == b'{"messages":[],"messages":[{"role":"user","content":"a","content":"b\\n\\nPreferences:\\n- W"}]}'
    )


def test_each_place_is_where_its_name_says() -> None:
    system, user, reply = (
        {"role": "system", "content": "S"},
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": "A"},
    )
    last: Json = {"role": "user", "content": [{"type": "text", "text": "V"}]}
    asked: list[Json] = [system, user, reply, last]
    wish = prompt_text("W\nX")
    assert wish == "Preferences:\n- W\n- X"
    behind, before = ({"type": "text", "text": text} for text in (f"\n\n{wish}", f"{wish}\n\n"))
    assert add_wishes(asked, "W\nX", BEHIND) == (*asked[:3], {**last, "content": [*last["content"], behind]})
    assert add_wishes(asked, "W\nX", BEFORE) == (*asked[:3], {**last, "content": [before, *last["content"]]})
    assert add_wishes([{**user, "content": ""}], "W\nX", BEFORE) == ({"role": "user", "content": wish},)
    assert add_wishes([user], "W\nX", BEFORE) == ({"role": "user", "content": f"{wish}\n\nU"},)
    assert add_wishes(asked, "W\nX", SYSTEM)[0]["content"] == f"S\n\n{wish}"
    assert add_wishes([user], "W\nX", SYSTEM) == ({"role": "system", "content": wish}, user)
    for place in PLACES:
        assert add_wishes([user], "", place) == (user,)
    with pytest.raises(ValueError, match="no place 'front'"):
        add_wishes([user], "W", "front")
    with pytest.raises(ValueError, match="message 0 has no text"):
        add_wishes([{"role": "user", "content": None}], "W", BEHIND)


def test_a_wish_of_several_lines_is_one_line() -> None:
    assert join_wishes(["Call me\n  Captain.", "Short."]) == "Call me Captain.\nShort."
    assert join_wishes([]) == ""


def asks(body: Json, requested: TurnKind | None = None) -> bool:
    return takes_wishes(parse_chat(orjson.dumps(body)), requested)


PERSON: Json = {"model": "m", "messages": [{"role": "user", "content": "How do I boil an egg?"}]}


def test_a_person_s_question_takes_wishes_also_with_tools_and_a_system_prompt() -> None:
    assert asks(PERSON)
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    system = {"role": "system", "content": "You are a helpful assistant."}
    assert asks({**PERSON, "messages": [system, *PERSON["messages"]], "tools": tools, "tool_choice": "auto"})
    assert asks({**PERSON, "response_format": {"type": "text"}})
    picture = [{"type": "image_url", "image_url": {"url": "data:x"}}]
    assert asks({**PERSON, "messages": [{"role": "user", "content": picture}]})


@pytest.mark.parametrize(
    "more",
    [
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}},
        {"tools": [{"type": "function", "function": {"name": "a"}}], "tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "a"}}},
        {"guided_json": {"type": "object"}},
        {"guided_choice": ["a", "b"]},
        {"structured_outputs": {"regex": "[0-9]+"}},
        {"extra_body": {"guided_regex": "[0-9]+"}},
        {"grammar": "root ::= [0-9]+"},
    ],
    ids=lambda more: "-".join(more),
)
def test_a_reply_of_a_forced_form_takes_none(more: dict[str, Any]) -> None:
    assert not asks({**PERSON, **more})


def test_what_no_person_says_takes_none() -> None:
    question = PERSON["messages"][0]
    call = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
    }
    result = {"role": "tool", "tool_call_id": "c", "content": "12 minutes"}
    assert not asks({"messages": [question, call, result]})
    assert not asks({"messages": [question, {"role": "assistant", "content": "Boil"}]})
    assert not asks({"messages": [question, {"role": "system", "content": "Go on."}]})
    title = "Generate a concise title for this chat, 3-5 words.\n<chat_history>\nUSER: Hi\nASSISTANT: Hello\n</chat_history>"
    assert not asks({"messages": [{"role": "user", "content": title}]})
    titles = {
        "role": "system",
        "content": "You will generate a short title based on the first message of the user.",
    }
    assert not asks({"messages": [titles, question]})
    assert asks({"messages": [titles, question]}, TurnKind.MAIN)
    assert not asks(PERSON, TurnKind.SIDE)
    assert asks({"messages": [{"role": "user", "content": title}]}, TurnKind.MAIN)
