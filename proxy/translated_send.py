"""The reply to a translated request: takes what the chat relay sends, and sends the client its own API's reply."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.types import Message, Send

from proxy.asgi import send_body, send_head, send_json
from wire.api_translation import ReplySynthesizer, StreamTranslator, Untranslatable
from wire.headers import get_header
from wire.reply_strip import read_reply
from wire.sse import looks_like_events

_LENGTH_AND_TYPE = frozenset({b"content-length", b"content-type"})
_EVENT_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")


class TranslatedSend:
    """An ASGI ``send`` that translates one chat reply.

    Args:
        send: to the client.
        refuse: builds the error of a request that fails before it is translated: status and body.
    """

    def __init__(self, send: Send, refuse: Callable[[int, bytes], tuple[int, bytes]]) -> None:
        self._send = send
        self._refuse = refuse
        self._synthesizer: ReplySynthesizer | None = None
        self._wants_stream = False
        self._stream: StreamTranslator | None = None
        self._status = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._turn_id = ""

    def expect(self, synthesizer: ReplySynthesizer, *, stream: bool) -> None:
        """Say what the reply is built with; without it only errors can be sent."""
        self._synthesizer = synthesizer
        self._wants_stream = stream

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            await self._begin(message["status"], message["headers"])
        elif message["type"] == "http.response.body":
            await self._continue(message.get("body", b""), is_last=not message.get("more_body", False))

    async def _begin(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self._status = status
        self._turn_id = get_header(headers, b"x-patina-turn") or ""
        self._headers = [field for field in headers if field[0].lower() not in _LENGTH_AND_TYPE]
        content_type = get_header(headers, b"content-type") or ""
        if status < 400 and self._synthesizer is not None and content_type.startswith("text/event-stream"):
            await self._begin_stream(self._synthesizer)

    async def _begin_stream(self, synthesizer: ReplySynthesizer) -> None:
        self._stream = StreamTranslator(synthesizer)
        await send_head(self._send, self._status, [*self._headers, _EVENT_STREAM])
        await send_body(self._send, synthesizer.begin(self._turn_id), more=True)

    async def _continue(self, body: bytes, *, is_last: bool) -> None:
        if self._stream is None and self._status < 400 and self._synthesizer is not None and not self._body:
            body = body.lstrip()
            if looks_like_events(body):
                await self._begin_stream(self._synthesizer)
        if self._stream is None:
            if body:
                self._body.append(body)
            if is_last:
                await self._send_whole(b"".join(self._body))
            return
        out = self._stream.feed(body) + (self._stream.close() if is_last else b"")
        if out or is_last:
            await send_body(self._send, out, more=not is_last)

    async def _send_whole(self, body: bytes) -> None:
        synthesizer = self._synthesizer
        if synthesizer is None or self._status >= 400:
            error = synthesizer.error if synthesizer is not None else self._refuse
            status, translated = error(self._status, body)
            await send_json(self._send, status, translated, self._headers)
            return
        reply, _ = read_reply(body)
        if not isinstance(reply, dict):
            status, translated = synthesizer.error(502, b"The backend's reply is not JSON.")
            await send_json(self._send, status, translated, self._headers)
        elif self._wants_stream:  # a backend that does not stream
            await self._begin_stream(synthesizer)
            events = synthesizer.feed(_as_chunk(reply)) + synthesizer.end()
            await send_body(self._send, events)
        else:
            status, translated = synthesizer.whole(self._turn_id, reply)
            await send_json(self._send, status, translated, self._headers)


def _as_chunk(reply: dict[str, object]) -> dict[str, object]:
    """Return a whole reply as one chunk of a stream."""
    choices = reply.get("choices")
    listed = [c for c in choices if isinstance(c, dict)] if isinstance(choices, list) else []
    return {**reply, "choices": [{**choice, "delta": choice.get("message")} for choice in listed]}


async def send_refusal(send: TranslatedSend, error: Untranslatable, body: bytes) -> None:
    """Send the error of a request that cannot be translated; ``body`` is it in the chat API's shape."""
    await send_head(send, error.status, [])
    await send_body(send, body)
