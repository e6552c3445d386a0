"""Renders conversations with a model's chat template, and shows in Patina's own way what the template leaves out.

A template is a program by the model's makers. Many print neither tools nor calls, without a word, and some refuse a system message. What one
shows is found by rendering probes. What it leaves out is written into its messages in the widespread form of Hermes and Qwen, which
`serving.openai_server.toolcalls` parses: tools in the system message, calls and results between tags in messages of the assistant and the user.
Engine and trainer render by `apply_template`, so both see the same prompt.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jinja2 import TemplateError

from serving.openai_server.toolcalls import CLOSE, OPEN

#: What a template, or the library that runs it, raises where it refuses a conversation.
REFUSALS = (TemplateError, ValueError, TypeError, KeyError, AttributeError)

_TOOLS = """You can call functions. Each line within <tools></tools> describes one as JSON:
<tools>
{tools}
</tools>
To call a function, reply with its name and its arguments as JSON within {open}{close}:
{open}
{{"name": "name of the function", "arguments": {{"name of the argument": "value"}}}}
{close}
Call a function where it helps to answer. Otherwise answer in words."""
_RESULT = "<tool_response>\n{result}\n</tool_response>"

#: No template has these words itself.
_PROBE, _RESULT_PROBE, _SYSTEM_PROBE = "probe_of_a_tool", "probe of a result", "probe of a system prompt"
_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": _PROBE,
        "description": "Looks something up.",
        "parameters": {
            "type": "object",
            "properties": {"key": {"type": "string", "description": "What to look up."}},
            "required": ["key"],
        },
    },
}
_ASKED = {"role": "user", "content": "Look it up."}
#: Some templates want an id of nine letters and digits.
_CALL_ID = "call00001"
_CALLED = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": _CALL_ID, "type": "function", "function": {"name": _PROBE, "arguments": {"key": "a"}}}
    ],
}
_ANSWERED = {"role": "tool", "name": _PROBE, "tool_call_id": _CALL_ID, "content": _RESULT_PROBE}

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateSupport:
    """What a chat template shows to its model.

    Attributes:
        tools: the tools of a request.
        history: calls of the assistant and their results. A template without tools that prints any role does not count: the
            model never saw that role.
        system: a system message.
    """

    tools: bool
    history: bool
    system: bool

    def missing(self) -> tuple[str, ...]:
        """Return the names of what is not shown."""
        shown = {"tools": self.tools, "tool calls and results": self.history, "system messages": self.system}
        return tuple(name for name, is_shown in shown.items() if not is_shown)


def template_support(tokenizer: Any) -> TemplateSupport:
    """Return what a tokenizer's chat template shows."""
    return _support(tokenizer, json.dumps(tokenizer.chat_template))


@lru_cache(maxsize=16)
def _support(tokenizer: Any, template: str) -> TemplateSupport:
    def text(messages: Sequence[Message], tools: list[Any] | None = None) -> str:
        try:
            return str(
                tokenizer.apply_chat_template(
                    list(messages), tools=tools, tokenize=False, add_generation_prompt=True
                )
            )
        except REFUSALS:
            return ""

    has_tools = _PROBE in text([_ASKED], [_PROBE_TOOL])
    exchange = text([_ASKED, _CALLED, _ANSWERED], [_PROBE_TOOL])
    history = has_tools and exchange.count(_PROBE) > 1 and _RESULT_PROBE in exchange
    system = _SYSTEM_PROBE in text([{"role": "system", "content": _SYSTEM_PROBE}, _ASKED])
    return TemplateSupport(tools=has_tools, history=history, system=system)


def apply_template(
    tokenizer: Any, messages: Iterable[Message], tools: Sequence[Message] | None, **options: Any
) -> str:
    """Return the text of a prompt. Raises what the template raises, mostly one of `REFUSALS`.

    Args:
        messages: as `prompts.normalise_messages` returns them.
        options: of `apply_chat_template`, among them arguments of the template.
    """
    shown = [dict(message) for message in messages]
    if "chat_template" not in options:  # a request's own template is its own matter
        support = template_support(tokenizer)
        if not support.history:
            shown = _written_out(shown)
        if tools and not support.tools:
            shown, tools = _with_system(shown, tool_prompt(tools)), None
        if not support.system:
            shown = _without_system(shown)
    return str(
        tokenizer.apply_chat_template(
            shown, tools=[dict(tool) for tool in tools] if tools else None, tokenize=False, **options
        )
    )


def named_tools(tools: Sequence[Message], choice: Any) -> list[Message]:
    """Return the tools that a `tool_choice` leaves: the named one, or all."""
    function = choice.get("function") if isinstance(choice, Mapping) else None
    if not isinstance(function, Mapping):
        return list(tools)
    name = function.get("name")
    return [tool for tool in tools if tool.get("function", tool).get("name") == name]


def tool_prompt(tools: Sequence[Message]) -> str:
    """Return what is added to the system message where a template shows no tools."""
    lines = (json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
    return _TOOLS.format(tools="\n".join(lines), open=OPEN, close=CLOSE)


def _written_out(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages with calls and results as text; results that follow each other become one message."""
    found: list[dict[str, Any]] = []
    is_result = False
    for message in messages:
        if message.get("role") == "tool":
            text = _RESULT.format(result=message.get("content") or "")
            if is_result:
                found[-1]["content"] += "\n" + text
            else:
                found.append({"role": "user", "content": text})
            is_result = True
            continue
        is_result = False
        rest = {key: value for key, value in message.items() if key != "tool_calls"}
        calls = [_call_text(call) for call in message.get("tool_calls") or ()]
        if calls:
            rest["content"] = "\n".join([*filter(None, [rest.get("content")]), *calls])
        found.append(rest)
    return found


def _call_text(call: Mapping[str, Any]) -> str:
    function = call.get("function", call)
    inside = {"name": function.get("name"), "arguments": function.get("arguments")}
    return f"{OPEN}\n{json.dumps(inside, ensure_ascii=False)}\n{CLOSE}"


def _with_system(messages: Sequence[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Return messages whose first is a system message that ends with a text."""
    if not messages or messages[0].get("role") != "system":
        return [{"role": "system", "content": text}, *messages]
    before = messages[0].get("content")
    content = f"{before}\n\n{text}" if before else text
    return [{**messages[0], "content": content}, *messages[1:]]


def _without_system(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with each system message in front of the text of the next one that is none."""
    found: list[dict[str, Any]] = []
    waiting: list[str] = []
    for message in messages:
        if message.get("role") == "system":
            waiting.append(str(message.get("content") or ""))
            continue
        if waiting and message.get("role") == "user":
            message = {**message, "content": "\n\n".join([*waiting, str(message.get("content") or "")])}
            waiting = []
        found.append(message)
    if waiting:
        found.append({"role": "user", "content": "\n\n".join(waiting)})
    return found
