from __future__ import annotations

import gzip
import itertools
import zlib

import pytest

import wire.content_encoding
from wire.content_encoding import (
    Compressor,
    Decompressor,
    UndecodableBody,
    can_decode,
    decompress,
    is_encoded,
    supported_encodings,
)

TEXT = b"data: {}\n\n" * 50


def raw_deflate(data: bytes) -> bytes:
    engine = zlib.compressobj(wbits=-15)
    return engine.compress(data) + engine.flush()


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzip.compress(TEXT)),
        ("X-GZIP", gzip.compress(TEXT[:100]) + gzip.compress(TEXT[100:])),
        ("deflate", zlib.compress(TEXT)),
        ("deflate", raw_deflate(TEXT)),
    ],
    ids=(
        "one member",
        "two members",
        "deflate",
        "raw deflate",
    ),  # processes that share the tests must name them alike
)
def test_a_packed_body_is_read_in_any_chunking(encoding: str, body: bytes) -> None:
    for size in (1, 7, len(body)):
        unpacker = Decompressor(encoding)
        pieces = (body[i : i + size] for i in range(0, len(body), size))
        assert b"".join(map(unpacker.feed, pieces)) == TEXT
        assert unpacker.is_whole


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_each_packed_piece_can_be_read_as_soon_as_it_is_there(encoding: str) -> None:
    packer, unpacker = Compressor(encoding), Decompressor(encoding)
    for piece in (b"one", b"two", b""):
        assert unpacker.feed(packer.feed(piece)) == piece
    assert unpacker.feed(packer.end(b"three")) == b"three"
    assert unpacker.is_whole


def test_what_cannot_be_read_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UndecodableBody, match="br"):
        Decompressor("br")
    with pytest.raises(UndecodableBody, match="is not gzip"):
        decompress(b"plain text", "gzip")
    with pytest.raises(UndecodableBody, match="no end"):
        decompress(gzip.compress(TEXT)[:-9], "gzip")
    monkeypatch.setattr(wire.content_encoding, "MAX_DECODED_BYTES", 1000)
    bomb = gzip.compress(b"0" * 1_000_000)
    with pytest.raises(UndecodableBody, match="too much"):
        decompress(bomb, "gzip")


def test_only_what_can_be_read_is_asked_for() -> None:
    assert supported_encodings("gzip, deflate, br, zstd") == "gzip, deflate"
    assert supported_encodings("br;q=1.0, gzip;q=0.8, *;q=0.1, identity;q=0") == "gzip;q=0.8, identity;q=0"
    assert supported_encodings("br") == supported_encodings("*") == supported_encodings("") == "identity"


def test_names_of_encodings() -> None:
    assert [is_encoded(name) for name in (None, "", "identity", " Gzip ", "br")] == [
        False,
        False,
        False,
        True,
        True,
    ]
    pairs = itertools.product(("gzip", "Deflate"), (True,))
    assert all(can_decode(name) is expected for name, expected in pairs)
    assert not can_decode("br")
