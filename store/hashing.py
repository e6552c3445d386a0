"""Content addresses. Sans-IO: values in, names out.

Two rules. The address of a message is of its bytes **as sent**, so that the record can prove what it stored. The canonical
keys by which a conversation is recognised (`recorder.canonical`) forgive what clients change and are never used as addresses.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import orjson

#: Parent of the first node of every chain.
ROOT = ""


def exact_json(value: Any) -> str:
    """Return JSON text that parses back to the same value: key order kept, no white space, no escaping of letters.

    Raises:
        ValueError: NaN or infinity, which are not JSON.
    """
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def wire_json(value: Any) -> str:
    """Return the same JSON text as `exact_json`, faster, for what was parsed from JSON; only floats may be spelt another way."""
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # integers beyond 64 bits, nesting beyond 254
        return exact_json(value)


def digest(*parts: str) -> str:
    """Return 32 hex digits over ``parts``; their boundaries count ("ab","c" is not "a","bc")."""
    pieces: list[bytes] = []
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        pieces += (len(data).to_bytes(8, "big"), data)
    return blake2b(b"".join(pieces), digest_size=16).hexdigest()


def chain(parent: str, links: Iterable[str]) -> list[str]:
    """Return node names h[i] = digest(h[i-1], links[i]) with h[-1] = ``parent``: equal prefixes, equal names."""
    nodes: list[str] = []
    for link in links:
        parent = digest(parent, link)
        nodes.append(parent)
    return nodes


def text_key(text: str) -> str:
    """Return the key under which a completion is found again by what a client shows of it (`visible_text`)."""
    return digest(visible_text(text))


def visible_text(text: str) -> str:
    """Return a text as chat clients send it back: thoughts left out, each run of white space one space. A text that is all thoughts stays whole."""
    shown = text.rpartition("</think>")[2] if "</think>" in text else text
    return " ".join(shown.split()) or " ".join(text.split())
