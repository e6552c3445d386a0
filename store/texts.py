"""Text of messages. Sans-IO."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from store.values import Json


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number and what it counts: "1 turn", "2 turns". `plural`: where it is not the noun and an s."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def last_user_text(messages: Sequence[Json]) -> str:
    """Return the text of the last user message, parts joined; empty when there is none."""
    for message in reversed(messages):
        if message.get("role") == "user":
            return content_text(message.get("content"))
    return ""


def first_user_text(messages: Sequence[Json]) -> str:
    """Return the text of the first user message, parts joined; empty when there is none."""
    return next((content_text(one.get("content")) for one in messages if one.get("role") == "user"), "")


def content_text(content: Any) -> str:
    """Return the text of a message's content: a string, or a list's strings and text parts, joined; other parts are left out."""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        texts = []
        for part in content:
            if isinstance(part, str):
                texts.append(part)
            elif isinstance(part, Mapping):
                text = part.get("text")
                if isinstance(text, str):
                    texts.append(text)
        return "\n".join(texts)
    return ""


def clip(text: str, length: int = 48) -> str:
    """Return a text in one line of at most so many characters."""
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 1] + "…"


def three_digits(value: object) -> str:
    """Return a number with three significant digits; "" for anything else."""
    return f"{value:.3g}" if isinstance(value, int | float) else ""


_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def strip_controls(text: str) -> str:
    """Return a text without what steers a terminal: escape sequences lose their beginning, and nothing reorders the line."""
    return _CONTROLS.sub("", text)
