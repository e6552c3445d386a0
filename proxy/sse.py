"""Server-sent events: bytes as they come off the wire, split anywhere, into whole events. Sans-IO.

Two machines, both byte-exact (what goes in comes out, in order): `EventSplitter` for streams that have to be edited, which
must wait for the end of an event; `LastEventGate` for streams that are passed on as they come, which holds back nothing but the
closing ``data: [DONE]``.
"""

from __future__ import annotations

import re

#: Two line ends in a row close an event. A lone CR is a line end too, but may be the first half of CR LF.
_END = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
_LINE = re.compile(rb"\r\n|\n|\r")
_LINES = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r|\Z)")

DONE = b"[DONE]"


class EventSplitter:
    """Split a byte stream into raw events, each with the blank line that closes it."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes and return the events that are complete now."""
        buffer = self._buffer + data if self._buffer else data
        events: list[bytes] = []
        if b"\r" not in buffer:
            start = 0
            while (end := buffer.find(b"\n\n", start)) >= 0:
                events.append(buffer[start : end + 2])
                start = end + 2
            self._buffer = buffer[start:]
            return self._with_comments(events)
        start = 0
        while (match := _END.search(buffer, start)) is not None:
            if match.end() == len(buffer) and buffer.endswith(b"\r"):
                break  # the LF that belongs to this CR may come with the next bytes
            events.append(buffer[start : match.end()])
            start = match.end()
        self._buffer = buffer[start:]
        return self._with_comments(events)

    def _with_comments(self, events: list[bytes]) -> list[bytes]:
        """Add the comments and empty lines at the front of what is left: they belong to no event and wait for none."""
        while self._buffer.startswith((b":", b"\r", b"\n")):
            line = _LINE.search(self._buffer)
            if line is None or (line[0] == b"\r" and line.end() == len(self._buffer)):
                break
            events.append(self._buffer[: line.end()])
            self._buffer = self._buffer[line.end() :]
        return events

    def flush(self) -> bytes:
        """Return what is left when the stream ends: an event that was never closed, usually nothing."""
        rest, self._buffer = self._buffer, b""
        return rest


def event_data(event: bytes) -> bytes | None:
    """Return the payload of one raw event, its ``data`` lines joined; None for comments and events without data."""
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


def with_data(event: bytes, payload: bytes, new: bytes) -> bytes:
    """Return a raw event with another payload; ``payload`` is its own (`event_data`). All its other lines stay as they are."""
    if b"\n" not in new:
        line = b"data: " + payload
        if event.startswith(line):
            return b"data: " + new + event[len(line) :]
        if event.count(payload) == 1:
            return event.replace(payload, new)
    # Several data lines: the new ones stand where the first of them stood.
    lines: list[bytes] = []
    data = [b"data: " + part for part in new.split(b"\n")]
    for found in _LINES.findall(event):
        bare = found.rstrip(b"\r\n")
        if bare != b"data" and not bare.startswith(b"data:"):
            lines.append(found)
            continue
        lines += [part + found[len(bare) :] for part in data]
        data = []
    return b"".join(lines)


class LastEventGate:
    """Let everything through at once except ``data: [DONE]`` and what comes after it.

    Bytes that may still turn out to be that line are held until it is certain, which takes no longer than the line itself.
    """

    _LINES = (b"data: [DONE]", b"data:[DONE]")

    def __init__(self) -> None:
        self._held = b""
        self._at_line_start = True
        self.is_closed = False

    def feed(self, data: bytes) -> bytes:
        """Take bytes and return those that may go to the client now."""
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
                    break  # may still become it (also when nothing of the line is there yet)
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
