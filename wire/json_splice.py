"""Positions of the members of a JSON text, so that some can be set or removed and every other byte stays. Sans-IO.

Parsing and serialising again would change the text: integers beyond 64 bits become floats, 1.50 becomes 1.5, escapes become characters, and
repeated keys are merged. Every text given here was parsed before, so it is valid JSON. Where it is not, `ValueError` is raised and nothing
is removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

# Possessive quantifiers: a string of ten million escapes must not cause backtracking.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_DEEP = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}]', re.DOTALL)


def _nested(levels: int) -> re.Pattern[bytes]:
    """Return a pattern of an array or object with this many nested levels: one match is five times faster than a walk."""
    flat = rb'[^\[\]{}"]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"[^\[\]{}"]*+)*+'
    value = rb"[\[{]" + flat + rb"[\]}]"
    for _ in range(levels):
        value = rb"[\[{]" + flat + rb"(?:" + value + flat + rb")*+[\]}]"
    return re.compile(value, re.DOTALL)


#: Deep enough for `logprobs` with alternatives and their bytes; deeper values are walked.
_NESTED = _nested(6)
_SCALAR = re.compile(rb"[^ \t\r\n,\[\]{}\":]+")
_BLANK = re.compile(rb"[ \t\r\n]*")

#: Beginnings of an escaped lower-case letter or underscore: field names consist of these characters.
_ESCAPED_LETTERS = (b"\\u006", b"\\u007", b"\\u005")

_QUOTE = b'"'[0]
_OPENS = frozenset(b"[{")
_COMMA = b","[0]


class Member(NamedTuple):
    """One member of an object: ``text[key_start:end]`` is the whole member, ``text[value:end]`` its value."""

    name: str
    key_start: int
    value: int
    end: int


def members(text: bytes, start: int = 0) -> Iterator[Member]:
    """Yield the members of the object at ``start`` (white space before it allowed), repeated keys included.

    Raises:
        ValueError: there is no object, or it does not end.
    """
    at = _after_blank(text, start)
    if text[at : at + 1] != b"{":
        raise ValueError("no object here")
    at = _after_blank(text, at + 1)
    while text[at : at + 1] == b'"':
        key_start = at
        at = _end_of_string(text, at)
        name: str = orjson.loads(text[key_start:at])
        at = _after_blank(text, at)
        if text[at : at + 1] != b":":
            raise ValueError("a key without a value")
        value = _after_blank(text, at + 1)
        end = value_end(text, value)
        yield Member(name, key_start, value, end)
        at = _after_blank(text, end)
        if text[at : at + 1] == b",":
            at = _after_blank(text, at + 1)
    if text[at : at + 1] != b"}":
        raise ValueError("an object without an end")


def elements(text: bytes, start: int) -> Iterator[int]:
    """Yield the start of each element of the array at ``start``. Raises: ValueError."""
    if text[start : start + 1] != b"[":
        raise ValueError("no array here")
    at = _after_blank(text, start + 1)
    while at < len(text) and text[at : at + 1] != b"]":
        yield at
        at = _after_blank(text, value_end(text, at))
        if text[at : at + 1] == b",":
            at = _after_blank(text, at + 1)


def value_end(text: bytes, at: int) -> int:
    """Return the end of the value that begins at ``at``. Raises: ValueError."""
    first = text[at] if at < len(text) else 0
    if first == _QUOTE:
        return _end_of_string(text, at)
    if first not in _OPENS:
        found = _SCALAR.match(text, at)
        if found is None:
            raise ValueError("no value here")
        return found.end()
    whole = _NESTED.match(text, at)
    if whole is not None:
        return whole.end()
    depth = 0
    for token in _DEEP.finditer(text, at):
        sign = token[0]
        if sign == b"{" or sign == b"[":
            depth += 1
        elif sign == b"}" or sign == b"]":
            depth -= 1
            if not depth:
                return token.end()
    raise ValueError("a value without an end")


def set_members(text: bytes, values: Mapping[str, bytes], parsed: Mapping[str, Any]) -> bytes:
    """Return the object ``text`` with the members ``values`` (JSON texts by name) set, and every other byte kept.

    An existing member gets its value in place, at each occurrence; a new one is inserted first.

    Args:
        parsed: the same object, parsed.

    Raises:
        ValueError: ``text`` is not an object.
    """
    if not values:
        return text
    start = _after_blank(text, 0) + 1
    if text[start - 1 : start] != b"{":
        raise ValueError("no object here")
    pieces: list[bytes] = [text[:start]]
    missing = [name for name in values if name not in parsed]
    if missing:
        new = b",".join(orjson.dumps(name) + b":" + values[name] for name in missing)
        pieces.append(new + b"," if parsed else new)
    position = start
    for member in _find_members(text, [name for name in values if name in parsed]):
        pieces += (text[position : member.value], values[member.name])
        position = member.end
    pieces.append(text[position:])
    return b"".join(pieces)


def find_member(text: bytes, name: str, start: int = 0) -> int:
    """Return where the value of a member of the object at ``start`` begins; of repeated keys the last one counts.

    Raises:
        ValueError: there is no such member.
    """
    key = b'"' + name.encode() + b'"'
    if not start and _is_plain(text) and text.count(key) == 1:
        return _after_blank(text, _after_blank(text, text.index(key) + len(key)) + 1)
    found = [member.value for member in members(text, start) if member.name == name]
    if not found:
        raise ValueError(f"the object has no {name}")
    return found[-1]


def _is_plain(text: bytes) -> bool:
    """Whether no letter is written as an escape: then a key is found by its bytes."""
    return b"\\u00" not in text or not any(escape in text for escape in _ESCAPED_LETTERS)


def _find_members(text: bytes, names: Sequence[str]) -> list[Member]:
    """Return the top-level members of these names, in order. All of them exist; the text is walked only where their position is ambiguous."""
    found: list[Member] = []
    is_plain = not names or _is_plain(text)
    for name in names:
        key = b'"' + name.encode() + b'"'
        if not is_plain or text.count(key) != 1:
            return [member for member in members(text) if member.name in names]
        key_start = text.index(key)
        value = _after_blank(text, _after_blank(text, key_start + len(key)) + 1)
        found.append(Member(name, key_start, value, value_end(text, value)))
    return sorted(found, key=lambda member: member.key_start)


def span_with_comma(text: bytes, start: int, end: int, floor: int) -> tuple[int, int]:
    """Widen the span of a member by its comma; ``floor`` is the end of an earlier cut."""
    before = start
    while before > floor and text[before - 1] in b" \t\r\n":
        before -= 1
    if before > floor and text[before - 1] == _COMMA:
        before -= 1
        while before > floor and text[before - 1] in b" \t\r\n":
            before -= 1
        return before, end
    after = _after_blank(text, end)
    if text[after : after + 1] == b",":
        return start, _after_blank(text, after + 1)
    return start, end


def _after_blank(text: bytes, at: int) -> int:
    found = _BLANK.match(text, at)
    return found.end() if found is not None else at


def _end_of_string(text: bytes, at: int) -> int:
    found = _STRING.match(text, at)
    if found is None:
        raise ValueError("a string without an end")
    return found.end()
