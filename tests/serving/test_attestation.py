"""A backend that serves other weights than the trainer published is recognised by its log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from serving.attestation import attest, read_scores
from store.errors import AdapterMismatch, UpstreamError
from store.manifest import Attestation

BASE = (-1.0, -2.0, -3.0)
PARENT = (-1.2, -2.1, -3.0)
VERSION = (-1.5, -2.4, -3.1)
EXPECTED = Attestation(
    token_ids=(5, 6, 7, 8), version=VERSION, parent=PARENT, base=BASE, parent_name="tiny@1"
)


def plus(values: Sequence[float], error: float) -> tuple[float, ...]:
    """Return values that an engine rounds by ``error``, of either sign."""
    return tuple(value + error * (-1) ** i for i, value in enumerate(values))


def both(values: Sequence[float]) -> dict[str, Sequence[float]]:
    return {"reply": values, "stream": values}


@pytest.mark.parametrize("error", [0.0, 1e-3, 0.05])
def test_the_published_version_is_attested_also_by_an_engine_that_rounds(error: float) -> None:
    found = attest(EXPECTED, both(plus(VERSION, error)), base=plus(BASE, -error), parent=plus(PARENT, error))
    assert found.startswith("attested: ")


@pytest.mark.parametrize("error", [0.0, 1e-3, 0.05])
def test_the_base_model_under_the_versions_name_is_refused(error: float) -> None:
    served = plus(BASE, error)
    with pytest.raises(AdapterMismatch, match="serves the base model instead of this version"):
        attest(EXPECTED, both(served), base=served)


def test_a_stream_of_other_weights_than_the_reply_is_refused() -> None:
    with pytest.raises(AdapterMismatch, match=r"the base model instead of this version \(stream\)"):
        attest(EXPECTED, {"reply": VERSION, "stream": BASE}, base=BASE)


def test_the_parent_under_the_versions_name_is_refused_where_the_trainers_differ() -> None:
    with pytest.raises(AdapterMismatch, match="its parent tiny@1 instead of this version"):
        attest(EXPECTED, both(PARENT), base=BASE, parent=PARENT)
    same = replace(EXPECTED, version=PARENT)  # a step that changed nothing here
    assert "from its parent it differs by 0 only" in attest(same, both(PARENT), base=BASE, parent=PARENT)


def test_a_small_step_that_is_lost_is_refused_below_the_tolerance() -> None:
    small = replace(EXPECTED, version=plus(PARENT, 0.003))
    assert attest(small, both(plus(PARENT, 0.003)), base=BASE, parent=PARENT).startswith("attested")
    with pytest.raises(AdapterMismatch, match="its parent"):
        attest(small, both(PARENT), base=BASE, parent=PARENT)


def test_other_weights_are_refused_beyond_what_the_base_model_differs_by() -> None:
    found = both((-1.5, -2.4, -3.3))
    with pytest.raises(AdapterMismatch, match=r"differs by 0\.2, the tolerance is 0\.005"):
        attest(EXPECTED, found, base=BASE)
    assert "tolerance 0.4" in attest(EXPECTED, found, base=plus(BASE, 0.1))  # an engine that rounds so much


@pytest.mark.parametrize("where", range(3))
def test_a_value_that_is_no_number_is_refused(where: int) -> None:
    served = [math.nan if i == where else value for i, value in enumerate(VERSION)]
    with pytest.raises(AdapterMismatch, match="differs by nan"):
        attest(EXPECTED, both(served), base=BASE)


def test_scores_are_read_from_a_reply_and_from_a_streams_events() -> None:
    def chunk(tokens: list[int], values: list[float | None]) -> dict[str, Any]:
        columns = {"tokens": [f"token_id:{token}" for token in tokens], "token_logprobs": values}
        return {"choices": [{"logprobs": columns}]}

    whole = chunk([5, 6, 7, 9], [None, -1.0, -2.0, -0.1])
    assert read_scores([whole], [5, 6, 7]) == (-1.0, -2.0)
    pieces = [chunk([5, 6], [None, -1.0]), chunk([7, 9], [-2.0, -0.1]), {"choices": []}]
    assert read_scores(pieces, [5, 6, 7]) == (-1.0, -2.0)
    faults: list[dict[str, Any]] = [
        chunk([5, 6, 8], [None, -1.0, -2.0]),
        chunk([5, 6, 7], [None, None, -2.0]),
        chunk([5, 6], [None, -1.0]),
        {"choices": [{"logprobs": None}]},
        {"object": "error"},
    ]
    for wrong in faults:
        with pytest.raises(UpstreamError):
            read_scores([wrong], [5, 6, 7])
