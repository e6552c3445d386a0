"""Fits a conversation into fewer tokens than it has: the head of the system prompt and the newest messages. Pure; rendering is a callable.

A model that reads less than applications send (the built-in one) reads what fits. Engine and trainer call this with the same rendering,
so that the trainer knows which messages and tools the engine put before the model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wire.user_text import INPUT_ROLES, is_tool_output, without_client_context

#: Shares of the room: for tools, more only where the messages leave it; at least for the system prompt, where it is that long.
_TOOLS_SHARE, _SYSTEM_SHARE = 0.35, 0.25
#: Characters of a tool's description that stay.
_DESCRIPTION = 60
#: No token of a text has more characters: longer texts are clipped before they are counted.
_LONGEST_TOKEN = 24
#: Tokens of a message beside its text, and of a template's words about tools.
_MESSAGE_OVERHEAD, _FRAME = 8, 100
_GAP = "\n[...]\n"
_ATTEMPTS = 6

Messages = Sequence[Mapping[str, Any]]
#: Entries of a model's config.json: tokens that a request may have; the longest prompt that is read whole; tokens that are read of a longer one.
ACCEPTS, LONGEST, ROOM = "patina_max_model_len", "patina_longest_prompt", "patina_cut_prompt"
#: messages, tools -> prompt ids.
Render = Callable[[list[dict[str, Any]], list[Any] | None], list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptWindow:
    """How much of a prompt is read: all of it up to `longest` tokens, `room` of a longer one."""

    longest: int
    room: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What is read of a conversation.

    Attributes:
        ids: the prompt. dropped: tokens of the whole prompt that it lacks.
        messages, tools: what renders to `ids`; None where no choice of messages fits and ids were cut out of the middle.
    """

    ids: list[int]
    dropped: int
    messages: list[dict[str, Any]] | None
    tools: list[Any] | None


def window_of(config: object) -> PromptWindow | None:
    """Return the window that a model's configuration declares; None: its prompts are read whole or refused."""
    longest, room = getattr(config, LONGEST, None), getattr(config, ROOM, None)
    return PromptWindow(longest=int(longest), room=int(room)) if longest and room else None


def cutting(window: PromptWindow | None, ids: Sequence[int]) -> PromptWindow | None:
    """Return the window where it cuts this prompt; None: the prompt is read whole."""
    return window if window is not None and len(ids) > window.longest else None


def fit_ids(ids: Sequence[int], room: int) -> list[int]:
    """Return the first quarter of the room and the last three; all ids where there is room."""
    if len(ids) <= room:
        return list(ids)
    head = room // 4
    return [*ids[:head], *ids[len(ids) - (room - head) :]]


def fit_prompt(
    render: Render, messages: Messages, tools: Sequence[Any] | None, *, ids: Sequence[int], room: int
) -> Fitted:
    """Choose what is read of a conversation.

    In this order: tools with shortened descriptions, those first that the conversation names; the head of the system prompt; the last message of
    the user; the newest exchanges, whole; more of the system prompt. Of a user's message only what the user typed is read: a client's context
    (time stamps, runtime facts, reminders) may be longer than the room, and a message of nothing else hides the question before it.

    Args:
        messages: with text as content, as `normalise_messages` returns them.
        ids: the whole prompt.
    """
    whole = [dict(message) for message in messages]
    if len(ids) <= room:
        return Fitted(ids=list(ids), dropped=0, messages=whole, tools=list(tools) if tools else None)
    whole = _typed(whole)
    count = _counter(render)
    for_tools = max(int(room * _TOOLS_SHARE), room - len(render(whole, None)) - _FRAME) if tools else 0
    kept_tools = _fit_tools(list(tools or ()), whole, count, for_tools) or None
    frame = len(render([{"role": "user", "content": ""}], kept_tools))
    budget = room - frame
    for _ in range(_ATTEMPTS):
        chosen = _fit_messages(whole, count, budget)
        fitted = render(chosen, kept_tools)
        if len(fitted) <= room:
            return Fitted(ids=fitted, dropped=len(ids) - len(fitted), messages=chosen, tools=kept_tools)
        budget -= len(fitted) - room + _MESSAGE_OVERHEAD
        if budget <= 0:
            break
    return Fitted(ids=fit_ids(ids, room), dropped=len(ids) - room, messages=None, tools=None)


def _counter(render: Render) -> Callable[[str], int]:
    empty = len(render([{"role": "user", "content": ""}], None))

    def count(text: str) -> int:
        return len(render([{"role": "user", "content": text}], None)) - empty if text else 0

    return count


# ---- tools


def _fit_tools(tools: list[Any], messages: Messages, count: Callable[[str], int], budget: int) -> list[Any]:
    """Return the tools that fit, in their order; shortened unless all fit as they are."""
    if not tools or count(_json(tools)) <= budget:
        return tools
    short = [_shortened(tool) for tool in tools]
    called = {
        str(call.get("function", {}).get("name"))
        for message in messages
        for call in message.get("tool_calls") or ()
    }
    last = next((str(one.get("content")) for one in reversed(messages) if one.get("role") == "user"), "")
    named = called | set(re.findall(r"[\w-]+", last))
    kept: set[int] = set()
    for index in sorted(range(len(short)), key=lambda index: (_name(short[index]) not in named, index)):
        budget -= count(_json(short[index])) + 1
        if budget < 0:
            break
        kept.add(index)
    return [tool for index, tool in enumerate(short) if index in kept]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _name(tool: Any) -> str:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    return str(function.get("name", "")) if isinstance(function, Mapping) else ""


def _shortened(tool: Any) -> Any:
    """A tool with the beginning of its description, and of its parameters only names and types."""
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping):
        return tool
    short: dict[str, Any] = {"name": function.get("name", "")}
    if text := str(function.get("description") or "").strip():
        first = re.split(r"(?<=[.!?])\s|\n", text, maxsplit=1)[0]
        short["description"] = (
            first if len(first) <= _DESCRIPTION else first[:_DESCRIPTION].rsplit(None, 1)[0]
        )
    parameters = function.get("parameters")
    if isinstance(parameters, Mapping):
        properties = parameters.get("properties")
        short["parameters"] = {
            "type": "object",
            "properties": {
                name: {"type": one["type"]} if isinstance(one, Mapping) and "type" in one else {}
                for name, one in (properties if isinstance(properties, Mapping) else {}).items()
            },
        }
        if isinstance(parameters.get("required"), list):
            short["parameters"]["required"] = parameters["required"]
    return {"type": "function", "function": short}


# ---- messages


def _typed(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with what the user typed, and without those beside a question or tool result that hold a client's context alone."""
    typed = [_without_context(one) if one.get("role") == "user" else one for one in messages]
    if not any(one is not None and one.get("role") == "user" for one in typed):
        return messages
    kept: list[dict[str, Any]] = []
    for index, message in enumerate(typed):
        if message is None:
            before = kept[-1].get("role") if kept else ""
            after = messages[index + 1].get("role") if index + 1 < len(messages) else ""
            if before in INPUT_ROLES or after == "user":
                continue
            message = messages[index]
        kept.append(message)
    return kept


def _without_context(message: dict[str, Any]) -> dict[str, Any] | None:
    text = str(message.get("content") or "")
    if not text or is_tool_output(text):
        return message
    words = without_client_context(text)
    return {**message, "content": words} if words else None


def _fit_messages(
    messages: list[dict[str, Any]], count: Callable[[str], int], budget: int
) -> list[dict[str, Any]]:
    def length(message: Mapping[str, Any]) -> int:
        calls = message.get("tool_calls")
        # Of a text that has more tokens than the room, only so many are counted.
        text = str(message.get("content") or "")[: budget * _LONGEST_TOKEN]
        return count(text) + (count(_json(calls)) if calls else 0) + _MESSAGE_OVERHEAD

    lead = next((i for i, one in enumerate(messages) if one.get("role") != "system"), len(messages))
    system, groups = messages[:lead], _exchanges(messages[lead:])
    for_system = min(sum(length(one) for one in system), int(budget * _SYSTEM_SHARE))
    left = budget - for_system
    newest = len(groups) - 1
    asked = next((i for i in range(newest, -1, -1) if groups[i][0].get("role") == "user"), None)
    kept: dict[int, list[dict[str, Any]]] = {}
    if asked is not None:
        # What follows the question gets half of the room.
        kept[asked] = [_cut_message(groups[asked][0], count, left if asked == newest else left // 2)]
        left -= length(kept[asked][0])
    for index in range(newest, -1, -1):
        if index == asked:
            continue
        group = groups[index]
        if sum(length(one) for one in group) > left:
            if index != newest:
                break
            group = [_cut_message(one, count, left // len(group)) for one in group]
        kept[index] = group
        left -= sum(length(one) for one in group)
    head = _cut_system(system, count, for_system + left)
    return [*head, *(one for index in sorted(kept) for one in kept[index])]


def _exchanges(messages: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Messages, each with the tool results that follow it."""
    groups: list[list[dict[str, Any]]] = []
    for message in messages:
        if message.get("role") in ("tool", "function") and groups:
            groups[-1].append(message)
        else:
            groups.append([message])
    return groups


def _cut_system(
    system: list[dict[str, Any]], count: Callable[[str], int], budget: int
) -> list[dict[str, Any]]:
    kept = []
    for message in system:
        text = _part(str(message.get("content") or ""), count, budget - _MESSAGE_OVERHEAD)
        if not text:
            break
        kept.append({**message, "content": text})
        budget -= count(text) + _MESSAGE_OVERHEAD
    return kept


def _cut_message(message: dict[str, Any], count: Callable[[str], int], budget: int) -> dict[str, Any]:
    """The message with the beginning and the end of its text: of a long question, either may hold what is asked."""
    text = str(message.get("content") or "")
    room = max(budget - _MESSAGE_OVERHEAD, 8)
    if _part(text, count, room) == text:
        return message
    room -= count(_GAP)
    head, tail = _part(text, count, room // 3), _part(text, count, room - room // 3, from_end=True)
    return {**message, "content": f"{head}{_GAP}{tail}"}


def _part(text: str, count: Callable[[str], int], budget: int, *, from_end: bool = False) -> str:
    """The text, or about as much of its beginning (or end) as has `budget` tokens, in whole words."""
    if budget <= 0:
        return ""

    def first(length: int) -> str:
        return text[max(len(text) - length, 0) :] if from_end else text[:length]

    part = first(budget * _LONGEST_TOKEN)
    while (size := count(part)) > budget:
        part = first(max(int(len(part) * budget / size) - 1, 0))
    if len(part) == len(text) or len(part.split(None, 1)) < 2:
        return part
    return part.split(None, 1)[1] if from_end else part.rsplit(None, 1)[0]
