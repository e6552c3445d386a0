"""Response objects and event streams of the Responses API, built from a chat completion. Sans-IO.

Streamed or not, the same parts build the same items: the events are what happens on the way.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from store.values import Json, RecordedTurn
from wire.api_translation import prompt_details, read_error
from wire.chat_reply import (
    CallArguments,
    CallOpened,
    Part,
    Reasoning,
    RefusalText,
    Text,
    assistant_message,
)
from wire.error_codes import error_type
from wire.event_synthesizer import EventSynthesizer
from wire.responses_api.items import item_id, seal_reasoning


def response_tools(chat: Json, custom: Sequence[str] = ()) -> list[Json]:
    """Return chat tools as the Responses API writes them."""
    tools: list[Json] = []
    for tool in chat.get("tools") or ():
        function = tool.get("function", {})
        if function.get("name") in custom:
            tools.append(
                {"type": "custom", "name": function["name"], "description": function.get("description")}
            )
        else:
            given = {"name": None, "description": None, "parameters": None, "strict": None, **function}
            tools.append({"type": "function", **given})
    return tools


def response_object(
    turn_id: str,
    chat: Json,
    detail: Json,
    *,
    instructions: str | None,
    created_at: float,
    model: str | None = None,
) -> Json:
    """Return a response in progress, without output.

    Args:
        chat: the chat request.
        detail: what was recorded of the request beside it.
    """
    metadata = detail.get("metadata") or {}
    conversation = detail.get("conversation")
    text = detail.get("text") or {}
    return {
        "id": item_id("resp", turn_id),
        "object": "response",
        "created_at": int(created_at),
        "status": "in_progress",
        "background": False,
        "completed_at": None,
        "conversation": None if conversation is None else {"id": conversation},
        "error": None,
        "incomplete_details": None,
        "instructions": instructions,
        "max_output_tokens": chat.get("max_tokens"),
        "max_tool_calls": detail.get("max_tool_calls"),
        "metadata": {str(name): str(value) for name, value in metadata.items()}
        if isinstance(metadata, dict)
        else {},
        "model": model or chat.get("model") or "",
        "output": [],
        "parallel_tool_calls": detail.get("parallel_tool_calls", True),
        "previous_response_id": detail.get("previous_response_id"),
        "prompt_cache_key": detail.get("prompt_cache_key"),
        "reasoning": {"effort": None, "summary": None, **(detail.get("reasoning") or {})},
        "safety_identifier": detail.get("safety_identifier"),
        "service_tier": "default",
        "store": detail.get("store", True),
        "temperature": chat.get("temperature", 1.0),
        "text": {"format": {"type": "text"}, **text},
        "tool_choice": detail.get("tool_choice", "auto"),
        "tools": response_tools(chat, detail.get("custom", ())),
        "top_logprobs": detail.get("top_logprobs", 0),
        "top_p": chat.get("top_p", 1.0),
        "truncation": detail.get("truncation", "disabled"),
        "usage": None,
        "user": chat.get("user"),
    }


def instructions_of(messages: Sequence[Json], detail: Json) -> str | None:
    """Return the `instructions` of a translated request."""
    if not detail.get("instructions") or not messages:
        return None
    content = messages[0].get("content")
    if isinstance(content, list):
        content = content[0].get("text") if content else None
    return content if isinstance(content, str) else None


def history_of(turn: RecordedTurn) -> list[Json]:
    """Return the messages of a turn and its reply, without the `instructions`, which are not inherited."""
    reply = assistant_message(turn.text, turn.reasoning, turn.tool_calls)
    return [*without_instructions(turn), reply]


def without_instructions(turn: RecordedTurn) -> list[Json]:
    """Return the messages of a turn's request without the `instructions`."""
    messages = list(turn.messages)
    if turn.api is None or not turn.api.get("instructions") or not messages:
        return messages
    content = messages[0].get("content")
    if not isinstance(content, list) or len(content) < 2:
        return messages[1:]
    rest = content[1:]
    is_text = len(rest) == 1 and rest[0].get("type") == "text"
    return [{**messages[0], "content": rest[0]["text"] if is_text else rest}, *messages[1:]]


def response_usage(usage: Json | None) -> Json | None:
    """Return the counts of a chat completion as the Responses API names them."""
    if usage is None:
        return None
    prompt, completion = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    details = prompt_details(usage)
    reasoning = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    return {
        "input_tokens": prompt,
        "input_tokens_details": {**details, "cache_write_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": usage.get("total_tokens") or prompt + completion,
    }


@dataclass(slots=True)
class _OpenItem:
    """The output item that is being written."""

    item: Json
    index: int
    key: str = ""  # which part of it: "text", "refusal", "reasoning", "arguments", "input"
    pieces: list[str] = field(default_factory=list)
    logprobs: list[Json] = field(default_factory=list)


class ResponseSynthesizer(EventSynthesizer):
    """Builds one response.

    Args:
        chat: the chat request; ``detail`` what is recorded beside it.
        instructions: of the request.
        created_at: when the request came.
        seals_reasoning: the client keeps the reasoning itself (`include: reasoning.encrypted_content`).
    """

    def __init__(
        self, chat: Json, detail: Json, *, instructions: str | None, created_at: float | None = None
    ) -> None:
        super().__init__("call")
        self._chat = chat
        self._detail = detail
        self._instructions = instructions
        self._created_at = time.time() if created_at is None else created_at
        self._custom = frozenset(detail.get("custom", ()))
        self._namespaces: Json = detail.get("namespaces") or {}
        include = detail.get("include") or ()
        self._seals = "reasoning.encrypted_content" in include
        self._response: Json = {}
        self._open: _OpenItem | None = None
        self._number = 0
        self._calls = 0
        self._messages = 0

    def begin(self, turn_id: str) -> bytes:
        self._start(turn_id)
        self._emit_opening()
        return self._flush()

    def _emit_opening(self) -> None:
        self._emit("response.created", response=self._response)
        self._emit("response.in_progress", response=self._response)

    def _emit_closing(self) -> None:
        self._complete(time.time())
        self._emit(f"response.{self._response['status']}", response=self._response)

    def _finished(self) -> Json:
        self._complete(time.time())
        return self._response

    def error(self, status: int, body: bytes) -> tuple[int, bytes]:
        message, code, param = read_error(status, body)
        error = {"message": message, "type": error_type(status), "param": param, "code": code}
        return status, orjson.dumps({"error": error})

    def recorded(self, turn: RecordedTurn, *, with_logprobs: bool = False) -> Json:
        """Return the response of a recorded turn; with the log-probabilities that its request asked for."""
        self._replay(turn, with_logprobs)
        return self._response

    def recorded_events(self, turn: RecordedTurn, *, after: int = -1, with_logprobs: bool = False) -> bytes:
        """Return the event stream of a recorded turn, from behind the event with this number."""
        self._replay(turn, with_logprobs)
        self._emit(f"response.{self._response['status']}", response=self._response)
        return b"".join(self._events[max(0, after + 1) :])

    def _replay(self, turn: RecordedTurn, with_logprobs: bool) -> None:
        self._start(turn.turn_id)
        self._emit_opening()
        logprobs = self._detail.get("logprobs", ()) if with_logprobs else ()
        message = {**assistant_message(turn.text, turn.reasoning, turn.tool_calls), "content": turn.text}
        choice = {
            "message": message,
            "finish_reason": turn.finish_reason,
            "logprobs": {"content": list(logprobs)},
        }
        self._take(
            self._reader.feed({"choices": [choice], "usage": turn.usage}, part="message")
            + self._reader.finish()
        )
        self._complete(turn.finished_at)

    # ---- the response

    def _start(self, turn_id: str) -> None:
        super()._start(turn_id)
        self._response = response_object(
            turn_id, self._chat, self._detail, instructions=self._instructions, created_at=self._created_at
        )

    def _complete(self, now: float) -> None:
        response, reader = self._response, self._reader
        status = "completed"
        if reader.failure is not None:
            status = "failed"
            message = str(reader.failure.get("message") or "The backend failed.")
            response["error"] = {"code": "server_error", "message": message}
        elif reader.finish_reason in ("length", "content_filter"):
            status = "incomplete"
            is_cut = reader.finish_reason == "length"
            response["incomplete_details"] = {"reason": "max_output_tokens" if is_cut else "content_filter"}
        self._close_item("completed" if status == "completed" else "incomplete", is_whole=status != "failed")
        response["status"] = status
        response["usage"] = response_usage(reader.usage)
        if status == "completed":
            response["completed_at"] = int(now)

    # ---- items

    def _take(self, parts: Sequence[Part]) -> None:
        for part in parts:
            if isinstance(part, Text):
                self._write("message", "text", part.text, part.logprobs)
            elif isinstance(part, RefusalText):
                self._write("message", "refusal", part.text)
            elif isinstance(part, Reasoning):
                self._write("reasoning", "reasoning", part.text)
            elif isinstance(part, CallOpened):
                self._open_call(part)
            elif isinstance(part, CallArguments):
                self._write_arguments(part.text)

    def _open_item(self, item: Json, key: str) -> _OpenItem:
        self._close_item("completed")
        opened = self._open = _OpenItem(item, len(self._response["output"]), key)
        self._response["output"].append(item)
        self._emit("response.output_item.added", output_index=opened.index, item=item)
        return opened

    def _open_call(self, part: CallOpened) -> None:
        is_custom = part.name in self._custom
        number, self._calls = self._calls, self._calls + 1
        namespace, name = self._namespaces.get(part.name, (None, part.name))
        item: Json = {
            "id": item_id("ctc" if is_custom else "fc", self._turn_id, number),
            "type": "custom_tool_call" if is_custom else "function_call",
            "status": "in_progress",
            "call_id": part.call_id,
            "name": name,
            **({} if namespace is None else {"namespace": namespace}),
            ("input" if is_custom else "arguments"): "",
        }
        self._open_item(item, "input" if is_custom else "arguments")

    def _write_arguments(self, text: str) -> None:
        opened = self._open
        assert opened is not None  # a call is open: `ChatReplyReader` orders the parts
        opened.pieces.append(text)
        if opened.key == "arguments":
            self._emit_part("response.function_call_arguments.delta", opened, delta=text)

    def _write(self, kind: str, key: str, text: str, logprobs: Sequence[Json] = ()) -> None:
        opened = self._open
        if opened is None or opened.item["type"] != kind or opened.key != key:
            opened = self._open_message(kind, key, opened)
        opened.pieces.append(text)
        where = {"content_index": len(opened.item["content"]), "delta": text}
        if key == "text":
            found = self._logprobs(logprobs)
            opened.logprobs += found
            self._emit_part("response.output_text.delta", opened, **where, logprobs=found)
        else:
            self._emit_part(
                f"response.{'refusal' if key == 'refusal' else 'reasoning_text'}.delta", opened, **where
            )

    def _open_message(self, kind: str, key: str, opened: _OpenItem | None) -> _OpenItem:
        """Open a message or reasoning item, or the next part of the open message."""
        if opened is not None and opened.item["type"] == kind == "message":
            self._close_part(opened)
            opened.key = key
        elif kind == "message":
            name = item_id("msg", self._turn_id, self._messages or None)
            self._messages += 1
            item = {
                "id": name,
                "type": "message",
                "status": "in_progress",
                "role": "assistant",
                "content": [],
            }
            opened = self._open_item(item, key)
        else:
            name = item_id("rs", self._turn_id)
            opened = self._open_item({"id": name, "type": "reasoning", "summary": [], "content": []}, key)
        part = _new_part(key, "", [])
        self._emit_part(
            "response.content_part.added", opened, content_index=len(opened.item["content"]), part=part
        )
        return opened

    def _close_part(self, opened: _OpenItem) -> None:
        text = "".join(opened.pieces)
        part = _new_part(opened.key, text, opened.logprobs)
        where = {"content_index": len(opened.item["content"])}
        if opened.key == "text":
            self._emit_part("response.output_text.done", opened, **where, text=text, logprobs=opened.logprobs)
        elif opened.key == "refusal":
            self._emit_part("response.refusal.done", opened, **where, refusal=text)
        else:
            self._emit_part("response.reasoning_text.done", opened, **where, text=text)
        self._emit_part("response.content_part.done", opened, **where, part=part)
        opened.item["content"].append(part)
        opened.pieces, opened.logprobs = [], []

    def _close_item(self, status: str, *, is_whole: bool = True) -> None:
        opened, self._open = self._open, None
        if opened is None:
            return
        item, events, number = opened.item, len(self._events), self._number
        if opened.key == "arguments":
            item["arguments"] = "".join(opened.pieces)
            self._emit_part(
                "response.function_call_arguments.done",
                opened,
                name=item["name"],
                arguments=item["arguments"],
            )
        elif opened.key == "input":
            item["input"] = _custom_input("".join(opened.pieces))
            self._emit_part("response.custom_tool_call_input.delta", opened, delta=item["input"])
            self._emit_part("response.custom_tool_call_input.done", opened, input=item["input"])
        else:
            self._close_part(opened)
        if item["type"] == "reasoning":
            if self._seals:
                item["encrypted_content"] = seal_reasoning(item["content"][0]["text"])
        else:
            item["status"] = status
        self._emit("response.output_item.done", output_index=opened.index, item=item)
        if not is_whole:  # a client runs a call whose item is done
            del self._events[events:]
            self._number = number

    def _logprobs(self, entries: Sequence[Json]) -> list[Json]:
        """Return the log-probabilities of a text, where the client asked for them."""
        if not self._chat.get("logprobs"):
            return []
        names = ("token", "bytes", "logprob")
        return [
            {
                **{name: entry.get(name) for name in names},
                "top_logprobs": [
                    {name: top.get(name) for name in names} for top in entry.get("top_logprobs") or ()
                ],
            }
            for entry in entries
            if isinstance(entry, dict)
        ]

    # ---- events

    def _emit_part(self, kind: str, opened: _OpenItem, **fields: Any) -> None:
        self._emit(kind, item_id=opened.item["id"], output_index=opened.index, **fields)

    def _emit(self, kind: str, **fields: Any) -> None:
        super()._emit(kind, sequence_number=self._number, **fields)
        self._number += 1


def _new_part(key: str, text: str, logprobs: list[Json]) -> Json:
    if key == "text":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
    if key == "refusal":
        return {"type": "refusal", "refusal": text}
    return {"type": "reasoning_text", "text": text}


def _custom_input(arguments: str) -> str:
    """Return the text that a call of a tool without a schema carries."""
    try:
        found = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    text = found.get("input") if isinstance(found, dict) else None
    return text if isinstance(text, str) else arguments
