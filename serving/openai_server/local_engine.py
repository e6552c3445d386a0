"""What the engines of this repository share: a model in this process, a batch thread, grammars, and limits (`SamplingEngine`)."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from serving.model_digests import digest_served_model
from serving.openai_server.batch_loop import BatchLoop
from serving.openai_server.engine import AdapterT, EngineLimits, GrammarError, Job
from serving.openai_server.grammar import Grammar, GrammarCompiler
from serving.openai_server.values import LogprobsMode, SamplingDefaults
from serving.openai_server.vocabulary import Vocabulary
from store.manifest import check_version
from store.version import VERSION

#: Models with fewer parameters often do not find the end of a string that a grammar lets go on.
_BOUNDED_BELOW = 1_000_000_000

LoopT = TypeVar("LoopT", bound=BatchLoop[Any])


class LocalModel(Protocol):
    """A loaded model, as the server sees it."""

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def end_ids(self) -> frozenset[int]: ...

    @property
    def defaults(self) -> SamplingDefaults: ...


class LocalEngine(ABC, Generic[AdapterT, LoopT]):
    """One model in this process.

    Args:
        title: the engine's display name.
        parameters: of the model.
        slots: adapters that clients should have loaded at once.
        source: folder or cached name of the model, which the manifest of a version is compared with; "": not compared.
    """

    def __init__(
        self,
        model: LocalModel,
        *,
        title: str,
        parameters: int,
        max_num_seqs: int,
        slots: int,
        source: str,
    ) -> None:
        self._served = model
        self._slots = slots
        self._source = source
        self._engine: LoopT | None = None
        self._grammars: GrammarCompiler | None = None
        self._no_grammar = ""
        try:
            self._grammars = GrammarCompiler(model.vocabulary, model.end_ids)
        except ValueError as error:  # the library does not read every tokenizer
            self._no_grammar = (
                f"no constrained decoding ({error}): response_format is refused, and a required call is opened for the model, "
                "not held to its schema"
            )
        self._notes = [self._no_grammar] if self._no_grammar else []
        self.limits = EngineLimits(
            name=title,
            max_sequences=max_num_seqs,
            option="--max-num-seqs",
            is_constrained=self._grammars is not None,
            bounds_values=parameters < _BOUNDED_BELOW,
        )

    @abstractmethod
    def _make_engine(self, post: Callable[[Callable[[], None]], None]) -> LoopT:
        """Return the batch thread, not started."""

    @abstractmethod
    def _read_adapter(self, name: str, path: Path) -> AdapterT:
        """Return a version's adapter. Raises: AdapterError."""

    @abstractmethod
    def _facts(self) -> Mapping[str, Any]:
        """Return what `/version` says about this engine alone."""

    @property
    def vocabulary(self) -> Vocabulary:
        return self._served.vocabulary

    @property
    def defaults(self) -> SamplingDefaults:
        return self._served.defaults

    @property
    def logprobs_mode(self) -> LogprobsMode:
        return "raw_logprobs"

    @property
    def engine(self) -> LoopT:
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
        self._engine = self._make_engine(post)
        self._engine.start()

    def stop(self) -> None:
        self.engine.stop()

    async def join(self) -> None:
        await asyncio.to_thread(self.engine.join)

    def submit(self, job: Job[AdapterT]) -> bool:
        return self.engine.submit(job)

    def cancel(self, job: Job[AdapterT]) -> None:
        self.engine.cancel(job)

    def compile_grammar(self, grammar: str) -> Grammar:
        if self._grammars is None:
            raise GrammarError(self._no_grammar)
        return self._grammars.compile(grammar)

    def load(self, name: str, path: str) -> AdapterT:
        check_version(Path(path), model=digest_served_model(self._source) if self._source else None)
        return self._read_adapter(name, Path(path))

    def version_info(self) -> Mapping[str, Any]:
        return {
            "version": VERSION,
            "logprobs_mode": self.logprobs_mode,
            **self._facts(),
            "capabilities": {
                "tools": True,
                "constrained": self.limits.is_constrained,
                "adapter_slots": self._slots,
                "notes": self._notes,
            },
        }

    def stats(self) -> Mapping[str, Any]:
        return asdict(self.engine.stats())
