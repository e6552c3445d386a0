"""Hermes-style tool calls in sampled text: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. Pure, incremental.

Text outside the tags is content. A call is returned whole, when its end tag has arrived and its JSON is a call. Invalid calls stay content,
tags included, because a stream cannot retract what it has sent. Joining the output of a stream equals parsing the whole text at once, for
any chunking.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from serving.openai_server.detokenize import overlap_with_start

OPEN, CLOSE = "<tool_call>", "</tool_call>"
#: The beginning of a call up to its arguments; a whole JSON string.
_BEGIN = re.compile(r'\s*\{\s*"name":\s*("(?:[^"\\]|\\.)*"),\s*"(?:arguments|parameters)":\s*')
_STRINGS = re.compile(r'"(?:[^"\\\n]|\\.)*"')


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call; `arguments` is a JSON string, as OpenAI clients expect."""

    name: str
    arguments: str


def parse_call(inside: str) -> ToolCall | None:
    """Parse the text between the tags; None if it is not the JSON of a call."""
    try:
        value = json.loads(inside)
    except ValueError:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):  # some models encode the arguments twice
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return None
    if not isinstance(arguments, dict):
        return None
    return ToolCall(name=value["name"], arguments=json.dumps(arguments, ensure_ascii=False))


def _part_of_call(inside: str) -> ToolCall | None:
    """Return a call that was cut off in its arguments."""
    begin = _BEGIN.match(inside)
    return None if begin is None else ToolCall(name=json.loads(begin[1]), arguments=inside[begin.end() :])


def _end_of_call(text: str) -> int:
    """Return where the end tag of a call begins, -1 where it is not there yet. Within a JSON string the tag is text."""
    end = text.find(CLOSE)
    while end >= 0 and _STRINGS.sub("", text[:end]).rpartition("\n")[2].count('"') % 2:
        end = text.find(CLOSE, end + 1)
    return end


class ToolCallParser:
    """Splits text that arrives in pieces into content and calls, in order.

    White space beside a call belongs to the markup and not to the content, so it is held back until the following text is known.
    """

    __slots__ = ("_after_call", "_held_whitespace", "_inside", "_text", "calls")

    def __init__(self) -> None:
        self._text = ""
        self._held_whitespace = ""  # white space before the open tag, until the call is known to be one
        self._inside = False
        self._after_call = False
        self.calls = 0

    def feed(self, text: str) -> list[str | ToolCall]:
        """Add text and return the content (str) and calls that are final."""
        self._text += text
        out: list[str | ToolCall] = []
        while self._step(out):
            pass
        return out

    def flush(self, *, takes_part: bool = False) -> list[str | ToolCall]:
        """End the text: a call without an end tag counts if its JSON is complete.

        Args:
            takes_part: a call that was cut off counts as well, with the part of its arguments that is there.
        """
        rest, self._text = self._text, ""
        if self._inside:
            self._inside = False
            call = parse_call(rest) or (_part_of_call(rest) if takes_part else None)
            if call is not None:
                self.calls += 1
                return [call]
            rest = self._held_whitespace + OPEN + rest
        out: list[str | ToolCall] = []
        self._content(rest, out)
        return out

    def _step(self, out: list[str | ToolCall]) -> bool:
        if self._inside:
            end = _end_of_call(self._text)
            if end < 0:
                return False
            inside, rest = self._text[:end], self._text[end + len(CLOSE) :]
            self._text, self._inside = rest, False
            call = parse_call(inside)
            if call is None:
                self._content(self._held_whitespace + OPEN + inside + CLOSE, out)
            else:
                self.calls += 1
                self._after_call = True
                out.append(call)
            return True
        before, found, rest = self._text.partition(OPEN)
        if found:
            self._text, self._inside = rest, True
            content = before.rstrip()
            self._held_whitespace = before[len(content) :]
            self._content(content, out)
            return True
        cut = len(before) - overlap_with_start(before, OPEN)
        cut = len(before[:cut].rstrip())
        self._content(before[:cut], out)
        self._text = before[cut:]
        return False

    def _content(self, text: str, out: list[str | ToolCall]) -> None:
        if self._after_call:
            text = text.lstrip()
        if text:
            self._after_call = False
            out.append(text)
