"""Constrained decoding: compiles grammars over a model's tokenizer, and masks the tokens of one sequence. The only module that uses llguidance.

The work of a compilation and of a step is bounded, so a hostile schema costs its own request and delays the batch by at most some 20 ms a step.
"""

from __future__ import annotations

import re
from typing import Any

import llguidance
import llguidance.numpy as bitmasks
import numpy
import numpy.typing

from serving.openai_server.engine import GrammarError
from serving.openai_server.vocabulary import Vocabulary

_PLACE = re.compile(r"\A(?:at \d+\(\d+\): )?(?:failed to compile JSON schema: )?")
_SOURCE = re.compile(r"\s*(?:\d+ \||\^)")
_MAX_REASON = 300
_LIMITS = llguidance.LLParserLimits(verbose_errors=False)


class Grammar:
    """The state of one sequence under a grammar. One thread at a time."""

    __slots__ = ("_bits", "_matcher", "_size")

    def __init__(self, matcher: llguidance.LLMatcher, size: int) -> None:
        self._matcher = matcher
        self._size = size
        self._bits = bitmasks.allocate_token_bitmask(1, size)

    def copy(self) -> Grammar:
        """Return an independent state: the samples of one prompt go different ways."""
        return Grammar(self._matcher.deep_copy(), self._size)

    def banned(self) -> numpy.typing.NDArray[numpy.bool_]:
        """Return a mask [V] of the tokens that cannot come next. Raises: GrammarError if no token can."""
        bitmasks.fill_next_token_bitmask(self._matcher, self._bits)
        self._check()
        allowed = numpy.unpackbits(self._bits[0].view(numpy.uint8), bitorder="little")[: self._size]
        if not allowed.any():
            raise GrammarError("no token of this model can continue the reply under the schema")
        banned: numpy.typing.NDArray[numpy.bool_] = allowed == 0
        return banned

    def accept(self, token_id: int) -> None:
        """Move on by a token that the mask allowed. Raises: GrammarError."""
        self._matcher.consume_token(token_id)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(_reason(self._matcher.get_error()))


class GrammarCompiler:
    """Compiles grammars for one tokenizer. Thread-safe.

    Raises: ValueError if the library cannot read the tokenizer.
    """

    def __init__(self, vocabulary: Vocabulary, end_ids: frozenset[int]) -> None:
        if not end_ids:
            raise ValueError("the model has no token that ends a reply")
        self._size = vocabulary.size
        self._tokenizer: Any = llguidance.LLTokenizer(
            vocabulary.to_json(), n_vocab=self._size, eos_token=sorted(end_ids)
        )

    def compile(self, grammar: str) -> Grammar:
        """Compile a grammar and its first mask; takes a millisecond, and up to a second for a huge schema.

        Raises: GrammarError with the reason.
        """
        matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=_LIMITS)
        if matcher.is_error():
            raise GrammarError(_reason(matcher.get_error()))
        compiled = Grammar(matcher, self._size)
        compiled.banned()
        return compiled


def _reason(message: str) -> str:
    """Return the library's message as one line, without the lines and the place of the grammar, which the client did not write."""
    lines = [line for line in message.splitlines() if not _SOURCE.match(line)]
    return _PLACE.sub("", " ".join(" ".join(lines).split()))[:_MAX_REASON]
