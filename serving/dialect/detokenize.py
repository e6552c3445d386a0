"""Token ids to text while they are being sampled, and the stop strings that end a text. Pure.

Two promises: no chunk of text ever holds half a character, and the chunks joined are the decoding of all ids. The text is for the
client; ids and log-probabilities are reported as sampled, whatever is held back or trimmed here.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

Decode = Callable[[Sequence[int]], str]

_UNFINISHED = "\ufffd"
# An unfinished UTF-8 sequence needs at most three more bytes. A run of byte tokens longer than this will not become a character
# any more, and holding it back for ever would silence a model that babbles bytes.
_LONGEST_HOLD = 8


class Detokenizer(Protocol):
    """Incremental decoding of one sequence."""

    def feed(self, token_id: int) -> str:
        """Take the next id, give the text that is now certain; "" while a character is unfinished."""
        ...

    def flush(self) -> str:
        """The rest at the end of the sequence: an unfinished character comes out as U+FFFD, as in a full decoding."""
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
    """For every other vocabulary: a token's text can depend on the one before it (a leading space, half a character), so each new
    piece is the difference of two decodings that start at the same, earlier token.

    `decode` turns ids into text without cleaning spaces up; ids in `skip` (special tokens) leave no text.
    """

    __slots__ = ("_decode", "_held", "_ids", "_prefix", "_read", "_skip")

    def __init__(self, decode: Decode, skip: frozenset[int] = frozenset()) -> None:
        self._decode = decode
        self._skip = skip
        self._ids: list[int] = []
        self._prefix = 0  # where the two decodings start
        self._read = 0  # up to here the text has been given out
        self._held = ""

    def feed(self, token_id: int) -> str:
        if token_id in self._skip:
            return ""
        self._ids.append(token_id)
        before = self._decode(self._ids[self._prefix : self._read])
        after = self._decode(self._ids[self._prefix :])
        unfinished = after.endswith(_UNFINISHED) and len(self._ids) - self._read < _LONGEST_HOLD
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
    """Looks for stop strings in text that arrives in pieces; gives out what cannot be part of one any more."""

    __slots__ = ("_include", "_pending", "_stops", "hit")

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = tuple(stops)
        self._include = include
        self._pending = ""
        self.hit: str | None = None

    def feed(self, text: str) -> str:
        """Take text, give the part of all text so far that is certain; after a hit, nothing more."""
        if self.hit is not None:
            return ""
        if not self._stops:
            return text
        self._pending += text
        found = [(at, stop) for stop in self._stops if (at := self._pending.find(stop)) >= 0]
        if found:
            # The match that begins first ends the text; of two that begin together, the longer one.
            at, stop = min(found, key=lambda match: (match[0], -len(match[1])))
            self.hit = stop
            certain = self._pending[: at + len(stop) if self._include else at]
            self._pending = ""
            return certain
        keep = max(overlap_with_start(self._pending, stop) for stop in self._stops)
        cut = len(self._pending) - keep
        certain, self._pending = self._pending[:cut], self._pending[cut:]
        return certain

    def flush(self) -> str:
        """What was held back in case a stop string would follow."""
        pending, self._pending = self._pending, ""
        return pending


def overlap_with_start(text: str, mark: str) -> int:
    """Length of the longest end of `text` that is a true beginning of `mark`."""
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
