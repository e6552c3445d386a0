"""What the translated APIs (Responses, Messages) have in common: one chat request upstream. Sans-IO."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from store.errors import TheirError
from store.values import Json
from wire.lenient_json import load_json
from wire.reply_strip import read_chunk
from wire.sse import DONE, EventSplitter, event_data

#: The path that translated requests take.
CHAT_PATH = "/v1/chat/completions"


class Untranslatable(TheirError):
    """A request that cannot be served; the client gets the sentence in its own API's error."""

    def __init__(
        self, message: str, *, status: int = 400, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param


@dataclass(slots=True, kw_only=True)
class ApiRequest:
    """A request of another API, translated to chat.

    Attributes:
        chat: the body for the backend.
        option_fields: the fields from which Patina's options are read (`wire.headers`).
        detail: what is recorded beside the chat request; begins with the API's name.
        continues: the turn that the client names as the previous one.
        session: the conversation that the client names.
        left_out: what the request offers and the backend is not given: hosted tools.
    """

    chat: bytes
    stream: bool
    option_fields: Json
    detail: Json
    continues: str | None = None
    session: str | None = None
    left_out: tuple[str, ...] = field(default_factory=tuple)


class ReplySynthesizer(Protocol):
    """Builds the API's reply from the chat completion."""

    def begin(self, turn_id: str) -> bytes:
        """Return the first events of the stream."""
        ...

    def feed(self, chunk: Any) -> bytes:
        """Return the events for one chunk of the chat stream."""
        ...

    def end(self) -> bytes:
        """Return the closing events."""
        ...

    def whole(self, turn_id: str, reply: Any) -> tuple[int, bytes]:
        """Return status and body of the reply that is not streamed."""
        ...

    def error(self, status: int, body: bytes) -> tuple[int, bytes]:
        """Return status and body of an error, in the API's shape."""
        ...


class StreamTranslator:
    """Turns the bytes of a chat stream into those of the API's stream, in any chunking."""

    def __init__(self, synthesizer: ReplySynthesizer) -> None:
        self._synthesizer = synthesizer
        self._splitter = EventSplitter()
        self._is_over = False

    def feed(self, data: bytes) -> bytes:
        if self._is_over:
            return b""
        out = b"".join(self._translate(event) for event in self._splitter.feed(data))
        return (
            out + self._end() if self._splitter.is_overlong else out
        )  # an event without an end is none of a reply

    def close(self) -> bytes:
        """Return the rest at the end of the chat stream."""
        rest = b"" if self._is_over else self._splitter.flush()
        if rest.lstrip().startswith(b"{"):
            rest = b"data: " + rest  # a whole reply that is labelled as a stream
        out = self._translate(rest) if rest else b""
        return out if self._is_over else out + self._end()

    def _translate(self, event: bytes) -> bytes:
        payload = event_data(event)
        if payload is None or self._is_over:
            return b""
        if payload == DONE:
            return self._end()
        chunk, _ = read_chunk(payload, event)  # the relay records a problem
        return b"" if chunk is None else self._synthesizer.feed(chunk)

    def _end(self) -> bytes:
        self._is_over = True
        return self._synthesizer.end()


def read_object(raw: bytes) -> Json:
    """Parse a request body. Raises: Untranslatable."""
    try:
        body = load_json(raw)
    except ValueError as exc:
        raise Untranslatable(f"The body is not valid JSON: {exc}.") from exc
    if not isinstance(body, dict):
        raise Untranslatable("The body must be a JSON object.")
    return body


def read_error(status: int, body: bytes) -> tuple[str, str | None, str | None]:
    """Return message, code and parameter of a chat error, in any of the shapes that backends use."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        found = None
    error = found.get("error", found) if isinstance(found, dict) else found
    if isinstance(error, dict):
        message = error.get("message") or error.get("detail")
        code = error.get("code")
        param = error.get("param")
        if isinstance(message, str):
            return message, code if isinstance(code, str) else None, param if isinstance(param, str) else None
    if isinstance(error, str) and error:
        return error, None, None
    return f"The backend answered {status}.", None, None


def prompt_details(usage: Json) -> dict[str, int]:
    """Return how many prompt tokens of a chat completion were cached and, where there are any, added as wishes."""
    found = usage.get("prompt_tokens_details") or {}
    more = {"wish_tokens": found["wish_tokens"]} if found.get("wish_tokens") else {}
    return {"cached_tokens": found.get("cached_tokens") or 0, **more}


def drop_none(values: Mapping[str, Any]) -> Json:
    return {name: value for name, value in values.items() if value is not None}


def text_content(texts: Iterable[str]) -> str | list[Json]:
    """Return texts as chat content: one text as a string, several as parts, so that each keeps its own bytes."""
    found = list(texts)
    return found[0] if len(found) == 1 else [{"type": "text", "text": text} for text in found]


def arrange_system_messages(messages: Sequence[Json]) -> list[Json]:
    """Return messages with one system message at most, at the front: most chat templates take no other.

    Leading ones are merged. A later one becomes a part of the message before it, marked as clients of agents mark such text, which is neither
    the user's nor a tool's.
    """
    split = 0
    while split < len(messages) and messages[split].get("role") == "system":
        split += 1
    found = list(messages[:split])
    if split > 1:
        found = [
            {"role": "system", "content": [part for message in found for part in _parts(message["content"])]}
        ]
    for message in messages[split:]:
        if message.get("role") != "system":
            found.append(message)
            continue
        text = "\n".join(str(part.get("text", "")) for part in _parts(message["content"]))
        marked = {"type": "text", "text": f"<system-reminder>\n{text}\n</system-reminder>"}
        before = found[-1]
        if before["role"] in ("user", "tool"):
            found[-1] = {**before, "content": [*_parts(before["content"]), marked]}
        else:
            found.append({"role": "user", "content": marked["text"]})
    return found


def _parts(content: str | list[Json]) -> list[Json]:
    return content if isinstance(content, list) else [{"type": "text", "text": content}]
