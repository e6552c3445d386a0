"""Attestation: whether a backend serves the version that the trainer made, by its log-probabilities of a fixed text. Pure.

Public serving stacks were seen to answer with the base model under an adapter's name, without an error. The manifest of a version carries the
trainer's log-probabilities (`store.manifest.Attestation`); `serving.http` asks the backend for its own after each load.

The trainer and an engine round differently. How far they are apart is measured on the base model, whose weights both have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from store.errors import AdapterMismatch, UpstreamError
from store.manifest import Attestation

#: Log-probabilities may differ by so much, nats, however well the base model agrees.
LEAST_TOLERANCE = 0.005
#: An adapter's differences may be so many times those of the base model.
NOISE_FACTOR = 4.0
#: Least difference of two versions, nats, from which equal log-probabilities are a fault.
_LEAST_GAP = 1e-3
#: Two versions are served as one when their difference is this share of what it is at the trainer.
_EQUAL_SHARE = 0.05

#: What an attestation can be compared with, when the backend reports no log-probabilities of a prompt.
NOT_SCORED = "not attested: the backend reports no log-probabilities of a prompt"
NO_ATTESTATION = "not attested: it was published before versions carried log-probabilities"


def score_request(model: str, token_ids: Sequence[int], *, stream: bool) -> dict[str, Any]:
    """Return the completion request whose reply has the log-probabilities of a prompt."""
    return {
        "model": model,
        "prompt": list(token_ids),
        "max_tokens": 1,
        "temperature": 1.0,
        "echo": True,
        "logprobs": 0,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "stream": stream,
    }


def read_scores(chunks: Sequence[Mapping[str, Any]], token_ids: Sequence[int]) -> tuple[float, ...]:
    """Return the log-probabilities [T - 1] of a prompt's tokens after the first, from a whole reply or a stream's events.

    Raises:
        UpstreamError: the reply has none, or they are of other tokens.
    """
    tokens: list[str] = []
    values: list[float | None] = []
    try:
        for chunk in chunks:
            for choice in chunk["choices"]:
                columns = choice.get("logprobs") or {"tokens": [], "token_logprobs": []}
                tokens += columns["tokens"]
                values += columns["token_logprobs"]
    except (AttributeError, KeyError, TypeError) as error:
        raise UpstreamError("the reply is not a completion with log-probabilities") from error
    expected = [f"token_id:{token_id}" for token_id in token_ids]
    found = values[1 : len(expected)]
    if tokens[: len(expected)] != expected or any(value is None for value in found):
        raise UpstreamError("the reply has no log-probabilities of its prompt")
    return tuple(float(value) for value in found if value is not None)


def attest(
    expected: Attestation,
    found: Mapping[str, Sequence[float]],
    *,
    base: Sequence[float],
    parent: Sequence[float] | None = None,
) -> str:
    """Compare what a backend reports of a version with what the trainer computed; returns the comparison in one sentence.

    Args:
        found: the backend's log-probabilities of the version, by how they were asked for ("reply", "stream").
        base: the backend's of its base model.
        parent: the backend's of the version it was made from; None: not known.

    Raises:
        AdapterMismatch: it serves other weights than the trainer published.
    """
    noise = _distance(base, expected.base)
    tolerance = max(LEAST_TOLERANCE, NOISE_FACTOR * noise)
    largest = 0.0
    for way, values in found.items():
        for name, trained, served in (
            ("the base model", expected.base, base),
            (f"its parent {expected.parent_name}", expected.parent, parent),
        ):
            gap = _distance(expected.version, trained)
            if served is None or gap <= max(_LEAST_GAP, noise):
                continue
            if _distance(values, served) <= _EQUAL_SHARE * gap:
                raise AdapterMismatch(
                    f"the backend serves {name} instead of this version ({way}): their log-probabilities are equal, "
                    f"the trainer's differ by {gap:.3g}"
                )
        difference = _distance(values, expected.version)
        if not difference <= tolerance:
            raise AdapterMismatch(
                f"the backend serves other weights than the trainer published ({way}): a log-probability differs by "
                f"{difference:.3g}, the tolerance is {tolerance:.3g}"
            )
        largest = max(largest, difference)
    learned = _distance(expected.version, expected.parent)
    note = "" if learned > tolerance else f"; from its parent it differs by {learned:.2g} only"
    return f"attested: log-probabilities differ by {largest:.2g} at most, tolerance {tolerance:.2g}{note}"


def _distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the largest difference; not a number where a value is none."""
    differences = [abs(a - b) for a, b in zip(one, other, strict=True)]
    return next((value for value in differences if value != value), max(differences))
