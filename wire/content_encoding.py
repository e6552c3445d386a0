"""Content encodings: replies in gzip and deflate, requests in br and zstd too. Sans-IO.

A client that asks for compression gets it, as from the backend. A body that must be edited is decompressed, edited and compressed again. Any
other body is forwarded as received, and a copy is decompressed for the record.
"""

from __future__ import annotations

import codecs
import json
import zlib

import brotli
import zstandard

#: A reply that decompresses to more bytes is forwarded and not read.
MAX_DECODED_BYTES = 64 << 20

_GZIP = frozenset({"gzip", "x-gzip"})
_SUPPORTED = _GZIP | {"deflate"}
_GZIP_WINDOW, _ZLIB_WINDOW = 31, 15


class UndecodableBody(ValueError):
    """The encoding is unknown, or the bytes do not match it."""


class UnknownEncoding(UndecodableBody):
    """The encoding is none of those that are decoded here."""


class TooMuch(UndecodableBody):
    """The decoded body is larger than the limit."""


def is_encoded(encoding: str | None) -> bool:
    """Whether a ``content-encoding`` is other than identity."""
    return (encoding or "").strip().lower() not in ("", "identity")


def can_decode(encoding: str | None) -> bool:
    return (encoding or "").strip().lower() in _SUPPORTED


def supported_encodings(accept: str) -> str:
    """Return an ``accept-encoding`` without encodings that the proxy cannot decode (br, zstd)."""
    kept = [
        part.strip() for part in accept.split(",") if part.partition(";")[0].strip().lower() in _SUPPORTED
    ]
    rest = [part.strip() for part in accept.split(",") if part.strip().lower().startswith("identity")]
    return ", ".join([*kept, *rest]) or "identity"


class Decompressor:
    """Decompress a body that arrives in arbitrary pieces.

    Raises:
        UndecodableBody: the encoding is unknown, the bytes are corrupt, or there are more than ``most`` (`MAX_DECODED_BYTES`).
    """

    def __init__(self, encoding: str, *, most: int | None = None) -> None:
        self._most = MAX_DECODED_BYTES if most is None else most
        self._encoding = encoding.strip().lower()
        if self._encoding not in _SUPPORTED:
            raise UndecodableBody(f"the reply is compressed ({self._encoding[:20]})")
        self._engine: zlib._Decompress | None = None
        self._head = b""
        self._size = 0

    @property
    def is_whole(self) -> bool:
        return self._engine is not None and self._engine.eof

    def feed(self, data: bytes) -> bytes:
        out: list[bytes] = []
        data = self._head + data
        if self._engine is None and len(data) < 2:
            self._head = data
            return b""
        self._head = b""
        while data:
            if self._engine is None or self._engine.eof:  # a gzip body may have several members
                self._engine = zlib.decompressobj(self._window(data))
            try:
                piece = self._engine.decompress(data, self._most + 1 - self._size)
            except zlib.error as exc:
                raise UndecodableBody(f"the reply is not {self._encoding}") from exc
            self._size += len(piece)
            if self._size > self._most:
                raise TooMuch("the reply unpacks to too much")
            out.append(piece)
            data = self._engine.unused_data
        return b"".join(out)

    def _window(self, data: bytes) -> int:
        if self._encoding in _GZIP:
            return _GZIP_WINDOW
        # Some servers send raw deflate, without zlib's header, under this name.
        has_head = data[0] & 15 == 8 and int.from_bytes(data[:2], "big") % 31 == 0
        return _ZLIB_WINDOW if has_head else -_ZLIB_WINDOW


class Compressor:
    """Compress pieces so that each can be decompressed as soon as it arrives."""

    def __init__(self, encoding: str) -> None:
        is_gzip = encoding.strip().lower() in _GZIP
        self._engine = zlib.compressobj(6, zlib.DEFLATED, _GZIP_WINDOW if is_gzip else _ZLIB_WINDOW)

    def feed(self, data: bytes) -> bytes:
        return self._engine.compress(data) + self._engine.flush(zlib.Z_SYNC_FLUSH) if data else b""

    def end(self, data: bytes = b"") -> bytes:
        return self._engine.compress(data) + self._engine.flush(zlib.Z_FINISH)


def decompress(data: bytes, encoding: str) -> bytes:
    """Return a whole body decompressed. Raises: UndecodableBody."""
    unpacker = Decompressor(encoding)
    found = unpacker.feed(data)
    if not unpacker.is_whole:
        raise UndecodableBody("the reply's compressed body has no end")
    return found


def decode_request(body: bytes, encoding: str | None, most: int) -> bytes:
    """Return a request's body decoded, as UTF-8 without a byte order mark.

    Args:
        encoding: its ``content-encoding``, which may name several, in the order in which they were applied.

    Raises:
        UnknownEncoding, TooMuch (more than ``most`` bytes), UndecodableBody.
    """
    for name in reversed([name for name in (encoding or "").lower().split(",") if is_encoded(name)]):
        body = _decode(body, name.strip(), most)
    charset = json.detect_encoding(body[:4])
    if charset == "utf-8":
        return body
    try:
        return body.decode(
            charset
        ).encode()  # RFC 8259, 8.1: a parser may ignore the mark; Python's reads UTF-16 and UTF-32 too
    except UnicodeError:
        return body.removeprefix(codecs.BOM_UTF8)


def _decode(body: bytes, encoding: str, most: int) -> bytes:
    try:
        if encoding == "br":
            engine = brotli.Decompressor()
            found: bytes = engine.process(body, output_buffer_limit=most + 1)
            is_whole = engine.is_finished()
        elif encoding == "zstd":
            engine = zstandard.ZstdDecompressor()
            with engine.stream_reader(body, read_across_frames=True) as reader:
                found = reader.read(most + 1)
            is_whole = bool(found)
        elif encoding in _SUPPORTED:
            unpacker = Decompressor(encoding, most=most)
            found, is_whole = unpacker.feed(body), unpacker.is_whole
        else:
            raise UnknownEncoding(encoding[:40])
    except (brotli.error, zstandard.ZstdError) as exc:
        raise UndecodableBody(f"the body is not {encoding}") from exc
    if len(found) > most:
        raise TooMuch("the body unpacks to too much")
    if not is_whole:
        raise UndecodableBody(f"the body is not {encoding}")
    return found
