"""The built-in engine as the dialect knows it: a model, the thread that serves it, and what it can do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from serving.dialect.engine import Limits
from serving.dialect.values import LogprobsMode, SamplingDefaults
from serving.dialect.vocabulary import Vocabulary
from serving.embedded.adapters import Adapter, read_adapter
from serving.embedded.engine import EmbeddedJob, Engine
from serving.embedded.model import Model

VERSION = "0.1.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptions:
    """What the command line says."""

    max_num_seqs: int = 16
    max_loras: int = 8
    max_lora_rank: int = 64
    logprobs_mode: LogprobsMode = "raw_logprobs"
    cache_bytes: int = 4 << 30


class EmbeddedHost:
    """One model in this process (`serving.dialect.engine.Engine`)."""

    def __init__(self, model: Model, options: HostOptions) -> None:
        self.model = model
        self._options = options
        self._engine: Engine | None = None
        self.limits = Limits(
            name="the built-in engine", sequences=options.max_num_seqs, option="--max-num-seqs"
        )

    @property
    def vocabulary(self) -> Vocabulary:
        return self.model.vocabulary

    @property
    def defaults(self) -> SamplingDefaults:
        return self.model.defaults

    @property
    def max_model_len(self) -> int:
        return self.model.max_model_len

    @property
    def logprobs_mode(self) -> LogprobsMode:
        return self._options.logprobs_mode

    @property
    def engine(self) -> Engine:
        """The running engine; there is none before `start`."""
        if self._engine is None:
            raise RuntimeError("the engine has not started")
        return self._engine

    @property
    def is_known(self) -> bool:
        return True

    def trouble(self) -> str | None:
        return None

    def start(self, post: Callable[[Callable[[], None]], None]) -> None:
        self._engine = Engine(
            self.model,
            post=post,
            max_num_seqs=self._options.max_num_seqs,
            max_loras=self._options.max_loras,
            logprobs_mode=self._options.logprobs_mode,
            cache_bytes=self._options.cache_bytes,
        )
        self._engine.start()

    def stop(self) -> None:
        self.engine.stop()

    async def join(self) -> None:
        await asyncio.to_thread(self.engine.join)

    def submit(self, job: EmbeddedJob) -> bool:
        return self.engine.submit(job)

    def cancel(self, job: EmbeddedJob) -> None:
        self.engine.cancel(job)

    def load(self, name: str, path: str) -> Adapter:
        return read_adapter(name, Path(path), self.model.loras.modules, max_rank=self._options.max_lora_rank)

    def unload(self, adapter: Adapter) -> None:
        """Running sequences hold the adapter itself; its memory goes with the last of them."""

    def told(self) -> Mapping[str, Any]:
        return {
            "version": VERSION,
            "engine": "patina-embedded",
            "logprobs_mode": self.logprobs_mode,
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "device": str(self.model.device),
            "capabilities": {
                "tools": True,
                "constrained": False,
                "adapter_slots": self._options.max_loras,
                "notes": [
                    "no constrained decoding: response_format is refused, and a required call is opened for the model, not held to its schema"
                ],
            },
        }

    def stats(self) -> Mapping[str, Any]:
        return asdict(self.engine.stats())
