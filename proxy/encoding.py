"""Content encodings that can be read and written again: gzip and deflate. Sans-IO.

A client that asks for compression gets it, as it would from the backend. What has to be edited is unpacked, edited and packed again;
everything else stays packed as it came, and a copy is unpacked for the record.
"""

from __future__ import annotations

import zlib

#: A reply that unpacks to more than this is passed on and not read.
MAX_UNPACKED = 256 << 20

_GZIP = frozenset({"gzip", "x-gzip"})
_READABLE = _GZIP | {"deflate"}
_GZIP_WINDOW, _ZLIB_WINDOW = 31, 15


class Unreadable(ValueError):
    """The encoding is not known here, or the bytes are not what it says."""


def is_packed(encoding: str | None) -> bool:
    """Whether a ``content-encoding`` stands for more than nothing."""
    return (encoding or "").strip().lower() not in ("", "identity")


def can_unpack(encoding: str | None) -> bool:
    return (encoding or "").strip().lower() in _READABLE


def readable_only(accept: str) -> str:
    """Return an ``accept-encoding`` without what could not be read here (br, zstd): of two that fit, the backend then takes the other."""
    kept = [part.strip() for part in accept.split(",") if part.partition(";")[0].strip().lower() in _READABLE]
    rest = [part.strip() for part in accept.split(",") if part.strip().lower().startswith("identity")]
    return ", ".join([*kept, *rest]) or "identity"


class Unpacker:
    """Unpack a body as it comes, split anywhere.

    Raises:
        Unreadable: an unknown encoding, torn bytes, or more than `MAX_UNPACKED`.
    """

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding.strip().lower()
        if self._encoding not in _READABLE:
            raise Unreadable(f"the reply is compressed ({self._encoding[:20]})")
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
            if self._engine is None or self._engine.eof:  # a gzip file may have several members
                self._engine = zlib.decompressobj(self._window(data))
            try:
                piece = self._engine.decompress(data, MAX_UNPACKED + 1 - self._size)
            except zlib.error as exc:
                raise Unreadable(f"the reply is not {self._encoding}") from exc
            self._size += len(piece)
            if self._size > MAX_UNPACKED:
                raise Unreadable("the reply unpacks to too much")
            out.append(piece)
            data = self._engine.unused_data
        return b"".join(out)

    def _window(self, data: bytes) -> int:
        if self._encoding in _GZIP:
            return _GZIP_WINDOW
        # Some servers mean raw deflate by that name, without zlib's head.
        has_head = data[0] & 15 == 8 and int.from_bytes(data[:2], "big") % 31 == 0
        return _ZLIB_WINDOW if has_head else -_ZLIB_WINDOW


class Packer:
    """Pack pieces so that each can be unpacked as soon as it is there."""

    def __init__(self, encoding: str) -> None:
        is_gzip = encoding.strip().lower() in _GZIP
        self._engine = zlib.compressobj(6, zlib.DEFLATED, _GZIP_WINDOW if is_gzip else _ZLIB_WINDOW)

    def feed(self, data: bytes) -> bytes:
        return self._engine.compress(data) + self._engine.flush(zlib.Z_SYNC_FLUSH) if data else b""

    def end(self, data: bytes = b"") -> bytes:
        return self._engine.compress(data) + self._engine.flush(zlib.Z_FINISH)


def unpack(data: bytes, encoding: str) -> bytes:
    """Return a whole body unpacked. Raises: Unreadable."""
    unpacker = Unpacker(encoding)
    found = unpacker.feed(data)
    if not unpacker.is_whole:
        raise Unreadable("the reply's compressed body has no end")
    return found
