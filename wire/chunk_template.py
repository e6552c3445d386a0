"""Templates of stream chunks: read and strip a chunk without parsing it. Sans-IO.

The chunks of a stream differ in three values: a token's text, its log-probability and its id. Once one chunk was parsed
(`derive_template`), the following ones are matched against it: the same bytes around values of the same form. Their content, and what of it
the client gets, is then known without parsing. A chunk that differs in any other way is parsed.

The value forms are narrower than JSON's where that removes doubt: no lone surrogates, no numbers that overflow, no empty text.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import orjson

from store.values import Json

_PLAIN = rb'[^"\\\x00-\x1f]*+'
_REST = _PLAIN + rb'(?:\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4})' + _PLAIN + rb')*+"'
_ANY_TEXT = rb'"' + _REST
_TEXT = rb'"(?!")' + _REST
_NUMBER = rb"-?(?!0\d)\d{1,9}(?:\.\d{1,25})?(?:[eE][+-]?\d{1,2})?"
_ID = rb"(?!0\d)\d{1,9}"
_IDS = _ID + rb"(?:," + _ID + rb")*+"
_BYTE = rb"(?!0\d)\d{1,3}"
_BYTES = rb"(?:\[(?:" + _BYTE + rb"(?:," + _BYTE + rb")*+)?\]|null)"

_TEXT_VALUE = re.compile(_TEXT)
_TOKEN = re.compile(
    rb'\{"token":'
    + _ANY_TEXT
    + rb',"logprob":(?:'
    + _NUMBER
    + rb'),"bytes":'
    + _BYTES
    + rb',"top_logprobs":\[\]\}'
)
_TOKEN_IDS = re.compile(_IDS)

#: Fields that a delta may hold instead of content.
CHANNELS = ("content", "reasoning_content", "reasoning")
_ONE_LOGPROB = b'"logprobs":{"content":['
_SOME_IDS = b'"token_ids":['


@lru_cache(maxsize=256)
def _pattern(before_logprob: bytes | None, before_ids: bytes | None) -> re.Pattern[bytes]:
    """Return the pattern of the variable part, from the text on; the bytes between the values are the same in all streams of a backend."""
    parts = [b"(", _TEXT, b")"]
    if before_logprob is not None:
        parts += [
            re.escape(before_logprob),
            rb'\{"token":',
            rb"(?:\1|" + _ANY_TEXT + b")",  # almost always spelled as the text is
            rb',"logprob":(',
            _NUMBER,
            rb'),"bytes":',
        ]
        parts += [_BYTES, rb',"top_logprobs":\[\]\}']
    else:
        parts.append(b"()")
    parts += [re.escape(before_ids), b"(", _IDS, b")"] if before_ids is not None else [b"()"]
    return re.compile(b"".join(parts))


class ChunkTemplate:
    """The template of one choice's chunks in one stream.

    Attributes:
        index: of the choice.
        channel: field that holds the text (`CHANNELS`).
        completion_id: the chunks' `id`.
    """

    __slots__ = (
        "_after",
        "_before",
        "_closing",
        "_ids",
        "_logprobs",
        "_opening",
        "_pattern",
        "_texts",
        "channel",
        "completion_id",
        "index",
    )

    def __init__(
        self,
        index: int,
        channel: str,
        *,
        completion_id: str | None,
        before: bytes,
        pattern: re.Pattern[bytes],
        after: bytes,
        opening: bytes,
        closing: bytes | None,
    ) -> None:
        self.index = index
        self.channel = channel
        self.completion_id = completion_id
        self._before = before
        self._pattern = pattern
        self._after = after
        self._opening = opening
        self._closing = closing
        self._texts: list[bytes] = []
        self._logprobs: list[bytes] = []
        self._ids: list[bytes] = []

    def consume(self, buffer: bytes, at: int, out: list[bytes]) -> int:
        """Consume the events from ``at`` on that match, and append what the client gets of them to ``out``.

        Returns:
            Position of the first event that does not match.
        """
        before, after, match = self._before, self._after, self._pattern.match
        skipped, closing = len(before), self._closing
        is_ascii = buffer.isascii()
        start = at
        while buffer.startswith(before, at):
            found = match(buffer, at + skipped)
            if found is None:
                break
            end = found.end()
            if not buffer.startswith(after, end) or not (is_ascii or _is_utf8(found[0])):
                break
            text, logprob, ids = found.groups()
            self._texts.append(text)
            if logprob:
                self._logprobs.append(logprob)
            if ids:
                self._ids.append(ids)
            if closing is not None:
                out += (self._opening, text, closing)
            at = end + len(after)
        if closing is None and at > start:
            out.append(buffer[start:at])
        return at

    @property
    def has_pending(self) -> bool:
        return bool(self._texts)

    def drain(self) -> tuple[str, list[float], list[int]]:
        """Return the text, log-probabilities and ids that were consumed since the last call."""
        text = "".join(orjson.loads(b"[" + b",".join(self._texts) + b"]"))
        logprobs = [float(value) for value in orjson.loads(b"[" + b",".join(self._logprobs) + b"]")]
        ids: list[int] = orjson.loads(b"[" + b",".join(self._ids) + b"]")
        self._texts, self._logprobs, self._ids = [], [], []
        return text, logprobs, ids


def derive_template(event: bytes, payload: bytes, chunk: Json, shown: bytes) -> ChunkTemplate | None:
    """Return the template that ``event`` shares with the following events, or None.

    Args:
        payload: the event's data; ``chunk`` is the same, parsed.
        shown: what the client got of the event.
    """
    choice = _only_choice(chunk)
    if choice is None or b"\r" in event or b"\n" in payload or event.count(payload) != 1:
        return None
    delta: Any = choice.get("delta")
    if not isinstance(delta, dict) or len(delta) != 1:
        return None
    ((channel, text),) = delta.items()
    key = b'"delta":{"%b":' % channel.encode()
    if channel not in CHANNELS or not text or event.count(b'"delta":') != 1:
        return None
    value = _after(event, 0, key, _TEXT_VALUE)
    if value is None:
        return None
    at = value.end()
    before_logprob = before_ids = None
    if choice.get("logprobs") is not None:
        token = _after(event, at, _ONE_LOGPROB, _TOKEN)
        if token is None or event.count(b'"logprobs":') != 1:
            return None
        before_logprob, at = event[at : token.start()], token.end()
        if event[at : at + 1] != b"]":
            return None  # several tokens in one chunk
    if choice.get("token_ids") is not None:
        ids = _after(event, at, _SOME_IDS, _TOKEN_IDS)
        if ids is None or event.count(b'"token_ids":') != 1:
            return None
        before_ids, at = event[at : ids.start()], ids.end()
        if event[at : at + 1] != b"]":
            return None
    before, after = event[: value.start()], event[at:]
    # No name contains an escape, so the names found in the bytes are the parsed names.
    if any(part is not None and b"\\" in part for part in (before, before_logprob, before_ids, after)):
        return None
    closing, opening = None, b""
    if shown != event:
        opening, _, rest = shown.partition(key)
        opening += key
        if not rest.startswith(value[0]) or b'"token":' in rest or b'"token_ids":' in rest:
            return None
        closing = rest[len(value[0]) :]
    completion_id = chunk.get("id")
    return ChunkTemplate(
        choice["index"],
        channel,
        completion_id=completion_id if isinstance(completion_id, str) else None,
        before=before,
        pattern=_pattern(before_logprob, before_ids),
        after=after,
        opening=opening,
        closing=closing,
    )


def _only_choice(chunk: Json) -> Json | None:
    """Return the only choice of a chunk that carries nothing but that choice's next token; else None."""
    choices = chunk.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        return None
    if any(chunk.get(name) is not None for name in ("error", "usage", "prompt_token_ids")):
        return None
    choice: Json = choices[0]
    is_plain = type(choice.get("index")) is int and choice.get("finish_reason") is None
    return choice if is_plain else None


def _after(event: bytes, at: int, key: bytes, form: re.Pattern[bytes]) -> re.Match[bytes] | None:
    """Return the match of a value of this form behind its key, if the key exists."""
    start = event.find(key, at)
    return form.match(event, start + len(key)) if start >= 0 else None


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
