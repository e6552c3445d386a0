"""Connects llama.cpp to the OpenAI server: a model, its batch thread and its limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.llamacpp.adapters import LlamaAdapter, load_adapter
from serving.llamacpp.batch_engine import (
    KEPT_SEQUENCES,
    PREFILL_TOKENS,
    SCORED_TOKENS,
    LlamaBatchEngine,
)
from serving.llamacpp.library import LlamaContext
from serving.llamacpp.model import GgufModel
from serving.openai_server.local_engine import LocalEngine
from store.errors import ConfigError

#: A context of fewer tokens holds no conversation.
_LEAST_CELLS = 512
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


class LlamaCppEngine(LocalEngine[LlamaAdapter, LlamaBatchEngine]):
    """One model in this process (`serving.openai_server.engine.SamplingEngine`). Raises: ConfigError."""

    def __init__(self, model: GgufModel, options: LlamaCppOptions) -> None:
        super().__init__(
            model,
            title="the llama.cpp engine",
            parameters=model.weights.parameters,
            max_num_seqs=options.max_num_seqs,
            slots=options.adapter_slots,
            source=options.model_name,
        )
        self.model = model
        self._options = options
        self._cells = self._choose_cells()
        self._context = LlamaContext(
            model.weights,
            cells=self._cells,
            sequences=options.max_num_seqs + KEPT_SEQUENCES,
            batch=PREFILL_TOKENS + options.max_num_seqs,
            outputs=max(SCORED_TOKENS, options.max_num_seqs),
            threads=options.threads,
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
    def max_model_len(self) -> int:
        return self._reads

    def _make_engine(self, post: Callable[[Callable[[], None]], None]) -> LlamaBatchEngine:
        return LlamaBatchEngine(
            self._context,
            self.model.vocabulary,
            self.model.end_ids,
            post=post,
            cells=self._cells,
            max_model_len=self._reads,
            max_num_seqs=self._options.max_num_seqs,
            caches_prefixes=self.model.weights.can_rewind,
        )

    async def join(self) -> None:
        await super().join()
        self._context.close()

    def _read_adapter(self, name: str, path: Path) -> LlamaAdapter:
        return load_adapter(name, path, self.model.weights)

    def unload(self, adapter: LlamaAdapter) -> None:
        self.engine.unload(adapter)

    def _facts(self) -> Mapping[str, Any]:
        return {"engine": "patina-llamacpp", "dtype": self.model.weights.weight_type}
