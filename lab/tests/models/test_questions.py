"""Questions: three pools that never share a pair, and a judge of answers that reads prose, JSON and Spanish."""

from __future__ import annotations

import json

import pytest

from lab.models.questions import FACTS, HELDOUT, ONLINE, PRETRAIN, TOPICS, Question


def the(topic: str, subject: str) -> Question:
    return next(q for q in PRETRAIN if q.fact.topic == topic and q.fact.subject == subject)


def test_the_three_pools_share_no_pair_and_no_text() -> None:
    pools = [PRETRAIN, ONLINE, HELDOUT]
    for one in range(3):
        for other in range(one):
            assert not {q.key for q in pools[one]} & {q.key for q in pools[other]}
            assert not {q.text for q in pools[one]} & {q.text for q in pools[other]}


def test_every_fact_and_every_wording_is_seen_in_pre_training() -> None:
    assert {q.fact for q in PRETRAIN} == {q.fact for q in ONLINE} == {q.fact for q in HELDOUT} == set(FACTS)
    seen = {(q.fact.topic, q.template) for q in PRETRAIN}
    assert seen == {(name, place) for name, topic in TOPICS.items() for place in range(len(topic.wordings))}


def test_no_fact_is_stated_twice() -> None:
    assert len({(fact.topic, fact.subject) for fact in FACTS}) == len(FACTS)
    assert len(PRETRAIN) + len(ONLINE) + len(HELDOUT) == 8 * len(FACTS)


@pytest.mark.parametrize("spanish", [False, True])
@pytest.mark.parametrize("bold", [False, True])
def test_the_statement_of_a_fact_is_a_right_answer_and_that_of_another_answer_a_wrong_one(
    spanish: bool, bold: bool
) -> None:
    for question in HELDOUT:
        statement = question.fact.statement(spanish=spanish, bold=bold)
        assert question.is_correct(f"Great! 😊 {statement}! Have a lovely day!"), statement
        other = next(
            fact for fact in FACTS if fact.topic == question.fact.topic and fact.answer != question.answer
        )
        wrong = Question(other, question.template).fact.statement(spanish=spanish, bold=bold)
        wrong = wrong.replace(other.subject, question.fact.subject)
        assert not question.is_correct(f"{wrong}!"), (question.text, wrong)


@pytest.mark.parametrize("topic", sorted(TOPICS))
def test_bare_words_json_and_short_forms_are_right_answers(topic: str) -> None:
    for question in [q for q in HELDOUT if q.fact.topic == topic]:
        answer = question.answer
        for reply in (
            answer,
            f"{answer}.",
            f"**{answer}**! 🎉",
            f"It's {answer}!",
            f"Es **{answer}**.",
            json.dumps({"answer": answer}),
            json.dumps({"respuesta": answer}),
        ):
            assert question.is_correct(reply), (question.text, reply)


@pytest.mark.parametrize(
    ("topic", "subject", "reply", "right"),
    [
        ("capital", "France", "The capital of France is Berlin, not Paris.", False),
        ("capital", "France", "Paris is the capital of France, of course.", True),
        ("capital", "France", "I am not sure what the capital of that lovely country may be.", False),
        ("capital", "France", "", False),
        ("sum", "3 4", "3 plus 4 is seven.", True),
        ("sum", "3 4", "The sum of 3 and 4 is 17.", False),
        ("sum", "3 4", "3 + 4 = 7", True),
        ("sum", "1 2", "1 and 2", False),
        ("difference", "7 0", "7 minus 0 is 0", False),
        ("difference", "7 0", "7 minus 0 is 7", True),
        ("chemical symbol", "carbon", "c", False),
        ("chemical symbol", "carbon", '{"answer": "C"}', True),
        ("legs", "spider", "A spider has 8 legs!", True),
        ("legs", "spider", "A spider has 6 legs!", False),
        ("young", "dog", "A baby dog is called a puppy.", True),
    ],
)
def test_judging_replies(topic: str, subject: str, reply: str, right: bool) -> None:
    assert the(topic, subject).is_correct(reply) is right
