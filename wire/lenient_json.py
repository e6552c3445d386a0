"""JSON as lenient programs write and read it: NaN, byte order marks, characters in halves. Sans-IO.

JSON can spell half a character (a lone surrogate, or a part of its bytes), and text cannot hold it. Clients cut text by UTF-16 units, and backends
split a character over two chunks: `load_lenient` keeps the halves, `TextJoiner` joins them, and what stays alone becomes U+FFFD.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from typing import Any

import orjson

_DECODER = json.JSONDecoder(strict=False)
_SURROGATE = re.compile("[\ud800-\udfff]")
#: Bytes that are no UTF-8, as `surrogateescape` spells them.
_BYTES = re.compile("[\udc80-\udcff]+")
#: The end of a text that the next piece may complete: a high surrogate, or the first bytes of a character.
_OPEN_END = re.compile("(?:[\ud800-\udbff]|[\udcc2-\udcf4][\udc80-\udcbf]{0,2})\\Z")


def load_json(raw: bytes) -> Any:
    """Return the JSON of a request; its halves of characters are joined or replaced. Raises: ValueError: it is no JSON."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as exc:
        error = exc
    try:
        value, is_followed = load_lenient(raw)
    except (ValueError, RecursionError):
        raise error from None
    if is_followed:
        raise error
    return without_halves(value)


def load_lenient(raw: bytes) -> tuple[Any, bool]:
    """Return a JSON value, and whether data follows it. Strings may hold halves of characters.

    Raises:
        ValueError: it is no JSON; RecursionError: it is nested too deeply.
    """
    text = raw.removeprefix(codecs.BOM_UTF8).decode("utf-8", "surrogateescape")
    value, end = _DECODER.raw_decode(text, len(text) - len(text.lstrip()))
    return value, bool(text[end:].strip())


def join_halves(text: str) -> str:
    """Return a text with the halves of characters joined; what stays alone is U+FFFD."""
    if text.isascii() or _SURROGATE.search(text) is None:
        return text
    paired = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    decoded = _BYTES.sub(
        lambda found: found[0].encode("utf-8", "surrogateescape").decode("utf-8", "replace"), paired
    )
    return _SURROGATE.sub("\ufffd", decoded)


def without_halves(value: Any, depth: int = 200) -> Any:
    """Return a value as JSON can hold it: strings joined (`join_halves`); NaN, infinity and what is nested deeper are None."""
    if isinstance(value, str):
        return join_halves(value)
    if (isinstance(value, dict | list) and not depth) or (
        isinstance(value, float) and not math.isfinite(value)
    ):
        return None
    if isinstance(value, dict):
        return {join_halves(name): without_halves(inner, depth - 1) for name, inner in value.items()}
    if isinstance(value, list):
        return [without_halves(inner, depth - 1) for inner in value]
    return value


class TextJoiner:
    """Joins the pieces of a text: the half of a character at the end of one waits for the next.

    Attributes:
        is_damaged: a half stayed alone.
    """

    __slots__ = ("_half", "is_damaged")

    def __init__(self) -> None:
        self._half = ""
        self.is_damaged = False

    def feed(self, piece: str) -> str:
        """Add a piece and return the text that is whole."""
        if not self._half and (piece.isascii() or _SURROGATE.search(piece) is None):
            return piece
        text = self._half + piece
        found = _OPEN_END.search(text)
        at = len(text) if found is None else found.start()
        self._half = text[at:]
        return self._join(text[:at])

    def end(self) -> str:
        """Return what waits, at the end of the text."""
        half, self._half = self._half, ""
        return self._join(half)

    def _join(self, text: str) -> str:
        joined = join_halves(text)
        self.is_damaged = self.is_damaged or joined.count("\ufffd") > text.count("\ufffd")
        return joined
