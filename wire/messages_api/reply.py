"""Messages and event streams of the Messages API, built from a chat completion. Sans-IO."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import orjson

from store.values import Json
from wire.api_translation import prompt_details, read_error
from wire.chat_reply import CallArguments, CallOpened, Part, Reasoning, RefusalText, Text
from wire.event_synthesizer import EventSynthesizer

_STOP_REASONS = {
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
_ERROR_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 422: "invalid_request_error", 429: "rate_limit_error", 503: "overloaded_error", 504: "timeout_error",
    529: "overloaded_error",
}  # fmt: skip
_NUMBER = re.compile(r"\d{2,}")


def message_id(turn_id: str) -> str:
    """Return the id of the message; it names the turn."""
    return f"msg_{turn_id.removeprefix('turn_')}"


def error_body(message: str, status: int) -> bytes:
    """Return an error in Anthropic's shape."""
    kind = _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return orjson.dumps({"type": "error", "error": {"type": kind, "message": message}})


def translate_error(status: int, body: bytes) -> bytes:
    """Return a chat error in Anthropic's shape."""
    message, code, _ = read_error(status, body)
    if code == "context_length_exceeded" or "maximum context length" in message or "context size" in message:
        # Clients recognise these words and compact the conversation.
        message = f"prompt is too long{_overflow(message)}: {message}"
    return error_body(message, status)


def _overflow(message: str) -> str:
    """Return the prompt's size and the limit, where the backend says both."""
    found = sorted({int(number) for number in _NUMBER.findall(message)})
    return f": {found[-1]} tokens > {found[-2]} maximum" if len(found) > 1 else ""


def build_anthropic_model(card: Json) -> Json:
    """Return the card of a model as Anthropic's `/v1/models` has it."""
    created = datetime.fromtimestamp(card["created"], UTC)
    return {
        "type": "model",
        "id": card["id"],
        "display_name": card["id"],
        "created_at": created.isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": card.get("max_model_len"),
    }


class MessageSynthesizer(EventSynthesizer):
    """Builds one message.

    Args:
        model: name that the client sent.
        thinks: the client asked for the reasoning.
        stop_sequences: of the request.
    """

    def __init__(self, model: str, *, thinks: bool = False, stop_sequences: Sequence[str] = ()) -> None:
        super().__init__("toolu")
        self._model = model
        self._thinks = thinks
        self._stop_sequences = tuple(stop_sequences)
        self._blocks: list[Json] = []
        self._pieces: list[str] = []  # of the open block
        self._is_open = False
        self._has_begun = False

    def begin(self, turn_id: str) -> bytes:
        self._start(turn_id)
        return b""  # the first chunk has the number of prompt tokens

    def feed(self, chunk: Any) -> bytes:
        parts = self._reader.feed(chunk)
        self._begin(chunk)
        self._take(parts)
        return self._flush()

    def _begin(self, chunk: Any) -> None:
        if self._has_begun or self._reader.error is not None:
            return
        self._has_begun = True
        ids = chunk.get("prompt_token_ids") if isinstance(chunk, dict) else None
        usage = {**_usage({"prompt_tokens": len(ids or ())}), "output_tokens": 1}
        message = {**self._head(), "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        self._emit("message_start", message=message)
        self._emit("ping")

    def end(self) -> bytes:
        self._begin(None)
        return super().end()

    def _emit_closing(self) -> None:
        if self._reader.failure is not None:
            self._emit_bytes("error", self._failure(self._reader.failure)[1])  # the open block does not end
            return
        self._close_block()
        delta = {"stop_reason": self._stop_reason(), "stop_sequence": self._stop_sequence()}
        self._emit("message_delta", delta=delta, usage=_usage(self._reader.usage))
        self._emit("message_stop")

    def whole(self, turn_id: str, reply: Any) -> tuple[int, bytes]:
        status, body = super().whole(turn_id, reply)
        return (status, body) if self._reader.failure is None else self._failure(self._reader.failure)

    @staticmethod
    def _failure(error: Json) -> tuple[int, bytes]:
        """Return the status and the error of a reply that is not whole."""
        code = error.get("code") or error.get("status")
        status = code if isinstance(code, int) and 400 <= code < 600 else 502
        return status, translate_error(status, orjson.dumps({"error": error}))

    def _finished(self) -> Json:
        self._close_block()
        return {
            **self._head(),
            "content": self._blocks,
            "stop_reason": self._stop_reason(),
            "stop_sequence": self._stop_sequence(),
            "usage": _usage(self._reader.usage),
        }

    def error(self, status: int, body: bytes) -> tuple[int, bytes]:
        return status, body  # `translate_error` gives all errors of this API their shape

    # ---- the message

    def _head(self) -> Json:
        return {"id": message_id(self._turn_id), "type": "message", "role": "assistant", "model": self._model}

    def _stop_sequence(self) -> str | None:
        found = self._reader.stop_sequence
        return found if found in self._stop_sequences and self._reader.finish_reason == "stop" else None

    def _stop_reason(self) -> str:
        if self._stop_sequence() is not None:
            return "stop_sequence"
        reason = self._reader.finish_reason or ""
        if any(block["type"] == "tool_use" for block in self._blocks) and reason == "stop":
            return "tool_use"
        return _STOP_REASONS.get(reason, "end_turn")

    # ---- blocks

    def _take(self, parts: Sequence[Part]) -> None:
        for part in parts:
            if isinstance(part, Text | RefusalText):
                self._write("text", "text", part.text)
            elif isinstance(part, Reasoning):
                if self._thinks:
                    self._write("thinking", "thinking", part.text)
            elif isinstance(part, CallOpened):
                self._open_block({"type": "tool_use", "id": part.call_id, "name": part.name, "input": {}})
            elif isinstance(part, CallArguments):
                self._pieces.append(part.text)
                self._delta({"type": "input_json_delta", "partial_json": part.text})

    def _write(self, kind: str, name: str, text: str) -> None:
        if not self._is_open or self._blocks[-1]["type"] != kind:
            self._open_block({"type": kind, name: "", **({"signature": ""} if kind == "thinking" else {})})
        self._pieces.append(text)
        self._delta({"type": f"{kind}_delta", name: text})

    def _open_block(self, block: Json) -> None:
        self._close_block()
        self._blocks.append(block)
        self._is_open = True
        self._emit("content_block_start", index=len(self._blocks) - 1, content_block=block)

    def _delta(self, delta: Json) -> None:
        self._emit("content_block_delta", index=len(self._blocks) - 1, delta=delta)

    def _close_block(self) -> None:
        if not self._is_open:
            return
        block, text = self._blocks[-1], "".join(self._pieces)
        if block["type"] == "tool_use":
            block["input"] = _input(text)
        else:
            block[block["type"]] = text
        if block["type"] == "thinking":
            # Clients send a thinking block back only with a signature.
            block["signature"] = self._turn_id
            self._delta({"type": "signature_delta", "signature": self._turn_id})
        self._emit("content_block_stop", index=len(self._blocks) - 1)
        self._pieces, self._is_open = [], False


def _input(arguments: str) -> Any:
    """Return arguments as the JSON that they are, byte for byte; text that is no JSON object is named as such."""
    try:
        found = orjson.loads(arguments) if arguments.strip() else {}
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        return {"invalid_json": arguments}
    return orjson.Fragment(arguments) if found else {}


def _usage(usage: Json | None) -> Json:
    """Return the counts of a chat completion as the Messages API names them: cached tokens are not input tokens."""
    found = usage or {}
    details = prompt_details(found)
    cached = details.pop("cached_tokens")
    return {
        "input_tokens": (found.get("prompt_tokens") or 0) - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": found.get("completion_tokens") or 0,
        **details,
    }
