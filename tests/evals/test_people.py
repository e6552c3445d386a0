from __future__ import annotations

import pytest

from evals.people import USERS, Person, Reading, Temper, beside, scenario, until_satisfied
from evals.people import Reaction as Said
from evals.preferences import PREFERENCES, parse_preferences, task_kind, tasks, violations
from evals.problems import Marking, markings, problems
from models.styles import HELDOUT_THANKS, STYLES
from store.errors import ConfigError

LONG = "Hey! 😊 " + "This is a **very** long reply. " * 5
GOOD = "It is Paris."


def readings(person: Person, replies: list[str]) -> list[Reading]:
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
def test_wishes_that_no_user_can_have_are_told_in_a_sentence(text: str, wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        parse_preferences(text)


def test_a_person_complains_about_what_is_wrong_and_leaves() -> None:
    person = Person(scenario("steady", ["concise"]), 0, planned=4)
    (reading,) = readings(person, [LONG])
    assert reading.violated == ("concise",)
    assert reading.ends
    assert not person.request().is_read
    assert person.request().messages[-1]["content"] == reading.words
    assert person.read(LONG) is None
    assert len(person.request().messages) == 1


def test_a_silent_person_never_says_thanks() -> None:
    person = Person(scenario("silent", ["concise"]), 0, planned=30)
    for _ in range(30):
        (reading,) = readings(person, [GOOD])
        assert reading.words == ""
        said = [message["content"] for message in person.request().messages if message["role"] == "user"]
        assert not any(thanks in text for text in said for thanks in HELDOUT_THANKS)
        assert person.request().is_read


def test_a_noisy_person_is_wrong_a_fifth_of_the_time() -> None:
    person = Person(scenario("noisy", ["concise"]), 1, planned=400)
    wrong = 0
    for _ in range(400):
        wrong += not person.react(GOOD).is_content
    assert 50 < wrong < 110


def test_a_wandering_person_changes_the_topic_instead_of_complaining() -> None:
    person = Person(scenario("wandering", ["concise"]), 0, planned=60)
    silent = [one for one in readings(person, [LONG] * 120) if one.violated and not one.words]
    assert len(silent) > 10


def test_a_shuffled_person_reacts_to_nothing() -> None:
    person = Person(scenario("shuffled", ["concise"]), 0, planned=10)
    content = [person.react(reply).is_content for reply in [LONG, GOOD] * 200]
    assert 150 < sum(content) < 250
    assert abs(sum(content[::2]) - sum(content[1::2])) < 45


def test_a_shuffled_person_speaks_of_nothing_that_meets_the_wish() -> None:
    assert set(STYLES) - set(beside(["concise"])) == {"concise", "verbose", "json"}
    assert set(STYLES) - set(beside(["no_emoji"])) == {"no_emoji", "emoji", "json", "formal"}
    assert "formal" in beside(["spanish", "persona"])
    short = '{"answer": "7"}'
    assert all(STYLES[name].complies(short) for name in ("json", "concise", "no_emoji", "plain"))
    person = Person(scenario("shuffled", ["concise"]), 0, planned=10)
    said = {person.react(LONG).words for _ in range(400)}
    unheard = [text for name in ("concise", "verbose", "json") for text in STYLES[name].heldout_complaints]
    assert not any(words and text in words for words in said for text in unheard)
    assert any(words and text in words for words in said for text in STYLES["spanish"].heldout_complaints)


def test_wishes_arrive_one_after_another_and_minds_change() -> None:
    arriving = scenario("arriving", ["concise", "no_emoji"])
    assert (arriving.wants(0.0), arriving.wants(0.5)) == (("concise",), ("concise", "no_emoji"))
    person = Person(arriving, 0, planned=2)
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
        assert scenario(user, ["concise"]).about
    assert Temper().noise == 0.0


def test_a_language_models_reaction_takes_the_place_of_the_rules() -> None:
    person = Person(scenario("steady", ["concise"]), 0, planned=4)
    reading = person.read(GOOD, Said(is_content=False, words="Not my taste."))
    assert reading is not None
    assert (reading.words, reading.violated) == ("Not my taste.", ())
    assert person.request().messages[-1]["content"] == "Not my taste."


def test_three_satisfying_conversations_in_a_row_are_counted_by_their_last_interaction() -> None:
    person = Person(scenario("steady", ["concise"]), 3, planned=20)
    found = readings(person, [GOOD] * 40)
    place = until_satisfied(found)
    assert place is not None
    assert len({one.conversation for one in found[:place]}) >= 3
    spoilt = readings(Person(scenario("steady", ["concise"]), 3, planned=20), [LONG] * 40)
    assert until_satisfied(spoilt) is None
    assert violations(["concise"], found[0].task, "") == ("concise",)
