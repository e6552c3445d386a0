"""One reply that an engine samples: its ids, parameters, random numbers, grammar and text. The engine's thread owns it."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any, Generic

from serving.openai_server.engine import AdapterT, GrammarError, Job
from serving.openai_server.token_text import TokenText
from serving.openai_server.values import OutputChunk
from serving.openai_server.vocabulary import Vocabulary


class SampledSequence(Generic[AdapterT]):
    """One of a job's `n` replies, from prompt to finish. `ids` are the prompt's and the sampled ones."""

    __slots__ = (
        "adapter",
        "counts",
        "grammar",
        "ids",
        "index",
        "job",
        "params",
        "prompt_logprobs",
        "prompt_set",
        "prompt_tokens",
        "rng",
        "text",
    )

    def __init__(
        self, job: Job[AdapterT], number: int, vocabulary: Vocabulary, end_ids: frozenset[int]
    ) -> None:
        self.job = job
        self.index = job.first_index + number
        self.params = job.params
        self.adapter = job.adapter
        self.grammar: Any = None if job.grammar is None else job.grammar.copy()
        if self.grammar is not None:
            # The grammar decides where the reply may end.
            self.params = replace(job.params, min_tokens=0, ignore_eos=False)
        self.ids = list(job.prompt_ids)
        self.prompt_tokens = len(self.ids)
        self.prompt_logprobs: list[float] = []
        seed = job.params.seed
        # Each of n samples has its own random stream, so none depends on the length of the others.
        self.rng = random.Random(None if seed is None else f"{seed}/{number}")
        self.text = TokenText(self.params, vocabulary, end_ids)
        self.counts: Counter[int] = Counter()
        self.prompt_set = frozenset(self.ids) if job.params.repetition_penalty != 1.0 else frozenset[int]()

    @property
    def sampled(self) -> int:
        return len(self.ids) - self.prompt_tokens

    @property
    def forced_id(self) -> int | None:
        """Return the prescribed next id; None: it is sampled."""
        return self.job.forced_ids[self.sampled] if self.sampled < len(self.job.forced_ids) else None

    def add(
        self, token_id: int, logprob: float, top: list[tuple[int, float]], *, max_model_len: int
    ) -> OutputChunk:
        """Append a sampled token and return its output; a finish reason ends the sequence."""
        self.ids.append(token_id)
        if self.params.edits_logits:
            self.counts[token_id] += 1
        is_last = self.sampled >= self.params.max_tokens or len(self.ids) >= max_model_len
        chunk = self.text.take(token_id, logprob, top, is_last=is_last)
        if self.grammar is not None and chunk.finish_reason is None:
            try:
                self.grammar.accept(token_id)
            except GrammarError as error:
                return grammar_failure(str(error))
        if self.sampled == 1 and self.prompt_logprobs:
            chunk = replace(chunk, prompt_logprobs=tuple(self.prompt_logprobs))
        return chunk


def grammar_failure(reason: str) -> OutputChunk:
    """Return the output of a sequence that its grammar cannot continue."""
    return OutputChunk(
        text="",
        token_ids=(),
        logprobs=(),
        finish_reason="error",
        error=f"the schema cannot be enforced: {reason}",
        status=400,
    )
