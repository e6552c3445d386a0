"""The vocabulary of one tokenizer: text, bytes and special tokens of its ids. Built once at start; thread-safe."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from serving.openai_server.detokenize import (
    ByteDetokenizer,
    Detokenizer,
    WindowDetokenizer,
    byte_level_alphabet,
    piece_bytes,
)
from serving.openai_server.toolcalls import CLOSE, OPEN


class Vocabulary:
    """A Hugging Face tokenizer, as the engine uses it. `size` is at least the width of the model's logits."""

    def __init__(self, tokenizer: Any, size: int) -> None:
        self.tokenizer = tokenizer
        self._backend = getattr(tokenizer, "backend_tokenizer", None)
        added = tokenizer.added_tokens_decoder
        self.special = frozenset(token_id for token_id, token in added.items() if token.special)
        tags = {token_id for token_id, token in added.items() if token.content in (OPEN, CLOSE)}
        self.has_tool_tags = len(tags) == 2
        self._special_but_tags = self.special - tags
        self.size = max(size, len(tokenizer))
        self._table: list[bytes] | None = None
        if self._backend is not None:
            # Some tokenizer files set these; here a prompt that is too long is refused, never truncated.
            self._backend.no_truncation()
            self._backend.no_padding()
            decoder = json.loads(self._backend.to_str())["decoder"] or {}
            if decoder.get("type") == "ByteLevel" and not tokenizer.clean_up_tokenization_spaces:
                alphabet = byte_level_alphabet()
                pieces = {token_id: piece for piece, token_id in tokenizer.get_vocab().items()}
                # Models pad their embedding: ids beyond the vocabulary can be sampled and have no text.
                self._table = [
                    piece_bytes(pieces[i], alphabet) if i in pieces else b"" for i in range(self.size)
                ]
        self._tables: dict[frozenset[int], list[bytes]] = {}
        self.text = lru_cache(maxsize=65536)(self._text)

    def to_json(self) -> str:
        """Return the tokenizer in the format of tokenizer.json. Raises: ValueError if it is of another kind."""
        if self._backend is None:
            raise ValueError("only fast tokenizers are supported")
        return str(self._backend.to_str())

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the ids of a text."""
        if self._backend is not None:
            return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)
        return list(self.tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of ids."""
        if self._backend is not None and not self.tokenizer.clean_up_tokenization_spaces:
            return str(self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens))
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def detokenizer(self, *, skip_special_tokens: bool, keep_tool_tags: bool) -> Detokenizer:
        """Return a new incremental decoder. `keep_tool_tags`: tool-call tags produce text even if they are special tokens."""
        skip: frozenset[int] = frozenset()
        if skip_special_tokens:
            skip = self._special_but_tags if keep_tool_tags else self.special
        if self._table is None:
            return WindowDetokenizer(self.decode, skip)
        table = self._tables.get(skip)
        if table is None:
            table = list(self._table)
            for token_id in skip:
                table[token_id] = b""
            self._tables[skip] = table
        return ByteDetokenizer(table)

    def _text(self, token_id: int) -> str:
        return self.bytes(token_id).decode("utf-8", errors="replace")

    def bytes(self, token_id: int) -> bytes:
        """Return the bytes of one id, special tokens included; an incomplete character yields its part."""
        if self._table is not None:
            return self._table[token_id]
        piece = self.tokenizer.convert_ids_to_tokens(token_id) or ""
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            return bytes([int(piece[3:5], 16)])
        return self.decode([token_id]).encode("utf-8")
