"""Unmarked corrections: another name or number than the reply gave."""

import pytest

from scorers.combined import read_message
from scorers.other_answer import names_other_answer

PROMPT, REPLY = "Which river flows through Vienna?", "The river that flows through Vienna is the Rhine."


@pytest.mark.parametrize(
    "text",
    ["It's the Danube.", "no, the Danube", "Es ist Donau", "C’est le Danube !", "È Danubio.", "Это Дунай", "Actually the river is Danube", "nope. Danube"],
)  # fmt: skip
def test_another_name_than_the_reply_is_a_complaint_with_a_hint(text: str) -> None:
    assert names_other_answer(text, REPLY, PROMPT)
    found = read_message(text, reply=REPLY, prompt=PROMPT)
    assert found.value == -1
    assert found.hint is not None


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("It's the Rhine.", REPLY),  # agrees
        ("It's Vienna.", REPLY),  # the request's own word
        ("It's great.", REPLY),
        ("No, Thanks", REPLY),
        ("Nein Danke", REPLY),
        ("no problem", REPLY),
        ("Is it the Danube?", REPLY),
        ("It's Danube, Drava, Sava and Tisza", REPLY),
        ("It's Graz.", f"{REPLY} Which city do you live in?"),  # answers a question
        ("It's Graz.", "a river of medium length."),  # no name was given
        ("It's 1,230 km.", REPLY),  # a number where a name was given
        ("It's Graz.", REPLY + " It is long and wide." * 20),
    ],
)
def test_agreement_thanks_and_answers_are_no_correction(text: str, reply: str) -> None:
    assert not names_other_answer(text, reply, PROMPT)


def test_a_number_corrects_a_number() -> None:
    assert names_other_answer("It's 83.", "The sum is 73.", "What is 17 + 25 + 41?")
    assert not names_other_answer("It's 41.", "The sum is 73.", "What is 17 + 25 + 41?")
