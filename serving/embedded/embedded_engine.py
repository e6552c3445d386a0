"""Connects the built-in engine to the OpenAI server: a model, its batch thread and its limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.embedded.adapters import Adapter, read_adapter
from serving.embedded.batch_engine import BatchEngine
from serving.embedded.model import Model
from serving.openai_server.local_engine import LocalEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedOptions:
    """The command-line options."""

    max_num_seqs: int = 16
    max_loras: int = 8
    max_lora_rank: int = 64
    cache_bytes: int = 4 << 30
    model_name: str = ""  #: folder or cached name of the model, which the manifest of a version is compared with; "": not compared


class EmbeddedEngine(LocalEngine[Adapter, BatchEngine]):
    """One model in this process (`serving.openai_server.engine.SamplingEngine`)."""

    def __init__(self, model: Model, options: EmbeddedOptions) -> None:
        super().__init__(
            model,
            title="the built-in engine",
            parameters=model.parameters,
            max_num_seqs=options.max_num_seqs,
            slots=options.max_loras,
            source=options.model_name,
        )
        self.model = model
        self._options = options

    @property
    def max_model_len(self) -> int:
        return self.model.max_model_len

    def _make_engine(self, post: Callable[[Callable[[], None]], None]) -> BatchEngine:
        return BatchEngine(
            self.model,
            post=post,
            max_num_seqs=self._options.max_num_seqs,
            max_loras=self._options.max_loras,
            cache_bytes=self._options.cache_bytes,
        )

    def _read_adapter(self, name: str, path: Path) -> Adapter:
        return read_adapter(name, path, self.model.loras.modules, max_rank=self._options.max_lora_rank)

    def unload(self, adapter: Adapter) -> None:
        """Do nothing: running sequences hold references, and the memory is freed with the last of them."""

    def _facts(self) -> Mapping[str, Any]:
        return {
            "engine": "patina-embedded",
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "device": str(self.model.device),
        }
