"""What the ids of one tokenizer stand for: text, bytes, and whether they are markup. Built once at start; safe in any thread."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from serving.dialect.detokenize import (
    ByteDetokenizer,
    Detokenizer,
    WindowDetokenizer,
    byte_level_alphabet,
    piece_bytes,
)
from serving.dialect.toolcalls import CLOSE, OPEN


class Vocabulary:
    """A Hugging Face tokenizer, seen from the engine. `size` is the width of the model's logits, at least."""

    def __init__(self, tokenizer: Any, size: int) -> None:
        self.tokenizer = tokenizer
        self._backend = getattr(tokenizer, "backend_tokenizer", None)
        added = tokenizer.added_tokens_decoder
        self.special = frozenset(token_id for token_id, token in added.items() if token.special)
        tags = {token_id for token_id, token in added.items() if token.content in (OPEN, CLOSE)}
        self._special_but_tags = self.special - tags
        self.size = max(size, len(tokenizer))
        self._table: list[bytes] | None = None
        if self._backend is not None:
            # Set by some tokenizer files; here a prompt that is too long is refused, never cut.
            self._backend.no_truncation()
            self._backend.no_padding()
            decoder = json.loads(self._backend.to_str())["decoder"] or {}
            if decoder.get("type") == "ByteLevel" and not tokenizer.clean_up_tokenization_spaces:
                alphabet = byte_level_alphabet()
                pieces = {token_id: piece for piece, token_id in tokenizer.get_vocab().items()}
                # Models pad their embedding: ids beyond the vocabulary can be drawn, and stand for no text.
                self._table = [
                    piece_bytes(pieces[i], alphabet) if i in pieces else b"" for i in range(self.size)
                ]
        self._tables: dict[frozenset[int], list[bytes]] = {}
        self.text = lru_cache(maxsize=65536)(self._text)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Text to ids."""
        if self._backend is not None:
            return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)
        return list(self.tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Ids to text, as one piece."""
        if self._backend is not None and not self.tokenizer.clean_up_tokenization_spaces:
            return str(self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens))
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def detokenizer(self, *, skip_special_tokens: bool, keep_tool_tags: bool) -> Detokenizer:
        """A fresh incremental decoder. `keep_tool_tags`: tool-call tags leave text even if the vocabulary calls them special."""
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
        """The bytes of one id, markup included; of half a character the half."""
        if self._table is not None:
            return self._table[token_id]
        piece = self.tokenizer.convert_ids_to_tokens(token_id) or ""
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            return bytes([int(piece[3:5], 16)])
        return self.decode([token_id]).encode("utf-8")
