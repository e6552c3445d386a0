"""Connects llama.cpp to the OpenAI server: a model, its batch thread and its limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from serving.llamacpp.adapters import LlamaAdapter, load_adapter
from serving.llamacpp.batch_engine import (
    KEPT_SEQUENCES,
    PREFILL_TOKENS,
    SCORED_TOKENS,
    LlamaBatchEngine,
    LlamaCppJob,
)
from serving.llamacpp.library import LlamaContext
from serving.llamacpp.model import GgufModel
from serving.model_digests import digest_served_model
from serving.openai_server.engine import EngineLimits, GrammarError
from serving.openai_server.grammar import Grammar, GrammarCompiler
from serving.openai_server.values import LogprobsMode, SamplingDefaults
from serving.openai_server.vocabulary import Vocabulary
from serving.prompt_window import PromptWindow
from store.errors import ConfigError
from store.manifest import check_version
from store.version import VERSION

#: A context of fewer tokens holds no conversation.
_LEAST_CELLS = 512
#: Models with fewer parameters often do not find the end of a string that a grammar lets go on.
_BOUNDED_BELOW = 1_000_000_000
#: The share of the cache's memory that is taken for several requests beside each other.
_CHEAP_SHARE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppOptions:
    """The command-line options."""

    threads: int
    max_num_seqs: int = 8
    max_model_len: int | None = None  #: tokens that a request may have; None: the model's own limit
    cache_bytes: int = 1 << 30
    adapter_slots: int = 8
    model_name: str = (
        ""  #: folder of the model, which the manifest of a version is compared with; "": not compared
    )


class LlamaCppEngine:
    """One model in this process (`serving.openai_server.engine.SamplingEngine`). Raises: ConfigError."""

    def __init__(self, model: GgufModel, options: LlamaCppOptions) -> None:
        self.model = model
        self._options = options
        self._engine: LlamaBatchEngine | None = None
        self._grammars: GrammarCompiler | None = None
        self._notes: list[str] = []
        self._cells = self._choose_cells()
        self._context = LlamaContext(
            model.weights,
            cells=self._cells,
            sequences=options.max_num_seqs + KEPT_SEQUENCES,
            batch=PREFILL_TOKENS + options.max_num_seqs,
            outputs=max(SCORED_TOKENS, options.max_num_seqs),
            threads=options.threads,
        )
        try:
            self._grammars = GrammarCompiler(model.vocabulary, model.end_ids)
        except ValueError as error:
            self._notes.append(
                f"no constrained decoding ({error}): response_format is refused, and a required call is opened for the model, "
                "not held to its schema"
            )
        if window := self.window:
            self._notes.append(
                f"of a prompt of more than {window.longest} tokens, {window.room} are read: the head of the system prompt and the newest messages; "
                "usage.prompt_tokens_details.dropped_tokens counts the rest"
            )
        self.limits = EngineLimits(
            name="the llama.cpp engine",
            max_sequences=options.max_num_seqs,
            option="--max-num-seqs",
            is_constrained=self._grammars is not None,
            bounds_values=model.weights.parameters < _BOUNDED_BELOW,
        )

    def _choose_cells(self) -> int:
        """Return how many tokens the context holds: at least what one request may have, more where that is cheap."""
        read = min(self.model.context, self._options.max_model_len or self.model.context)
        affordable = self._options.cache_bytes // max(1, self.model.weights.kv_bytes_per_token())
        if affordable < min(read, _LEAST_CELLS):
            raise ConfigError(f"--kv-cache-gb leaves room for {affordable} tokens only: give it more")
        if affordable < read:
            self._notes.append(
                f"prompt and reply may have {affordable} tokens together, for which --kv-cache-gb has room; the model reads {read}"
            )
        self._reads = min(read, affordable)
        return min(self._options.max_num_seqs * read, max(self._reads, affordable // _CHEAP_SHARE))

    @property
    def vocabulary(self) -> Vocabulary:
        return self.model.vocabulary

    @property
    def defaults(self) -> SamplingDefaults:
        return self.model.defaults

    @property
    def max_model_len(self) -> int:
        if self.window is not None:
            return min(self.model.accepts, self._options.max_model_len or self.model.accepts)
        return self._reads

    @property
    def window(self) -> PromptWindow | None:
        return self.model.window

    @property
    def logprobs_mode(self) -> LogprobsMode:
        return "raw_logprobs"

    @property
    def engine(self) -> LlamaBatchEngine:
        """The running batch engine; available after `start`."""
        if self._engine is None:
            raise RuntimeError("the engine has not started")
        return self._engine

    @property
    def is_ready(self) -> bool:
        return True

    def unavailable_reason(self) -> str | None:
        return None

    def start(self, post: Callable[[Callable[[], None]], None]) -> None:
        self._engine = LlamaBatchEngine(
            self._context,
            self.model.vocabulary,
            self.model.end_ids,
            post=post,
            cells=self._cells,
            max_model_len=self._reads,
            max_num_seqs=self._options.max_num_seqs,
            caches_prefixes=self.model.weights.can_rewind,
        )
        self._engine.start()

    def stop(self) -> None:
        self.engine.stop()

    async def join(self) -> None:
        await asyncio.to_thread(self.engine.join)
        self._context.close()

    def submit(self, job: LlamaCppJob) -> bool:
        return self.engine.submit(job)

    def cancel(self, job: LlamaCppJob) -> None:
        self.engine.cancel(job)

    def compile_grammar(self, grammar: str) -> Grammar:
        if self._grammars is None:
            raise GrammarError(self._notes[0])
        return self._grammars.compile(grammar)

    def load(self, name: str, path: str) -> LlamaAdapter:
        source = self._options.model_name
        check_version(Path(path), model=digest_served_model(source) if source else None)
        return load_adapter(name, Path(path), self.model.weights)

    def unload(self, adapter: LlamaAdapter) -> None:
        self.engine.unload(adapter)

    def version_info(self) -> Mapping[str, Any]:
        return {
            "version": VERSION,
            "engine": "patina-llamacpp",
            "logprobs_mode": self.logprobs_mode,
            "dtype": self.model.weights.weight_type,
            "capabilities": {
                "tools": True,
                "constrained": self.limits.is_constrained,
                "adapter_slots": self._options.adapter_slots,
                "notes": self._notes,
            },
        }

    def stats(self) -> Mapping[str, Any]:
        return asdict(self.engine.stats())
