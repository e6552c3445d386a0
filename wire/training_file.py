"""OpenAI's training files: JSON lines of conversations (supervised) or of preferences (DPO). Sans-IO.

supervised  {"messages": [..., {"role": "assistant", ...}], "tools": [...]}; a reply with "weight": 0 is context only
dpo         {"input": {"messages": [...], "tools": [...]}, "preferred_output": [reply], "non_preferred_output": [reply]}
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from store.values import Json, TuningMethod

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


class BadLine(ValueError):
    """A line that cannot be trained on; the text says which and why."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(f"Line {number}: {why}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A reply to learn.

    Attributes:
        messages: before the reply.
        reply: an assistant's message.
        rejected: DPO: the reply that is worse.
    """

    messages: tuple[Json, ...]
    tools: tuple[Json, ...]
    reply: Json
    rejected: Json | None = None


def read_examples(text: str, *, most_lines: int) -> tuple[TuningMethod, list[Example]]:
    """Return the method that a file is for, and its examples: one for each reply that trains.

    Raises:
        BadLine: the first line that is wrong, or of another method than the first.
    """
    found: list[Example] = []
    methods: list[TuningMethod] = []
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise BadLine(1, "the file is empty.")
    if len(lines) > most_lines:
        raise BadLine(lines[most_lines][0], f"a file holds at most {most_lines} lines.")
    for number, line in lines:
        try:
            row = json.loads(line)
        except ValueError as exc:
            raise BadLine(number, f"it is not valid JSON: {exc}.") from None
        try:
            methods.append(_method_of(row))
            if methods[-1] != methods[0]:
                raise ValueError(
                    f"it is for the method {methods[-1]}, and the lines before are for {methods[0]}."
                )
            found += _supervised(row) if methods[-1] == "supervised" else [_preference(row)]
        except ValueError as exc:
            raise BadLine(number, str(exc)) from None
    return methods[0], found


def _method_of(row: Any) -> TuningMethod:
    if not isinstance(row, dict):
        raise ValueError("it must be a JSON object.")
    if "messages" in row:
        return "supervised"
    if "input" in row:
        return "dpo"
    raise ValueError("it needs 'messages' (supervised), or 'input' with two outputs (DPO).")


def _supervised(row: Json) -> list[Example]:
    messages = _messages(row, "messages")
    tools = _tools(row)
    found = [
        Example(messages=tuple(messages[:place]), tools=tools, reply=message)
        for place, message in enumerate(messages)
        if message["role"] == "assistant" and _weight(message, place)
    ]
    if not found:
        raise ValueError("messages needs an assistant message whose weight is not 0.")
    if not found[0].messages:
        raise ValueError("messages must not begin with an assistant message.")
    return found


def _preference(row: Json) -> Example:
    given = row["input"]
    if not isinstance(given, dict):
        raise ValueError("input must be an object with 'messages'.")
    chosen, rejected = _output(row, "preferred_output"), _output(row, "non_preferred_output")
    if chosen == rejected:
        raise ValueError("preferred_output and non_preferred_output are the same.")
    return Example(
        messages=tuple(_messages(given, "messages", "input.")),
        tools=_tools(given, "input."),
        reply=chosen,
        rejected=rejected,
    )


def _output(row: Json, name: str) -> Json:
    found = _messages(row, name)
    if len(found) != 1 or found[0]["role"] != "assistant":
        raise ValueError(f"{name} must hold one assistant message.")
    return found[0]


def _messages(row: Json, name: str, before: str = "") -> list[Json]:
    found = row.get(name)
    if not isinstance(found, list) or not found:
        raise ValueError(f"{before}{name} must be a list with a message at least.")
    for place, message in enumerate(found):
        _check_message(message, f"{before}{name}[{place}]")
    return found


def _check_message(message: Any, where: str) -> None:
    if not isinstance(message, dict):
        raise ValueError(f"{where} must be an object.")
    role = message.get("role")
    if role not in _ROLES:
        raise ValueError(f"{where}.role must be one of {', '.join(sorted(_ROLES))}, not {role!r}.")
    content, calls = message.get("content"), message.get("tool_calls")
    if calls is not None and not (role == "assistant" and _are_calls(calls)):
        raise ValueError(f"{where}.tool_calls must be a list of an assistant's calls of functions.")
    if isinstance(content, list):
        if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content):
            raise ValueError(f"{where}.content must hold text parts only.")
    elif not (isinstance(content, str) or (content is None and calls)):
        raise ValueError(f"{where}.content must be a text.")
    if role == "assistant" and not content and not calls:
        raise ValueError(f"{where} has neither a content nor tool_calls.")


def _are_calls(calls: Any) -> bool:
    return isinstance(calls, list) and all(
        isinstance(call, dict)
        and isinstance(function := call.get("function"), dict)
        and isinstance(function.get("name"), str)
        and isinstance(function.get("arguments"), str)
        for call in calls
    )


def _tools(row: Json, before: str = "") -> tuple[Json, ...]:
    found: Any = row.get("tools") or []
    if not isinstance(found, Sequence) or not all(isinstance(one, dict) for one in found):
        raise ValueError(f"{before}tools must be a list of objects.")
    return tuple(found)


def _weight(message: Json, place: int) -> bool:
    weight = message.get("weight", 1)
    if weight not in (0, 1):
        raise ValueError(f"messages[{place}].weight must be 0 or 1.")
    return bool(weight)
