"""Reading reactions: measured on labelled utterances, then case by case."""

from __future__ import annotations

from collections import Counter

import pytest

from lab.models.labelled_rows import read_rows
from lab.models.questions import HELDOUT, ONLINE
from lab.models.reader.labelled import REACTIONS
from lab.models.styles import HELDOUT_THANKS, NEUTRAL, STYLES, THANKS
from scorers.lexicon import ANY_LANGUAGE, PATTERNS, WORDS
from scorers.reactions import (
    MAX_REACTION,
    bounded,
    classify,
    fold,
    read_reaction,
    split_sentences,
    without_code,
)
from scorers.rules import opens_new_topic

UTTERANCES = read_rows(REACTIONS / "utterances.jsonl")


def is_right(row: dict[str, object]) -> bool:
    reaction = read_reaction(str(row["text"]))
    return (reaction.value or 0) == row["verdict"] and ("hint" not in row or reaction.hint == row["hint"])


@pytest.mark.parametrize("split", sorted({row["split"] for row in UTTERANCES}))
def test_at_least_95_percent_of_the_labelled_utterances_are_read_right(split: str) -> None:
    rows = [row for row in UTTERANCES if row["split"] == split]
    wrong = [row["text"] for row in rows if not is_right(row)]
    assert len(wrong) <= 0.05 * len(rows), wrong


@pytest.mark.parametrize("language", ["en", "es", "de", "fr"])
def test_no_language_falls_behind(language: str) -> None:
    rows = [row for row in UTTERANCES if row["lang"] == language]
    assert len(rows) >= 30
    wrong = [row["text"] for row in rows if not is_right(row)]
    assert len(wrong) <= 0.08 * len(rows), wrong


def test_hardly_a_new_question_or_statement_is_called_a_complaint() -> None:
    neutral = [row for row in UTTERANCES if row["verdict"] == 0]
    assert len(neutral) >= 80
    false = [row["text"] for row in neutral if read_reaction(row["text"]).value == -1]
    assert len(false) <= 0.03 * len(neutral), false


def test_the_list_is_large_balanced_and_without_doubles() -> None:
    assert len(UTTERANCES) >= 150
    assert len({row["text"] for row in UTTERANCES}) == len(UTTERANCES)
    counts = Counter(row["verdict"] for row in UTTERANCES)
    assert min(counts.values()) >= 50


def test_no_utterance_stands_in_the_lexicon() -> None:
    """What is measured is the structure, not the memory."""
    stored = {fold(p.regex) for patterns in (*PATTERNS.values(), ANY_LANGUAGE) for p in patterns}
    stored |= {fold(line) for classes in WORDS.values() for words in classes.values() for line in [words]}
    longer = [row["text"] for row in UTTERANCES if len(fold(row["text"]).split()) > 3]
    assert not [text for text in longer if any(fold(text) in entry for entry in stored)]


def test_every_complaint_the_test_model_is_taught_is_read_with_its_own_words_as_hint() -> None:
    wrong = [
        text
        for style in STYLES.values()
        for text in (*style.complaints, *style.heldout_complaints)
        if (read_reaction(text).value, read_reaction(text).hint) != (-1, text)
    ]
    # Whoever wants to hear more need not be displeased: nobody decides, and a judge may.
    assert {fold(text) for text in wrong} == {"tell me more", "tell me more please"}
    assert {read_reaction(text).value for text in wrong} == {None}


def test_the_built_in_users_thanks_are_thanks_and_their_small_talk_is_nothing() -> None:
    assert [t for t in (*THANKS, *HELDOUT_THANKS) if read_reaction(t).value != 1] == []
    assert [t for t in NEUTRAL if read_reaction(t).value is not None] == []


def test_no_question_of_the_built_in_topics_is_a_reaction() -> None:
    questions = [q.text for q in (*ONLINE, *HELDOUT)]
    assert [q for q in questions if read_reaction(q).value is not None] == []


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("Thanks, but shorter please", "shorter please"),
        ("Great answer, however please drop the emojis.", "please drop the emojis."),
        ("That's too long. What is the capital of Peru?", "That's too long."),
        ("No, that's wrong. It opened in 1885.", "No, that's wrong. It opened in 1885."),
        ("Thanks! No emoji though. Now write a poem about rain.", "No emoji though."),
        ("Danke, aber bitte kürzer", "bitte kürzer"),
        ("Gracias, pero sin emojis", "sin emojis"),
        ("Merci, mais plus court", "plus court"),
        ("no emoji", "no emoji"),
        ("  Shorter, please!  ", "Shorter, please!"),
    ],
)
def test_the_hint_is_what_complains(text: str, hint: str) -> None:
    reaction = read_reaction(text)
    assert (reaction.value, reaction.hint) == (-1, hint)


def test_thanks_with_a_new_question_is_thanks_without_a_hint() -> None:
    assert read_reaction("Thanks! What is the capital of Peru?").value == 1
    assert read_reaction("Thanks! What is the capital of Peru?").hint is None


def test_thanks_for_what_is_to_come_say_nothing_of_the_past() -> None:
    assert read_reaction("What is the capital of Peru? Thanks!").value is None
    assert read_reaction("Could you list three rivers? Thanks in advance").value is None


def test_an_instruction_after_a_new_question_belongs_to_that_question() -> None:
    assert read_reaction("What is the capital of Peru? Keep it short.").value is None
    assert read_reaction("What is the capital of Peru? Your last answer was too long.").value == -1


def test_no_after_a_question_of_the_assistant_is_an_answer() -> None:
    assert read_reaction("No, I live in Lima.", reply="Do you live in Cusco?").value is None
    assert read_reaction("No, I live in Lima.", reply="You live in Cusco.").value == -1
    assert read_reaction("Spanish.", reply="Which language do you learn?").value is None
    assert read_reaction("Spanish!", reply="The capital is Paris.").value == -1


def test_a_name_for_the_assistant_is_a_directive_and_a_name_of_ones_own_is_not() -> None:
    for text in (
        "Your name is Ada, please say so.",
        "You are Ada.",
        "Stell dich als Ada vor.",
        "Llámate Ada.",
    ):
        assert (read_reaction(text).value, read_reaction(text).hint) == (-1, text)
    for text in (
        "My name is Ada.",
        "I am Ada.",
        "Call me Ada.",
        "Ich heiße Ada.",
        "Me llamo Ada.",
        "You are nice.",
    ):
        assert read_reaction(text).value is None


@pytest.mark.parametrize(
    "text",
    [
        "You are a pirate. Write a poem.",
        "You are Napoleon. Write a letter to Josephine.",
        "Your name is Bob and you keep a shop. Greet me.",
        "Call yourself Bob and write a poem.",
        "Your name is Zed. What do you steal first?",
        "Introduce yourself as Ada in French: how would that go?",
    ],
)
def test_a_role_play_is_a_task_and_no_reaction_to_the_reply_before(text: str) -> None:
    assert read_reaction(text).value is None


def test_a_name_is_an_answer_to_who_asked_for_one() -> None:
    assert read_reaction("Your name is Ada.", reply="What would you like to call me?").value is None
    assert read_reaction("Your name is Ada.", reply="I am Patina. How can I help you?").value == -1


def test_a_tag_is_no_question() -> None:
    assert read_reaction("Your name is Leo, got it?").value == -1
    assert read_reaction("You are Claude, right?").value is None


def test_emoji_alone_are_a_reaction() -> None:
    assert read_reaction("👍").value == 1
    assert read_reaction("👎").value == -1
    assert read_reaction("👎").hint is None
    assert read_reaction("Which fruit is this? 😊").value is None


def test_code_and_logs_do_not_react_and_stay_out_of_the_hint() -> None:
    text = 'That is wrong.\n```python\nraise ValueError("too long")\n```\nUse a list instead.'
    assert read_reaction(text).hint == "That is wrong. Use a list instead."
    assert read_reaction("```\ntoo long\n```").value is None
    assert without_code("See:\n~~~\nx\n~~~\nbye") == "See:\n \nbye"


def test_a_hint_is_bounded_and_keeps_the_complaint() -> None:
    text = "That was too long. " + "The weather is fine over the hills today. " * 40
    reaction = read_reaction(text)
    assert reaction.hint == "That was too long."
    assert len(read_reaction("You forgot " + "the onions and " * 60).hint or "") <= MAX_REACTION + 2


def test_bounded_keeps_whole_pieces() -> None:
    assert bounded(["one two", "three"], limit=9) == "one two"
    assert bounded(["one two three"], limit=9) == "one two …"
    assert bounded([]) == ""


@pytest.mark.parametrize("text", ["", "   ", "\n\n", "?!", "…", "🙂", "1234", "a" * 100_000, "no " * 20_000])
def test_odd_input_is_no_reaction_and_no_error(text: str) -> None:
    assert read_reaction(text).value is None


def test_a_message_of_nothing_but_the_lexicons_own_words_is_read_as_fast_as_any_other() -> None:
    """Words that two classes share once doubled the work at every word: 300 of them would never have ended."""
    read_reaction("the answer is so very much of the text that it was " * 30)
    read_reaction(" ".join(["the answer is so very much of the text that it was"] * 5))
    read_reaction("great right nice exactly work good what i needed " * 6 + "banana")


def test_sentences_end_at_marks_and_lines_but_not_inside_numbers() -> None:
    assert split_sentences("It is 3.14. Right?\nNo.") == ["It is 3.14.", "Right?", "No."]
    assert split_sentences("") == []


def test_folding_makes_accents_case_and_apostrophes_equal() -> None:
    assert fold("Más CORTO") == fold("mas corto") == "mas corto"
    assert fold("don’t") == fold("don't") == "don t"
    assert read_reaction("thats wrong").value == read_reaction("That’s wrong").value == -1
    assert read_reaction("mas corto por favor").value == -1


def test_a_message_of_questions_and_tasks_opens_a_new_topic() -> None:
    assert opens_new_topic("What is the capital of Peru?")
    assert opens_new_topic("Thanks! What is the capital of Peru?")
    assert not opens_new_topic("Too long. What is the capital of Peru?")
    assert not opens_new_topic("I live in Lima.")


def test_the_parts_of_a_message_are_named() -> None:
    roles = [s.role.value for s in classify("Thanks! Too long, though. What is next? I live in Lima.")]
    assert roles == ["thanks", "complaint", "question", "statement"]


def test_every_pattern_has_a_reason_and_its_own_name() -> None:
    for language, patterns in {**PATTERNS, "any": ANY_LANGUAGE}.items():
        names = [p.name for p in patterns]
        assert len(set(names)) == len(names), language
        assert all(p.reason for p in patterns)
