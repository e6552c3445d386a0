"""Server-sent events: splits a byte stream into whole events. Sans-IO.

Both classes are byte-exact (output equals input, in order). `EventSplitter` is for streams that are edited and waits for the end of an event.
`DoneEventHolder` is for streams that are forwarded unchanged and holds back only the closing ``data: [DONE]``.
"""

from __future__ import annotations

import re

#: Two line ends in a row close an event. A lone CR is a line end too, but may be the first half of CR LF.
_END = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
_LINE = re.compile(rb"\r\n|\n|\r")
_LINES = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r|\Z)")

#: Bytes of the longest delimiter (CR LF CR LF) that earlier bytes may hold.
_OVERLAP = 3
#: First bytes of a comment and of an empty line.
_NO_EVENT = (b":", b"\r", b"\n")

DONE = b"[DONE]"

#: A longer event is not read: an event without an end would be kept for ever.
MAX_EVENT_BYTES = 8 << 20
_FIELDS = (b"data:", b":", b"event:", b"id:", b"retry:")
_MARK = b"\xef\xbb\xbf"


def looks_like_events(start: bytes) -> bool:
    """Whether a body that begins so is a stream of events, whatever its label says."""
    start = start.removeprefix(_MARK).lstrip(b" \t\r\n")
    return any(start.startswith(field) or (start and field.startswith(start)) for field in _FIELDS)


class EventSplitter:
    """Split a byte stream into raw events, each with the blank line that closes it."""

    def __init__(self) -> None:
        self._held: list[bytes] = []  #: pieces of the event that is not closed yet, joined once
        self._size = 0  #: bytes held
        self._tail = b""  #: the last bytes held, which may begin a delimiter

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes and return the events that are complete."""
        if self.extend(data):
            return []
        at = max(0, self._size - _OVERLAP)  # no delimiter begins before
        buffer = self.flush() + data
        events: list[bytes] = []
        start = 0
        if buffer.find(b"\r", at) < 0:
            while (end := buffer.find(b"\n\n", at)) >= 0:
                events.append(buffer[start : end + 2])
                start = at = end + 2
        else:
            while (match := _END.search(buffer, at)) is not None:
                if match.end() == len(buffer) and buffer.endswith(b"\r"):
                    break  # the LF of this CR may come with the next bytes
                events.append(buffer[start : match.end()])
                start = at = match.end()
        # Comments and empty lines at the front of the rest belong to no event.
        while buffer.startswith(_NO_EVENT, start):
            line = _LINE.search(buffer, start)
            if line is None or (line[0] == b"\r" and line.end() == len(buffer)):
                break
            events.append(buffer[start : line.end()])
            start = line.end()
        self._hold(buffer[start:])
        return events

    @property
    def is_empty(self) -> bool:
        """Whether no event is open."""
        return not self._held

    @property
    def is_overlong(self) -> bool:
        """Whether the open event is larger than `MAX_EVENT_BYTES`."""
        return self._size > MAX_EVENT_BYTES

    def extend(self, data: bytes) -> bool:
        """Add bytes only if they continue the open event without a possible end; return whether they were added.

        Only the new bytes are searched: an event in many pieces costs no more than its size.
        """
        if not self._held:
            return False
        region = self._tail + data
        if self._held[0].startswith(_NO_EVENT):
            may_end = b"\n" in region or b"\r" in region
        elif b"\r" in region:
            may_end = _END.search(region) is not None
        else:
            may_end = b"\n\n" in region
        if not may_end:
            self._hold(data)
        return not may_end

    def _hold(self, data: bytes) -> None:
        if data:
            self._held.append(data)
            self._size += len(data)
            self._tail = (self._tail + data[-_OVERLAP:])[-_OVERLAP:]

    def flush(self) -> bytes:
        """Return the rest when the stream ends: an event that was not closed, usually nothing."""
        rest = b"".join(self._held)
        self._held, self._size, self._tail = [], 0, b""
        return rest


def event_data(event: bytes) -> bytes | None:
    """Return the payload of one raw event, its ``data`` lines joined; None for comments and events without data."""
    event = event.removeprefix(_MARK)
    if event.startswith(b"data: ") and event.find(b"\n") == len(event) - 2:
        payload = event[6:-2].rstrip(b"\r")
        if b"\r" not in payload:  # a lone CR inside is a line end
            return payload
    lines = []
    for line in _LINE.split(event):
        if line == b"data":
            lines.append(b"")
        elif line.startswith(b"data:"):
            lines.append(line[6:] if line[5:6] == b" " else line[5:])
    return b"\n".join(lines) if lines else None


def replace_data(event: bytes, payload: bytes, new: bytes) -> bytes:
    """Return a raw event with another payload; ``payload`` is its own (`event_data`). Its other lines stay."""
    if b"\n" not in new:
        line = b"data: " + payload
        if event.startswith(line):
            return b"data: " + new + event[len(line) :]
        if event.count(payload) == 1:
            return event.replace(payload, new)
    # Several data lines: the new ones take the place of the first.
    lines: list[bytes] = []
    data = [b"data: " + part for part in new.split(b"\n")]
    for found in _LINES.findall(event):
        content = found.rstrip(b"\r\n")
        if content != b"data" and not content.startswith(b"data:"):
            lines.append(found)
            continue
        lines += [part + found[len(content) :] for part in data]
        data = []
    return b"".join(lines)


class DoneEventHolder:
    """Passes everything on at once except ``data: [DONE]`` and what follows it.

    Bytes that may be the beginning of that line are held until this is decided.
    """

    _LINES = (b"data: [DONE]", b"data:[DONE]")

    def __init__(self) -> None:
        self._held = b""
        self._at_line_start = True
        self.is_closed = False

    def feed(self, data: bytes) -> bytes:
        """Add bytes and return those that may go to the client now."""
        if self.is_closed:
            self._held += data
            return b""
        buffer = self._held + data
        position = 0
        while True:
            if self._at_line_start:
                rest = buffer[position : position + 12]
                if any(rest.startswith(line) for line in self._LINES):
                    self.is_closed = True
                    break
                if any(line.startswith(rest) for line in self._LINES):
                    break  # still undecided (also when no byte of the line has arrived)
                self._at_line_start = False
            match = _LINE.search(buffer, position)
            if match is None:
                position = len(buffer)
                break
            position = match.end()
            self._at_line_start = True
        self._held = buffer[position:]
        return buffer[:position]

    def flush(self) -> bytes:
        """Return what was held back."""
        rest, self._held = self._held, b""
        return rest
