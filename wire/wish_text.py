"""The wishes in a prompt: their text, whether a request gets them, and their addition. Sans-IO.

A wish acts from the next request on: until the weights have learnt it, the gateway adds the policy's active wishes to what the model reads. They
are added only where a person speaks and may be answered in words. The gateway edits the client's bytes (`splice_wishes`); the trainer edits parsed
messages (`add_wishes`). Both give the same messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from store.texts import content_text
from store.values import Json, TurnKind
from wire.chat_request import ChatRequest
from wire.classify import classify_request, is_structured
from wire.json_splice import elements, find_member, set_members, value_end
from wire.user_text import next_state_text

#: Places in the prompt: before or behind the text of the newest user message, or in the system prompt.
BEFORE, BEHIND, SYSTEM = "before", "behind", "system"
PLACES = (BEFORE, BEHIND, SYSTEM)
#: The wishes are a list below this line: without it they would read as a part of the message.
_HEADING = "Preferences:"

_SYSTEM_ROLES = ("system", "developer")
#: Fields of vLLM, SGLang and llama.cpp that force the form of a reply.
_GRAMMARS = (
    "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "grammar", "json_schema", "regex", "ebnf",
)  # fmt: skip


def join_wishes(texts: Iterable[str]) -> str:
    """Return the text of these wishes, one a line; "" when there is none."""
    return "\n".join(" ".join(text.split()) for text in texts)


def takes_wishes(chat: ChatRequest, requested: TurnKind | None) -> bool:
    """Whether a person speaks here and may be answered in words: then active wishes are added.

    Args:
        requested: the kind that the client set (`wire.headers.RequestOptions.kind`).
    """
    if chat.is_completion or chat.messages[-1].get("role") != "user":
        return False
    if is_structured(chat.body) or chat.body.get("tool_choice") == "required":
        return False
    extra = chat.body.get("extra_body")
    fields = {**extra, **chat.body} if isinstance(extra, Mapping) else chat.body
    if any(fields.get(name) not in (None, "", False) for name in _GRAMMARS):
        return False
    replies = [at for at, message in enumerate(chat.messages) if message.get("role") == "assistant"]
    begin, reply = (replies[-1] + 1, chat.messages[replies[-1]]) if replies else (0, {})
    system = "\n".join(
        content_text(m.get("content")) for m in chat.messages[:begin] if m.get("role") in _SYSTEM_ROLES
    )
    newest = next_state_text(chat.messages[begin:], content_text(reply.get("content")), system)
    if newest is not None and newest[0] != "user":
        return False  # a tool's result, or a framework's text
    found = classify_request(chat.messages, chat.body, requested)
    # The recorder also sees that the same question was asked under another system prompt; here a title's own system prompt decides.
    is_title = not replies and any(evidence.code == "role_title" for evidence in found.evidence)
    return found.kind is TurnKind.MAIN and not is_title


def add_wishes(messages: Sequence[Json], text: str, place: str) -> tuple[Json, ...]:
    """Return the messages with the wishes; those given stay as they are.

    Args:
        text: of `join_wishes`; "" adds nothing.
        place: ``before`` or ``behind`` (the text of the newest user message) or ``system`` (the first message, a new one where it is no
            system message).

    Raises:
        ValueError: the place is unknown, or the message there has no text to which one can be added.
    """
    if not text:
        return tuple(messages)
    at = _target(messages, place)
    content = None if at is None else messages[at].get("content")
    text = _beside(content, text, place)
    if at is None:
        return ({"role": "system", "content": text}, *messages)
    if isinstance(content, str):
        content = text + content if place == BEFORE else content + text
    elif isinstance(content, list):
        part = {"type": "text", "text": text}
        content = [part, *content] if place == BEFORE else [*content, part]
    else:
        raise ValueError(f"message {at} has no text to which wishes can be added")
    return (*messages[:at], {**messages[at], "content": content}, *messages[at + 1 :])


def splice_wishes(raw: bytes, messages: Sequence[Mapping[str, Any]], text: str, place: str) -> bytes:
    """Return a request's bytes with the wishes added as `add_wishes` does, and every other byte kept.

    Args:
        raw: the request.
        messages: its messages, parsed.

    Raises:
        ValueError: as `add_wishes`.
    """
    if not text:
        return raw
    at = _target(messages, place)
    content = None if at is None else messages[at].get("content")
    text = _beside(content, text, place)
    array = find_member(raw, "messages")
    starts = list(elements(raw, array))
    if at is None:
        first = starts[0]
        message = orjson.dumps({"role": "system", "content": text})
        return b"".join((raw[:first], message, b",", raw[first:]))
    value = find_member(raw, "content", starts[at])
    end = value_end(raw, value)
    if isinstance(content, str):
        addition, separator = orjson.dumps(text)[1:-1], b""
    elif isinstance(content, list):
        addition, separator = orjson.dumps({"type": "text", "text": text}), b"," if content else b""
    else:
        raise ValueError(f"message {at} has no text to which wishes can be added")
    if place == BEFORE:
        return b"".join((raw[: value + 1], addition, separator, raw[value + 1 :]))
    return b"".join((raw[: end - 1], separator, addition, raw[end - 1 :]))


def count_in_usage(raw: bytes, reply: Mapping[str, Any], tokens: int | None) -> bytes:
    """Return a reply's bytes with ``usage.prompt_tokens_details.wish_tokens``, where it has a usage.

    Args:
        reply: the reply (or chunk), parsed.
        tokens: of the added wishes; None leaves the reply as it is.

    Raises:
        ValueError: the bytes are not those of the reply.
    """
    usage = reply.get("usage")
    if tokens is None or not isinstance(usage, Mapping):
        return raw
    wanted = {"wish_tokens": b"%d" % tokens}
    details = usage.get("prompt_tokens_details")
    start = find_member(raw, "usage")
    text = raw[start : value_end(raw, start)]
    if isinstance(details, Mapping):
        at = find_member(text, "prompt_tokens_details")
        written = set_members(text[at : value_end(text, at)], wanted, details)
    else:
        written = set_members(b"{}", wanted, {})
    return b"".join(
        (raw[:start], set_members(text, {"prompt_tokens_details": written}, usage), raw[start + len(text) :])
    )


def prompt_text(text: str) -> str:
    """Return the text of wishes (`join_wishes`) as it stands in a prompt."""
    return "\n- ".join((_HEADING, *text.split("\n")))


def _beside(content: Any, text: str, place: str) -> str:
    """The wishes as they stand beside a content, set apart from it also where an engine joins parts with nothing between them."""
    if not content:
        return prompt_text(text)
    return f"{prompt_text(text)}\n\n" if place == BEFORE else f"\n\n{prompt_text(text)}"


def _target(messages: Sequence[Mapping[str, Any]], place: str) -> int | None:
    """Return the position of the message to extend; None: a system message goes in front. Raises: ValueError."""
    if place == SYSTEM:
        return 0 if messages and messages[0].get("role") in _SYSTEM_ROLES else None
    if place not in PLACES:
        raise ValueError(f"wishes have no place {place!r}")
    for at in range(len(messages) - 1, -1, -1):
        if messages[at].get("role") == "user":
            return at
    raise ValueError("no user message is there to which wishes can be added")
