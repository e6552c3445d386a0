"""What is read of a conversation that is too long: the head of the system prompt, tools, the newest messages."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.prompt_window import Fitted, fit_ids, fit_prompt

IDS: dict[str, int] = {}


def render(messages: list[dict[str, Any]], tools: list[Any] | None) -> list[int]:
    """A template of words and marks: a token each."""
    lines = [f"<tools> {json.dumps(tools)} </tools>"] if tools else []
    for message in messages:
        calls = f" {json.dumps(message['tool_calls'])}" if message.get("tool_calls") else ""
        lines.append(f"<{message['role']}> {message['content']}{calls} <end>")
    return [
        IDS.setdefault(token, len(IDS))
        for token in re.findall(r"\w+|[^\w\s]", "\n".join([*lines, "<assistant>"]))
    ]


def fit(messages: list[dict[str, Any]], room: int, tools: list[Any] | None = None) -> Fitted:
    return fit_prompt(render, messages, tools, ids=render(messages, tools), room=room)


def says(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def words(name: str, count: int) -> str:
    return " ".join(f"{name}{index}" for index in range(count))


def tool(name: str, parameters: int = 3) -> dict[str, Any]:
    fields = {f"p{i}": {"type": "string", "description": words("about", 12)} for i in range(parameters)}
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Does {name}. {words('more', 30)}",
            "parameters": {"type": "object", "properties": fields, "required": ["p0"]},
        },
    }


def test_a_prompt_that_fits_is_read_as_it_is() -> None:
    messages, tools = [says("system", "Be kind."), says("user", "Hello")], [tool("look")]
    whole = fit(messages, 500, tools)
    assert (whole.ids, whole.dropped) == (render(messages, tools), 0)
    assert (whole.messages, whole.tools) == (messages, tools)


def test_the_head_of_the_system_prompt_and_the_newest_messages_are_read() -> None:
    messages = [says("system", words("rule", 900))]
    for turn in range(40):
        messages += [says("user", words(f"q{turn}x", 8)), says("assistant", words(f"a{turn}x", 8))]
    messages.append(says("user", "And what is the capital of Peru?"))
    got = fit(messages, 300)
    assert got.messages is not None
    assert got.messages[0]["content"].startswith("rule0 rule1 ")
    assert "rule899" not in got.messages[0]["content"]
    kept = got.messages[1:]
    assert kept == messages[len(messages) - len(kept) :]  # whole, and none between them is missing
    assert len(kept) > 5
    assert 250 <= len(got.ids) <= 300
    assert got.ids == render(got.messages, got.tools)
    assert got.dropped == len(render(messages, None)) - len(got.ids)


def test_a_long_question_keeps_its_beginning_and_its_end() -> None:
    got = fit([says("system", "Be kind."), says("user", words("w", 2000))], 200)
    assert got.messages is not None
    assert got.messages[0] == says("system", "Be kind.")
    text = got.messages[1]["content"]
    assert text.startswith("w0 w1 ")
    assert text.endswith(" w1998 w1999")
    assert "\n[...]\n" in text


CONTEXT = "<<<BEGIN_APP_CONTEXT>>>\n" + "chat facts " * 400 + "\n<<<END_APP_CONTEXT>>>"
STAMPED = '[Fri 2026-11-27 08:15 UTC] Conversation info: ⟦app:ctx⟧\n```json\n{"id": 42}\n```\n\nWhat is the capital of Norway?\n\nRuntime: a=b | c=d | e=f'


@pytest.mark.parametrize("behind", [0, 1])
def test_of_a_user_message_the_typed_words_are_read(behind: int) -> None:
    """As OpenClaw sends it: a stamped message, and facts of the chat in a user message behind it (or before it)."""
    call = [{"type": "function", "function": {"name": "look", "arguments": {"p0": "x"}}}]
    question, context = says("user", STAMPED), says("user", CONTEXT)
    messages = [says("system", words("rule", 900)), *((context, question), (question, context))[behind]]
    got = fit(messages, 300)
    assert got.messages is not None
    assert got.messages[1:] == [says("user", "What is the capital of Norway?")]
    assert len(got.ids) > 250  # the room goes to the system prompt
    loop = [
        *messages,
        {"role": "assistant", "content": "", "tool_calls": call},
        says("tool", "Oslo"),
        context,
    ]
    got = fit(loop, 300)
    assert got.messages is not None
    assert [one["content"] for one in got.messages[1:]] == ["What is the capital of Norway?", "", "Oslo"]


@pytest.mark.parametrize(
    "text",
    [
        "Summarise this chat in one line:\nUser: hi, is the shop open\nBot: yes until six\nUser: thanks\nBot: bye",
        "Context information is below.\n-----\nThe mayor is Anne.\n-----\nQuery: Who is the mayor?",
        "first half\n[...]\nsecond half",
    ],
)
def test_what_a_user_quotes_or_pastes_is_read(text: str) -> None:
    got = fit([says("system", words("rule", 900)), says("user", text)], 300)
    assert got.messages is not None
    assert got.messages[-1]["content"] == text


def test_a_message_of_context_alone_behind_a_reply_is_what_is_answered() -> None:
    poll = says("user", "[OpenClaw heartbeat poll]")
    messages = [says("system", words("rule", 900)), says("user", "Hello"), says("assistant", "Hi."), poll]
    got = fit(messages, 300)
    assert got.messages is not None
    assert got.messages[1:] == messages[1:]


@pytest.mark.parametrize(
    "text",
    [
        CONTEXT,
        "Observation:\n" + "12 C " * 400,
        "Your previous response was not valid JSON. Please answer with valid JSON only. " * 20,
    ],
)
def test_a_message_without_typed_words_is_read_where_it_is_all_that_was_sent(text: str) -> None:
    got = fit([says("system", "Be kind."), says("user", text)], 200)
    assert got.messages is not None
    assert got.messages[-1]["role"] == "user"
    assert got.messages[-1]["content"].startswith(text[:12])


def test_a_tool_result_is_never_read_without_its_call_and_the_question_stays() -> None:
    call = [{"type": "function", "function": {"name": "look", "arguments": {"p0": "x"}}}]
    messages = [says("user", "Find it for me please")]
    for number in range(30):
        messages += [
            {"role": "assistant", "content": "", "tool_calls": call},
            says("tool", words(f"result{number}x", 20)),
        ]
    got = fit(messages, 250, [tool("look")])
    assert got.messages is not None
    assert got.messages[0] == messages[0]
    roles = [message["role"] for message in got.messages[1:]]
    assert roles == ["assistant", "tool"] * (len(roles) // 2)
    assert got.messages[-1] == messages[-1]
    assert len(roles) >= 4


def test_an_answer_of_a_tool_that_is_too_long_is_cut() -> None:
    call = [{"type": "function", "function": {"name": "look", "arguments": {"p0": "x"}}}]
    messages = [
        says("user", "Find it"),
        {"role": "assistant", "content": "", "tool_calls": call},
        says("tool", words("line", 3000)),
    ]
    got = fit(messages, 300)
    assert got.messages is not None
    assert [message["role"] for message in got.messages] == ["user", "assistant", "tool"]
    assert got.messages[-1]["content"].startswith("line0 ")
    assert len(got.ids) <= 300


def test_of_many_tools_those_that_the_conversation_names_are_read_shortened_and_in_their_order() -> None:
    tools = [tool(f"tool_{index}") for index in range(40)]
    messages = [says("system", words("rule", 1500)), says("user", "Please run tool_33 for me")]
    got = fit(messages, 1200, tools)
    assert got.tools is not None
    names = [one["function"]["name"] for one in got.tools]
    assert "tool_33" in names
    assert "tool_0" in names
    assert names == sorted(names, key=lambda name: int(name.split("_")[1]))
    (chosen,) = (one["function"] for one in got.tools if one["function"]["name"] == "tool_33")
    assert chosen["description"] == "Does tool_33."
    assert chosen["parameters"]["properties"]["p0"] == {"type": "string"}
    assert chosen["parameters"]["required"] == ["p0"]
    few = fit(messages, 1200, tools[:1])
    assert few.tools == tools[:1]


@pytest.mark.parametrize("room", [1, 5, 40])
def test_ids_are_cut_in_the_middle(room: int) -> None:
    ids = list(range(100))
    cut = fit_ids(ids, room)
    assert len(cut) == room
    assert cut[-1] == 99
    assert cut == sorted(cut)
    assert fit_ids(ids, 100) == ids


_ROLES = st.sampled_from(["system", "user", "assistant", "tool"])
_TEXTS = st.one_of(st.integers(0, 400).map(lambda n: words("w", n)), st.text(max_size=300))


@given(
    messages=st.lists(st.builds(says, _ROLES, _TEXTS), min_size=1, max_size=12),
    tools=st.lists(st.integers(0, 9).map(lambda n: tool(f"t{n}", n)), max_size=12),
    room=st.integers(8, 700),
)
def test_whatever_is_asked_the_prompt_has_room_and_is_what_its_messages_render_to(
    messages: list[dict[str, Any]], tools: list[Any], room: int
) -> None:
    got = fit(messages, room, tools or None)
    assert len(got.ids) <= room
    assert got.dropped == len(render(messages, tools or None)) - len(got.ids)
    if got.messages is not None:
        assert got.ids == render(got.messages, got.tools)
        asked = [one for one in messages if one["role"] == "user"]
        assert not asked or any(one["role"] == "user" for one in got.messages)
    assert fit(messages, room, tools or None) == got
