"""Leave one client out, and other systems' rules, on traffic of modelled clients."""

from __future__ import annotations

import asyncio

import pytest

from cli.recorded_traffic import Recorded
from lab.evals.identity import (
    BASELINES,
    header_or_unknown,
    measure,
    merged,
    modelled,
    one_a_model,
    scored,
    table_of,
    tools_are_main,
)
from lab.evals.traffic_score import Pairs
from lab.evals.weights import (
    LabelledRequest,
    fit,
    hand_weights,
    leave_one_out,
    read_samples,
    without_structure,
    without_words,
)
from wire.classify import WEIGHTS


@pytest.fixture(scope="module")
def traffic() -> dict[str, list[Recorded]]:
    return {
        name: rows for name, rows in modelled().items() if name in ("titled-after", "german-app", "scripts")
    }


def test_training_without_a_client_uses_nothing_of_it() -> None:
    prior = {"bias": -1.0, "a": 0.0, "b": 0.0}
    samples = [LabelledRequest(client="x", codes=("bias", "a"), is_side=True)] * 8
    samples += [
        LabelledRequest(client="y", codes=("bias", "b"), is_side=True),
        LabelledRequest(client="y", codes=("bias",), is_side=False),
    ]
    trained = leave_one_out(samples, ["x", "y"], prior)
    assert trained["x"]["a"] == 0.0 < trained["x"]["b"]
    assert trained["y"]["b"] == 0.0 < trained["y"]["a"]


def test_weights_keep_the_hand_set_value_where_data_say_nothing() -> None:
    assert (
        fit([LabelledRequest(client="x", codes=("bias",), is_side=False)], {"bias": -2.0, "unseen": 3.0})[
            "unseen"
        ]
        == 3.0
    )
    assert fit([], {"bias": 1.5}) == {"bias": 1.5}


def test_the_weights_in_use_are_those_that_training_gives() -> None:
    trained = {code: weight for code, weight in fit(read_samples(), hand_weights()).items() if weight}
    assert trained == pytest.approx(dict(WEIGHTS), abs=0.02)


def test_words_and_structure_are_apart() -> None:
    words, structure = without_structure(WEIGHTS), without_words(WEIGHTS)
    assert not words.keys() & structure.keys() - {"bias"}
    assert words.keys() | structure.keys() == WEIGHTS.keys()


def test_scores_of_all_clients_are_added_up(traffic: dict[str, list[Recorded]]) -> None:
    scores = asyncio.run(measure(traffic, lambda _: WEIGHTS))
    total = merged(scores.values())
    assert total.pairable == sum(one.pairable for one in scores.values())
    assert total.main == sum((one.main for one in scores.values()), start=Pairs(predicted=0, true=0, both=0))
    assert total.accuracy == total.main.f1 == total.pairing == 1.0
    assert table_of("all", scores).row_count == len(traffic) + 1


def test_other_rules_do_what_they_say(traffic: dict[str, list[Recorded]]) -> None:
    rows = traffic["titled-after"]
    by_header = header_or_unknown(rows)
    assert {p.session for p in by_header} == {"unknown"}
    assert {p.kind for p in by_header} == {"side"}
    assert [p.answered_seq for p in by_header[:3]] == [None, 1, 2]
    assert {p.session for p in one_a_model(rows)} == {"tui-small"}
    assert {p.kind for p in tools_are_main(rows)} == {"side"}
    ours = merged(asyncio.run(measure(traffic, lambda _: WEIGHTS)).values())
    for baseline in BASELINES.values():
        theirs = merged(scored(r, baseline(r)) for r in traffic.values())
        assert theirs.main.f1 < ours.main.f1
        assert theirs.pairing < ours.pairing
