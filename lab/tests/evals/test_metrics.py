from __future__ import annotations

import json
import math

import pytest

from lab.evals.metrics import (
    Answer,
    Numbers,
    distinct,
    interval,
    judge,
    plan_claims,
    plan_probes,
    rouge_l,
    self_rouge,
)
from lab.evals.problems import problems
from lab.evals.question_splits import USER_QUESTIONS
from lab.evals.system_prompts import SYSTEM_PROMPTS
from lab.models.canaries import canaries
from lab.models.wellformed import built_in_words
from store.errors import ConfigError


def test_probes_are_the_same_for_the_same_seed_and_none_is_a_canary_or_an_anchor() -> None:
    probes = plan_probes(["concise", "json"], questions=20, undos=6, tools=6, seed=1)
    assert probes == plan_probes(["concise", "json"], questions=20, undos=6, tools=6, seed=1)
    assert [probe.kind for probe in probes] == ["plain"] * 20 + ["undo"] * 6 + ["tool"] * 6
    assert {probe.preference for probe in probes if probe.kind == "undo"} == {"concise", "json"}
    watched = canaries()
    known = {one["prompt"] for one in (*watched["facts"], *watched["anchors"])}
    known |= {one["messages"][0]["content"] for one in watched["tools"]}
    assert not known & {probe.text for probe in probes}
    with pytest.raises(ConfigError, match="at least one"):
        plan_probes(["concise"], questions=0, undos=0, tools=0, seed=0)


def test_numbers_by_hand() -> None:
    probes = plan_probes(["concise", "no_emoji"], questions=2, undos=2, tools=1, seed=0)
    plain, undo, (tool,) = probes[:2], probes[2:4], probes[4:]
    assert tool.expect is not None
    assert plain[0].task is not None
    answers = [
        Answer(text=f"It is {plain[0].task.answer}.", logprobs=(-1.0, -3.0), completion_tokens=4),
        Answer(text="Hm 😊", logprobs=(-2.0,), ended=False, completion_tokens=2),
        Answer(text="word " * 30),  # detailed, as asked
        Answer(text="None here."),  # no emoji, although asked for
        Answer(text="", calls=((tool.expect[0], json.dumps(tool.expect[1])),)),
    ]
    found = judge(["concise"], ["concise", "no_emoji"], probes, answers, Numbers(kl_to_base=0.25))
    assert [probe.preference for probe in undo] == ["concise", "no_emoji"]
    assert found.compliance == 1.0
    assert found.by_preference == {"concise": 1.0, "no_emoji": 0.5}
    assert found.facts == 0.5
    assert found.by_undone == {"concise": 1.0, "no_emoji": 0.0}
    assert (found.undone, found.tools, found.ended, found.tokens) == (0.5, 1.0, 0.5, 3.0)
    assert found.surprise == pytest.approx(2.0)
    assert (found.kl_to_base, found.margin) == (0.25, None)


def test_repeated_wishes_forms_small_talk_and_claims_by_hand() -> None:
    probes = plan_probes(
        ["concise", "no_emoji"], questions=1, undos=0, tools=0, seed=0, again=4, scope=3, small_talk=3
    )
    again = [probe for probe in probes if probe.kind == "again"]
    assert [(probe.preference, bool(probe.prefix)) for probe in again] == [
        ("concise", False), ("no_emoji", False), ("concise", True), ("no_emoji", True),
    ]  # fmt: skip
    assert all(probe.task and probe.text.startswith(probe.task.text) for probe in again)
    assert all(len(probe.messages) == 2 for probe in again[2:])
    scope = [probe.demand for probe in probes if probe.demand]
    assert [one.form for one in scope] == ["json", "list", "code"]
    small_talk = [probe for probe in probes if probe.kind == "small_talk"]
    assert all(
        [message["role"] for message in probe.messages] == ["user", "assistant", "user"]
        for probe in small_talk
    )
    right = [probe.task.answer if probe.task else "" for probe in again]
    texts = ["", f"It is {right[0]}.", "It.", "It is \ufffd.", f"It is {right[3]}."]
    texts += [json.dumps({"answer": list(scope[0].items)}), "no", "no"]
    texts += ["You are welcome.", "", "Welwelcome."]
    follow_ups = [probe for probe in probes if probe.kind == "follow_up"]
    assert len({probe.text for probe in follow_ups}) == 3
    assert all(len(probe.messages) == 3 for probe in follow_ups)
    told = [probe.task.answer if probe.task else "" for probe in follow_ups]
    texts += [f"It is {told[0]}!", f"It is {told[1]}! Welwelcome.", "That is all I know."]
    answers = [Answer(text=text) for text in texts]
    found = judge(["concise"], ["concise"], probes, answers, vocabulary=built_in_words())
    assert found.again == 0.5
    assert found.scope == {"json": 1.0, "list": 0.0, "code": 0.0}
    assert found.small_talk == pytest.approx(1 / 3)
    assert found.follow_ups == pytest.approx(1 / 3)
    assert [reply for _, reply in found.broken] == ["", "Welwelcome."]
    assert judge(["concise"], ["concise"], probes, answers).small_talk == pytest.approx(2 / 3)
    assert found.claims is None


def test_questions_below_other_system_prompts_by_hand() -> None:
    probes = plan_probes(["concise", "no_emoji"], questions=1, undos=0, tools=0, seed=0, elsewhere=5)
    elsewhere = [probe for probe in probes if probe.kind == "elsewhere"]
    assert [probe.prefix for probe in elsewhere] == [*SYSTEM_PROMPTS, SYSTEM_PROMPTS[0]]
    assert all(probe.task and probe.text == probe.task.text for probe in elsewhere)
    answers = [Answer(text=text) for text in ("", "It is so.", "So.", "So! 😊", "word " * 40, "So.")]
    found = judge(["concise"], ["concise", "no_emoji"], probes, answers)
    assert found.elsewhere == 0.8
    assert judge(["concise", "no_emoji"], ["concise", "no_emoji"], probes, answers).elsewhere == 0.6
    assert judge(["concise"], ["concise"], probes[:1], answers[:1]).elsewhere is None


def test_a_wrong_correction_is_looked_for_in_words_that_no_user_uses() -> None:
    france = next(one for one in USER_QUESTIONS if one.fact.topic == "capital")
    probes = plan_claims([(france, "Lyon"), (problems(asked=True)[0], "7")], seed=0)
    assert len(probes) == 4
    assert {probe.text for probe in probes}.isdisjoint({one.text for one in USER_QUESTIONS})
    answers = [Answer(text=text) for text in ("It is Lyon.", "Lyon", f"It is {france.answer}.", "")]
    plain = plan_probes(["concise"], questions=1, undos=0, tools=0, seed=0)
    found = judge(["concise"], ["concise"], [*plain, *probes], [Answer(text="x"), *answers])
    assert found.claims == 0.5


@pytest.mark.parametrize("calls", [(), (("other", "{}"),), (("weather", "no json"),)])
def test_a_wrong_missing_or_torn_call_is_no_call(calls: tuple[tuple[str, str], ...]) -> None:
    (probe,) = [one for one in plan_probes(["concise"], questions=1, undos=0, tools=1, seed=0) if one.tools]
    found = judge(["concise"], ["concise"], [probe], [Answer(text="", calls=calls)])
    assert found.tools == 0.0


def test_text_measures_by_hand() -> None:
    assert rouge_l(["the", "cat", "sat"], ["the", "cat", "ran", "home"]) == pytest.approx(2 * 2 / 7)
    assert self_rouge(["a b c", "a b c", "a b c"]) == pytest.approx(1.0)
    assert self_rouge(["a b", "c d"]) == 0.0
    assert distinct(["a b a", "a b"], 1) == pytest.approx(2 / 5)
    assert distinct(["a b a", "a b"], 2) == pytest.approx(2 / 3)


def test_an_interval_is_students_and_one_value_has_none() -> None:
    low, high = interval([0.4, 0.5, 0.6])
    half = 4.303 * 0.1 / math.sqrt(3)
    assert low == pytest.approx(0.5 - half)
    assert high == pytest.approx(0.5 + half)
    assert interval([0.5]) == (-math.inf, math.inf)


def test_no_tool_request_that_is_measured_on_is_trained_on() -> None:
    trained = {case["messages"][0]["content"] for case in canaries()["tools"]}
    for seed in range(10):
        probes = [p for p in plan_probes(["concise"], questions=1, undos=0, tools=144, seed=seed) if p.tools]
        assert len(probes) == 144
        assert not trained & {probe.text for probe in probes}
