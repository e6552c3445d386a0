"""A chat completion, whole or streamed, as the sequence of its parts: what other APIs' replies are built from. Sans-IO.

Parts come one output at a time: a tool call ends before the next begins. Text and arguments keep every character.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from store.values import Json


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
    """A piece of the open call's arguments, as the model wrote them."""

    text: str


Part = Text | Reasoning | RefusalText | CallOpened | CallArguments


@dataclass(slots=True)
class _Call:
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    sent: int = 0  # characters of the arguments that were given out
    is_open: bool = False  # its `CallOpened` was given out


@dataclass(slots=True)
class ChatReplyReader:
    """Reads the first choice of a chat completion.

    Args:
        fallback_id: begins the ids of calls that have none.
    """

    fallback_id: str = "call"
    model: str | None = None
    finish_reason: str | None = None
    stop_sequence: str | None = (
        None  #: the stop string that ended it, where the backend says so (a vLLM extension)
    )
    usage: Json | None = None
    error: Json | None = None  #: the backend's own error inside a stream
    _calls: dict[int, _Call] = field(default_factory=dict)
    _open: int | None = None

    def feed(self, payload: Any, *, part: str = "delta") -> list[Part]:
        """Return the parts of one chunk (``part`` "delta") or of a whole reply ("message")."""
        if not isinstance(payload, dict):
            return []
        if payload.get("error") is not None and not payload.get("choices"):
            error = payload["error"]
            self.error = error if isinstance(error, dict) else {"message": str(error)}
            return []
        if isinstance(payload.get("model"), str):
            self.model = payload["model"]
        if isinstance(payload.get("usage"), dict):
            self.usage = payload["usage"]
        choices = payload.get("choices")
        found: list[Part] = []
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and choice.get("index", 0) == 0:
                found += self._read_choice(choice, part)
        return found

    def _read_choice(self, choice: Json, part: str) -> Iterator[Part]:
        message = choice.get(part)
        message = message if isinstance(message, dict) else {}
        reasoning = message.get("reasoning_content")
        if not isinstance(reasoning, str):
            reasoning = message.get("reasoning")
        if isinstance(reasoning, str) and reasoning:
            yield Reasoning(reasoning)
        content = message.get("content")
        if isinstance(content, list):
            content = "".join(
                p["text"] for p in content if isinstance(p, dict) and isinstance(p.get("text"), str)
            )
        logprobs = choice.get("logprobs")
        entries = logprobs.get("content") if isinstance(logprobs, dict) else None
        if isinstance(content, str) and content:
            yield Text(content, tuple(entries) if isinstance(entries, list) else ())
        if isinstance(message.get("refusal"), str) and message["refusal"]:
            yield RefusalText(message["refusal"])
        calls = message.get("tool_calls")
        for position, call in enumerate(calls if isinstance(calls, list) else ()):
            if isinstance(call, dict):
                self._add_call(call, position, part)
        if isinstance(message.get("function_call"), dict):
            self._add_call({"function": message["function_call"]}, 0, part)
        yield from self._advance(is_end=False)
        if isinstance(choice.get("finish_reason"), str):
            self.finish_reason = choice["finish_reason"]
            if isinstance(choice.get("stop_reason"), str):
                self.stop_sequence = choice["stop_reason"]

    def _add_call(self, call: Json, position: int, part: str) -> None:
        index = call.get("index", position) if part == "delta" else position
        if not isinstance(index, int):
            index = position
        whole = self._calls.setdefault(index, _Call())
        if isinstance(call.get("id"), str) and call["id"] and not whole.call_id:
            whole.call_id = call["id"]
        function = call.get("function")
        if isinstance(function, dict):
            # Engines that repeat the name in every delta mean the same one.
            if isinstance(function.get("name"), str) and not whole.name:
                whole.name = function["name"]
            if isinstance(function.get("arguments"), str):
                whole.arguments += function["arguments"]

    def _advance(self, *, is_end: bool) -> Iterator[Part]:
        """Give out what is known of the calls, in order; the next one begins when the arguments before it are complete."""
        for index in sorted(self._calls):
            call = self._calls[index]
            if not call.is_open:
                if (
                    self._open is not None
                    and not is_end
                    and not _is_complete(self._calls[self._open].arguments)
                ):
                    return
                if not call.name and not is_end:
                    return
                call.is_open, self._open = True, index
                call.call_id = call.call_id or f"{self.fallback_id}_{index}"
                yield CallOpened(index, call.call_id, call.name)
            if index == self._open and call.sent < len(call.arguments):
                yield CallArguments(call.arguments[call.sent :])
                call.sent = len(call.arguments)

    def finish(self) -> list[Part]:
        """Return what was held back at the end of the reply."""
        return list(self._advance(is_end=True))

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None and self.error is None


def _is_complete(arguments: str) -> bool:
    try:
        orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return False
    return True


def assistant_message(text: str, reasoning: str, tool_calls: Sequence[Json]) -> Json:
    """Return the assistant message that chat clients send back for a completion."""
    message: Json = {"role": "assistant", "content": text if text or not tool_calls else None}
    if reasoning:
        message["reasoning_content"] = reasoning
    if tool_calls:
        message["tool_calls"] = list(tool_calls)
    return message


def completion_parts(
    text: str, reasoning: str, tool_calls: Sequence[Json], logprobs: Sequence[Json] = ()
) -> list[Part]:
    """Return the parts of a recorded completion; ``logprobs`` are the chat log-probabilities of its text."""
    reader = ChatReplyReader()
    message = {**assistant_message(text, reasoning, tool_calls), "content": text}
    choice = {"message": message, "logprobs": {"content": list(logprobs)}}
    return reader.feed({"choices": [choice]}, part="message") + reader.finish()
