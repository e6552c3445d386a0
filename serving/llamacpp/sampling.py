"""Samples the next token of one sequence from its logits, with its log-probability. Pure; the semantics of `serving.embedded.sampling`.

Log-probabilities are raw: log-softmax of the model's logits, before temperature, penalties and truncation. A token is sampled by inverting the
cumulative distribution, in the order of the ids, at one uniform number that the caller passes.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy
import numpy.typing

from serving.openai_server.values import SamplingParams

Row = numpy.typing.NDArray[numpy.float32]

#: Most likely tokens among which `top_p` is looked for first: sorting a whole vocabulary costs milliseconds.
_FIRST = 512


def edit_logits(
    line: Row,
    params: SamplingParams,
    prompt_ids: frozenset[int],
    counts: Counter[int],
    end_ids: frozenset[int],
) -> None:
    """Apply penalties, biases and minimum length to logits [V], in place. `counts`: how often each id was sampled so far."""
    if params.repetition_penalty != 1.0:
        seen = numpy.array(sorted(prompt_ids | counts.keys()), numpy.intp)
        values = line[seen]
        line[seen] = numpy.where(
            values > 0, values / params.repetition_penalty, values * params.repetition_penalty
        )
    if counts and (params.presence_penalty or params.frequency_penalty):
        times = numpy.array(list(counts.values()), numpy.float32)
        line[list(counts)] -= params.frequency_penalty * times + params.presence_penalty
    if params.logit_bias:
        line[list(params.logit_bias)] += numpy.array(list(params.logit_bias.values()), numpy.float32)
    if counts.total() < params.min_tokens and end_ids:
        line[sorted(end_ids)] = -math.inf


def log_normalizer(raw: Row) -> float:
    """Return the logarithm of the sum of exponentials of logits [V]."""
    largest = raw.max()
    return float(largest) + math.log(numpy.exp(raw - largest).sum(dtype=numpy.float64))


def score(raw: Row, token_id: int) -> float:
    """Return the log-probability of a token."""
    return float(raw[token_id]) - log_normalizer(raw)


def choose(edited: Row, params: SamplingParams, uniform: float) -> int:
    """Return the token that is sampled from logits [V] at a uniform number in [0, 1)."""
    if params.temperature == 0.0:
        return int(edited.argmax())
    scaled = edited.astype(numpy.float64) / params.temperature
    scaled -= scaled.max()
    kept = _kept(scaled, params)
    weights = numpy.exp(scaled if kept is None else scaled[kept])
    cumulative = weights.cumsum()
    # Below the total, also after rounding; "right" skips tokens of probability 0.
    target = min(uniform * cumulative[-1], math.nextafter(cumulative[-1], 0.0))
    place = int(cumulative.searchsorted(target, side="right"))
    return place if kept is None else int(kept[place])


def _kept(
    scaled: numpy.typing.NDArray[numpy.float64], params: SamplingParams
) -> numpy.typing.NDArray[numpy.intp] | None:
    """Return the ids that min-p, top-k and top-p leave, in this order, sorted; None: all. The most likely one always stays."""
    top_k = params.top_k if 0 < params.top_k < len(scaled) else 0
    if not params.min_p and not top_k and params.top_p >= 1.0:
        return None
    ids = numpy.flatnonzero(scaled >= math.log(params.min_p)) if params.min_p else numpy.arange(len(scaled))
    values = scaled[ids]
    if top_k and top_k < len(ids):
        best = numpy.argpartition(values, len(ids) - top_k)[len(ids) - top_k :]
        ids, values = ids[best], values[best]
    if params.top_p < 1.0:
        chosen = _top_p(values, params.top_p)
        ids = ids[chosen]
    return numpy.sort(ids)


def _top_p(values: numpy.typing.NDArray[numpy.float64], top_p: float) -> numpy.typing.NDArray[numpy.intp]:
    """Return the places of the most likely values; one stays while the mass before it is below `top_p`."""
    total = numpy.exp(values).sum()
    size = len(values)
    for count in (min(_FIRST, size), size):
        best = (
            numpy.argpartition(values, size - count)[size - count :] if count < size else numpy.arange(size)
        )
        order = best[numpy.argsort(-values[best], kind="stable")]
        mass = numpy.exp(values[order]).cumsum() / total
        if mass[-1] >= top_p or count == size:
            break
    return order[: 1 + int((mass[:-1] < top_p).sum())]


def most_likely(raw: Row, count: int) -> list[tuple[int, float]]:
    """Return the `count` most likely (id, log-probability) pairs, the most likely first."""
    count = min(count, len(raw))
    best = numpy.argpartition(raw, len(raw) - count)[len(raw) - count :]
    best = best[numpy.argsort(-raw[best], kind="stable")]
    norm = log_normalizer(raw)
    return [(int(one), float(raw[one]) - norm) for one in best]
