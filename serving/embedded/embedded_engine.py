"""Connects the built-in engine to the OpenAI server: a model, its batch thread and its limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from serving.embedded.adapters import Adapter, read_adapter
from serving.embedded.batch_engine import BatchEngine, EmbeddedJob
from serving.embedded.model import Model
from serving.model_digests import digest_served_model
from serving.openai_server.engine import EngineLimits, GrammarError
from serving.openai_server.grammar import Grammar, GrammarCompiler
from serving.openai_server.values import LogprobsMode, SamplingDefaults
from serving.openai_server.vocabulary import Vocabulary
from serving.prompt_window import PromptWindow
from store.manifest import check_version
from store.version import VERSION

#: Models with fewer parameters often do not find the end of a string that a grammar lets go on.
_BOUNDED_BELOW = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedOptions:
    """The command-line options."""

    max_num_seqs: int = 16
    max_loras: int = 8
    max_lora_rank: int = 64
    logprobs_mode: LogprobsMode = "raw_logprobs"
    cache_bytes: int = 4 << 30
    model_name: str = ""  #: folder or cached name of the model, which the manifest of a version is compared with; "": not compared


class EmbeddedEngine:
    """One model in this process (`serving.openai_server.engine.SamplingEngine`)."""

    def __init__(self, model: Model, options: EmbeddedOptions) -> None:
        self.model = model
        self._options = options
        self._engine: BatchEngine | None = None
        self._grammars, self._note = _make_compiler(model)
        self.limits = EngineLimits(
            name="the built-in engine",
            max_sequences=options.max_num_seqs,
            option="--max-num-seqs",
            is_constrained=self._grammars is not None,
            bounds_values=model.parameters < _BOUNDED_BELOW,
        )

    @property
    def vocabulary(self) -> Vocabulary:
        return self.model.vocabulary

    @property
    def defaults(self) -> SamplingDefaults:
        return self.model.defaults

    @property
    def max_model_len(self) -> int:
        return self.model.accepts

    @property
    def window(self) -> PromptWindow | None:
        return self.model.window

    @property
    def logprobs_mode(self) -> LogprobsMode:
        return self._options.logprobs_mode

    @property
    def engine(self) -> BatchEngine:
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
        self._engine = BatchEngine(
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

    def compile_grammar(self, grammar: str) -> Grammar:
        if self._grammars is None:
            raise GrammarError(self._note)
        return self._grammars.compile(grammar)

    def load(self, name: str, path: str) -> Adapter:
        source = self._options.model_name
        check_version(Path(path), model=digest_served_model(source) if source else None)
        return read_adapter(name, Path(path), self.model.loras.modules, max_rank=self._options.max_lora_rank)

    def unload(self, adapter: Adapter) -> None:
        """Do nothing: running sequences hold references, and the memory is freed with the last of them."""

    def version_info(self) -> Mapping[str, Any]:
        return {
            "version": VERSION,
            "engine": "patina-embedded",
            "logprobs_mode": self.logprobs_mode,
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "device": str(self.model.device),
            "capabilities": {
                "tools": True,
                "constrained": self.limits.is_constrained,
                "adapter_slots": self._options.max_loras,
                "notes": self._notes(),
            },
        }

    def _notes(self) -> list[str]:
        notes = [self._note] if self._note else []
        if window := self.window:
            notes.append(
                f"of a prompt of more than {window.longest} tokens, {window.room} are read: the head of the system prompt and the newest messages; "
                "usage.prompt_tokens_details.dropped_tokens counts the rest"
            )
        return notes

    def stats(self) -> Mapping[str, Any]:
        return asdict(self.engine.stats())


def _make_compiler(model: Model) -> tuple[GrammarCompiler | None, str]:
    """Return the compiler of grammars, or None with the reason: the library does not read every tokenizer."""
    try:
        return GrammarCompiler(model.vocabulary, model.end_ids), ""
    except ValueError as error:
        return None, (
            f"no constrained decoding ({error}): response_format is refused, and a required call is opened for the model, not held to its schema"
        )
