"""Lines as they are compared: by their letters and digits alone. Sans-IO."""

from __future__ import annotations

import re
from functools import lru_cache

#: Characters of a line that count: clients truncate what they quote.
LINE_CHARS = 48

NOT_WORDS = re.compile(r"[\W_]+")
_ELEMENT = re.compile(r"</?[A-Za-z][\w:-]*>")
#: Field names, not speakers: a form that ends with one of these waits for what a program reads.
FIELDS = frozenset(
    {
        "output", "result", "results", "json", "score", "rating", "verdict", "title", "summary", "query", "queries", "question", "keywords",
        "category", "label", "tags", "topic", "intent", "class", "rewritten", "rephrased", "standalonequestion", "newsummary", "decision",
        "passage", "value", "format",
    }
)  # fmt: skip


def normalise_line(text: str) -> str:
    """Return the first letters and digits of a line, case-folded, without tags."""
    return _normalise_line(text[: 4 * LINE_CHARS])


@lru_cache(maxsize=4096)  # the lines of one prompt are requested several times
def _normalise_line(text: str) -> str:
    if "<" in text:
        text = _ELEMENT.sub("", text)
    return NOT_WORDS.sub("", text.casefold())[:LINE_CHARS]
