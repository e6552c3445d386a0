"""The interface of an engine, and the jobs it receives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from serving.openai_server.values import LogprobsMode, OutputChunk, SamplingDefaults, SamplingParams
from serving.openai_server.vocabulary import Vocabulary
from store.errors import WireError


class LoadedAdapter(Protocol):
    """An adapter that an engine has loaded."""

    @property
    def path(self) -> str:
        """The folder it was loaded from."""
        ...


AdapterT = TypeVar("AdapterT", bound=LoadedAdapter)


class GrammarError(WireError):
    """A grammar cannot be compiled, or a reply cannot be continued under it; the message is the reason."""


@dataclass(eq=False, slots=True, kw_only=True)
class Job(Generic[AdapterT]):
    """One prompt to continue `n` times with one adapter (None: the base model).

    Attributes:
        deliver: receives (index, output); called through the engine's `post`.
        first_index: index of the first of the n choices.
        forced_ids: prescribed beginning of the reply.
        scores_prompt: the prompt's own log-probabilities are delivered too.
        grammar: holds the reply to a grammar; of this engine's `compile_grammar`.
    """

    prompt_ids: Sequence[int]
    params: SamplingParams
    adapter: AdapterT | None
    deliver: Callable[[int, OutputChunk], None]
    n: int = 1
    first_index: int = 0
    forced_ids: Sequence[int] = ()
    scores_prompt: bool = False
    grammar: Any = None
    cancelled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """What an engine does not support, so that it is refused instead of ignored.

    Attributes:
        name: the engine's display name.
        unsupported: request fields that are refused unless they have no effect; `forced_call`: a required tool call.
        is_constrained: a grammar holds replies to a schema and to a required tool call.
        bounds_values: a grammar keeps values small that the schema leaves open: the model may not find their end.
        response_format_advice: alternative to `response_format` where it is not.
        max_sequences: completions in one request.
        option: command-line option that sets `max_sequences`; "" where there is none.
    """

    name: str
    max_sequences: int
    unsupported: frozenset[str] = field(default_factory=frozenset)
    is_constrained: bool = False
    bounds_values: bool = False
    response_format_advice: str = "Ask for JSON in the prompt, or serve the model with vLLM."
    option: str = ""


class SamplingEngine(Protocol[AdapterT]):
    """Samples tokens. Everything but `load` is called on the event loop and returns at once."""

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def defaults(self) -> SamplingDefaults: ...

    @property
    def max_model_len(self) -> int:
        """Longest prompt and completion together, in tokens, that a request may have."""
        ...

    @property
    def logprobs_mode(self) -> LogprobsMode | None:
        """Which distribution the log-probabilities belong to; None: unknown."""
        ...

    @property
    def limits(self) -> EngineLimits: ...

    @property
    def is_ready(self) -> bool:
        """Whether the model and its capabilities are known; before that, nothing is served."""
        ...

    def unavailable_reason(self) -> str | None:
        """Return why it cannot serve now, in one sentence; None: it can."""
        ...

    def start(self, post: Callable[[Callable[[], None]], None]) -> None:
        """Start. `post` passes a callable to the event loop, from any thread."""
        ...

    def stop(self) -> None:
        """Accept no more jobs; unfinished ones are delivered as aborted. Callable from any thread."""
        ...

    async def join(self) -> None:
        """Wait for the end after `stop`."""
        ...

    def submit(self, job: Job[AdapterT]) -> bool:
        """Queue a job; False if the engine is stopping."""
        ...

    def cancel(self, job: Job[AdapterT]) -> None:
        """Cancel a job. Nothing more is delivered for it."""
        ...

    def compile_grammar(self, grammar: str) -> Any:
        """Compile a grammar for `Job.grammar`; blocks. Raises: GrammarError."""
        ...

    def load(self, name: str, path: str) -> AdapterT:
        """Load an adapter; blocks. Raises: AdapterError, UpstreamError."""
        ...

    def unload(self, adapter: AdapterT) -> None:
        """Unload an adapter that no new job will use; running jobs keep it to their end."""
        ...

    def version_info(self) -> Mapping[str, Any]:
        """Return the body of `/version`: version, engine, dtype ...; `capabilities` (see `serving.protocol`)."""
        ...

    def stats(self) -> Mapping[str, Any]:
        """Return the body of `/stats`: `running` and `waiting` sequences, and counts since the start."""
        ...
