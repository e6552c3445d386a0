"""The usual chunk of a stream, read and stripped without being parsed. Sans-IO.

The chunks of a stream differ in three values: the text of a token, its log-probability, its id. Once one of them has been read in full
(`usual`), the others are held against it: the same bytes around, and values of the same form in the three places. Then what they say
and what of them the client gets is known without looking any further; whatever differs in any other way is read in full.

The forms are narrower than JSON's where that makes them certain: no lone surrogates, no numbers that do not fit, no empty text.
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

_SAID = re.compile(_TEXT)
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

#: What a delta may hold instead of content.
CHANNELS = ("content", "reasoning_content", "reasoning")
_ONE_LOGPROB = b'"logprobs":{"content":['
_SOME_IDS = b'"token_ids":['


@lru_cache(maxsize=256)
def _pattern(before_logprob: bytes | None, before_ids: bytes | None) -> re.Pattern[bytes]:
    """Return the pattern of what varies, from the text on; the bytes between are the same in all streams of a backend."""
    parts = [b"(", _TEXT, b")"]
    if before_logprob is not None:
        parts += [
            re.escape(before_logprob),
            rb'\{"token":',
            rb"(?:\1|" + _ANY_TEXT + b")",  # nearly always spelt as the text is
            rb',"logprob":(',
            _NUMBER,
            rb'),"bytes":',
        ]
        parts += [_BYTES, rb',"top_logprobs":\[\]\}']
    else:
        parts.append(b"()")
    parts += [re.escape(before_ids), b"(", _IDS, b")"] if before_ids is not None else [b"()"]
    return re.compile(b"".join(parts))


class Usual:
    """The usual chunk of one choice of one stream.

    Attributes:
        index: of the choice.
        channel: what the text is (`CHANNELS`).
    """

    __slots__ = (
        "_after",
        "_before",
        "_closing",
        "_ids",
        "_logprobs",
        "_opening",
        "_pattern",
        "_said",
        "channel",
        "index",
    )

    def __init__(
        self,
        index: int,
        channel: str,
        *,
        before: bytes,
        pattern: re.Pattern[bytes],
        after: bytes,
        opening: bytes,
        closing: bytes | None,
    ) -> None:
        self.index = index
        self.channel = channel
        self._before = before
        self._pattern = pattern
        self._after = after
        self._opening = opening
        self._closing = closing
        self._said: list[bytes] = []
        self._logprobs: list[bytes] = []
        self._ids: list[bytes] = []

    def take(self, buffer: bytes, at: int, out: list[bytes]) -> int:
        """Take the events at ``at`` as long as they are usual ones, and add what the client gets of them to ``out``.

        Returns:
            Where the first event begins that is not.
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
            said, logprob, ids = found.groups()
            self._said.append(said)
            if logprob:
                self._logprobs.append(logprob)
            if ids:
                self._ids.append(ids)
            if closing is not None:
                out += (self._opening, said, closing)
            at = end + len(after)
        if closing is None and at > start:
            out.append(buffer[start:at])
        return at

    @property
    def has_taken(self) -> bool:
        return bool(self._said)

    def tell(self) -> tuple[str, list[float], list[int]]:
        """Return the text, log-probabilities and ids of what was taken since the last time."""
        text = "".join(orjson.loads(b"[" + b",".join(self._said) + b"]"))
        logprobs = [float(value) for value in orjson.loads(b"[" + b",".join(self._logprobs) + b"]")]
        ids: list[int] = orjson.loads(b"[" + b",".join(self._ids) + b"]")
        self._said, self._logprobs, self._ids = [], [], []
        return text, logprobs, ids


def usual(event: bytes, payload: bytes, chunk: Json, shown: bytes) -> Usual | None:
    """Return what ``event`` has in common with the next ones, or None where that cannot be said.

    Args:
        payload: its data, and ``chunk`` the same parsed.
        shown: what the client got of it.
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
    said = _after(event, 0, key, _SAID)
    if said is None:
        return None
    at = said.end()
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
    before, after = event[: said.start()], event[at:]
    # No name is written with an escape, so that those that were looked for are those that were read.
    if any(part is not None and b"\\" in part for part in (before, before_logprob, before_ids, after)):
        return None
    closing, opening = None, b""
    if shown != event:
        opening, _, rest = shown.partition(key)
        opening += key
        if not rest.startswith(said[0]) or b'"token":' in rest or b'"token_ids":' in rest:
            return None
        closing = rest[len(said[0]) :]
    return Usual(
        choice["index"],
        channel,
        before=before,
        pattern=_pattern(before_logprob, before_ids),
        after=after,
        opening=opening,
        closing=closing,
    )


def _only_choice(chunk: Json) -> Json | None:
    """Return the only choice of a chunk that says nothing but this choice's next token."""
    choices = chunk.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        return None
    if any(chunk.get(name) is not None for name in ("error", "usage", "prompt_token_ids")):
        return None
    choice: Json = choices[0]
    is_plain = type(choice.get("index")) is int and choice.get("finish_reason") is None
    return choice if is_plain else None


def _after(event: bytes, at: int, key: bytes, form: re.Pattern[bytes]) -> re.Match[bytes] | None:
    """Return where a value of this form stands behind its key, if the key is there."""
    start = event.find(key, at)
    return form.match(event, start + len(key)) if start >= 0 else None


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
