"""Which hints may teach."""

from __future__ import annotations

import pytest

from scorers.hints import HintContext, check_hint
from tests.scorers.turns import REPLY, feedback, said, turn

CONTEXT = HintContext(
    reply=REPLY,
    person="What is the capital of France?\nToo long! I live in Lima and have 20 minutes.",
)


def reason(hint: str, *, is_reaction: bool = False) -> str:
    found = check_hint(hint, CONTEXT, is_reaction=is_reaction)
    return "" if found is None else found.partition(":")[0]


@pytest.mark.parametrize(
    "hint",
    [
        "Keep answers to one short sentence.",
        "Do not use emoji.",
        "Answer in Spanish.",
        "Reply as a JSON object.",
        "Use a formal, professional tone.",
        "Use at most 2 sentences.",
        "Write plain text without Markdown.",
        "Be brief.",
        "Consider that the person lives in Lima.",
        "Fit what you suggest into 20 minutes.",
        "Do not explain where a capital lies unless asked.",
    ],
)
def test_a_general_preference_may_teach(hint: str) -> None:
    assert reason(hint) == ""


@pytest.mark.parametrize(
    "hint",
    [
        "",
        "Be better.",
        "Give a correct answer.",
        "Improve the response.",
        "Try again.",
        "Answer correctly and avoid errors.",
    ],
)
def test_trivial_hints_are_refused(hint: str) -> None:
    assert reason(hint) == "trivial"


@pytest.mark.parametrize(
    "hint",
    [
        "Say that the capital is Lutetia.",
        "The capital of France has 2102650 people.",
        'Answer with "the city of light" only.',
        "Say it lies on the river Seine and I hope this helps.",
        "Mention that it lies on the river seine and i hope this helps you.",
        " ".join(["Keep the answers short and clear and plain"] * 9),
    ],
)
def test_hints_that_carry_an_answer_are_refused(hint: str) -> None:
    assert reason(hint) == "leaking"


def test_hints_about_something_else_are_refused() -> None:
    assert reason("Always wear sunscreen outdoors.") == "off-topic"


@pytest.mark.parametrize(
    "hint",
    [
        "No, it was Lutetia in 1885.",
        "shorter?",
        "Raise a ValueError instead.",
        "I meant Paris, Texas.",
        "you talk too much",
    ],
)
def test_a_users_own_words_cannot_leak(hint: str) -> None:
    assert reason(hint, is_reaction=True) == ""


@pytest.mark.parametrize("hint", ["That's wrong.", "No.", "try again", "That is not correct!"])
def test_a_users_empty_words_are_no_hint(hint: str) -> None:
    assert reason(hint, is_reaction=True) == "trivial"


def test_the_context_is_all_text_of_the_user() -> None:
    context = HintContext.of(turn(said("in Lima"), feedback=(feedback(-1.0, "call it Cusco"),)))
    assert context.reply == REPLY
    assert [word in context.person for word in ("France", "Lima", "Cusco")] == [True, True, True]
