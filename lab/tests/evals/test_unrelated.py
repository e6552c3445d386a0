from __future__ import annotations

import random
from collections import Counter

import pytest

from lab.evals.preferences import PREFERENCES
from lab.evals.question_splits import USER_QUESTIONS
from lab.evals.unrelated import WORDINGS, Remarks, wrong_answer

WORDS = [words for some in WORDINGS.values() for words in some]


def test_of_three_remarks_without_style_two_correct() -> None:
    remarks = Remarks(random.Random(0))
    kinds = [remarks.mostly_correcting().kind for _ in range(36)]
    assert all(Counter(kinds[at : at + 3])["correction"] == 2 for at in range(0, 36, 3))
    assert Counter(kinds).keys() == {"correction", "thanks", "question"}


def test_every_kind_of_remark_comes_up_once_in_five() -> None:
    remarks = Remarks(random.Random(0))
    kinds = [remarks.of_any_kind(USER_QUESTIONS[0]).kind for _ in range(20)]
    assert all(set(kinds[at : at + 5]) == set(WORDINGS) for at in range(0, 20, 5))


def test_wordings_are_not_repeated_before_all_were_used() -> None:
    remarks = Remarks(random.Random(3))
    corrections = [one.words for _ in range(60) if (one := remarks.mostly_correcting()).kind == "correction"]
    assert len(set(corrections[: len(WORDINGS["correction"])])) == len(WORDINGS["correction"])


def test_one_of_three_is_due() -> None:
    remarks = Remarks(random.Random(1))
    due = [remarks.is_due(3) for _ in range(30)]
    assert all(sum(due[at : at + 3]) == 1 for at in range(0, 30, 3))


def test_a_claimed_answer_is_wrong_and_not_in_the_question() -> None:
    rng = random.Random(0)
    for question in USER_QUESTIONS:
        wrong = wrong_answer(question, rng)
        assert not question.is_correct(f"It is {wrong}.")
        assert wrong.lower() not in question.text.lower()
    remarks = Remarks(random.Random(0))
    claim = next(one for _ in range(5) if (one := remarks.of_any_kind(USER_QUESTIONS[0])).kind == "claim")
    assert claim.claimed
    assert claim.claimed in claim.words


@pytest.mark.parametrize("name", sorted(PREFERENCES))
def test_no_remark_is_a_complaint_about_style(name: str) -> None:
    preference = PREFERENCES[name]
    for words in WORDS:
        assert not any(words.lower() in wish.lower() for wish in (*preference.complaints, *preference.undo))
        assert not any(wish.lower() in words.lower() for wish in (*preference.complaints, *preference.undo))
    assert len(set(WORDS)) == len(WORDS)
