"""The playbook as a value, with a scripted meter: wishes are vectors, what undoes or overrules them is listed."""

from __future__ import annotations

import pytest

from store.errors import AdapterError
from trainer.hint_effect import Effect
from trainer.playbook import MAX_WISHES, MAX_WORDINGS, Playbook, Wording, canonical_text

NOTHING = Effect(peaks=(0.003,), shifts={})


def pointing(*places: int, peak: float = 0.4) -> Effect:
    """An effect in the direction of these axes."""
    return Effect(peaks=(peak,), shifts={(0, place, 0): 0.5 for place in places})


class ScriptedMeter:
    """Effects by words; pairs of words that undo or overrule each other."""

    def __init__(self) -> None:
        self.directions = {
            "Shorter, please.": pointing(1),
            "Too long.": pointing(1),
            "No emoji.": pointing(2),
            "In Spanish.": pointing(3),
            "In French.": pointing(4),
            "As JSON.": pointing(5),
            "Short and without emoji.": pointing(1, 2),
            "Be a pirate.": pointing(6),
            "Talk like a pirate.": pointing(6),
            "Be a judge.": pointing(7),
            "Talk like a judge.": pointing(7),
        }
        self.undone = {("In Spanish.", "No more Spanish."), ("In Spanish.", "Check again.")}
        self.overruled = {("Talk like a pirate.", "Talk like a judge."), ("Shorter, please.", "As JSON.")}

    def effect(self, *hints: str) -> Effect:
        if len(hints) == 2:
            return NOTHING if hints in self.undone else self.directions[hints[0]]
        return self.directions.get(hints[0], NOTHING)

    def effect_under(self, old: str, new: str) -> float:
        return 0.01 if (old, new) in self.overruled else 0.4


LABELS = {
    "Shorter, please.": ("shorter",),
    "Too long.": ("shorter",),
    "In Spanish.": ("spanish",),
    "No emoji.": ("no_emoji",),
    "Emoji are fine again.": ("emoji",),
    "Short and without emoji.": ("shorter", "no_emoji"),
}


def word(turn_id: str, text: str) -> Wording:
    return Wording(turn_id=turn_id, text=text, labels=LABELS.get(text, ()))


def named(turn_id: str, text: str, *labels: str) -> Wording:
    return Wording(turn_id=turn_id, text=text, labels=labels)


def stated(*words: str, playbook: Playbook | None = None, start: int = 0) -> Playbook:
    """The playbook after these words, each of a turn of its own: t0, t1, ..."""
    playbook, meter = playbook or Playbook(), ScriptedMeter()
    for number, text in enumerate(words, start):
        playbook = playbook.stated(word(f"t{number}", text), meter, version=number + 1)
    return playbook


def texts(playbook: Playbook) -> list[str]:
    return [wish.text for wish in playbook.wishes]


def test_words_that_change_nothing_in_general_are_no_wish() -> None:
    assert stated("That is wrong, check again.", "No, it is Lyon.") == Playbook()


def test_a_rewording_joins_its_wish_and_another_wish_stands_beside_it() -> None:
    playbook = stated("Shorter, please.", "No emoji.", "Too long.")
    assert texts(playbook) == ["No emoji.", "Too long."]  # the one stated last at the end
    assert [word.text for word in playbook.wishes[1].wordings] == ["Shorter, please.", "Too long."]
    assert (playbook.wishes[1].version, playbook.wishes[0].version) == (3, 2)


def test_the_same_words_stay_with_each_turn_and_a_teacher_reads_them_once() -> None:
    playbook = stated("Shorter, please.", "Too long.", "Shorter, please.")
    (wish,) = playbook.wishes
    assert wish.turn_ids == ("t0", "t1", "t2")
    assert wish.texts == ("Too long.", "Shorter, please.")
    assert playbook.hints("", [], 4) == ["Shorter, please.", "Too long."]


def test_a_wish_stays_while_one_turn_that_stated_it_is_not_forgotten() -> None:
    state = stated("Shorter, please.", "Shorter, please.", "Shorter, please.").to_json()
    left = Playbook.from_json(state, {"t1": word("t1", "Shorter, please.")})
    assert [wish.turn_ids for wish in left.wishes] == [("t1",)]


def test_of_too_many_turns_the_oldest_leaves_whose_words_another_has_too() -> None:
    again = ["Shorter, please."] * (MAX_WORDINGS - 1)
    (wish,) = stated("Too long.", *again, "Shorter, please.").wishes
    assert [one.text for one in wish.wordings] == ["Too long.", *again]
    assert wish.turn_ids == ("t0", *(f"t{n}" for n in range(2, MAX_WORDINGS + 1)))


def test_wordings_and_wishes_are_bounded_and_the_oldest_leave() -> None:
    meter = ScriptedMeter()
    playbook = Playbook()
    for number in range(MAX_WORDINGS + 2):
        meter.directions[f"shorter {number}"] = pointing(1)
        playbook = playbook.stated(named(f"t{number}", f"shorter {number}", "shorter"), meter, version=1)
    assert playbook.wishes[0].turn_ids == tuple(f"t{n}" for n in range(2, MAX_WORDINGS + 2))
    for number in range(MAX_WISHES):
        meter.directions[f"other {number}"] = pointing(10 + number)
        playbook = playbook.stated(
            named(f"o{number}", f"other {number}", f"other {number}"), meter, version=1
        )
    assert texts(playbook) == [f"other {n}" for n in range(MAX_WISHES)]


def test_words_that_undo_a_wish_withdraw_it_and_only_it() -> None:
    playbook = stated("No emoji.", "In Spanish.", "No more Spanish.")
    assert texts(playbook) == ["No emoji."]
    assert [wish.text for wish in playbook.withdrawn] == ["In Spanish."]


def test_words_that_do_not_speak_of_a_wish_withdraw_nothing_whatever_the_model_makes_of_them() -> None:
    playbook = stated("In Spanish.")
    assert stated("Check again.", playbook=playbook, start=1) == playbook


def test_a_wish_that_an_empty_complaint_undoes_is_withdrawn_by_a_label_only() -> None:
    meter = ScriptedMeter()
    wish = "That was too wordy. In Spanish."
    meter.directions[wish] = pointing(3)
    meter.undone = {
        (wish, "That's wrong, check again."),
        (wish, "No more Spanish."),
        (wish, "That is wrong."),
    }
    playbook = Playbook().stated(named("t0", wish, "spanish"), meter, version=1)
    for words in ("That's wrong, check again.", "No more Spanish."):
        assert texts(playbook.stated(word("t1", words), meter, version=2)) == [wish]
    assert texts(playbook.stated(named("t1", "No more Spanish.", "english"), meter, version=2)) == []
    meter.undone.remove((wish, "That is wrong."))
    assert texts(playbook.stated(word("t1", "That's wrong, check again."), meter, version=2)) == [wish]
    assert texts(playbook.stated(word("t1", "No more Spanish."), meter, version=2)) == []


def test_a_label_withdraws_its_opposite_also_where_the_model_sees_nothing_in_the_words() -> None:
    playbook = stated("No emoji.", "In Spanish.", "Emoji are fine again.")
    assert texts(playbook) == ["In Spanish."]
    assert [wish.text for wish in playbook.withdrawn] == ["No emoji."]


def test_a_withdrawn_wish_takes_its_wordings_without_a_label_along() -> None:
    meter = ScriptedMeter()
    meter.directions["lose the smileys"] = pointing(2)
    playbook = stated("No emoji.")
    playbook = playbook.stated(Wording(turn_id="t8", text="lose the smileys"), meter, version=2)
    assert len(playbook.wishes) == 1
    playbook = playbook.stated(word("t9", "Emoji are fine again."), meter, version=3)
    assert playbook.wishes == ()
    assert [wish.turn_ids for wish in playbook.withdrawn] == [("t0", "t8")]


def test_wishes_with_labels_do_not_overrule_each_other_whatever_the_model_makes_of_them() -> None:
    meter = ScriptedMeter()
    meter.overruled.add(("Shorter, please.", "No emoji."))
    playbook = Playbook().stated(
        Wording(turn_id="a", text="Shorter, please.", labels=("shorter",)), meter, version=1
    )
    playbook = playbook.stated(word("b", "No emoji."), meter, version=2)
    assert [wish.text for wish in playbook.active] == ["Shorter, please.", "No emoji."]


def test_of_a_wish_for_two_things_one_can_be_withdrawn() -> None:
    playbook = stated("Short and without emoji.", "Emoji are fine again.")
    assert texts(playbook) == [canonical_text(["shorter"])]
    assert [wish.text for wish in playbook.withdrawn] == [canonical_text(["no_emoji"])]
    whole = {"t0": word("t0", "Short and without emoji.")}
    assert Playbook.from_json(playbook.to_json(), whole) == playbook


def test_one_label_is_one_wish_whatever_the_words_do() -> None:
    playbook, meter = stated("No emoji."), ScriptedMeter()
    meter.directions["lose the smileys"] = pointing(9)
    again = Wording(turn_id="t9", text="lose the smileys", labels=("no_emoji",))
    assert len(playbook.stated(again, meter, version=2).wishes) == 1


def test_a_withdrawn_wish_that_is_stated_again_is_wanted_again() -> None:
    playbook = stated("In Spanish.", "No more Spanish.", "In Spanish.")
    assert texts(playbook) == ["In Spanish."]
    assert playbook.withdrawn == ()


def test_a_later_wish_overrules_an_earlier_one_until_it_is_gone() -> None:
    playbook = stated("Be a pirate.", "Talk like a pirate.", "No emoji.", "Be a judge.", "Talk like a judge.")
    assert [wish.text for wish in playbook.active] == ["No emoji.", "Talk like a judge."]
    assert playbook.wishes[0].overruled_by == "t4"
    rest = playbook.without([playbook.wishes[-1]])
    assert [wish.text for wish in rest.active] == ["Talk like a pirate.", "No emoji."]
    assert [wish.text for wish in rest.withdrawn] == ["Talk like a judge."]
    # stated again, the earlier one comes last and stands
    again = stated("Talk like a pirate.", playbook=playbook, start=5)
    assert [wish.text for wish in again.active][-1] == "Talk like a pirate."


def test_words_without_a_label_are_no_wish_until_other_words_say_the_same() -> None:
    once = stated("Be a pirate.", "Be a pirate.")
    assert once.wishes == ()
    assert [wish.turn_ids for wish in once.candidates] == [("t0", "t1")]
    words = {turn_id: word(turn_id, "Be a pirate.") for turn_id in ("t0", "t1")}
    assert Playbook.from_json(once.to_json(), words) == once
    twice = stated("In Spanish.", "Talk like a pirate.", playbook=once, start=2)
    assert texts(twice) == ["In Spanish.", "Talk like a pirate."]
    assert twice.wishes[-1].turn_ids == ("t0", "t1", "t3")
    assert twice.candidates == ()


def test_words_without_a_label_overrule_no_labelled_wish_that_they_do_not_name() -> None:
    meter = ScriptedMeter()
    meter.overruled.add(("In Spanish.", "Talk like a judge."))
    playbook = stated("In Spanish.", "Be a judge.")
    playbook = playbook.stated(word("t2", "Talk like a judge."), meter, version=3)
    assert [wish.text for wish in playbook.active] == ["In Spanish.", "Talk like a judge."]


def test_a_teacher_gets_one_wording_of_each_other_wish_before_a_second_of_any() -> None:
    playbook = stated("Shorter, please.", "Too long.", "No emoji.", "In Spanish.")
    assert playbook.hints("In Spanish.", [], 2) == ["Too long.", "No emoji."]
    assert playbook.hints("In Spanish.", [], 3) == ["Too long.", "Shorter, please.", "No emoji."]
    assert playbook.hints("Too long.", [], 9) == ["Shorter, please.", "No emoji.", "In Spanish."]
    assert playbook.hints("In Spanish.", [], 0) == []


def test_what_stands_in_the_conversation_is_not_added_again() -> None:
    playbook = stated("Shorter, please.", "No emoji.")
    assert playbook.hints("", ["What is 2 + 2? No emoji."], 4) == ["Shorter, please."]


def test_the_state_has_ids_and_no_words_and_comes_back_with_the_words_of_the_record() -> None:
    playbook = stated("Shorter, please.", "In Spanish.", "No more Spanish.", "Too long.")
    state = playbook.to_json()
    assert "Shorter" not in str(state)
    words = {"t0": "Shorter, please.", "t1": "In Spanish.", "t3": "Too long."}
    assert Playbook.from_json(state, {i: word(i, text) for i, text in words.items()}) == playbook


def test_what_the_record_forgot_is_gone_from_the_playbook() -> None:
    state = stated("Shorter, please.", "Too long.", "In Spanish.").to_json()
    left = Playbook.from_json(state, {"t1": word("t1", "Too long.")})
    assert [wish.turn_ids for wish in left.wishes] == [("t1",)]


def test_a_wish_stands_again_where_the_record_forgot_the_later_one_and_not_where_it_forgot_one_turn_of_it() -> (
    None
):
    texts_stated = ("Be a pirate.", "Talk like a pirate.", "Be a judge.", "Talk like a judge.")
    playbook = stated(*texts_stated)
    assert playbook.wishes[0].overruled_by == "t3"
    words = {f"t{i}": word(f"t{i}", text) for i, text in enumerate(texts_stated)}
    without_newest = Playbook.from_json(playbook.to_json(), {i: words[i] for i in ("t0", "t1", "t2")})
    assert [wish.overruled_by for wish in without_newest.wishes] == ["t2", ""]
    without_both = Playbook.from_json(playbook.to_json(), {i: words[i] for i in ("t0", "t1")})
    assert [wish.overruled_by for wish in without_both.wishes] == [""]


@pytest.mark.parametrize("state", [{}, {"wishes": [{}], "withdrawn": []}, {"wishes": 3, "withdrawn": []}])
def test_a_state_of_another_form_is_refused(state: dict[str, object]) -> None:
    with pytest.raises(AdapterError, match="playbook"):
        Playbook.from_json(state, {})


def test_words_without_a_label_may_not_undo_a_labelled_wish_that_they_do_not_name() -> None:
    meter = ScriptedMeter()
    meter.undone |= {("No emoji.", "Same failure again."), ("No emoji.", "Drop the emoji rule.")}
    playbook = stated("No emoji.", "In Spanish.")
    assert playbook.breaks_a_named_wish(word("t2", "Same failure again."), meter)
    assert not playbook.breaks_a_named_wish(word("t2", "Drop the emoji rule."), meter)  # speaks of it
    assert not stated("Be a pirate.", "Talk like a pirate.").breaks_a_named_wish(
        word("t2", "Same failure again."), meter
    )  # no label to protect it
    assert not playbook.breaks_a_named_wish(word("t2", "Emoji are fine again."), meter)  # labelled: withdraws
    assert not playbook.breaks_a_named_wish(word("t2", "Too long."), meter)  # leaves the wish as it is
