"""Salted digests of forgotten texts, by which they are recognized after the record holds them no more. Sans-IO.

A digest is of the words of a text, whatever their case and what stands between them. A text is found in a longer one as a run of whole words;
one without a space between its words (Chinese, Japanese) only between two signs of punctuation. Who holds the record can try words that they
guess: the salt keeps digests of two homes apart, and does not hide a number of four digits.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from store.values import Json

_WORD = re.compile(r"\w+")
_DIGEST_BYTES = 8


@dataclass(frozen=True, slots=True)
class ForgottenTexts:
    """Digests of texts.

    Attributes:
        digests: by the number of words of their texts.
    """

    salt: bytes
    digests: Mapping[int, frozenset[str]]

    @classmethod
    def of(cls, texts: Iterable[str]) -> ForgottenTexts:
        """Return the digests of these texts with a new salt."""
        salt = secrets.token_bytes(16)
        found: dict[int, set[str]] = {}
        for text in texts:
            if words := _words(text):
                found.setdefault(len(words), set()).add(_digest(salt, words))
        return cls(salt, {length: frozenset(some) for length, some in found.items()})

    @classmethod
    def from_json(cls, value: Json) -> ForgottenTexts:
        """Return what `to_json` made; no digests of an earlier version's ``{}``."""
        digests = {int(length): frozenset(some) for length, some in value.get("digests", {}).items()}
        return cls(bytes.fromhex(value.get("salt", "")), digests)

    def to_json(self) -> Json:
        """Return a JSON object without the texts."""
        digests = {str(length): sorted(some) for length, some in self.digests.items()}
        return {"salt": self.salt.hex(), "digests": digests}

    def is_in(self, value: Any) -> bool:
        """Whether a string of a JSON value, JSON in such a string included, holds one of the texts."""
        return any(self._is_in_words(_words(text)) for text in _strings(value)) if self.digests else False

    def _is_in_words(self, words: list[str]) -> bool:
        return any(
            _digest(self.salt, words[start : start + length]) in some
            for length, some in self.digests.items()
            for start in range(len(words) - length + 1)
        )


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _digest(salt: bytes, words: list[str]) -> str:
    data = " ".join(words).encode("utf-8", "surrogatepass")
    return blake2b(data, digest_size=_DIGEST_BYTES, key=salt).hexdigest()


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
        if value.lstrip().startswith(("{", "[")):  # arguments of a tool call
            try:
                yield from _strings(json.loads(value))
            except (ValueError, RecursionError):
                return
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _strings(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _strings(one)
