"""Text of messages. Sans-IO."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from store.values import Json

#: White space in a text or, escaped, in JSON.
_BETWEEN_WORDS = r"(?:\s|\\[nrt])+"


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


def spellings(texts: Iterable[str]) -> list[str]:
    """Return regular expressions for texts as they are and as JSON holds them, with any white space between words, the longest first."""
    forms: set[str] = set()
    for text in texts:
        words = text.split()
        for spell in (str, _json_ascii, _json):
            forms.add(_BETWEEN_WORDS.join(re.escape(spell(word)) for word in words))
    return sorted(forms - {""}, key=len, reverse=True)


def _json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _json_ascii(text: str) -> str:
    return json.dumps(text)[1:-1]
