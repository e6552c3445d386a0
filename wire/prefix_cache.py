"""Cache of parsed requests: of a request that extends a cached one, only the rest is parsed. Sans-IO.

A client sends the whole conversation with every request. The cache keeps the beginning of recent long requests, as bytes and parsed. A request
that extends one reuses its message objects; other modules recognise these objects and reuse their own results. The parsed value equals that of
a full parse, because the prefixes are equal byte for byte.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any

import orjson

from store.values import Json
from wire.json_splice import elements, members, value_end

#: Shorter requests are parsed faster than they are looked up.
MIN_BYTES = 8192
#: Longer requests are not cached, nor those with too many values: parsed, they take many times their size.
MAX_BYTES, _MIN_BYTES_PER_VALUE = 4 << 20, 12
#: Requests are bucketed by their first bytes and this many bytes before a power of two; within a bucket they are compared.
_WINDOW = 48
#: Longest bucket.
_MAX_BUCKET = 64
#: Hash of the first `MIN_BYTES`, a power of two, and the bytes before it.
_Key = tuple[int, int, bytes]

_HEAD = b'{"messages":['
_BLANK = b" \t\r\n"
#: Escapes that could hide a field name, which consists of letters and underscores.
_ESCAPED = (b"\\u006", b"\\u007", b"\\u005")


class ParsedPrefix:
    """A cached request.

    Attributes:
        messages: all of them, parsed.
        history: their `recorder.canonical.History`, once computed.
        prefix: its bytes up to the end of its last message; None until another request shares its beginning.
        leading_members: its members before the messages.
        is_redacted: ``messages`` and ``leading_members`` lack a secret that its bytes contain.
    """

    __slots__ = ("body", "history", "is_redacted", "keys", "leading_members", "messages", "prefix", "raw")

    def __init__(self, raw: bytes, body: Json, messages: Sequence[Json]) -> None:
        self.raw = raw
        self.body = body
        self.messages = messages
        self.history: Any = None
        self.prefix: bytes | None = None
        self.leading_members: Json = {}
        self.is_redacted = False
        self.keys: tuple[_Key, ...] = ()

    @property
    def size(self) -> int:
        return len(self.raw if self.prefix is None else self.prefix)


class PrefixCache:
    """Recent long requests by their beginning. Bounded in bytes; the parsed values take about three times as many."""

    def __init__(self, capacity: int = 16 << 20) -> None:
        self._capacity = capacity
        self._size = 0
        self._entries: OrderedDict[ParsedPrefix, None] = OrderedDict()
        self._buckets: dict[_Key, list[ParsedPrefix]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def lookup(self, raw: bytes) -> tuple[Json, ParsedPrefix] | None:
        """Return a request's body and the cached request that it extends; None when there is none.

        The cached request is removed: `add` the longer one.
        """
        if len(raw) < MIN_BYTES:
            return None
        for key in reversed(_keys(raw)):
            for entry in reversed(self._buckets.get(key, ())):
                if entry.prefix is None and not self._find_prefix_end(entry, raw):
                    continue
                prefix = entry.prefix
                if prefix is not None and raw.startswith(prefix):
                    body = _parse_rest(raw, entry, prefix)
                    if body is not None:
                        self._evict(entry)
                        return body, entry
        return None

    def add(
        self, raw: bytes, body: Json, messages: Sequence[Json], previous: ParsedPrefix | None
    ) -> ParsedPrefix | None:
        """Cache a parsed request if its size permits; ``previous`` is the request that it extends."""
        if not MIN_BYTES <= len(raw) <= MAX_BYTES or raw.count(b",") * _MIN_BYTES_PER_VALUE > len(raw):
            return None
        made = ParsedPrefix(raw, body, messages)
        if previous is not None and previous.prefix is not None:
            end = _end_of_messages(raw, len(previous.prefix))
            if end is not None:
                made.prefix, made.leading_members, made.raw, made.body = (
                    raw[:end],
                    previous.leading_members,
                    b"",
                    {},
                )
        return self._insert(made)

    def _insert(self, made: ParsedPrefix) -> ParsedPrefix:
        size = made.size
        text = made.raw if made.prefix is None else made.prefix
        keys = _keys(text)
        made.keys = keys if made.prefix is None else keys[-1:]  # the next request is at least as long
        for key in made.keys:
            bucket = self._buckets.setdefault(key, [])
            bucket.append(made)
        self._entries[made] = None
        self._size += size
        for key in made.keys:
            while len(self._buckets.get(key, ())) > _MAX_BUCKET:
                self._evict(self._buckets[key][0])
        while self._size > self._capacity and self._entries:
            self._evict(next(iter(self._entries)))
        return made

    def _evict(self, entry: ParsedPrefix) -> None:
        del self._entries[entry]
        self._size -= entry.size
        for key in entry.keys:
            bucket = self._buckets[key]
            bucket.remove(entry)
            if not bucket:
                del self._buckets[key]

    def _find_prefix_end(self, entry: ParsedPrefix, raw: bytes) -> bool:
        """Find the end of a cached request's messages, once another request shares its beginning."""
        if raw[:MIN_BYTES] != entry.raw[:MIN_BYTES]:
            return False
        self._evict(entry)
        try:
            names, end = _leading_names(entry.raw, entry.body)
        except ValueError:
            return False
        entry.leading_members = {name: entry.body[name] for name in names}
        entry.prefix, entry.raw, entry.body = entry.raw[:end], b"", {}
        if len(entry.prefix) < MIN_BYTES:
            return False
        self._insert(entry)
        return True


def _keys(text: bytes) -> tuple[_Key, ...]:
    """Return the buckets of a request's beginning, the shortest first."""
    first = hash(text[:MIN_BYTES])
    places = (1 << n for n in range(MIN_BYTES.bit_length() - 1, len(text).bit_length()))
    return tuple((first, place, text[place - _WINDOW : place]) for place in places)


def _leading_names(raw: bytes, body: Json) -> tuple[list[str], int]:
    """Return the names before a request's messages, and the end of its last message. Raises: ValueError: a name occurs twice."""
    names = list(body)
    at = names.index("messages")
    following = names[at + 1 : at + 2]
    is_plain = b"\\u00" not in raw or not any(escape in raw for escape in _ESCAPED)
    if is_plain and all(raw.count(orjson.dumps(name)) == 1 for name in names[: at + 2]):
        # Each name stands where it is found: the messages end before the next one, or before the end of the body.
        close = raw.index(orjson.dumps(following[0])) if following else raw.rindex(b"}")
        rest = raw[:close].rstrip(_BLANK)
        return names[:at], len(rest.removesuffix(b",").rstrip(_BLANK).removesuffix(b"]").rstrip(_BLANK))
    found = list(members(raw))
    names = [member.name for member in found]
    if len(set(names)) != len(names):
        raise ValueError("a name occurs twice")
    at = names.index("messages")
    return names[:at], _end_of_elements(raw, found[at].value)


def _parse_rest(raw: bytes, entry: ParsedPrefix, prefix: bytes) -> Json | None:
    """Return the body of a request that begins with ``prefix``, parsing only the rest; None if it does not continue there."""
    rest = raw[len(prefix) :].lstrip(_BLANK)
    if rest[:1] != b",":
        return None
    text = _HEAD + rest[1:]
    try:
        parsed: Any = orjson.loads(text)
        end = _end_of_elements(text, len(_HEAD) - 1)
    except ValueError:
        return None
    new = parsed.get("messages")
    behind = text[end:]
    if b'"messages"' in behind or any(escape in behind for escape in _ESCAPED) or not isinstance(new, list):
        return None  # it may contain its messages twice
    body = {**entry.leading_members, "messages": [*entry.messages, *new]}
    for name, value in parsed.items():
        if name != "messages":
            body[name] = value
    return body


def _end_of_messages(raw: bytes, prefix: int) -> int | None:
    """Return the end of the last message of a request whose messages up to ``prefix`` are known."""
    text = _HEAD + raw[prefix:].lstrip(_BLANK)[1:]
    try:
        return len(raw) - len(text) + _end_of_elements(text, len(_HEAD) - 1)
    except ValueError:
        return None


def _end_of_elements(text: bytes, prefix: int) -> int:
    """Return the end of the last element of the array at ``prefix``. Raises: ValueError: the array is empty."""
    last = -1
    for at in elements(text, prefix):
        last = at
    if last < 0:
        raise ValueError("an empty array")
    return value_end(text, last)


def extends(messages: Sequence[Mapping[str, Any]], previous: Sequence[Mapping[str, Any]]) -> bool:
    """Whether ``messages`` begin with the very objects of ``previous``."""
    return len(messages) >= len(previous) and all(map(is_, messages, previous))
