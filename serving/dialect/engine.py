"""What the dialect asks of an engine, and the job it hands to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from serving.dialect.values import LogprobsMode, Piece, SamplingDefaults, SamplingParams
from serving.dialect.vocabulary import Vocabulary


class Loaded(Protocol):
    """An adapter that an engine has loaded."""

    @property
    def path(self) -> str:
        """The folder it came from."""
        ...


AdapterT = TypeVar("AdapterT", bound=Loaded)


@dataclass(eq=False, slots=True, kw_only=True)
class Job(Generic[AdapterT]):
    """One prompt to be continued `n` times by one adapter (None: by the base model).

    Attributes:
        deliver: takes (index, piece), is called through the `post` that the engine was started with.
        first_index: index of the first of the n choices.
        forced_ids: what the reply begins with, prescribed instead of drawn.
    """

    prompt_ids: Sequence[int]
    params: SamplingParams
    adapter: AdapterT | None
    deliver: Callable[[int, Piece], None]
    n: int = 1
    first_index: int = 0
    forced_ids: Sequence[int] = ()
    cancelled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an engine cannot do, so that it is refused and never ignored.

    Attributes:
        name: of the engine, for people.
        lacks: fields of a request that it refuses unless they change nothing; `forced_call`: a required tool call.
        advice: what to do about `response_format`.
        sequences: completions in one request, and the option that says so.
        option: of the command line, behind `sequences`; "" where there is none.
    """

    name: str
    sequences: int
    lacks: frozenset[str] = field(default_factory=frozenset)
    advice: str = "Ask for JSON in the prompt, or serve the model with vLLM."
    option: str = ""


class Engine(Protocol[AdapterT]):
    """Samples. Everything but `load` is called on the event loop and returns at once."""

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def defaults(self) -> SamplingDefaults: ...

    @property
    def max_model_len(self) -> int:
        """Longest prompt and completion together, in tokens."""
        ...

    @property
    def logprobs_mode(self) -> LogprobsMode | None:
        """Of what distribution the log-probabilities are; None: it cannot be told."""
        ...

    @property
    def limits(self) -> Limits: ...

    @property
    def is_known(self) -> bool:
        """Whether it is known by now what it serves and what it can do; before, it serves nothing."""
        ...

    def trouble(self) -> str | None:
        """Why it cannot serve now, in one sentence; None: it can."""
        ...

    def start(self, post: Callable[[Callable[[], None]], None]) -> None:
        """Begin. `post` hands a callable to the event loop, from any thread."""
        ...

    def stop(self) -> None:
        """Take nothing more; what is unfinished is delivered as aborted. From any thread."""
        ...

    async def join(self) -> None:
        """Wait for the end after `stop`."""
        ...

    def submit(self, job: Job[AdapterT]) -> bool:
        """Queue a job; False if the engine is stopping."""
        ...

    def cancel(self, job: Job[AdapterT]) -> None:
        """Drop a job. Nothing more is delivered for it."""
        ...

    def load(self, name: str, path: str) -> AdapterT:
        """Load an adapter; blocks. Raises: AdapterError, UpstreamError."""
        ...

    def unload(self, adapter: AdapterT) -> None:
        """No new job will ask for it; running ones keep it to their end."""
        ...

    def told(self) -> Mapping[str, Any]:
        """What `/version` tells: version, engine, dtype ...; `capabilities` (see `serving.protocol`)."""
        ...

    def stats(self) -> Mapping[str, Any]:
        """What `/stats` tells: `running` and `waiting` sequences, and counts since the start."""
        ...
