"""Sampled tokens of one sequence to output chunks: final text, and whether the sequence ends. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from serving.openai_server.detokenize import StopFinder
from serving.openai_server.values import FinishReason, OutputChunk, SamplingParams, TokenLogprob
from serving.openai_server.vocabulary import Vocabulary


class TokenText:
    """One growing sequence. `end_ids` end a turn unless the request ignores them."""

    __slots__ = ("_detokenizer", "_end_ids", "_params", "_stops")

    def __init__(self, params: SamplingParams, vocabulary: Vocabulary, end_ids: frozenset[int]) -> None:
        self._params = params
        self._end_ids = end_ids
        self._detokenizer = vocabulary.detokenizer(
            skip_special_tokens=params.skip_special_tokens, keep_tool_tags=params.keep_tool_tags
        )
        self._stops = StopFinder(params.stop, include=params.include_stop)

    def take(
        self, token_id: int, logprob: float, top: Sequence[tuple[int, float]], *, is_last: bool
    ) -> OutputChunk:
        """Add the next sampled token.

        Args:
            top: the most likely (id, logprob) pairs at its position.
            is_last: no token follows it.
        """
        params = self._params
        if not math.isfinite(logprob):
            # Never reported as a number: the trainer would use it.
            return OutputChunk(
                text="",
                token_ids=(),
                logprobs=(),
                finish_reason="error",
                error="the model's logits are not finite for this prompt and adapter",
            )
        reason: FinishReason | None = None
        stop: str | int | None = None
        ends_turn = token_id in self._end_ids and not params.ignore_eos
        if ends_turn or token_id in params.stop_token_ids:
            reason = "stop"
            if token_id in params.stop_token_ids:
                stop = token_id
        text = "" if reason == "stop" and not params.include_stop else self._detokenizer.feed(token_id)
        text = self._stops.feed(text) if text else ""
        if self._stops.matched is None and reason is None and is_last:
            reason = "length"
        if reason is not None and self._stops.matched is None:
            text += self._rest()
        if self._stops.matched is not None:
            reason, stop = "stop", self._stops.matched
        wants = params.logprobs
        # Top lists of a processed distribution can contain truncated tokens, which have no log-probability to report.
        kept = tuple(pair for pair in top if pair[1] != float("-inf")) if wants else ()
        return OutputChunk(
            text=text,
            token_ids=(token_id,),
            logprobs=(TokenLogprob(token_id=token_id, logprob=logprob, top=kept),) if wants else (),
            finish_reason=reason,
            stop_reason=stop,
        )

    def end(self) -> OutputChunk:
        """End the sequence without an end token: the sampler stopped at a token that it did not return."""
        return OutputChunk(
            text=self._rest(),
            token_ids=(),
            logprobs=(),
            finish_reason="stop",
            stop_reason=self._stops.matched,
        )

    def _rest(self) -> str:
        return self._stops.feed(self._detokenizer.flush()) + self._stops.flush()
