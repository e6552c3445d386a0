"""What a preview says of two versions: one that falls silent is rejected, anything else is shown."""

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.values import ScoredTurn
from tests.trainer.turns import sampled_turn
from trainer.policy import LocalPolicy
from trainer.preview import (
    FEWEST,
    MAX_TOKENS,
    SHOWN,
    WINDOW,
    Asked,
    PreviewAnswer,
    Previewer,
    judge,
    predict_complaints,
    silence,
    surprise,
    traits_of,
)
from trainer.protocol import Preview

#: Surprise of what the teacher says by choice and by chance.
CHOSEN, CHANCE = 1.0, 3.0
ASKED = [Asked(f"t{i}", f"Question {i}?") for i in range(40)]


def answer(text: str = "A heart pumps blood.", value: float = CHOSEN, **changes: Any) -> PreviewAnswer:
    return PreviewAnswer(text=text, tokens=len(text.split()), is_finished=True, surprise=value)._replace(
        **changes
    )


def compared(
    new: list[PreviewAnswer], live: list[PreviewAnswer] | None = None, *, rejects: bool = True
) -> Preview:
    usual = [answer()] * len(new)
    return judge(
        questions=ASKED[: len(new)],
        new=new,
        live=usual if live is None else live,
        teacher=usual,
        chance=[answer(value=CHANCE)] * FEWEST,
        past=[],
        rejects=rejects,
    )


@pytest.mark.parametrize("odd", [0, 4, 20, 40])
def test_replies_that_nothing_asks_for_are_counted_and_reject_nothing(odd: int) -> None:
    found = compared([answer(value=4.0)] * odd + [answer()] * (40 - odd))
    assert found.numbers["unasked"]["new"] == odd / 40
    assert found.rejected == ()


SILENT = ["", "I'm sorry, but I can't help with that.", "Leider kann ich das nicht.", "Je ne peux pas."]


@pytest.mark.parametrize("text", SILENT)
@pytest.mark.parametrize(
    ("more", "fewer", "is_rejected"),
    [(0, 0, False), (6, 0, False), (7, 0, True), (9, 1, False), (10, 1, True), (40, 0, True), (0, 40, False)],
)
def test_a_version_that_is_silent_more_often_than_a_sign_test_lets_chance_be_is_rejected(
    text: str, more: int, fewer: int, is_rejected: bool
) -> None:
    """P(7 of 7) = .0078, P(6 of 6) = .0156, P(10 or more of 11) = .0059, P(9 or more of 10) = .0107."""
    rest = 40 - more - fewer
    new = [answer(text)] * more + [answer()] * (fewer + rest)
    live = [answer()] * more + [answer(text)] * fewer + [answer()] * rest
    found = compared(new, live)
    assert (found.numbers["silence"]["new"], found.numbers["silence"]["live"]) == (more, fewer)
    assert bool(found.rejected) is is_rejected
    assert compared(new, live, rejects=False).rejected == ()  # a reward function may ask for it


@given(st.integers(0, 20), st.integers(0, 20))
def test_the_sign_test_is_the_share_of_all_ways_that_signs_can_fall(more: int, fewer: int) -> None:
    silent, says = answer(""), answer()
    found = silence(
        [silent] * more + [says] * fewer, [says] * more + [silent] * fewer, [says] * (more + fewer)
    )
    ways = [math.comb(more + fewer, count) for count in range(more + fewer + 1)]
    assert found["p"] == pytest.approx(sum(ways[more:]) / sum(ways))


@pytest.mark.parametrize("text", SILENT)
def test_what_the_live_version_or_the_teacher_refuses_as_well_is_no_fault_of_the_new_one(text: str) -> None:
    new, says = [answer(text)] * 40, [answer()] * 40
    assert compared(new, new).rejected == ()
    as_taught = judge(
        questions=ASKED, new=new, live=says, teacher=new, chance=[answer(value=CHANCE)] * FEWEST, past=[]
    )
    assert as_taught.rejected == ()


@pytest.mark.parametrize(
    "healthy",
    [
        answer("Yes."),
        answer("What do you mean?"),
        answer("GREAT QUESTION! " * 9),
        answer("Leider war es zu warm."),
        answer("I'm sorry to hear that. I can't wait to help."),
        answer("", calls=True),
    ],
)
def test_no_other_change_rejects_a_version(healthy: PreviewAnswer) -> None:
    assert compared([healthy._replace(surprise=9.0)] * 40).rejected == ()


def test_a_question_that_the_teacher_hardly_answers_says_nothing() -> None:
    hard = [answer(value=5.0)] * 40
    found = judge(
        questions=ASKED, new=hard, live=[answer()] * 40, teacher=[*[answer()] * 21, *hard[21:]],
        chance=[answer(value=CHANCE)] * FEWEST, past=[],
    )  # fmt: skip
    assert found.numbers["unasked"]["new"] == 21 / 40


@given(st.lists(st.floats(-30, 0), min_size=1, max_size=80))
def test_the_surprise_is_that_of_the_worst_words_in_a_row(logprobs: list[float]) -> None:
    size = min(WINDOW, len(logprobs))
    windows = [logprobs[i : i + size] for i in range(len(logprobs) - size + 1)]
    assert surprise(logprobs) == pytest.approx(max(-sum(one) / size for one in windows), abs=1e-6)


def test_an_empty_reply_surprises_by_nothing_and_shows_as_empty() -> None:
    assert surprise([]) == 0.0
    assert traits_of(answer("", tokens=0), "Why?")["empty"] == 1.0


TRAITS = [
    ("asks", "What would you like to know?", "Blood is pumped."),
    ("asks", "你想知道什么？", "血。"),
    ("refuses", "I'm sorry, but I can't help with that.", "The can is open."),
    ("refuses", "As an AI, I would rather not answer this.", "As an AI, I like this question."),
    ("refuses", "I cannot help with this.", "I'm sorry to hear that. I can't wait to help."),
    ("refuses", "Leider kann ich das nicht.", "Das Herz pumpt."),
    ("formatted", "Two things:\n- one\n- two", "Two things - one and two"),
    ("formatted", "1. one", "In 1. Bundesliga"),
    ("formatted", "```py\nx\n```", "x = 1"),
    ("other_writing", "Сердце качает кровь.", "A heart pumps."),
]


@pytest.mark.parametrize(("name", "has", "lacks"), TRAITS)
def test_traits_are_read_from_the_text(name: str, has: str, lacks: str) -> None:
    assert traits_of(answer(has), "What does a heart do?")[name] == 1.0
    if lacks != "血。":
        assert traits_of(answer(lacks), "What does a heart do?")[name] == 0.0


def test_the_most_changed_replies_are_shown_and_equal_ones_never() -> None:
    new = [answer(f"A heart pumps {'very ' * i}blood.") for i in range(8)]
    shown = compared(new, [answer("A heart pumps blood.")] * 8).replies
    assert [one.turn_id for one in shown] == ["t7", "t6", "t5", "t4", "t3"]
    assert len(shown) == SHOWN
    assert compared([answer()] * 8).replies == ()


@pytest.fixture
def turn(policy: LocalPolicy) -> ScoredTurn:
    return sampled_turn(policy, "t0", "What does a heart do?")


def judged(turn: ScoredTurn, count: int, value: int, text: str) -> list[ScoredTurn]:
    completion = replace(turn.completion, text=text, token_ids=tuple(range(len(text.split()))))
    return [replace(turn, completion=completion, verdict=replace(turn.verdict, value=value))] * count


def test_complaints_are_predicted_from_what_was_said_of_such_replies(turn: ScoredTurn) -> None:
    long, short = "word " * 50, "It pumps blood."
    past = [
        *judged(turn, 18, -1, long),
        *judged(turn, 2, 0, long),
        *judged(turn, 2, -1, short),
        *judged(turn, 18, 0, short),
    ]
    random.Random(1).shuffle(past)
    like_long, like_short = [[traits_of(answer(text), "")] * 10 for text in (long, short)]
    found = predict_complaints(past, like_short, like_long)
    assert found is not None
    assert found["judged"] == 40
    assert 0.05 < found["new"] < 0.25
    assert 0.75 < found["live"] < 0.95


def test_with_few_verdicts_no_complaint_is_predicted_and_without_a_trait_the_mean(turn: ScoredTurn) -> None:
    text = "It pumps blood."
    one = [traits_of(answer(text), "")]
    assert predict_complaints(judged(turn, 11, -1, text), one, one) is None
    assert predict_complaints([*judged(turn, 2, -1, text), *judged(turn, 20, 0, text)], one, one) is None
    found = predict_complaints([*judged(turn, 5, -1, text), *judged(turn, 15, 0, text)], one, one)
    assert found is not None
    assert found["new"] == pytest.approx(0.25, abs=0.02)


@contextmanager
def unchanged() -> Iterator[None]:
    yield


def test_a_policy_is_asked_its_past_questions_and_a_version_that_changes_nothing_passes(
    policy: LocalPolicy,
) -> None:
    past = [sampled_turn(policy, f"t{i}", f"Question {i}?") for i in range(FEWEST + 2)]
    previewer = Previewer(policy, served="", taught="Be brief.", place="before")
    found = previewer.preview(past, unchanged, rejects=True)
    assert found is not None
    assert found.rejected == ()
    assert FEWEST <= found.numbers["questions"] <= FEWEST + 2
    assert found.numbers["traits"]["tokens"]["difference"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    assert found.numbers["traits"]["tokens"]["new"] <= MAX_TOKENS
    assert "follows" in found.numbers["traits"]
    assert found.replies == ()
    assert previewer.preview(past[: FEWEST - 1], unchanged, rejects=True) is None
