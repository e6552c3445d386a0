"""The features of a Tinker server, detected from its responses to a few tokens. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from serving.openai_server.engine import EngineLimits
from serving.openai_server.values import LogprobsMode

#: Rounding: the same log-probability, sampled or rescored as a prompt, differs by a few hundredths in bfloat16.
_TOLERANCE = 0.1
#: Request fields that Tinker's sampling parameters do not have.
_UNSUPPORTED = frozenset(
    {"min_p", "min_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"}
)
_MAX_SEQUENCES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFeatures:
    """The features of one server.

    Attributes:
        mode: which distribution a sample's log-probabilities belong to; None: unknown.
        prompt_logprobs: it scores prompts; required for prescribed beginnings of a reply.
        top_logprobs: it reports the most likely tokens beside the sampled ones.
    """

    mode: LogprobsMode | None
    prompt_logprobs: bool
    top_logprobs: bool

    @property
    def limits(self) -> EngineLimits:
        """Return what is refused."""
        unsupported = set(_UNSUPPORTED)
        if not self.top_logprobs:
            unsupported.add("top_logprobs")
        if not self.prompt_logprobs:
            unsupported |= {"forced_call", "prompt_logprobs"}
        return EngineLimits(
            name="this Tinker server", max_sequences=_MAX_SEQUENCES, unsupported=frozenset(unsupported)
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the limitations, as sentences for the user."""
        notes = [
            "Tinker has no token stream: a stream is made from the finished reply, so its first token arrives with its last",
            "no constrained decoding: response_format is refused, and a required call is opened for the model, not held to its schema",
            "Tinker has no penalties, logit_bias, min_p or min_tokens: requests with them are refused",
        ]
        if not self.top_logprobs:
            notes.append("this server reports no top_logprobs: requests for them are refused")
        if not self.prompt_logprobs:
            notes.append("this server scores no prompts: required tool calls are refused")
        if self.mode is None:
            notes.append(
                "the distribution of its log-probabilities is unknown: turns at other temperatures than 1 do not train"
            )
        return tuple(notes)


def detect_logprobs_mode(
    at_two: Sequence[float] | None,
    at_two_rescored: Sequence[float] | None,
    at_one: Sequence[float] | None,
    at_one_rescored: Sequence[float] | None,
) -> LogprobsMode | None:
    """Return which distribution a sample's log-probabilities belong to.

    Args:
        at_two: [C] reported with a sample drawn at temperature 2; None: not reported.
        at_two_rescored: [C] of the same tokens scored as a prompt: always the model's own.
        at_one: as `at_two`, drawn at temperature 1.
        at_one_rescored: as `at_two_rescored`, of `at_one`'s tokens.
    """
    if _is_close(at_two, at_two_rescored):
        return "raw_logprobs"
    return "processed_logprobs" if _is_close(at_one, at_one_rescored) else None


def _is_close(version_info: Sequence[float] | None, read: Sequence[float] | None) -> bool:
    if not version_info or not read or len(version_info) != len(read):
        return False
    return sum(abs(a - b) for a, b in zip(version_info, read, strict=True)) / len(version_info) < _TOLERANCE
