"""Incremental detokenisation, and stop strings. Pure.

No chunk of text contains part of a character, and the joined chunks equal the decoding of all ids. The text is for the client; ids and
log-probabilities are reported as sampled, whatever is held back or trimmed here.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

Decode = Callable[[Sequence[int]], str]

_REPLACEMENT_CHARACTER = "\ufffd"
# An incomplete UTF-8 sequence needs at most three more bytes. A longer run of byte tokens will not become a character, and holding it back would
# stop the output of a model that emits bytes.
_MAX_HELD_TOKENS = 8


class Detokenizer(Protocol):
    """Incremental decoding of one sequence."""

    def feed(self, token_id: int) -> str:
        """Add the next id and return the text that is final; "" while a character is incomplete."""
        ...

    def flush(self) -> str:
        """Return the rest at the end of the sequence: an incomplete character becomes U+FFFD, as in a full decoding."""
        ...


class ByteDetokenizer:
    """For byte-level vocabularies (GPT-2's, Llama 3's, Qwen's): every id is a string of bytes, `table[id]`.

    Exact whatever the ids, invalid UTF-8 included; special tokens have an empty entry.
    """

    __slots__ = ("_decoder", "_table")

    def __init__(self, table: Sequence[bytes]) -> None:
        self._table = table
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_id: int) -> str:
        return self._decoder.decode(self._table[token_id])

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For every other vocabulary: a token's text can depend on the preceding one (a leading space, part of a character), so the new text is the
    difference of two decodings that start at the same earlier token.

    `decode` turns ids into text without cleaning up spaces; ids in `skip` (special tokens) produce no text.
    """

    __slots__ = ("_decode", "_held", "_ids", "_prefix", "_read", "_skip")

    def __init__(self, decode: Decode, skip: frozenset[int] = frozenset()) -> None:
        self._decode = decode
        self._skip = skip
        self._ids: list[int] = []
        self._prefix = 0  # start of both decodings
        self._read = 0  # text up to here was returned
        self._held = ""

    def feed(self, token_id: int) -> str:
        if token_id in self._skip:
            return ""
        self._ids.append(token_id)
        before = self._decode(self._ids[self._prefix : self._read])
        after = self._decode(self._ids[self._prefix :])
        unfinished = after.endswith(_REPLACEMENT_CHARACTER) and len(self._ids) - self._read < _MAX_HELD_TOKENS
        if unfinished or len(after) <= len(before):
            self._held = after[len(before) :]
            return ""
        self._prefix, self._read, self._held = self._read, len(self._ids), ""
        if self._prefix > 64:  # keep the window short: decoding copies it
            del self._ids[: self._prefix]
            self._read -= self._prefix
            self._prefix = 0
        return after[len(before) :]

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


class StopFinder:
    """Searches for stop strings in text that arrives in pieces; returns text that cannot belong to one any more."""

    __slots__ = ("_include", "_pending", "_stops", "matched")

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = tuple(stops)
        self._include = include
        self._pending = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """Add text and return the part that is final; nothing after a match."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        self._pending += text
        found = [(at, stop) for stop in self._stops if (at := self._pending.find(stop)) >= 0]
        if found:
            # The match that begins first ends the text; of two that begin together, the longer one.
            at, stop = min(found, key=lambda match: (match[0], -len(match[1])))
            self.matched = stop
            certain = self._pending[: at + len(stop) if self._include else at]
            self._pending = ""
            return certain
        keep = max(overlap_with_start(self._pending, stop) for stop in self._stops)
        cut = len(self._pending) - keep
        certain, self._pending = self._pending[:cut], self._pending[cut:]
        return certain

    def flush(self) -> str:
        """Return the text that was held back as a possible stop string."""
        pending, self._pending = self._pending, ""
        return pending


def overlap_with_start(text: str, mark: str) -> int:
    """Return the length of the longest end of `text` that is a proper beginning of `mark`."""
    for size in range(min(len(text), len(mark) - 1), 0, -1):
        if mark.startswith(text[-size:]):
            return size
    return 0


def byte_level_alphabet() -> dict[str, int]:
    """The printable stand-in of each byte in byte-level BPE vocabularies (the table of GPT-2's tokenizer)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    moved = 0
    for byte in range(256):
        if byte not in printable:
            table[chr(256 + moved)] = byte
            moved += 1
    return table


def piece_bytes(piece: str, alphabet: dict[str, int]) -> bytes:
    """The bytes of one entry of a byte-level vocabulary; entries outside the alphabet (added tokens) stand for themselves."""
    if all(sign in alphabet for sign in piece):
        return bytes(alphabet[sign] for sign in piece)
    return piece.encode("utf-8")
