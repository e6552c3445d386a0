"""Long requests read as far as they are new. Sans-IO.

A client sends the whole conversation with every request. Of the newest long ones is remembered how their bytes began and what was read
there, so that of the next only the rest is parsed; the message objects are the very same ones then, by which others see that they need
not look at them again. What is read this way is what parsing all of it would read: the bytes in front are equal, byte for byte.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any

import orjson

from proxy.splice import elements, members, skip
from store.values import Json

#: Shorter requests are parsed faster than they are looked up.
LEAST = 8192
#: Longer ones are remembered by none, nor those with more values than one to so many bytes: read, they take many times their size.
MOST, _DENSEST = 4 << 20, 12
#: So many bytes in front of a power of two, and which one, tell requests apart; then they are compared.
_WINDOW = 48
#: Most requests that are alike there.
_MOST_ALIKE = 64

_HEAD = b'{"messages":['
#: A name may be written with escapes, and only letters and the underscore are names of fields.
_ESCAPED = (b"\\u006", b"\\u007", b"\\u005")


class Earlier:
    """A request that was read.

    Attributes:
        messages: all of them, as they were parsed.
        history: what was made of them (`proxy.canonical.History`), once somebody has; told by the next request.
        start: its bytes up to the end of its last message; None until another request begins like it.
        front: its members before the messages.
    """

    __slots__ = ("body", "front", "history", "keys", "messages", "raw", "start")

    def __init__(self, raw: bytes, body: Json, messages: Sequence[Json]) -> None:
        self.raw = raw
        self.body = body
        self.messages = messages
        self.history: Any = None
        self.start: bytes | None = None
        self.front: Json = {}
        self.keys: tuple[tuple[int, bytes], ...] = ()

    @property
    def size(self) -> int:
        return len(self.raw if self.start is None else self.start)


class Requests:
    """The newest long requests, by how they begin. Bounded by their bytes; what was read of them takes about three times as many."""

    def __init__(self, capacity: int = 16 << 20) -> None:
        self._capacity = capacity
        self._size = 0
        self._known: OrderedDict[Earlier, None] = OrderedDict()
        self._alike: dict[tuple[int, bytes], list[Earlier]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def read(self, raw: bytes) -> tuple[Json, Earlier] | None:
        """Return a request's body and what it goes on from; None where nothing is known of its beginning.

        What it goes on from is forgotten: `add` the one that goes on.
        """
        if len(raw) < LEAST:
            return None
        place = 1 << (len(raw).bit_length() - 1)
        while place >= LEAST:
            for known in reversed(self._alike.get((place, raw[place - _WINDOW : place]), ())):
                if known.start is None and not self._measure(known, raw):
                    continue
                start = known.start
                if start is not None and raw.startswith(start):
                    body = _joined(raw, known, start)
                    if body is not None:
                        self._forget(known)
                        return body, known
            place >>= 1
        return None

    def add(self, raw: bytes, body: Json, messages: Sequence[Json], before: Earlier | None) -> Earlier | None:
        """Remember a request that was read, if it is of a size to be; ``before`` is what it goes on from."""
        if not LEAST <= len(raw) <= MOST or raw.count(b",") * _DENSEST > len(raw):
            return None
        made = Earlier(raw, body, messages)
        if before is not None and before.start is not None:
            end = _end_of_messages(raw, len(before.start))
            if end is not None:
                made.start, made.front, made.raw, made.body = raw[:end], before.front, b"", {}
        return self._keep(made)

    def _keep(self, made: Earlier) -> Earlier:
        size = made.size
        text = made.raw if made.start is None else made.start
        places = [1 << n for n in range(LEAST.bit_length() - 1, size.bit_length())]
        if made.start is not None:
            places = places[-1:]  # the next one is at least as long
        made.keys = tuple((place, text[place - _WINDOW : place]) for place in places)
        for key in made.keys:
            alike = self._alike.setdefault(key, [])
            alike.append(made)
        self._known[made] = None
        self._size += size
        for key in made.keys:
            while len(self._alike.get(key, ())) > _MOST_ALIKE:
                self._forget(self._alike[key][0])
        while self._size > self._capacity and self._known:
            self._forget(next(iter(self._known)))
        return made

    def _forget(self, known: Earlier) -> None:
        del self._known[known]
        self._size -= known.size
        for key in known.keys:
            alike = self._alike[key]
            alike.remove(known)
            if not alike:
                del self._alike[key]

    def _measure(self, known: Earlier, raw: bytes) -> bool:
        """Look for the end of a request's messages, now that another begins like it."""
        if raw[:LEAST] != known.raw[:LEAST]:
            return False
        self._forget(known)
        try:
            found = list(members(known.raw))
            names = [member.name for member in found]
            at = names.index("messages")
            if len(set(names)) != len(names):
                return False
            end = _end_of_elements(known.raw, found[at].value)
        except ValueError:
            return False
        known.front = {name: known.body[name] for name in names[:at]}
        known.start, known.raw, known.body = known.raw[:end], b"", {}
        if len(known.start) < LEAST:
            return False
        self._keep(known)
        return True


def _joined(raw: bytes, known: Earlier, start: bytes) -> Json | None:
    """Return the body of a request that begins with ``start``, of which only what follows is parsed; None if it does not go on there."""
    rest = raw[len(start) :].lstrip(b" \t\r\n")
    if rest[:1] != b",":
        return None
    text = _HEAD + rest[1:]
    try:
        read: Any = orjson.loads(text)
        end = _end_of_elements(text, len(_HEAD) - 1)
    except ValueError:
        return None
    new = read.get("messages")
    behind = text[end:]
    if b'"messages"' in behind or any(escape in behind for escape in _ESCAPED) or not isinstance(new, list):
        return None  # it may say twice what its messages are
    body = {**known.front, "messages": [*known.messages, *new]}
    for name, value in read.items():
        if name != "messages":
            body[name] = value
    return body


def _end_of_messages(raw: bytes, start: int) -> int | None:
    """Return where the last message ends of a request whose messages up to ``start`` are known."""
    text = _HEAD + raw[start:].lstrip(b" \t\r\n")[1:]
    try:
        return len(raw) - len(text) + _end_of_elements(text, len(_HEAD) - 1)
    except ValueError:
        return None


def _end_of_elements(text: bytes, start: int) -> int:
    """Return where the last element ends of the array at ``start``. Raises: ValueError: there is none."""
    last = -1
    for at in elements(text, start):
        last = at
    if last < 0:
        raise ValueError("an empty array")
    return skip(text, last)


def goes_on(messages: Sequence[Mapping[str, Any]], before: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the first messages are the very objects of ``before``."""
    return len(messages) >= len(before) and all(map(is_, messages, before))
