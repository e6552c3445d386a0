"""What a Tinker server turned out to be able to do, from what it answered to a few tokens. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from serving.dialect.engine import Limits
from serving.dialect.values import LogprobsMode

#: The same log-probability computed in two ways (drawing, and reading a prompt) differs by rounding, in bfloat16 by a few hundredths.
_SAME = 0.1
#: What the sampling parameters of Tinker have no room for.
_LACKS = frozenset(
    {"min_p", "min_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"}
)
_MOST_SEQUENCES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """Of one server.

    Attributes:
        mode: of what distribution a sample's log-probabilities are; None: it cannot be told.
        prompt_logprobs: it scores prompts; without, no reply can be opened for the model.
        top_logprobs: it tells the likeliest tokens beside the drawn ones.
    """

    mode: LogprobsMode | None
    prompt_logprobs: bool
    top_logprobs: bool

    @property
    def limits(self) -> Limits:
        """What is refused."""
        lacks = set(_LACKS)
        if not self.top_logprobs:
            lacks.add("top_logprobs")
        if not self.prompt_logprobs:
            lacks.add("forced_call")
        return Limits(name="this Tinker server", sequences=_MOST_SEQUENCES, lacks=frozenset(lacks))

    @property
    def notes(self) -> tuple[str, ...]:
        """What it cannot do, in sentences for people."""
        notes = [
            "Tinker has no token stream: a stream is made from the finished reply, so its first words come with its last",
            "no constrained decoding: response_format is refused, and a required call is opened for the model, not held to its schema",
            "Tinker knows no penalties, logit_bias, min_p or min_tokens: requests that ask for them are refused",
        ]
        if not self.top_logprobs:
            notes.append("this server tells no top_logprobs: requests that ask for them are refused")
        if not self.prompt_logprobs:
            notes.append("this server scores no prompts: required tool calls are refused")
        if self.mode is None:
            notes.append(
                "of what distribution its log-probabilities are could not be told: turns at other temperatures than 1 do not train"
            )
        return tuple(notes)


def mode_of(
    hot: Sequence[float] | None,
    hot_read: Sequence[float] | None,
    plain: Sequence[float] | None,
    plain_read: Sequence[float] | None,
) -> LogprobsMode | None:
    """Return of what distribution a sample's log-probabilities are.

    Args:
        hot: [C] as told with a sample drawn at temperature 2; None: not told.
        hot_read: [C] of the same tokens as told when they are read as a prompt: always the model's own.
        plain: as `hot`, drawn at temperature 1.
        plain_read: as `hot_read`, of `plain`'s tokens.
    """
    if _agree(hot, hot_read):
        return "raw_logprobs"
    return "processed_logprobs" if _agree(plain, plain_read) else None


def _agree(told: Sequence[float] | None, read: Sequence[float] | None) -> bool:
    if not told or not read or len(told) != len(read):
        return False
    return sum(abs(a - b) for a, b in zip(told, read, strict=True)) / len(told) < _SAME
