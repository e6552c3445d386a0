from __future__ import annotations

import itertools

import pytest

from evals.pools import ASKED, PROBES, require_disjoint
from evals.users import Habits, Judgement, SimulatedUser, check_preferences, violations
from models.questions import PRETRAIN
from models.styles import HELDOUT_THANKS, PREFERENCES, STYLES
from scorers.reactions import read_reaction
from store.errors import ConfigError

LONG = "Hey! 😊 " + "This is a **very** long reply. " * 5
GOOD = "It is Paris."


def talk(user: SimulatedUser, replies: list[str]) -> list[Judgement]:
    return [judgement for reply in replies if (judgement := user.read(reply)) is not None]


def test_probes_users_and_pretraining_share_no_question_and_users_and_probes_no_fact() -> None:
    require_disjoint()
    asked = {(q.fact.topic, q.fact.subject) for q in ASKED}
    assert asked.isdisjoint({(q.fact.topic, q.fact.subject) for q in PROBES})
    assert {q.key for q in PRETRAIN}.isdisjoint({q.key for q in (*ASKED, *PROBES)})
    assert len(ASKED) >= 200
    assert len(PROBES) >= 200
    assert {q.fact.topic for q in ASKED} == {q.fact.topic for q in PROBES}


def test_a_reply_as_preferred_is_thanked_for_and_the_person_moves_on() -> None:
    user = SimulatedUser(["concise", "no_emoji"], 0, habits=Habits(continues=0.0))
    first = user.request()
    assert first.will_be_judged
    assert [m["role"] for m in first.messages] == ["user"]
    (judgement,) = talk(user, [GOOD])
    assert judgement.is_satisfied
    assert judgement.words in HELDOUT_THANKS
    thanks = user.request()
    assert not thanks.will_be_judged
    assert thanks.messages[-1]["content"] == judgement.words
    assert user.read("You are welcome!") is None
    fresh = user.request()
    assert fresh.conversation == first.conversation + 1
    assert len(fresh.messages) == 1
    assert fresh.question != first.question


def test_thanks_may_come_with_the_next_question_in_the_same_conversation() -> None:
    user = SimulatedUser(["concise"], 0, habits=Habits(continues=1.0))
    (judgement,) = talk(user, [GOOD])
    request = user.request()
    assert request.will_be_judged
    assert request.conversation == 1
    assert request.messages[-1]["content"] == f"{judgement.words} {request.question.text}"


def test_a_patient_persons_complaint_is_followed_by_a_look_at_the_redo() -> None:
    user = SimulatedUser(["concise"], 0, habits=Habits(patience=2))
    (judgement,) = talk(user, [LONG])
    assert judgement.violated == ("concise",)
    request = user.request()
    assert request.will_be_judged
    assert [m["role"] for m in request.messages] == ["user", "assistant", "user"]
    assert request.messages[-1]["content"] == judgement.words
    (redo,) = talk(user, [GOOD])
    assert redo.is_redo
    assert redo.is_satisfied
    assert redo.interaction == 2


def test_out_of_patience_the_person_says_so_and_leaves() -> None:
    user = SimulatedUser(["concise"], 0, habits=Habits(patience=2))
    talk(user, [LONG, LONG])
    last = user.request()
    assert not last.will_be_judged
    assert len(last.messages) == 5
    assert user.read(LONG) is None
    assert len(user.request().messages) == 1
    assert user.interactions == 2


def test_one_complaint_names_one_thing_or_everything() -> None:
    seen = set()
    for seed in range(20):
        user = SimulatedUser(["concise", "no_emoji"], seed)
        (judgement,) = talk(user, [LONG])
        assert judgement.violated == ("concise", "no_emoji")
        named = {
            name
            for name in judgement.violated
            if any(c.rstrip(".!?") in judgement.words for c in STYLES[name].heldout_complaints)
        }
        seen.add(tuple(sorted(named)))
    assert seen == {("concise",), ("no_emoji",), ("concise", "no_emoji")}


def test_the_same_seed_is_the_same_person_and_another_seed_another() -> None:
    def story(seed: int) -> list[object]:
        user = SimulatedUser(["concise", "no_emoji"], seed)
        replies = itertools.cycle([LONG, GOOD, LONG, LONG, GOOD])
        return [(user.request(), user.read(next(replies))) for _ in range(40)]

    assert story(1) == story(1)
    assert story(1) != story(2)


def test_no_question_comes_twice_before_all_were_asked() -> None:
    user = SimulatedUser(["concise"], 3, habits=Habits(continues=1.0))
    texts = []
    for _ in ASKED:
        texts.append(user.request().question.text)
        user.read(GOOD)
    assert sorted(texts) == sorted(q.text for q in ASKED)


def test_an_empty_reply_meets_no_preference() -> None:
    assert violations(["concise", "no_emoji", "plain"], "  ") == ("concise", "no_emoji", "plain")


@pytest.mark.parametrize("name", PREFERENCES)
def test_rules_read_every_complaint_as_a_complaint_with_a_hint(name: str) -> None:
    for words in STYLES[name].heldout_complaints:
        reaction = read_reaction(words, reply=LONG)
        assert (reaction.value, bool(reaction.hint)) == (-1, True), words


def test_rules_read_combined_complaints_as_complaints_that_keep_every_wish() -> None:
    for one, other in itertools.permutations(PREFERENCES, 2):
        for first in STYLES[one].heldout_complaints:
            words = f"{first.rstrip('.!?')}. {STYLES[other].heldout_complaints[0]}"
            reaction = read_reaction(words, reply=LONG)
            assert reaction.value == -1, words
            assert reaction.hint is not None


def test_rules_read_every_thanks_as_thanks_alone_and_before_the_next_question() -> None:
    for words in HELDOUT_THANKS:
        assert read_reaction(words, reply=GOOD).value == 1, words
        for question in ASKED[::10]:
            assert read_reaction(f"{words} {question.text}", reply=GOOD).value == 1, (words, question.text)


def test_wrong_preferences_are_told_in_a_sentence() -> None:
    assert check_preferences([" concise", "concise", "", "json"]) == ("concise", "json")
    for names, told in (
        (["loud"], "unknown preference 'loud'"),
        ([""], "needs a preference"),
        (["formal", "json"], "at once"),
    ):
        with pytest.raises(ConfigError, match=told):
            check_preferences(names)
