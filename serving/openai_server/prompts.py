"""Rendering of a conversation to prompt ids with the model's chat template. Pure but for the template's `strftime_now`."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

from serving.openai_server.chat_template import REFUSALS, apply_template
from serving.openai_server.schemas import RequestError
from serving.openai_server.vocabulary import Vocabulary

#: Roles of the OpenAI API. A template would leave out messages of others without a word.
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def normalise_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages in the form that chat templates expect.

    `developer` becomes `system`, absent or null content "", text parts one string; arguments of tool calls become objects, because
    templates print them as JSON. Raises RequestError for content other than text.
    """
    result = []
    for i, message in enumerate(messages):
        role = message.get("role")
        if role not in _ROLES:
            raise RequestError(f"messages[{i}].role must be one of {', '.join(_ROLES)}", param="messages")
        clean = {key: copy.deepcopy(value) for key, value in message.items() if value is not None}
        clean["role"] = {"developer": "system", "function": "tool"}.get(role, role)
        clean["content"] = _text_of(message.get("content"), i)
        single = clean.pop("function_call", None)  # the older form of a call
        calls = clean.get("tool_calls")
        if single is not None and not calls:
            calls = [{"type": "function", "function": single}]
        if calls is None or calls == []:
            clean.pop("tool_calls", None)
        else:
            clean["tool_calls"] = [_call(call, i) for call in _list(calls, i)]
        result.append(clean)
    return result


def _list(value: Any, i: int) -> list[Any]:
    if not isinstance(value, list):
        raise RequestError(f"messages[{i}].tool_calls must be a list", param="messages")
    return value


def _call(call: Any, i: int) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError(f"messages[{i}].tool_calls needs function.name in each call", param="messages")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError):  # invalid JSON of a model is passed back to it unchanged
            arguments = json.loads(arguments) if arguments.strip() else {}
    return {**call, "function": {**function, "arguments": {} if arguments is None else arguments}}


def _text_of(content: Any, i: int) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(
            f"messages[{i}].content must be a string, a list of parts, or null", param="messages"
        )
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("text", part.get("refusal")) if isinstance(part, dict) else None
        if kind not in ("text", "input_text", "output_text", "refusal") or not isinstance(text, str):
            raise RequestError(
                f"messages[{i}].content has a part of type {kind!r}; this model reads text only",
                param="messages",
            )
        texts.append(text)
    return "\n".join(texts)


def render_chat(
    vocabulary: Vocabulary,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    template_arguments: Mapping[str, Any] | None = None,
) -> list[int]:
    """Return the prompt ids of a conversation. Raises RequestError if the template refuses it."""
    tokenizer = vocabulary.tokenizer
    if not tokenizer.chat_template:
        raise RequestError("this model has no chat template; use /v1/completions")
    try:
        text = apply_template(
            tokenizer,
            normalise_messages(messages),
            tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            **(template_arguments or {}),
        )
    except REFUSALS as error:
        raise RequestError(
            f"the model's chat template refuses these messages: {error}", param="messages"
        ) from error
    # The template has written the special tokens already.
    return vocabulary.encode(text, add_special_tokens=False)
