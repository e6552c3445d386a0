"""Values that engines and the HTTP layer share. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

LogprobsMode = Literal["raw_logprobs", "processed_logprobs"]
FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """Sampling defaults of the model's generation_config.json.

    `max_new_tokens` counts where a chat request sets no limit; 0: the rest of the context.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_new_tokens: int = 0

    @classmethod
    def stated_in(cls, generation: Mapping[str, Any]) -> SamplingDefaults:
        """Return what a generation config states, and the defaults of what it leaves open."""
        stated = {
            one.name: type(getattr(cls(), one.name))(generation[one.name])
            for one in fields(cls)
            if generation.get(one.name) is not None
        }
        return cls(**stated)


def end_ids(*stated: Any) -> frozenset[int]:
    """Return the ids that end a turn: those of the tokenizer and of each config, which state an id, several, or None."""
    ends: set[int] = set()
    for value in stated:
        ends.update([value] if isinstance(value, int) else value or ())
    return frozenset(ends)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The sampling parameters of one request. `temperature` 0 is greedy; `top_k` 0 means all."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    include_stop: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    keep_tool_tags: bool = False
    logprobs: bool = False
    top_logprobs: int = 0

    @property
    def edits_logits(self) -> bool:
        """Whether the logits depend on earlier tokens; such rows cost a little Python each step."""
        return bool(
            self.presence_penalty
            or self.frequency_penalty
            or self.repetition_penalty != 1.0
            or self.logit_bias
            or self.min_tokens
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """One id, its log-probability (NaN: the first of an echoed prompt), and the most likely (id, logprob) pairs in its place."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputChunk:
    """The output of one step for one sequence. `text` can be empty while a character or a stop string is incomplete.

    `error` and its HTTP `status` accompany the finish_reason "error". `prompt_logprobs` [P - 1], of the prompt's tokens after the first, come with
    the first chunk where the job asks for them.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    status: int = 500
    prompt_logprobs: tuple[float, ...] = ()
