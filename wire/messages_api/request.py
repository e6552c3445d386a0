"""Requests of Anthropic's Messages API, translated to one chat request. Sans-IO.

The input of a tool call is JSON; its bytes become the call's arguments as they are.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import orjson

from store.values import Json
from wire.api_translation import (
    ApiRequest,
    Untranslatable,
    arrange_system_messages,
    drop_none,
    read_object,
    text_content,
)
from wire.json_splice import elements, members

NAME = "messages"
#: Fields that have a meaning here or none at all; all others go to the backend as they are.
_CONSUMED = frozenset(
    {
        "messages",
        "system",
        "max_tokens",
        "stop_sequences",
        "stream",
        "tools",
        "tool_choice",
        "metadata",
        "thinking",
    }
    | {
        "cache_control",
        "container",
        "service_tier",
        "mcp_servers",
        "context_management",
        "output_config",
        "output_format",
    }
    | {
        "inference_geo",
        "betas",
        "speed",
        "diagnostics",
        "stream_options",
        "stop",
        "response_format",
        "n",
        "effort",
    }
)
#: How a model reads that a tool failed.
_ERROR = "Error: "
_TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
#: Claude Code names device, account and session in one field.
_CLAUDE_CODE_USER = re.compile(r"(user_.+)_session_([0-9a-f-]{36})")
_THINKING_TYPES = frozenset({"enabled", "adaptive"})


def translate_request(raw: bytes, *, is_count: bool = False, can_continue: bool = False) -> ApiRequest:
    """Translate a request.

    Args:
        is_count: it asks how many tokens the prompt has, and names no limit.
        can_continue: the backend continues an assistant message at the end.

    Raises:
        Untranslatable: it cannot be served.
    """
    body = read_object(raw)
    if not isinstance(body.get("model"), str):
        raise Untranslatable("model: Field required")
    limit = body.get("max_tokens")
    if not is_count and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise Untranslatable(
            "max_tokens: Field required" if limit is None else "max_tokens: must be at least 1"
        )
    given = body.get("messages")
    if not isinstance(given, list) or not given:
        raise Untranslatable("messages: at least one message is required")
    inputs = _raw_inputs(raw) if b'"tool_use"' in raw or b"\\u" in raw else {}
    messages = list(_system(body.get("system")))
    called: set[str] = set()
    for position, message in enumerate(given):
        built = _messages(message, position, inputs)
        _require_calls(message["content"], position, called)
        called.update(call["id"] for one in built for call in one.get("tool_calls") or ())
        messages += built
    messages = arrange_system_messages(messages)
    chat: Json = {name: value for name, value in body.items() if name not in _CONSUMED and value is not None}
    chat["messages"] = messages
    if messages[-1]["role"] == "assistant" and (can_continue or not is_count):
        if not can_continue or not messages[-1]["content"] or "tool_calls" in messages[-1]:
            raise Untranslatable(
                "This server does not continue this assistant message: the conversation must end with a user message."
            )
        chat |= {"add_generation_prompt": False, "continue_final_message": True}
    if limit is not None and not is_count:
        chat["max_tokens"] = limit
    if body.get("stop_sequences"):
        chat["stop"] = body["stop_sequences"]
    if body.get("stream") is True:
        chat["stream"] = True
    left_out = _set_tools(chat, body)
    _set_output(chat, body)
    options = _option_fields(body)
    if options.get("user"):
        chat["user"] = options["user"]
    thinking = body.get("thinking")
    thinks = isinstance(thinking, dict) and thinking.get("type") in _THINKING_TYPES
    detail = drop_none(
        {"name": NAME, "thinking": True if thinks else None, "left_out": list(left_out) or None}
    )
    return ApiRequest(
        chat=orjson.dumps(chat),
        stream=body.get("stream") is True,
        option_fields=options,
        detail=detail,
        left_out=left_out,
    )


def _option_fields(body: Json) -> Json:
    """Return the user, and what names the conversation, apart from each other."""
    metadata = body.get("metadata")
    given = metadata.get("user_id") if isinstance(metadata, dict) else None
    fields: Json = (
        {"metadata": {k: v for k, v in metadata.items() if k != "user_id"}}
        if isinstance(metadata, dict)
        else {}
    )
    if not isinstance(given, str) or not given:
        return fields
    user, session = given, None
    if (found := _CLAUDE_CODE_USER.fullmatch(given)) is not None:
        user, session = found[1], found[2]
    elif given.startswith("{"):
        try:
            known = orjson.loads(given)
        except orjson.JSONDecodeError:
            known = {}
        if isinstance(known, dict) and isinstance(known.get("session_id"), str):
            session = known["session_id"]
            user = "/".join(
                str(value) for name, value in sorted(known.items()) if name != "session_id" and value
            )
    if session is not None:
        # Not an explicit session: agents and their sub-agents share it. The recorder learns what it names.
        fields["agent_session_id"] = session
    return {**fields, "user": user}


# ---- messages


def _system(system: Any) -> Iterator[Json]:
    if system is None or system == "" or system == []:
        return
    if isinstance(system, str):
        yield {"role": "system", "content": system}
        return
    yield {"role": "system", "content": text_content(_texts(system, "system"))}


def _texts(blocks: Any, where: str) -> list[str]:
    if not isinstance(blocks, list):
        raise Untranslatable(f"{where}: must be a string or a list of blocks")
    found = []
    for i, block in enumerate(blocks):
        if (
            not isinstance(block, dict)
            or block.get("type") != "text"
            or not isinstance(block.get("text"), str)
        ):
            raise Untranslatable(f"{where}.{i}: must be a text block")
        found.append(block["text"])
    return found


def _messages(message: Any, position: int, inputs: Mapping[tuple[int, int], str]) -> list[Json]:
    where = f"messages.{position}"
    role = message.get("role") if isinstance(message, dict) else None
    if role not in ("user", "assistant", "system"):
        raise Untranslatable(f"{where}.role: must be user or assistant")
    content = message.get("content")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise Untranslatable(f"{where}.content: must be a string or a list of blocks")
    if role == "assistant":
        return [_assistant(content, position, inputs)]
    results = [
        _tool_result(b, f"{where}.content.{i}")
        for i, b in enumerate(content)
        if b.get("type") == "tool_result"
    ]
    rest = [_part(b, f"{where}.content.{i}") for i, b in enumerate(content) if b.get("type") != "tool_result"]
    if rest or not results:
        results.append({"role": role, "content": _content(rest)})
    return results


def _require_calls(content: str | list[Json], position: int, called: Collection[str]) -> None:
    """Raises: Untranslatable: a message holds the result of a call that no earlier message made."""
    for i, block in enumerate(content if isinstance(content, list) else ()):
        if block.get("type") == "tool_result" and block["tool_use_id"] not in called:
            raise Untranslatable(
                f"messages.{position}.content.{i}: unexpected `tool_use_id` found in `tool_result` blocks: {block['tool_use_id']}."
                " Each `tool_result` block must have a corresponding `tool_use` block in a previous message."
            )


def _content(parts: Sequence[Json]) -> str | list[Json]:
    if all(part["type"] == "text" for part in parts):
        return text_content(part["text"] for part in parts) if parts else ""
    return list(parts)


def _part(block: Json, where: str) -> Json:
    kind = block.get("type")
    if kind == "text" and isinstance(block.get("text"), str):
        return {"type": "text", "text": block["text"]}
    source = block.get("source")
    if kind == "image" and isinstance(source, dict):
        if source.get("type") == "base64":
            return {
                "type": "image_url",
                "image_url": {"url": f"data:{source.get('media_type')};base64,{source.get('data')}"},
            }
        if source.get("type") == "url":
            return {"type": "image_url", "image_url": {"url": source.get("url")}}
    if kind == "document" and isinstance(source, dict) and source.get("type") == "text":
        return {"type": "text", "text": str(source.get("data", ""))}
    raise Untranslatable(
        f"{where}: blocks of type {kind} are not served here; send text, images, or tool results"
    )


def _tool_result(block: Json, where: str) -> Json:
    content = block.get("content")
    if isinstance(content, list):
        parts = [
            _part(part if isinstance(part, dict) else {}, f"{where}.content.{i}")
            for i, part in enumerate(content)
        ]
        content = _content(parts)
    elif content is None:
        content = ""
    elif not isinstance(content, str):
        raise Untranslatable(f"{where}.content: must be a string or a list of blocks")
    if not isinstance(block.get("tool_use_id"), str):
        raise Untranslatable(f"{where}.tool_use_id: Field required")
    if block.get("is_error") is True:  # chat has no field for it
        content = (
            f"{_ERROR}{content}" if isinstance(content, str) else [{"type": "text", "text": _ERROR}, *content]
        )
    return {"role": "tool", "tool_call_id": block["tool_use_id"], "content": content}


def _assistant(blocks: Sequence[Json], position: int, inputs: Mapping[tuple[int, int], str]) -> Json:
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[Json] = []
    for i, block in enumerate(blocks):
        where = f"messages.{position}.content.{i}"
        kind = block.get("type")
        if kind == "text" and isinstance(block.get("text"), str):
            texts.append(block["text"])
        elif kind == "thinking":
            reasoning.append(str(block.get("thinking", "")))
        elif kind == "redacted_thinking":
            continue  # only Anthropic can read it
        elif kind == "tool_use":
            if not isinstance(block.get("id"), str) or not isinstance(block.get("name"), str):
                raise Untranslatable(f"{where}: needs id, name and input")
            arguments = inputs.get((position, i)) or orjson.dumps(block.get("input") or {}).decode()
            function = {"name": block["name"], "arguments": arguments}
            calls.append({"id": block["id"], "type": "function", "function": function})
        else:
            raise Untranslatable(f"{where}: blocks of type {kind} are not served here")
    message: Json = {"role": "assistant", "content": "".join(texts) if texts or not calls else None}
    if any(reasoning):
        message["reasoning_content"] = "".join(reasoning)
    if calls:
        message["tool_calls"] = calls
    return message


def _raw_inputs(raw: bytes) -> dict[tuple[int, int], str]:
    """Return the inputs of tool calls as they were written, by message and block."""
    found: dict[tuple[int, int], str] = {}
    messages = [member for member in members(raw) if member.name == "messages"]
    for i, message in enumerate(elements(raw, messages[-1].value) if messages else ()):
        content = [member for member in members(raw, message) if member.name == "content"]
        if not content or raw[content[-1].value : content[-1].value + 1] != b"[":
            continue
        for j, block in enumerate(elements(raw, content[-1].value)):
            for member in members(raw, block) if raw[block : block + 1] == b"{" else ():
                if member.name == "input":
                    found[i, j] = raw[member.value : member.end].decode("utf-8", "replace")
    return found


# ---- tools and output


def _set_tools(chat: Json, body: Json) -> tuple[str, ...]:
    """Set the chat tools and the choice among them; returns the types of tools that cannot be served."""
    given = body.get("tools") or []
    if not isinstance(given, list) or not all(isinstance(tool, dict) for tool in given):
        raise Untranslatable("tools: must be a list of tools")
    tools: list[Json] = []
    left_out: set[str] = set()
    for tool in given:
        if tool.get("type") not in (None, "custom") or not isinstance(tool.get("name"), str):
            left_out.add(str(tool.get("type")))
            continue
        function = {
            "name": tool["name"],
            "description": tool.get("description"),
            "parameters": tool.get("input_schema"),
            "strict": tool.get("strict"),
        }
        tools.append({"type": "function", "function": drop_none(function)})
    if left_out and not tools:
        raise Untranslatable(
            f"tools: {', '.join(sorted(left_out))} run at Anthropic and are not served; offer tools with an input_schema"
        )
    if not tools:
        return ()
    chat["tools"] = tools
    given_choice = body.get("tool_choice")
    choice: Json = given_choice if isinstance(given_choice, dict) else {}
    kind = choice.get("type")
    if kind in _TOOL_CHOICES:
        chat["tool_choice"] = _TOOL_CHOICES[kind]
    elif kind == "tool":
        chat["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
    elif given_choice is not None:
        raise Untranslatable("tool_choice.type: must be auto, any, tool or none")
    if choice.get("disable_parallel_tool_use") is True:
        chat["parallel_tool_calls"] = False
    return tuple(sorted(left_out))


def _set_output(chat: Json, body: Json) -> None:
    config = body.get("output_config")
    config = config if isinstance(config, dict) else {}
    wanted = config.get("format") or body.get("output_format")
    if isinstance(wanted, dict) and wanted.get("type") == "json_schema":
        schema = {"name": "output", "schema": wanted.get("schema"), "strict": True}
        chat["response_format"] = {"type": "json_schema", "json_schema": schema}
