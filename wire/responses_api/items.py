"""Items of the Responses API and the chat messages they stand for. Sans-IO.

One reply of a model is several items (reasoning, message, calls) and one assistant message.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from store.values import Json, RecordedTurn
from wire.api_translation import Untranslatable, drop_none, text_content
from wire.chat_reply import assistant_message

_ITEM_ID = re.compile(r"(resp|msg|rs|fc|ctc)_([0-9a-f]{22})(?:_(\d+))?")
#: Begins `encrypted_content`: reasoning that the client keeps, because it asked not to have it stored.
_SEALED = "patina:"
#: Calls of tools that OpenAI runs itself.
_HOSTED_CALLS = frozenset(
    {"file_search_call", "web_search_call", "computer_call", "code_interpreter_call", "image_generation_call"}
    | {"mcp_list_tools", "mcp_call", "mcp_approval_request", "mcp_approval_response", "computer_call_output"}
)
_CUSTOM_INPUT = "input"
#: Fields that a part has when it is read back.
_PART_DEFAULTS: Mapping[str, Json] = {
    "output_text": {"annotations": [], "logprobs": []},
    "input_image": {"detail": "auto"},
}
_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})


def item_id(prefix: str, turn_id: str, number: int | None = None) -> str:
    """Return the id of a response or of one of its items; it names the turn (`turn_of`)."""
    hexadecimal = turn_id.removeprefix("turn_")
    return f"{prefix}_{hexadecimal}" if number is None else f"{prefix}_{hexadecimal}_{number}"


def turn_of(reference: Any) -> str | None:
    """Return the turn that an id of a response or of an item names; None for ids of others."""
    found = _ITEM_ID.fullmatch(reference) if isinstance(reference, str) else None
    return f"turn_{found[2]}" if found is not None else None


def seal_reasoning(text: str) -> str:
    return _SEALED + base64.b64encode(text.encode()).decode()


def _unseal_reasoning(sealed: Any) -> str:
    if not isinstance(sealed, str) or not sealed.startswith(_SEALED):
        return ""
    try:
        return base64.b64decode(sealed.removeprefix(_SEALED), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""


def chat_name(name: str, namespace: Any) -> str:
    """Return the chat name of a tool: its namespace, if any, is part of it."""
    if not isinstance(namespace, str) or not namespace:
        return name
    return f"{namespace}{'' if namespace.endswith('_') else '__'}{name}"


class _MessageList:
    """Chat messages that grow item by item."""

    def __init__(self) -> None:
        self.messages: list[Json] = []
        self._turn: str | None = None  # whose reply the open assistant message is
        self._is_open = False

    def add(self, message: Json) -> None:
        self._is_open = False
        self.messages.append(message)

    def assistant(self, turn: str | None, *, begins: str) -> Json:
        """Return the assistant message that an item belongs to; ``begins`` is the field that the item sets."""
        last = self.messages[-1] if self._is_open else None
        if last is not None and turn is not None and turn == self._turn:
            return last
        is_later = last is not None and (
            begins != "tool_calls" and ("tool_calls" in last or last["content"] is not None)
        )
        if last is None or is_later or (turn is not None and self._turn is not None):
            last = {"role": "assistant", "content": None}
            self.messages.append(last)
            self._turn = turn
        self._is_open = True
        self._turn = self._turn or turn
        return last


def messages_of(
    items: Sequence[Any], turns: Mapping[str, RecordedTurn], *, name: str = "input", first: int = 0
) -> list[Json]:
    """Return the chat messages of input items.

    Args:
        turns: the recorded turns that `item_reference` items name.
        name: of the field that holds the items, for errors; ``first`` is the position of its first one.

    Raises:
        Untranslatable: an item that cannot be served.
    """
    built = _MessageList()
    referenced: set[str] = set()
    for position, item in enumerate(items, -first):
        where = f"{name}[{position}]"
        if not isinstance(item, dict):
            raise Untranslatable(f"{where} must be an object.", param=where)
        kind = kind_of(item)
        if kind == "item_reference":
            turn = turns.get(turn_of(item.get("id")) or "")
            if turn is None:
                raise Untranslatable(
                    f"Item with id '{item.get('id')}' not found.", status=404, param=f"{where}.id"
                )
            if turn.turn_id not in referenced:  # a reply's items are one message
                referenced.add(turn.turn_id)
                built.add(assistant_message(turn.text, turn.reasoning, turn.tool_calls))
            continue
        _add_item(built, item, kind, where)
    for message in built.messages:
        if message["content"] is None and "tool_calls" not in message:
            message["content"] = ""  # reasoning alone
    return built.messages


def kind_of(item: Json) -> str:
    """Return the type of an input item: a message may leave it out."""
    return str(item.get("type") or ("message" if "role" in item else None))


def require_calls(items: Sequence[Json], messages: Iterable[Json]) -> None:
    """Raises: Untranslatable: one of ``items`` is the output of a call that none of the request's messages holds."""
    called = {call.get("id") for message in messages for call in message.get("tool_calls") or ()}
    for item in items:
        kind = kind_of(item)
        if kind in _OUTPUTS and item.get("call_id") not in called and None not in called:
            what = kind.removesuffix("_output").replace("_", " ")
            raise Untranslatable(
                f"No tool call found for {what} output with call_id {item.get('call_id')}.", param="input"
            )


def _add_item(built: _MessageList, item: Json, kind: str, where: str) -> None:
    turn = turn_of(item.get("id"))
    if kind == "message":
        _add_message(built, item, turn, where)
    elif kind == "reasoning":
        text = _reasoning_text(item)
        if text:
            message = built.assistant(turn, begins="reasoning_content")
            message["reasoning_content"] = message.get("reasoning_content", "") + text
    elif kind in ("function_call", "custom_tool_call"):
        name, arguments = item.get("name"), item.get("arguments")
        if kind == "custom_tool_call":
            arguments = orjson.dumps({_CUSTOM_INPUT: item.get("input", "")}).decode()
        if (
            not isinstance(name, str)
            or not isinstance(arguments, str)
            or not isinstance(item.get("call_id"), str)
        ):
            raise Untranslatable(f"{where} needs call_id, name and arguments.", param=where)
        function = {"name": chat_name(name, item.get("namespace")), "arguments": arguments}
        call = {"id": item["call_id"], "type": "function", "function": function}
        built.assistant(turn, begins="tool_calls").setdefault("tool_calls", []).append(call)
    elif kind in _OUTPUTS:
        if not isinstance(item.get("call_id"), str):
            raise Untranslatable(f"{where} needs a call_id.", param=f"{where}.call_id")
        content = _content(item.get("output", ""), f"{where}.output")
        built.add({"role": "tool", "tool_call_id": item["call_id"], "content": content})
    elif kind in _HOSTED_CALLS:
        raise Untranslatable(
            f"{where} is a {kind}: Patina serves function tools only, and no tool that OpenAI runs itself.",
            param=where,
        )
    else:
        raise Untranslatable(f"{where} has an unknown type: {kind}.", param=f"{where}.type")


def _add_message(built: _MessageList, item: Json, turn: str | None, where: str) -> None:
    role = item.get("role")
    if role not in ("user", "assistant", "system", "developer"):
        raise Untranslatable(
            f"{where}.role must be user, assistant, system or developer.", param=f"{where}.role"
        )
    content = _content(item.get("content", ""), f"{where}.content")
    if role != "assistant":
        built.add({"role": "system" if role == "developer" else role, "content": content})
        return
    message = built.assistant(turn, begins="content")
    text = content if isinstance(content, str) else "".join(str(part.get("text", "")) for part in content)
    message["content"] = (message["content"] or "") + text


def _reasoning_text(item: Json) -> str:
    parts = item.get("content") or []
    texts = [p["text"] for p in parts if isinstance(p, dict) and isinstance(p.get("text"), str)]
    return "".join(texts) or _unseal_reasoning(item.get("encrypted_content"))


def _content(content: Any, where: str) -> str | list[Json]:
    """Return the content of an item as chat content: a single text is a string."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Untranslatable(f"{where} must be a string or a list of parts.", param=where)
    parts = [_part(part, f"{where}[{i}]") for i, part in enumerate(content)]
    if parts and all(part["type"] == "text" for part in parts):
        return text_content(part["text"] for part in parts)
    return parts or ""


def _part(part: Any, where: str) -> Json:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("input_text", "output_text", "text", "summary_text") and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return {"type": "text", "text": part["refusal"]}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        image = {"url": part["image_url"]}
        if part.get("detail") is not None:
            image["detail"] = part["detail"]
        return {"type": "image_url", "image_url": image}
    if kind == "input_audio" and isinstance(part.get("input_audio"), dict):
        return {"type": "input_audio", "input_audio": part["input_audio"]}
    if kind in ("input_image", "input_file"):
        raise Untranslatable(
            f"{where} refers to a file: Patina stores no files; send images as a URL or a data URL.",
            param=where,
        )
    raise Untranslatable(f"{where} has an unknown type: {kind}.", param=f"{where}.type")


def without_references(items: Iterable[Json], turns: Mapping[str, RecordedTurn]) -> Iterator[Json]:
    """Yield input items, with the items of a reply in the place of references to it."""
    referenced: set[str] = set()
    for item in items:
        turn = turns.get(turn_of(item.get("id")) or "") if kind_of(item) == "item_reference" else None
        if turn is None:
            yield item
        elif turn.turn_id not in referenced:
            referenced.add(turn.turn_id)
            yield from _items_of(assistant_message(turn.text, turn.reasoning, turn.tool_calls))


# ---- messages to items, for what is read back


def input_items(messages: Iterable[Json], turn_id: str) -> list[Json]:
    """Return recorded messages as input items."""
    found: list[Json] = []
    for message in messages:
        for item in _items_of(message):
            found.append({"id": item_id("item", turn_id, len(found)), **item, "status": "completed"})
    return found


def shown_item(item: Json, name: str) -> Json:
    """Return an item that a client sent as it is read back, under the id ``name``."""
    kind = kind_of(item)
    shown = {"status": "completed", **drop_none(item), "type": kind, "id": name}
    if kind == "reasoning":
        shown.setdefault("summary", [])
    elif kind == "message":
        is_reply = item.get("role") == "assistant"
        content = item.get("content")
        parts = content if isinstance(content, list) else [{"text": content or ""}]
        text = "output_text" if is_reply else "input_text"
        shown["content"] = [
            {"type": text, **_PART_DEFAULTS.get(part.get("type", text), {}), **part} for part in parts
        ]
    return shown


def _items_of(message: Json) -> Iterator[Json]:
    role = message.get("role")
    content = message.get("content")
    if role == "tool":
        output = content if isinstance(content, str) else _parts_of(content, "input_text")
        yield {"type": "function_call_output", "call_id": message.get("tool_call_id", ""), "output": output}
        return
    if role != "assistant":
        yield {"type": "message", "role": role, "content": _parts_of(content, "input_text")}
        return
    if message.get("reasoning_content"):
        text = {"type": "reasoning_text", "text": message["reasoning_content"]}
        yield {"type": "reasoning", "summary": [], "content": [text]}
    if content:
        parts = [{**part, "annotations": []} for part in _parts_of(content, "output_text")]
        yield {"type": "message", "role": "assistant", "content": parts}
    for call in message.get("tool_calls") or ():
        is_custom = "custom" in call
        written = call.get("custom" if is_custom else "function", {})
        given = "input" if is_custom else "arguments"
        yield {
            "type": "custom_tool_call" if is_custom else "function_call",
            "call_id": call.get("id", ""),
            "name": written.get("name", ""),
            given: written.get(given, ""),
        }


def _parts_of(content: Any, kind: str) -> list[Json]:
    if not isinstance(content, list):
        return [{"type": kind, "text": content or ""}]
    parts: list[Json] = []
    for part in content:
        if part.get("type") == "image_url":
            parts.append({"type": "input_image", "detail": "auto", "image_url": part["image_url"].get("url")})
        else:
            parts.append({"type": kind, "text": part.get("text", "")})
    return parts
