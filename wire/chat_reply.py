"""A chat completion, whole or streamed: what it holds, and the sequence of its parts, of which other APIs' replies are built. Sans-IO.

The only reader of replies: for the record (`wire.reply_assembly`) and for the translated APIs (`wire.event_synthesizer`). Parts come one output at
a time: a tool call ends before the next begins. Text and arguments keep every character. What cannot be read becomes a problem of the reply.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from store.values import Completion, Json, ReplyOutcome, outcome_of, whole_reason
from wire.lenient_json import TextJoiner, join_halves, without_halves


@dataclass(frozen=True, slots=True)
class Text:
    """Text of the reply, with the chat log-probabilities of its tokens where the client asked for them."""

    text: str
    logprobs: Sequence[Json] = ()


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class RefusalText:
    text: str


@dataclass(frozen=True, slots=True)
class CallOpened:
    """A tool call begins: its number, id and name."""

    index: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the open call's arguments (or of a custom tool's input), as the model wrote them."""

    text: str


Part = Text | Reasoning | RefusalText | CallOpened | CallArguments

#: What may hold reasoning, in the order of preference: some backends send the same text under two names, or one of them empty.
_REASONING = ("reasoning_content", "reasoning", "thinking", "reasoning_details", "thinking_blocks")
_TEXT_KEYS = ("text", "thinking", "summary", "content", "reasoning")
#: Content that has no text to be recorded.
_UNREADABLE = ("audio", "images")
_MARKS = re.compile(r'[{}\[\]"\\]')
_LONE = "the reply contains a lone surrogate"


class _Call:
    """A tool call as far as it has arrived."""

    __slots__ = (
        "_depth",
        "_is_escaped",
        "_is_in_string",
        "call_id",
        "index",
        "is_complete",
        "joiner",
        "kind",
        "name",
        "pieces",
        "sent",
    )

    def __init__(self, index: int | None, kind: str) -> None:
        self.index = index  # as the backend gave it
        self.kind = kind
        self.call_id = ""
        self.name = ""
        self.pieces: list[str] = []
        self.joiner = TextJoiner()
        self.sent = 0  # pieces that were given out
        self.is_complete = False  # the arguments are one closed JSON object or list
        self._depth = 0
        self._is_in_string = self._is_escaped = False

    def add(self, piece: str) -> None:
        if piece:
            self.pieces.append(piece)
            self._scan(piece)

    def _scan(self, piece: str) -> None:
        """Follow the brackets, so that each piece is read once."""
        escaped_at = 0 if self._is_escaped else -1
        self._is_escaped = False
        for mark in _MARKS.finditer(piece):
            at, sign = mark.start(), mark[0]
            if at == escaped_at:
                continue
            if self._is_in_string:
                if sign == "\\":
                    escaped_at = at + 1
                    self._is_escaped = escaped_at == len(piece)
                elif sign == '"':
                    self._is_in_string = False
            elif sign == '"':
                self._is_in_string = True
            elif sign != "\\":
                self._depth += 1 if sign in "{[" else -1
                self.is_complete = self._depth == 0

    def as_json(self) -> Json:
        body = {"name": self.name, "input" if self.kind == "custom" else "arguments": "".join(self.pieces)}
        named = {"id": self.call_id} if self.call_id else {}
        return {**named, "type": self.kind, "custom" if self.kind == "custom" else "function": body}


class Choice:
    """One choice of a reply."""

    __slots__ = (
        "_by_id", "_by_index", "_joiners", "_logprobs", "_open", "calls", "finish_reason", "problem", "reasoning", "refusal", "text",
    )  # fmt: skip

    def __init__(self) -> None:
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.refusal: list[str] = []
        self.calls: list[_Call] = []
        self.finish_reason: str | None = None
        self.problem = ""
        self._by_index: dict[int, _Call] = {}
        self._by_id: dict[str, _Call] = {}
        self._joiners = {"text": TextJoiner(), "reasoning": TextJoiner(), "refusal": TextJoiner()}
        self._open = -1  # the newest call whose `CallOpened` was given out
        self._logprobs: tuple[Json, ...] = ()  # of text that waits for the rest of a character

    # ---- text

    def add(self, channel: str, piece: str) -> str:
        """Add a piece to "text", "reasoning" or "refusal"; returns what of it is whole."""
        text = self._joiners[channel].feed(piece)
        if text:
            getattr(self, channel).append(text)
        return text

    def read(self, message: Json, part: str, logprobs: Sequence[Json]) -> Iterator[Part]:
        """Read a message ("message") or a chunk of it ("delta") and yield its parts."""
        if reasoning := self.add("reasoning", self._reasoning_of(message)):
            yield Reasoning(reasoning)
        for channel, piece in self._content_of(message.get("content")):
            if piece and channel == "text":
                self._logprobs, logprobs = (*self._logprobs, *logprobs), ()
            if whole := self.add(channel, piece):
                yield self._part(channel, whole)
        if isinstance(message.get("refusal"), str) and (refusal := self.add("refusal", message["refusal"])):
            yield RefusalText(refusal)
        for name in _UNREADABLE:
            if message.get(name):
                self.problem = self.problem or f"the reply has {name}"
        self._read_calls(message, part)
        yield from self._advance(is_end=False)

    def _part(self, channel: str, text: str) -> Part:
        if channel == "text":
            logprobs, self._logprobs = self._logprobs, ()
            return Text(text, logprobs)
        return Reasoning(text) if channel == "reasoning" else RefusalText(text)

    def _reasoning_of(self, message: Json) -> str:
        for name in _REASONING:
            value = message.get(name)
            if value and (text := _flat_text(value)):
                return text
            if value and name in _REASONING[:3]:
                self.problem = self.problem or f"{name} is not text"
        return ""

    def _content_of(self, content: Any) -> Iterator[tuple[str, str]]:
        """Yield channel and text of each part of a message's content."""
        for part in content if isinstance(content, list) else [] if content is None else [content]:
            if isinstance(part, str):
                yield "text", part
            elif isinstance(part, dict) and str(part.get("type", "")).startswith(("thinking", "reasoning")):
                yield "reasoning", _flat_text(part)
            elif isinstance(part, dict) and isinstance(part.get("text"), str):
                yield "text", part["text"]
            elif isinstance(part, dict) and isinstance(part.get("refusal"), str):
                yield "refusal", part["refusal"]
            else:
                kind = part.get("type") if isinstance(part, dict) else type(part).__name__
                self.problem = self.problem or f"a part of the content cannot be read ({str(kind)[:40]})"

    # ---- tool calls

    def _read_calls(self, message: Json, part: str) -> None:
        given = message.get("tool_calls")
        calls = given if isinstance(given, list) else [given] if isinstance(given, dict) else []
        single = message.get("function_call")
        if isinstance(single, dict) and not calls:
            calls = [{"index": 0, "function": single}]  # the older form: one call
        for position, call in enumerate(calls):
            if isinstance(call, dict):
                self._read_call(call, position, len(calls), part)
            elif call is not None:
                self.problem = self.problem or "a tool call is not a JSON object"

    def _read_call(self, given: Json, position: int, count: int, part: str) -> None:
        kind = "custom" if isinstance(given.get("custom"), dict) else "function"
        body = given.get(kind)
        body = body if isinstance(body, dict) else {}
        name = join_halves(body["name"]) if isinstance(body.get("name"), str) else ""
        call_id = join_halves(given["id"]) if isinstance(given.get("id"), str) else ""
        piece = body.get("input" if kind == "custom" else "arguments")
        if piece is not None and not isinstance(piece, str):
            piece = orjson.dumps(without_halves(piece)).decode()  # some backends send an object
        call = None
        if part == "delta":
            call = self._find_call(_integer(given.get("index")), call_id, name, piece or "", position, count)
        if call is None:
            call = _Call(_integer(given.get("index")), kind)
            self.calls.append(call)
        if call.index is not None:
            self._by_index[call.index] = call
        if call_id and (part == "message" or not call.call_id):
            call.call_id = call_id
            self._by_id[call_id] = call
        if not call.name or (name != call.name and not call.pieces):
            call.name += name  # engines that repeat the whole name in every delta mean the same one
        if piece and call.is_complete and piece.strip() and kind == "function":
            # Two calls that nothing tells apart, or arguments that go on after their end: which one is not known.
            self.problem = self.problem or "a tool call goes on after the end of its arguments"
        call.add(call.joiner.feed(piece or ""))

    def _find_call(
        self, index: int | None, call_id: str, name: str, piece: str, position: int, count: int
    ) -> _Call | None:
        """Return the call that a delta continues; None: it begins one."""
        known = self._by_id.get(call_id) if call_id else None
        if known is not None and (index is None or known.index in (None, index)):
            return known
        if index is not None:
            known = self._by_index.get(index)
        elif count > 1 and not call_id and not name:
            known = self.calls[position] if position < len(self.calls) else None
        else:
            known = self.calls[-1] if self.calls else None
        if known is None:
            return None
        if call_id and known.call_id and call_id != known.call_id:
            begins = bool(name) or index is None  # some engines make up an id for each delta, without a name
        elif name and known.name and name != known.name and (index is None or call_id):
            begins = True
        else:
            begins = bool(name) and known.is_complete and bool(piece.strip())
        return None if begins else known

    def _advance(self, *, is_end: bool) -> Iterator[Part]:
        """Yield what is known of the calls, in order; the next one begins when the arguments before it are complete."""
        for number in range(max(self._open, 0), len(self.calls)):
            call = self.calls[number]
            if number > self._open:
                if self._open >= 0 and not is_end and not self.calls[self._open].is_complete:
                    return
                if not is_end and not call.pieces:
                    return  # its name may go on
                self._open = number
                yield CallOpened(number, call.call_id, call.name)
            if call.sent < len(call.pieces):
                yield CallArguments("".join(call.pieces[call.sent :]))
                call.sent = len(call.pieces)

    # ---- the end

    def finish(self) -> list[Part]:
        """Return what was held back at the end of the reply."""
        found: list[Part] = []
        for channel, joiner in self._joiners.items():
            if rest := joiner.end():
                getattr(self, channel).append(rest)
                found.append(self._part(channel, rest))
        self.calls = [call for call in self.calls if call.name or call.call_id or call.pieces]
        for call in self.calls:
            call.add(call.joiner.end())
            self.problem = self.problem or ("" if call.name else "a tool call has no name")
        if any(
            joiner.is_damaged for joiner in (*self._joiners.values(), *(call.joiner for call in self.calls))
        ):
            self.problem = self.problem or _LONE
        return found + list(self._advance(is_end=True))

    def completion(self, index: int, **tokens: Any) -> Completion:
        return Completion(
            index=index,
            text="".join(self.text) or "".join(self.refusal),
            reasoning="".join(self.reasoning),
            tool_calls=tuple(call.as_json() for call in self.calls),
            finish_reason=self.finish_reason,
            **tokens,
        )


@dataclass(slots=True)
class ChatReplyReader:
    """Reads a chat completion.

    Args:
        n: choices that were asked for.
        fallback_id: begins the ids of calls that have none, in the parts.

    Attributes:
        stop_sequence: the stop string that ended the first choice, where the backend says so (a vLLM extension).
        error: the backend's own error inside the reply.
        problem: why a part could not be read, or "".
    """

    n: int = 1
    fallback_id: str = "call"
    completion_id: str | None = None
    model: str | None = None
    stop_sequence: str | None = None
    usage: Json | None = None
    error: Json | None = None
    problem: str = ""
    choices: dict[int, Choice] = field(default_factory=dict)

    def feed(self, payload: Any, *, part: str = "delta") -> list[Part]:
        """Read one chunk (``part`` "delta") or a whole reply ("message"); return the parts of the first choice.

        A chunk without a list of choices (usage, a ping, metadata) carries no part of the reply.
        """
        if not isinstance(payload, dict):
            self._require(part == "delta", "not a JSON object")
            return []
        self.error = self.error or _error_of(payload)
        if isinstance(payload.get("id"), str):
            self.completion_id = join_halves(payload["id"])
        if isinstance(payload.get("model"), str):
            self.model = join_halves(payload["model"])
        if isinstance(payload.get("usage"), dict):
            self.usage = payload["usage"]
        choices = payload.get("choices")
        self._require(
            part == "delta" or self.error is not None or isinstance(choices, list), "no list of choices"
        )
        found: list[Part] = []
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                found += self._read_choice(choice, part)
            else:
                self._require(choice is None, "a choice is not a JSON object")
        return found

    def _require(self, holds: bool, problem: str) -> None:
        self.problem = self.problem or ("" if holds else problem)

    def _read_choice(self, choice: Json, part: str) -> Sequence[Part]:
        index = choice_index(choice)
        if index is None:
            self._require(False, "a choice has no index")
            return ()
        state = self.choices.get(index)
        if state is None:
            state = self.choices[index] = Choice()
        self.error = self.error or _error_of(choice)
        message = choice.get(part)
        if message is None and part == "delta" and not state.text and not state.calls:
            message = choice.get("message")  # a backend that sends its whole reply as one event
            part = "message"
        self._require(message is None or isinstance(message, dict), f"a {part} is not a JSON object")
        logprobs = choice.get("logprobs")
        entries = logprobs.get("content") if isinstance(logprobs, dict) else None
        entries = without_halves(entries) if index == 0 and isinstance(entries, list) else ()
        found = list(state.read(message, part, tuple(entries))) if isinstance(message, dict) else []
        self.problem = self.problem or state.problem
        reason = choice.get("finish_reason")
        if (
            isinstance(reason, str)
            and reason.strip()
            and outcome_of(state.finish_reason) is not ReplyOutcome.FAILED
        ):
            state.finish_reason = join_halves(reason)
            if index == 0 and isinstance(choice.get("stop_reason"), str):
                self.stop_sequence = join_halves(choice["stop_reason"])
        return self._with_ids(found) if index == 0 else ()

    def _with_ids(self, parts: list[Part]) -> list[Part]:
        return [
            CallOpened(part.index, part.call_id or f"{self.fallback_id}_{part.index}", part.name)
            if isinstance(part, CallOpened)
            else part
            for part in parts
        ]

    def finish(self) -> list[Part]:
        """Return what was held back at the end of the reply."""
        found: list[Part] = []
        for index, choice in self.choices.items():
            parts = choice.finish()
            self.problem = self.problem or choice.problem
            found += self._with_ids(parts) if index == 0 else ()
        return found

    @property
    def finish_reason(self) -> str | None:
        """OpenAI's name of the first choice's finish reason; None where it does not say that the reply is whole."""
        return whole_reason(self.choices[0].finish_reason) if 0 in self.choices else None

    @property
    def outcome(self) -> ReplyOutcome:
        found = {outcome_of(choice.finish_reason) for choice in self.choices.values()}
        if self.error is not None or ReplyOutcome.FAILED in found:
            return ReplyOutcome.FAILED
        return (
            ReplyOutcome.WHOLE
            if len(self.choices) >= self.n and found == {ReplyOutcome.WHOLE}
            else ReplyOutcome.CUT
        )

    @property
    def failure(self) -> Json | None:
        """Return the error of a reply that is not whole: the backend's own, or what is known of its end."""
        if self.error is not None or self.outcome is ReplyOutcome.WHOLE:
            return self.error
        if self.outcome is ReplyOutcome.FAILED:
            reasons = {
                c.finish_reason
                for c in self.choices.values()
                if outcome_of(c.finish_reason) is ReplyOutcome.FAILED
            }
            return {
                "message": f"The backend ended the reply with the finish reason {sorted(map(str, reasons))[0]!r}."
            }
        return {"message": "The backend ended the reply before it was finished."}


def choice_index(choice: Json) -> int | None:
    """Return the index of a choice; 0 where it has none, None where it is no number."""
    return 0 if choice.get("index") is None else _integer(choice["index"])


def _integer(value: Any) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        return int(value[:9])
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _error_of(value: Json) -> Json | None:
    """Return the error that a payload or a choice holds, in any of the forms that backends use."""
    error = value.get("error")
    if not error and (value.get("object") == "error" or value.get("type") == "error"):
        error = {name: inner for name, inner in value.items() if name not in ("object", "choices")}
    if not error:
        return None
    found: Json = without_halves(error) if isinstance(error, dict) else {"message": join_halves(str(error))}
    return found


def _flat_text(value: Any, depth: int = 6) -> str:
    """Return the text inside reasoning: a string, or objects and lists with texts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and depth:
        return "".join(_flat_text(inner, depth - 1) for inner in value)
    if isinstance(value, dict) and depth:
        texts = (_flat_text(value.get(name), depth - 1) for name in _TEXT_KEYS)
        return next(filter(None, texts), "")
    return ""


def assistant_message(text: str, reasoning: str, tool_calls: Sequence[Json]) -> Json:
    """Return the assistant message that chat clients send back for a completion."""
    message: Json = {"role": "assistant", "content": text if text or not tool_calls else None}
    if reasoning:
        message["reasoning_content"] = reasoning
    if tool_calls:
        message["tool_calls"] = list(tool_calls)
    return message
