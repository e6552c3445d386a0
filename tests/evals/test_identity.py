"""Leave one client out, and other systems' rules, on traffic of modelled clients."""

from __future__ import annotations

import asyncio

import pytest

from evals.identity import (
    BASELINES,
    header_or_unknown,
    measure,
    merged,
    modelled,
    one_a_model,
    rules_without,
    scored,
    support_of,
    table_of,
    tools_are_main,
)
from evals.traffic import Pairs, Recorded
from recorder.classify import RULES


@pytest.fixture(scope="module")
def traffic() -> dict[str, list[Recorded]]:
    return {
        name: rows for name, rows in modelled().items() if name in ("titled-after", "german-app", "scripts")
    }


def test_a_rule_is_supported_by_the_clients_in_whose_side_calls_it_holds(
    traffic: dict[str, list[Recorded]],
) -> None:
    support = support_of(RULES, traffic)
    titles = [support[i] for i, rule in enumerate(RULES) if rule.reason == "title" and support[i]]
    assert {"german-app", "titled-after"} in [clients & {"german-app", "titled-after"} for clients in titles]
    assert "scripts" not in set().union(*support.values())  # it has no side calls


def test_leaving_a_client_out_switches_off_what_only_it_supports(
    traffic: dict[str, list[Recorded]],
) -> None:
    support = support_of(RULES, traffic)
    left = rules_without("german-app", RULES, support)
    gone = [rule for rule in RULES if rule not in left]
    assert "tags" in {rule.reason for rule in gone}
    assert all(support[i] == {"german-app"} for i, rule in enumerate(RULES) if rule in gone)
    assert rules_without("scripts", RULES, support) == RULES


def test_scores_of_all_clients_are_added_up(traffic: dict[str, list[Recorded]]) -> None:
    scores = asyncio.run(measure(traffic, lambda _: RULES))
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
    ours = merged(asyncio.run(measure(traffic, lambda _: RULES)).values())
    for baseline in BASELINES.values():
        theirs = merged(scored(r, baseline(r)) for r in traffic.values())
        assert theirs.main.f1 < ours.main.f1
        assert theirs.pairing < ours.pairing
