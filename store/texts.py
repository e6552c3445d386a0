"""The words in messages. Sans-IO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from store.values import Json


def last_user_text(messages: Sequence[Json]) -> str:
    """Return the text of the last user message, parts joined; empty when there is none."""
    for message in reversed(messages):
        if message.get("role") == "user":
            return content_text(message.get("content"))
    return ""


def content_text(content: Any) -> str:
    """Return the text of a message's content: a string as it is, the text parts of a list, nothing of the rest."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        return "\n".join(text for text in texts if isinstance(text, str))
    return ""
