"""Requests of the Responses API, translated to one chat request. Sans-IO."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from store.values import Json, RecordedTurn
from wire.api_translation import ApiRequest, Untranslatable, arrange_system_messages
from wire.redaction import redact_body
from wire.responses_api.conversation import ConversationInput
from wire.responses_api.items import chat_name, messages_of, require_calls, turn_of, without_references
from wire.responses_api.reply import history_of

NAME = "responses"
#: Fields that have a meaning here or none at all; all others go to the backend as they are.
_CONSUMED = frozenset(
    {
        "input",
        "instructions",
        "previous_response_id",
        "conversation",
        "store",
        "tools",
        "tool_choice",
        "text",
        "include",
    }
    | {
        "max_output_tokens",
        "metadata",
        "reasoning",
        "truncation",
        "background",
        "max_tool_calls",
        "top_logprobs",
    }
    | {
        "stream",
        "stream_options",
        "prompt",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
    }
    | {"safety_identifier", "context_management", "moderation", "service_tier", "parallel_tool_calls"}
    | {"messages", "max_tokens", "max_completion_tokens", "response_format", "n", "client_metadata"}
)
#: Fields that a response repeats, recorded because the chat request does not hold them.
_ECHOED = (
    "metadata", "truncation", "max_tool_calls", "prompt_cache_key", "safety_identifier", "text", "reasoning", "top_logprobs",
    "parallel_tool_calls", "tool_choice", "include",
)  # fmt: skip
_FUNCTION_FIELDS = ("name", "description", "parameters", "strict")
#: A tool without a schema takes one text.
_CUSTOM_SCHEMA: Json = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


def referenced_turns(body: Json) -> set[str]:
    """Return the turns whose content a request refers to by id."""
    items = body.get("input")
    named = [body.get("previous_response_id")]
    if isinstance(items, list):
        named += [i.get("id") for i in items if isinstance(i, dict) and i.get("type") == "item_reference"]
    return {turn for turn in map(turn_of, named) if turn is not None}


def conversation_of(body: Json) -> str | None:
    """Return the id of the conversation that a request belongs to. Raises: Untranslatable."""
    given = body.get("conversation")
    found = given.get("id") if isinstance(given, dict) else given
    if given is None:
        return None
    if not isinstance(found, str) or not found:
        raise Untranslatable("conversation must be an id.", param="conversation")
    if body.get("previous_response_id") is not None:
        raise Untranslatable("Send previous_response_id or conversation, not both.", param="conversation")
    return found


def translate_request(
    body: Json,
    turns: Mapping[str, RecordedTurn],
    *,
    previous: RecordedTurn | None = None,
    conversation: ConversationInput | None = None,
) -> ApiRequest:
    """Translate a request.

    Args:
        turns: the turns of `referenced_turns`.
        previous: the turn that `previous_response_id` names.
        conversation: what the conversation that the request names holds.

    Raises:
        Untranslatable: it cannot be served.
    """
    _refuse_unserved(body)
    items = _input(body)
    inherited = history_of(previous) if previous is not None else []
    earlier = conversation.sent if conversation is not None else []
    known = {**turns, **conversation.replies} if conversation is not None else turns
    own = messages_of([*earlier, *items], known, first=len(earlier))
    require_calls(items, [*inherited, *own])
    instructions = body.get("instructions")
    if instructions is not None and not isinstance(instructions, str):
        raise Untranslatable("instructions must be a string.", param="instructions")
    messages = arrange_system_messages(
        [*([{"role": "system", "content": instructions}] if instructions else []), *inherited, *own]
    )
    if not messages:
        raise Untranslatable("input must not be empty.", param="input")
    tools = _tools(body)
    chat: Json = {name: value for name, value in body.items() if name not in _CONSUMED and value is not None}
    chat["messages"] = messages
    chat |= _sampling_fields(body)
    if tools.chat:
        chat["tools"] = tools.chat
        if body.get("parallel_tool_calls") is not None:
            chat["parallel_tool_calls"] = body["parallel_tool_calls"]
        _choose_tool(chat, body.get("tool_choice"))
    session = conversation_of(body)
    echoed = redact_body({name: body[name] for name in _ECHOED if body.get(name) is not None})
    detail: Json = {"name": NAME, "store": body.get("store") is not False, **echoed}
    if instructions:
        detail["instructions"] = True
    if inherited:
        detail["inherited"] = len(inherited)
    if tools.custom:
        detail["custom"] = sorted(tools.custom)
    if tools.namespaces:
        detail["namespaces"] = tools.namespaces
    left_out = tuple(sorted(tools.left_out))
    if left_out:
        detail["left_out"] = list(left_out)
    if session is not None:
        detail["conversation"] = session
        detail["input"] = list(without_references(items, turns))
    if body.get("previous_response_id") is not None:
        detail["previous_response_id"] = body["previous_response_id"]
    continued = previous if conversation is None else conversation.newest
    options: Json = {name: body[name] for name in ("metadata", "user", "prompt_cache_key") if name in body}
    return ApiRequest(
        chat=orjson.dumps(chat),
        stream=body.get("stream") is True,
        option_fields=options,
        detail=detail,
        continues=continued.turn_id if continued is not None else None,
        session=session,
        left_out=left_out,
    )


def _refuse_unserved(body: Json) -> None:
    if not isinstance(body.get("model"), str):
        raise Untranslatable(
            "Missing required parameter: 'model'.", param="model", code="missing_required_parameter"
        )
    if body.get("background") is True:
        raise Untranslatable(
            "background is not served: Patina answers a request while its client waits.", param="background"
        )
    if body.get("prompt") is not None:
        raise Untranslatable(
            "prompt names a template that OpenAI stores: send its text as instructions and input.",
            param="prompt",
        )


def _input(body: Json) -> list[Any]:
    given = body.get("input")
    if given is None:
        return []
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise Untranslatable("input must be a string or a list of items.", param="input")
    return given


def _sampling_fields(body: Json) -> Json:
    found: Json = {}
    if body.get("stream") is True:
        found["stream"] = True
    if body.get("max_output_tokens") is not None:
        found["max_tokens"] = body["max_output_tokens"]
    reasoning = body.get("reasoning")
    if isinstance(reasoning, dict) and reasoning.get("effort") is not None:
        found["reasoning_effort"] = reasoning["effort"]
    if "message.output_text.logprobs" in (body.get("include") or ()) or body.get("top_logprobs"):
        found["logprobs"] = True
        if body.get("top_logprobs"):
            found["top_logprobs"] = body["top_logprobs"]
    text = body.get("text")
    given = text.get("format") if isinstance(text, dict) else None
    wanted: Json = given if isinstance(given, dict) else {}
    kind = wanted.get("type")
    if kind == "json_object":
        found["response_format"] = {"type": "json_object"}
    elif kind == "json_schema":
        schema = {
            name: wanted[name]
            for name in ("name", "description", "schema", "strict")
            if wanted.get(name) is not None
        }
        found["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif kind not in (None, "text"):
        raise Untranslatable(f"text.format has an unknown type: {kind}.", param="text.format.type")
    return found


@dataclass(slots=True)
class _Tools:
    """The chat tools of a request.

    Attributes:
        custom: names of those that take free text.
        namespaces: chat name -> [namespace, name in it].
        left_out: types of tools that cannot be served.
    """

    chat: list[Json] = field(default_factory=list)
    custom: set[str] = field(default_factory=set)
    namespaces: dict[str, list[str]] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)

    def add(self, tools: Any, namespace: str | None = None) -> None:
        """Add tools of the API. Raises: Untranslatable."""
        if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
            raise Untranslatable("tools must be a list of objects.", param="tools")
        for tool in tools:
            kind, name = tool.get("type"), tool.get("name")
            if kind == "namespace" and namespace is None and isinstance(name, str):
                self.add(tool.get("tools") or [], name)
            elif kind in ("function", "custom") and isinstance(name, str):
                self._add_function(tool, kind, name, namespace)
            else:
                self.left_out.add(str(kind))

    def _add_function(self, tool: Json, kind: str, name: str, namespace: str | None) -> None:
        if namespace is not None:
            whole = chat_name(name, namespace)
            self.namespaces[whole] = [namespace, name]
            name = whole
        if kind == "custom":
            self.custom.add(name)
            function = {"name": name, "description": _custom_description(tool), "parameters": _CUSTOM_SCHEMA}
        else:
            function = {key: tool[key] for key in _FUNCTION_FIELDS if tool.get(key) is not None} | {
                "name": name
            }
        self.chat.append({"type": "function", "function": function})


def _tools(body: Json) -> _Tools:
    """Return the tools of a request. Raises: Untranslatable: none of them can be served."""
    found = _Tools()
    found.add(body.get("tools") or [])
    if found.left_out and not found.chat:
        raise Untranslatable(
            f"Tools of type {', '.join(sorted(found.left_out))} run at OpenAI and are not served: offer function tools.",
            param="tools",
        )
    return found


def _custom_description(tool: Json) -> str:
    """Return the description of a tool that takes free text, with the grammar of that text."""
    grammar = tool.get("format")
    description = tool.get("description") or ""
    if isinstance(grammar, dict) and isinstance(grammar.get("definition"), str):
        return f"{description}\n\nThe input follows this {grammar.get('syntax', '')} grammar:\n{grammar['definition']}"
    return str(description)


def _choose_tool(chat: Json, choice: Any) -> None:
    """Set `tool_choice`, and leave only the tools that it allows."""
    if choice is None:
        return
    if isinstance(choice, str):
        chat["tool_choice"] = choice
        return
    if not isinstance(choice, dict):
        raise Untranslatable("tool_choice must be a string or an object.", param="tool_choice")
    kind = choice.get("type")
    if kind in ("function", "custom"):
        chat["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
    elif kind == "allowed_tools":
        names = {tool.get("name") for tool in choice.get("tools") or () if isinstance(tool, dict)}
        chat["tools"] = [tool for tool in chat["tools"] if tool["function"].get("name") in names]
        chat["tool_choice"] = choice.get("mode") or "auto"
    else:
        raise Untranslatable(
            f"tool_choice asks for {kind}, which runs at OpenAI and is not served.", param="tool_choice"
        )
