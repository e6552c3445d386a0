"""The fixed text by which a served version is recognised, and its log-probabilities under the trainer's weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from store.manifest import Attestation
from trainer.canaries import as_message
from trainer.protocol import Policy, Weights

_QUESTION = "What is the sea?"
#: Tokens of the base model's own answer: where a policy has learned something, it answers otherwise. Short, because some training servers
#: compile a program for each length.
_ANSWER_TOKENS = 8
_MOST_TOKENS = 32


class FixedText:
    """A question and the base model's greedy answer to it, sampled once."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._token_ids: tuple[int, ...] = ()

    def attest(self, before: Mapping[str, Any] | None, parent_name: str) -> Attestation | None:
        """Return the log-probabilities under the weights as they are, those before the attempt, and the base model's.

        Args:
            before: snapshot of the weights that the attempt began from; None: it began at the base model.
            parent_name: of the version that they are.

        Returns:
            None where the text has fewer than two tokens.
        """
        if not self._token_ids:
            prompt = self._policy.render([as_message(_QUESTION)])[-_MOST_TOKENS + _ANSWER_TOKENS :]
            (answer,) = self._policy.sample(
                [prompt], max_tokens=_ANSWER_TOKENS, temperature=0.0, weights=Weights.BASE
            )
            self._token_ids = (*prompt, *answer.token_ids)
        if len(self._token_ids) < 2:
            return None
        version = tuple(self._policy.trained_logprobs(self._token_ids))
        base = parent = self._read(Weights.BASE)
        if before is not None:
            with self._policy.as_it_was(before):
                parent = self._read(Weights.STUDENT)
        return Attestation(
            token_ids=self._token_ids, version=version, parent=parent, base=base, parent_name=parent_name
        )

    def _read(self, weights: Weights) -> tuple[float, ...]:
        first, *rest = self._token_ids
        values, _ = self._policy.response_logprobs([[first]], [rest], weights)
        return tuple(float(value) for value in values[0])
