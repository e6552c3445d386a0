"""Text in one line."""

from __future__ import annotations

#: Characters of a text that has room.
LONG = 160


def clip(text: str, length: int = 48) -> str:
    """A text in one line of at most so many characters."""
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 1] + "…"
