"""What the replies of the translated APIs have in common: parts of a chat completion in, server-sent events out. Sans-IO."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import orjson

from store.values import Json
from wire.chat_reply import ChatReplyReader, Part


class EventSynthesizer(ABC):
    """The shared half of a `wire.api_translation.ReplySynthesizer`.

    Args:
        call_prefix: begins the ids of tool calls that have none.
    """

    def __init__(self, call_prefix: str) -> None:
        self._call_prefix = call_prefix
        self._reader = ChatReplyReader(fallback_id=call_prefix)
        self._turn_id = ""
        self._events: list[bytes] = []

    def feed(self, chunk: Any) -> bytes:
        self._take(self._reader.feed(chunk))
        return self._flush()

    def end(self) -> bytes:
        self._take(self._reader.finish())
        self._emit_closing()
        return self._flush()

    def whole(self, turn_id: str, reply: Any) -> tuple[int, bytes]:
        self._start(turn_id)
        self._take(self._reader.feed(reply, part="message") + self._reader.finish())
        return 200, orjson.dumps(self._finished())

    @abstractmethod
    def _take(self, parts: Sequence[Part]) -> None:
        """Add parts to the reply, with their events."""

    @abstractmethod
    def _emit_closing(self) -> None: ...

    @abstractmethod
    def _finished(self) -> Json:
        """Return the reply that all parts make."""

    def _start(self, turn_id: str) -> None:
        self._turn_id = turn_id
        self._reader.fallback_id = f"{self._call_prefix}_{turn_id.removeprefix('turn_')}"

    def _emit(self, kind: str, **fields: Any) -> None:
        self._emit_bytes(kind, orjson.dumps({"type": kind, **fields}))

    def _emit_bytes(self, kind: str, data: bytes) -> None:
        self._events.append(b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n")

    def _flush(self) -> bytes:
        events, self._events = b"".join(self._events), []
        return events
