"""The classifier's weights: training data and logistic regression around hand-set weights.

A Gaussian prior around the hand-set weights (`classifier/hand_weights.json`) keeps those that the data say little about. Every client counts
alike, however many requests it sent. Data: `classifier/features.jsonl` (evidence codes and label of each request of recorded and modelled clients)
and `classifier/cases.jsonl` (single requests as common programs and people send them, in words of our own).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

import numpy as np

from wire.classify import GROUP_OF, find_codes, weigh

#: Weight of a single case, in requests of a client.
CASE_WEIGHT = 1.5
FOLDER = files("lab.evals") / "classifier"
#: Width of the prior around the hand-set weights.
PRIOR_WIDTH = 1.0
#: A weight beyond this would let one piece of evidence outweigh everything else.
MAX_WEIGHT = 5.0

_CASE = "case "
#: Groups of evidence that are words.
WORD_GROUPS = frozenset({
    "machine", "topic_about", "topic_order", "programs_topic", "role_topic", "role_topic_order", "third_person", "function", "human", "answer_form",
})  # fmt: skip

Weights = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledRequest:
    """The groups of evidence in one labelled request."""

    client: str
    codes: tuple[str, ...]
    is_side: bool


def hand_weights() -> dict[str, float]:
    """Return the hand-set weights."""
    found: dict[str, float] = json.loads((FOLDER / "hand_weights.json").read_text("utf-8"))
    return found


def read_samples() -> list[LabelledRequest]:
    """Return the training data of this repository."""
    return read_features() + read_cases()


def read_features() -> list[LabelledRequest]:
    """Return the requests of recorded and modelled clients."""
    lines = (FOLDER / "features.jsonl").read_text("utf-8").splitlines()
    return [_sample(json.loads(line)) for line in lines]


def groups_of(codes: Iterable[str]) -> tuple[str, ...]:
    """Return the groups of evidence codes, each once."""
    return tuple(dict.fromkeys(GROUP_OF[code] for code in codes if code in GROUP_OF))


def _sample(line: Mapping[str, object]) -> LabelledRequest:
    codes = line["codes"]
    assert isinstance(codes, str)
    return LabelledRequest(
        client=str(line["client"]), codes=tuple(codes.split()), is_side=line["kind"] == "side"
    )


def read_cases() -> list[LabelledRequest]:
    """Return the single requests; each counts as a client of its own."""
    found = []
    for number, line in enumerate((FOLDER / "cases.jsonl").read_text("utf-8").splitlines()):
        case = json.loads(line)
        messages = [{"role": "system", "content": case["system"]}] if case["system"] else []
        if case["later"]:
            messages += [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello!"}]
        messages.append({"role": "user", "content": case["user"]})
        codes = [*find_codes(messages, case["request"]), *(["extends_main"] if case["later"] else [])]
        name = f"{_CASE}{number}"
        counted = groups_of(e.code for e in weigh(codes, hand_weights()).evidence)
        found.append(LabelledRequest(client=name, codes=counted, is_side=case["kind"] == "side"))
    return found


def fit(samples: Sequence[LabelledRequest], prior: Weights, *, steps: int = 60) -> dict[str, float]:
    """Return the weights with the highest posterior probability (Newton's method).

    Each client has the weight of at most eight main and eight side turns, a single case that of `CASE_WEIGHT` turns.
    """
    codes = sorted({*prior, *(code for sample in samples for code in sample.codes)})
    place = {code: i for i, code in enumerate(codes)}
    x = np.zeros((len(samples), len(codes)))
    for i, sample in enumerate(samples):
        x[i, [place[code] for code in sample.codes]] = 1.0
    y = np.array([sample.is_side for sample in samples], dtype=float)
    counts = Counter((s.client, s.is_side) for s in samples)
    importance = np.array(
        [
            CASE_WEIGHT if s.client.startswith(_CASE) else min(1.0, 8.0 / counts[s.client, s.is_side])
            for s in samples
        ]
    )
    mean = np.array([prior.get(code, 0.0) for code in codes])
    precision = 1.0 / PRIOR_WIDTH**2
    w = mean.copy()
    for _ in range(steps):
        p = 1.0 / (1.0 + np.exp(-x @ w))
        gradient = x.T @ (importance * (p - y)) + precision * (w - mean)
        hessian = (x.T * (importance * p * (1 - p))) @ x + precision * np.eye(len(codes))
        step = np.linalg.solve(hessian, gradient)
        w -= step
        if np.abs(step).max() < 1e-6:
            break
    w = np.clip(w, -MAX_WEIGHT, MAX_WEIGHT)
    return {code: round(float(w[place[code]]), 2) for code in codes}


def leave_one_out(
    samples: Sequence[LabelledRequest], clients: Iterable[str], prior: Weights
) -> dict[str, dict[str, float]]:
    """Return for each client the weights that are trained without it."""
    return {client: fit([s for s in samples if s.client != client], prior) for client in clients}


def without_words(weights: Weights) -> dict[str, float]:
    """Return the weights of structure alone."""
    return {code: w for code, w in weights.items() if not _is_words(code)}


def without_structure(weights: Weights) -> dict[str, float]:
    """Return the weights of words alone."""
    return {code: w for code, w in weights.items() if _is_words(code) or code == "bias"}


def _is_words(code: str) -> bool:
    return code in WORD_GROUPS


def restrict(samples: Sequence[LabelledRequest], known: Weights) -> list[LabelledRequest]:
    """Return the samples with only those codes that ``known`` has."""
    return [
        LabelledRequest(client=s.client, codes=tuple(c for c in s.codes if c in known), is_side=s.is_side)
        for s in samples
    ]
