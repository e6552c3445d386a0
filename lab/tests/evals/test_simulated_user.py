from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from lab.evals.preferences import (
    PREFERENCES,
    expand_preferences,
    parse_preferences,
    task_kind,
    tasks,
    violations,
)
from lab.evals.problems import Marking, markings, problems
from lab.evals.question_splits import PROBE_QUESTIONS, USER_QUESTIONS, require_disjoint
from lab.evals.simulated_user import (
    USERS,
    Behaviour,
    Interaction,
    SimulatedReaction,
    SimulatedUser,
    beside,
    scenario,
    until_satisfied,
)
from lab.models.questions import PRETRAIN
from lab.models.styles import HELDOUT_THANKS, STYLES
from lab.models.styles import PREFERENCES as SIX
from scorers.reactions import read_reaction
from store.errors import ConfigError

LONG = "Hey! 😊 " + "This is a **very** long reply. " * 5
GOOD = "It is Paris."


def readings(person: SimulatedUser, replies: list[str]) -> list[Interaction]:
    return [reading for reply in replies if (reading := person.read(reply)) is not None]


@pytest.mark.parametrize("kind", ["facts", "homework", "grading", "identity"])
def test_what_is_measured_on_is_never_asked(kind: str) -> None:
    asked, probes = tasks(kind, asked=True), tasks(kind, asked=False)
    assert len(asked) >= 20
    assert len(probes) >= 20
    assert {task.text for task in asked}.isdisjoint({task.text for task in probes})


def test_problems_share_no_pair_of_numbers_between_users_and_probes() -> None:
    for make in (problems, markings):
        asked = {one.text for one in make(asked=True)}
        assert asked.isdisjoint({one.text for one in make(asked=False)})
    assert all(problem.is_correct(f"So it is **{problem.answer}**.") for problem in problems(asked=True))
    assert not any(problem.is_correct("I do not know.") for problem in problems(asked=True))


def test_grading_is_right_when_the_verdict_is() -> None:
    right = next(one for one in markings(asked=True) if one.is_right)
    wrong = next(one for one in markings(asked=True) if not one.is_right)
    assert right.is_correct("Correct, well done!")
    assert not right.is_correct("That is wrong.")
    assert wrong.is_correct(f"Not quite, it is {wrong.answer}.")
    assert not wrong.is_correct("Well done!")
    assert isinstance(wrong, Marking)
    kind = PREFERENCES["grading"].complies
    assert kind(wrong, f"Nice try, but it is {wrong.answer}, not {wrong.given}.")
    assert not kind(wrong, "Nice try!")
    assert not kind(wrong, f"Bad work, it is {wrong.answer}. Good luck.")


def test_homework_looks_human_without_markup_and_an_assistants_phrases() -> None:
    (task, *_) = problems(asked=True)
    human = PREFERENCES["homework"].complies
    assert human(task, "Tom has 3 and gets 4 so it is 7.")
    for machine in ("**7**", "Step 1: add them.", "Certainly! It is 7.", "It is 7 😊", "word " * 60):
        assert not human(task, machine)


def test_every_preference_complains_wishes_and_can_be_undone() -> None:
    for name, preference in PREFERENCES.items():
        assert preference.complaints, name
        assert preference.undo, name
        assert preference.wish, name
        assert tasks(task_kind([name]), asked=True)
        if name in STYLES:
            assert PREFERENCES[preference.opposite or ""].opposite == name


@pytest.mark.parametrize(
    ("text", "wrong"),
    [("", "needs a preference"), ("rude", "unknown"), ("emoji,no_emoji", "at once"), ("json,homework", "at once"),
     ("homework,grading", "one thing")],
)  # fmt: skip
def test_wishes_that_no_user_can_have_are_reported_in_a_sentence(text: str, wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        parse_preferences(text)


def test_all_is_a_user_for_each_of_the_six_wishes() -> None:
    found = expand_preferences(["concise,no_emoji", "all", "spanish"])
    assert found == [("concise", "no_emoji"), *((name,) for name in SIX)]
    assert len(SIX) == 6


def test_a_user_complains_about_what_is_wrong_and_leaves() -> None:
    person = SimulatedUser(scenario("steady", ["concise"]), 0, planned=4)
    (reading,) = readings(person, [LONG])
    assert reading.violated == ("concise",)
    assert reading.ends
    assert not person.request().is_read
    assert person.request().messages[-1]["content"] == reading.words
    assert person.read(LONG) is None
    assert len(person.request().messages) == 1


def test_a_silent_user_never_thanks() -> None:
    person = SimulatedUser(scenario("silent", ["concise"]), 0, planned=30)
    for _ in range(30):
        (reading,) = readings(person, [GOOD])
        assert reading.words == ""
        sent = [message["content"] for message in person.request().messages if message["role"] == "user"]
        assert not any(thanks in text for text in sent for thanks in HELDOUT_THANKS)
        assert person.request().is_read


def test_a_noisy_user_is_wrong_a_fifth_of_the_time() -> None:
    person = SimulatedUser(scenario("noisy", ["concise"]), 1, planned=400)
    wrong = 0
    for _ in range(400):
        wrong += not person.react(GOOD).is_satisfied
    assert 50 < wrong < 110


def test_a_wandering_user_changes_the_topic_instead_of_complaining() -> None:
    person = SimulatedUser(scenario("wandering", ["concise"]), 0, planned=60)
    silent = [one for one in readings(person, [LONG] * 120) if one.violated and not one.words]
    assert len(silent) > 10


def test_a_shuffled_user_reacts_to_nothing() -> None:
    person = SimulatedUser(scenario("shuffled", ["concise"]), 0, planned=10)
    content = [person.react(reply).is_satisfied for reply in [LONG, GOOD] * 200]
    assert 150 < sum(content) < 250
    assert abs(sum(content[::2]) - sum(content[1::2])) < 45


def test_a_shuffled_user_mentions_nothing_that_meets_the_wish() -> None:
    assert set(STYLES) - set(beside(["concise"])) == {"concise", "verbose", "json"}
    assert set(STYLES) - set(beside(["no_emoji"])) == {"no_emoji", "emoji", "json", "formal"}
    assert "formal" in beside(["spanish", "persona"])
    short = '{"answer": "7"}'
    assert all(STYLES[name].complies(short) for name in ("json", "concise", "no_emoji", "plain"))
    person = SimulatedUser(scenario("shuffled", ["concise"]), 0, planned=10)
    phrases = {person.react(LONG).words for _ in range(400)}
    held_out = [text for name in ("concise", "verbose", "json") for text in STYLES[name].heldout_complaints]
    assert not any(words and text in words for words in phrases for text in held_out)
    assert any(words and text in words for words in phrases for text in STYLES["spanish"].heldout_complaints)


def test_wishes_arrive_one_after_another_and_minds_change() -> None:
    arriving = scenario("arriving", ["concise", "no_emoji"])
    assert (arriving.wants(0.0), arriving.wants(0.5)) == (("concise",), ("concise", "no_emoji"))
    person = SimulatedUser(arriving, 0, planned=2)
    first, second = readings(person, [GOOD + " 😊", "ignored", GOOD + " 😊"])[:2]
    assert first.violated == ()
    assert second.violated == ("no_emoji",)
    change = scenario("change_of_mind", ["concise", "no_emoji"])
    assert change.wants(1.0) == ("concise", "emoji")
    assert change.ever_wanted == ("concise", "no_emoji", "emoji")
    with pytest.raises(ConfigError, match="no opposite"):
        scenario("change_of_mind", ["persona"])
    with pytest.raises(ConfigError, match="unknown user"):
        scenario("grumpy", ["concise"])


def test_every_kind_of_user_can_be_made() -> None:
    for user in USERS:
        wants = ["concise", "no_emoji", "plain"] if user == "month" else ["concise"]
        assert scenario(user, wants).about
    assert Behaviour().noise == 0.0


def test_a_language_models_reaction_takes_the_place_of_the_rules() -> None:
    person = SimulatedUser(scenario("steady", ["concise"]), 0, planned=4)
    reading = person.read(GOOD, SimulatedReaction(is_satisfied=False, words="Not my taste."))
    assert reading is not None
    assert (reading.words, reading.violated) == ("Not my taste.", ())
    assert person.request().messages[-1]["content"] == "Not my taste."


def test_three_satisfying_conversations_in_a_row_are_counted_by_their_last_interaction() -> None:
    person = SimulatedUser(scenario("steady", ["concise"]), 3, planned=20)
    found = readings(person, [GOOD] * 40)
    place = until_satisfied(found)
    assert place is not None
    assert len({one.conversation for one in found[:place]}) >= 3
    spoilt = readings(SimulatedUser(scenario("steady", ["concise"]), 3, planned=20), [LONG] * 40)
    assert until_satisfied(spoilt) is None
    assert violations(["concise"], found[0].task, "") == ("concise",)


def test_a_third_of_a_mixed_users_reactions_is_about_other_things() -> None:
    person = SimulatedUser(scenario("mixed", ["concise"]), 0, planned=30)
    found = readings(person, [LONG, GOOD] * 60)
    about = [reading.about for reading in found]
    assert all(3 - about[at : at + 3].count("style") == 1 for at in range(0, len(about) - 2, 3))
    assert set(about) == {"style", "correction", "claim", "code", "thanks", "question"}
    for reading in found:
        if reading.about != "style":
            assert reading.ends
            assert reading.words not in PREFERENCES["concise"].complaints
        elif reading.violated:
            assert any(words in reading.words for words in PREFERENCES["concise"].complaints)
        assert bool(reading.claimed) == (reading.about == "claim")


def test_remarks_are_the_same_whatever_the_replies_are_like() -> None:
    reactions = [
        readings(SimulatedUser(scenario("unrelated", ["concise"]), 4, planned=36), [reply] * 80)
        for reply in (LONG, GOOD)
    ]
    assert [one.words for one in reactions[0]] == [one.words for one in reactions[1]]
    assert all(one.words and one.ends and one.about != "style" for one in reactions[0])


def test_a_free_user_words_wishes_and_thanks_by_the_grammar() -> None:
    person = SimulatedUser(scenario("free", ["concise", "no_emoji"]), 0, planned=60)
    words = {reading.words for reading in readings(person, [LONG, GOOD] * 60) if reading.words}
    held_out = {text for name in ("concise", "no_emoji") for text in PREFERENCES[name].complaints}
    assert len(words) > 30
    assert not any(text in phrase for phrase in words for text in (*held_out, *HELDOUT_THANKS))
    with pytest.raises(ConfigError, match="six wishes"):
        scenario("free", ["persona"])


def test_a_month_has_three_wishes_of_which_the_second_is_withdrawn_in_words() -> None:
    who = scenario("month", ["concise", "no_emoji", "plain"])
    assert [who.wants(at) for at in (0.0, 0.2, 0.4, 0.6)] == [
        ("concise",), ("concise", "no_emoji"), ("concise", "no_emoji", "plain"), ("concise", "plain"),
    ]  # fmt: skip
    assert who.withdrawn == ("no_emoji",)
    assert scenario("change_of_mind", ["no_emoji"]).withdrawn == ()
    with pytest.raises(ConfigError, match="three wishes"):
        scenario("month", ["concise", "no_emoji"])
    with pytest.raises(ConfigError, match="cannot be withdrawn"):
        scenario("month", ["formal", "no_emoji", "concise"])


def test_a_withdrawal_is_repeated_only_while_the_wish_is_still_met() -> None:
    who = scenario("month", ["concise", "no_emoji", "plain"])

    def withdrawals(reply: str, *, withdraws: bool = True) -> list[int]:
        person = SimulatedUser(who, 0, planned=100, withdraws=withdraws)
        found = readings(person, [GOOD] * 120 + [reply] * 120)[:100]
        assert all(
            one.words in PREFERENCES["no_emoji"].withdrawals for one in found if one.about == "withdrawal"
        )
        return [place for place, one in enumerate(found) if one.about == "withdrawal"]

    kept = withdrawals(GOOD)
    assert len(kept) == 3
    assert kept[0] >= 60
    assert all(later - earlier >= 8 for earlier, later in itertools.pairwise(kept))
    assert len(withdrawals("Paris 😊")) < 3
    assert withdrawals(GOOD, withdraws=False) == []


def test_probes_users_and_pretraining_share_no_question_and_users_and_probes_no_fact() -> None:
    require_disjoint()
    asked = {(q.fact.topic, q.fact.subject) for q in USER_QUESTIONS}
    assert asked.isdisjoint({(q.fact.topic, q.fact.subject) for q in PROBE_QUESTIONS})
    assert {q.key for q in PRETRAIN}.isdisjoint({q.key for q in (*USER_QUESTIONS, *PROBE_QUESTIONS)})
    assert len(USER_QUESTIONS) >= 200
    assert len(PROBE_QUESTIONS) >= 200
    assert {q.fact.topic for q in USER_QUESTIONS} == {q.fact.topic for q in PROBE_QUESTIONS}


def test_no_question_comes_twice_before_all_were_asked() -> None:
    person = SimulatedUser(
        replace(scenario("steady", ["concise"]), behaviour=Behaviour(continues=1.0)),
        3,
        planned=len(USER_QUESTIONS),
    )
    texts = []
    for _ in USER_QUESTIONS:
        texts.append(person.request().task.text)
        person.read(GOOD)
    assert sorted(texts) == sorted(q.text for q in USER_QUESTIONS)


@pytest.mark.parametrize("name", SIX)
def test_rules_read_every_complaint_as_a_complaint_with_a_hint(name: str) -> None:
    for words in STYLES[name].heldout_complaints:
        reaction = read_reaction(words, reply=LONG)
        assert (reaction.value, bool(reaction.hint)) == (-1, True), words


def test_rules_read_combined_complaints_as_complaints_with_a_hint() -> None:
    for one, other in itertools.permutations(SIX, 2):
        for first in STYLES[one].heldout_complaints:
            words = f"{first.rstrip('.!?')}. {STYLES[other].heldout_complaints[0]}"
            reaction = read_reaction(words, reply=LONG)
            assert reaction.value == -1, words
            assert reaction.hint is not None


def test_rules_read_every_thanks_as_thanks_alone_and_before_the_next_question() -> None:
    for words in HELDOUT_THANKS:
        assert read_reaction(words, reply=GOOD).value == 1, words
        for question in USER_QUESTIONS[::10]:
            reaction = read_reaction(f"{words} {question.text}", reply=GOOD)
            assert reaction.value == 1, (words, question.text)
