from __future__ import annotations

import pytest

from evals.client import House
from evals.measure import judge_replies, measure, plan_probes, wilson
from evals.pools import PROBES
from store.errors import ConfigError, UpstreamError
from tests.evals.scripted import KEY, ScriptedPatina, concise_reply, serving, verbose_reply

PREFERENCES = ("concise", "no_emoji")


def test_a_smaller_plan_asks_the_first_questions_of_a_larger_one() -> None:
    small, large = (plan_probes(PREFERENCES, questions=n, opposites=4) for n in (8, 16))
    assert small[:8] == large[:8]
    assert [p.seed for p in small] == [p.seed for p in plan_probes(PREFERENCES, questions=8, opposites=4)]
    assert plan_probes(PREFERENCES, questions=8, seed=1)[:8] != small[:8]


def test_opposites_are_shared_out_among_the_preferences() -> None:
    probes = plan_probes(PREFERENCES, questions=1, opposites=6)[1:]
    assert [p.opposite_of for p in probes] == ["concise", "no_emoji"] * 3
    assert all(p.text.startswith(p.question.text) and p.text != p.question.text for p in probes)
    assert len({p.text for p in probes}) == 6


def test_more_probes_than_there_are_is_an_error() -> None:
    with pytest.raises(ConfigError, match="probe questions"):
        plan_probes(PREFERENCES, questions=len(PROBES) + 1)


def test_shares_are_counted_as_defined() -> None:
    probes = plan_probes(PREFERENCES, questions=4, opposites=4)
    texts = [p.text for p in probes]
    replies = [
        concise_reply(texts[0]),  # right in every respect
        verbose_reply(texts[1]),  # right fact, neither short nor without emoji
        "I do not know 😊",  # short, but an emoji and no fact
        "",  # nothing at all
        verbose_reply(texts[4]),  # obeys: long
        verbose_reply(texts[5]),  # obeys: with emoji
        "Short.",  # does not: asked to be long
        "Short.",  # does not: asked for emoji
    ]
    found = judge_replies(PREFERENCES, probes, replies)
    assert found.questions == 4
    assert found.compliance == 0.25
    assert found.by_preference == {"concise": 0.5, "no_emoji": 0.25}
    assert found.facts == 0.5
    assert found.opposites == 4
    assert found.by_opposite == {"concise": 0.5, "no_emoji": 0.5}
    assert found.opposite_obeyed == 0.5


def test_the_interval_contains_the_share_and_stays_within_0_and_1() -> None:
    assert wilson(0.0, 10)[0] == 0.0
    assert wilson(0.0, 10)[1] == pytest.approx(0.2775, abs=1e-3)
    assert wilson(0.5, 10)[0] == pytest.approx(0.2366, abs=1e-3)
    assert wilson(0.5, 10)[1] == pytest.approx(0.7634, abs=1e-3)
    assert wilson(1.0, 10)[1] == 1.0


async def test_a_house_is_measured_through_its_public_interface_without_leaving_a_trace() -> None:
    patina = ScriptedPatina()
    with serving(patina.app()) as url:
        async with House(url, KEY) as house:
            before = await measure(house, PREFERENCES, questions=12, opposites=4)
            patina.version = 1
            after = await measure(house, PREFERENCES, questions=12, opposites=4)
    assert before.compliance == 0.0
    assert before.facts == 1.0
    assert before.opposite_obeyed == 1.0
    assert after.compliance == 1.0
    assert after.facts == 1.0
    assert after.by_opposite["concise"] == 1.0
    assert patina.turns == []
    assert patina.probes == 2 * 16
    assert set(patina.keys) == {f"Bearer {KEY}"}


async def test_a_house_that_takes_probes_for_conversations_is_not_measured() -> None:
    with serving(ScriptedPatina(honours_opt_out=False).app()) as url:
        async with House(url, KEY) as house:
            with pytest.raises(UpstreamError, match="4 probes were recorded as conversations"):
                await measure(house, PREFERENCES, questions=4, write_s=0.0)
