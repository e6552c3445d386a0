"""Who may ask what: the questions of the simulated users and those of the probes. Pure.

No question is in both, and no fact either: what holds on a probe cannot have been learnt by heart. Neither was ever part of the
test model's pre-training in that wording (`lab.models.questions`).
"""

from __future__ import annotations

from itertools import groupby

from lab.models.questions import HELDOUT, ONLINE, PRETRAIN, Fact, Question


def _halves() -> tuple[frozenset[Fact], frozenset[Fact]]:
    """Every second fact of each topic, and the others."""
    asked: set[Fact] = set()
    probed: set[Fact] = set()
    facts = [question.fact for question in HELDOUT]
    for _, group in groupby(sorted(facts, key=lambda fact: fact.topic), key=lambda fact: fact.topic):
        for index, fact in enumerate(sorted(group, key=lambda fact: fact.subject)):
            (asked if index % 2 == 0 else probed).add(fact)
    return frozenset(asked), frozenset(probed)


_ASKED_FACTS, _PROBED_FACTS = _halves()

#: What simulated users ask.
USER_QUESTIONS: tuple[Question, ...] = tuple(question for question in ONLINE if question.fact in _ASKED_FACTS)
#: What is measured on.
PROBE_QUESTIONS: tuple[Question, ...] = tuple(
    question for question in HELDOUT if question.fact in _PROBED_FACTS
)


def require_disjoint() -> None:
    """Raises: AssertionError if a probe, its text or its fact is known to a user or to pre-training."""
    texts = {question.text for question in PROBE_QUESTIONS}
    facts = {(question.fact.topic, question.fact.subject) for question in PROBE_QUESTIONS}
    if (
        texts & {question.text for question in (*USER_QUESTIONS, *PRETRAIN)}
        or {question.text for question in USER_QUESTIONS} & {question.text for question in PRETRAIN}
        or facts & {(question.fact.topic, question.fact.subject) for question in USER_QUESTIONS}
    ):
        raise AssertionError("a probe was seen before: what is measured on it says nothing")
