"""Reading a message: measured on hand-written reactions and wishes, then case by case."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lab.models.labelled_rows import read_rows
from lab.models.questions import HELDOUT, ONLINE
from lab.models.reader.labelled import REACTIONS, read_all_rows
from lab.models.reader.wishes import hand_written, made
from scorers.combined import read_message
from store.values import WishReading, WishScope

HERE = Path(__file__).parent
REPLY = "The capital of France is **Paris**! 😊 It lies on the river Seine and I hope this helps you a lot."


def rows(name: str) -> list[dict[str, Any]]:
    path = HERE / name
    return read_rows(path if path.exists() else REACTIONS / name)


def confusion(name: str) -> Counter[tuple[int, int]]:
    """(label, value) of every row; undecided is 0."""
    return Counter(
        (row["verdict"], read_message(row["text"], reply=row["reply"], prompt=row["prompt"]).value or 0)
        for row in rows(name)
    )


#: Sets that the classifier is trained on since 2026-11-26.
SETS = ["unseen-first.jsonl", "unseen-last.jsonl", "fresh-first.jsonl", "fresh-last.jsonl"]
LATER_SETS = ["fresh-earlier.jsonl"] + [
    f"unseen-{name}.jsonl"
    for name in ("nov25", "nov25-second", "nov25-third", "nov25-fourth", "nov25-fifth", "nov26-second")
]


@pytest.mark.parametrize("name", [*SETS, *LATER_SETS])
def test_a_decided_reaction_of_a_known_set_is_nearly_always_right(name: str) -> None:
    counts = confusion(name)
    for value in (-1, 1):
        read = sum(n for (_, found), n in counts.items() if found == value)
        labelled = sum(n for (label, _), n in counts.items() if label == value)
        assert counts[value, value] >= 0.95 * read, (value, counts)
        assert counts[value, value] >= 0.8 * labelled, (value, counts)


#: Misread by the one classifier, and right with the patterns before it.
KNOWN = pytest.mark.xfail(reason="known: lab/research/2026-11-29-reader.md", strict=True)
#: Sets that nothing was trained on.
HELD_OUT_SETS = [
    "unseen-nov26.jsonl",
    "unseen-nov26-third.jsonl",
    "unseen-nov27.jsonl",
    "unseen-nov27-languages.jsonl",
    "unseen-nov27-last.jsonl",
    "unseen-nov27-styles.jsonl",
    "unseen-nov27-tester.jsonl",
    "unseen-nov28.jsonl",
    "unseen-nov28-natural.jsonl",
]
#: set -> least share right of what is read as a complaint and as praise, least share of the messages read as labelled.
NEWEST = {
    "unseen-nov25.jsonl": (0.96, 0.96, 0.9),
    "unseen-nov25-second.jsonl": (0.95, 0.95, 0.87),
    "unseen-nov25-third.jsonl": (0.95, 0.95, 0.87),
    "unseen-nov25-fourth.jsonl": (0.95, 0.95, 0.87),
    "unseen-nov25-fifth.jsonl": (0.95, 0.95, 0.87),
    "unseen-nov26.jsonl": (0.98, 1.0, 0.81),
    "unseen-nov26-third.jsonl": (0.91, 0.92, 0.74),
    "unseen-nov27.jsonl": (0.93, 0.94, 0.73),
    "unseen-nov27-languages.jsonl": (0.96, 0.94, 0.7),
    "unseen-nov27-last.jsonl": (0.95, 0.94, 0.79),
    "unseen-nov27-styles.jsonl": (0.93, 0.87, 0.69),
    "unseen-nov27-tester.jsonl": (0.94, 0.95, 0.8),
    "unseen-nov28.jsonl": (0.94, 0.94, 0.85),
    "unseen-nov28-natural.jsonl": (0.975, 0.97, 0.88),
}


@pytest.mark.parametrize("name", NEWEST)
def test_the_newest_sets_are_read_as_their_notes_say(name: str) -> None:
    """The held-out ones are harder than traffic (lab/research/2026-11-27-reader-more-rows.md)."""
    counts = confusion(name)
    complaints, praise = (sum(n for (_, found), n in counts.items() if found == v) for v in (-1, 1))
    least_complaints, least_praise, least = NEWEST[name]
    assert counts[-1, -1] >= least_complaints * complaints
    assert counts[1, 1] >= least_praise * praise
    assert counts[-1, -1] + counts[0, 0] + counts[1, 1] >= least * sum(counts.values())


def test_complaints_of_all_held_out_sets_together() -> None:
    counts = sum((confusion(name) for name in HELD_OUT_SETS), Counter())
    read = sum(n for (_, found), n in counts.items() if found == -1)
    labelled = sum(n for (label, _), n in counts.items() if label == -1)
    assert counts[-1, -1] >= 0.955 * read
    assert counts[-1, -1] >= 0.66 * labelled


def test_wishes_in_free_words_are_mostly_read_as_complaints() -> None:
    reply = "It's **Paris**! 🎉 That's something lots of people ask me about, so don't worry!"
    wishes = [row for row in read_rows(Path(__file__).parent / "wishes-nov26.jsonl") if row["wishes"]]
    found = sum(read_message(row["text"], reply=reply).value == -1 for row in wishes)
    assert found >= 0.84 * len(wishes)


@pytest.mark.parametrize(
    "task",
    [
        "Can you write a JSON schema for a user?",
        "Write me a formal letter to my landlord",
        "What is the capital of Peru? Answer in Spanish.",
        "Can you turn this into bullet points? milk, eggs, bread",
        pytest.param("Please write the release notes in Markdown", marks=KNOWN),
    ],
)
def test_a_task_that_names_a_style_is_no_complaint(task: str) -> None:
    assert read_message(task, reply="It's **Paris**! 🎉").value != -1


def test_the_training_has_hardly_a_message_of_a_held_out_set() -> None:
    trained_on = {row["text"].casefold() for row in read_all_rows()}
    for name in HELD_OUT_SETS:
        assert len({row["text"].casefold() for row in rows(name)} & trained_on) <= 4  # "ok" and the like


@pytest.mark.parametrize("name", SETS)
def test_most_wishes_and_corrections_give_a_hint_with_the_users_words(name: str) -> None:
    wishes = [row for row in rows(name) if row["wish"]]
    useful = 0
    for row in wishes:
        hint = read_message(row["text"], reply=row["reply"]).hint
        useful += hint is not None and row.get("hint", "") in hint
    assert useful >= 0.75 * len(wishes)


def test_the_sets_are_large_and_share_no_text() -> None:
    first, last = rows("unseen-first.jsonl"), rows("unseen-last.jsonl")
    assert len(first) >= 300
    assert len(last) >= 200
    texts = [Counter(row["text"].casefold().strip("!. ") for row in part) for part in (first, last)]
    shared = set(texts[0]) & set(texts[1])
    assert len(shared) <= 6, shared  # "ok" and the like


def test_a_pattern_of_a_complaint_is_named_and_stops_praise() -> None:
    message = read_message(
        "I said tonight, you booked it for tomorrow", reply="I've booked a table for 7 pm."
    )
    assert message.value != 1
    assert message.patterns == ("i-asked",)


@pytest.mark.parametrize(
    "text",
    [
        "Can you also give me the population?",
        "And what about France?",
        "now write the tests",
        "summarise that in one line please",
        "I'll be back in an hour",
    ],
)
def test_a_follow_up_is_no_reaction(text: str) -> None:
    assert read_message(text, reply="The capital is Paris.").value is None


def test_no_question_of_the_built_in_topics_is_a_reaction() -> None:
    asked = [question.text for question in (*ONLINE, *HELDOUT)]
    wrong = [text for text in asked if read_message(text, reply=REPLY).value is not None]
    assert len(wrong) <= 0.005 * len(asked), wrong


@pytest.mark.parametrize(
    "text",
    [
        "great, now it deletes my files",
        "oh wonderful, another error",
        "thanks for nothing",
        pytest.param("Brilliant. It deleted everything.", marks=KNOWN),
    ],
)
def test_sarcasm_is_a_complaint_without_a_hint(text: str) -> None:
    message = read_message(text, reply=REPLY)
    assert (message.value, message.hint) == (-1, None)


@pytest.mark.parametrize(
    "text",
    [
        "Translate to Spanish: Thanks, perfect, exactly what I needed!",
        'Here is my review: "Great shop, thank you so much!" Shorten it to ten words.',
        "> Perfect, thank you!\nWho wrote this?",
        "这个多少钱合适?",
        "which one is the best and the most useful?",
    ],
)
def test_words_that_are_quoted_or_asked_about_are_no_reaction(text: str) -> None:
    assert read_message(text, reply=REPLY).value is None


@pytest.mark.parametrize(
    "text",
    [
        "Wonderful, there goes my whole weekend.",
        "Brilliant! The printer is on fire.",
        "Молодец, угробил мне базу",
        "Bravo, mi sono perso tutto il lavoro",
    ],
)
def test_praise_before_an_event_that_nobody_wants_is_not_taken_for_praise(text: str) -> None:
    assert read_message(text, reply=REPLY).value != 1


@pytest.mark.parametrize(
    "text",
    [
        "Thanks! And how long for gnocchi?",
        pytest.param("Perfect, now add a test.", marks=KNOWN),
        "Great, it works now, thank you",
    ],
)
def test_praise_before_a_question_or_a_task_is_praise(text: str) -> None:
    assert read_message(text, reply=REPLY).value == 1


@pytest.mark.parametrize("text", ["wrong", "No.", "That's wrong.", "useless answer"])
def test_a_bare_rejection_has_no_hint(text: str) -> None:
    message = read_message(text, reply=REPLY)
    assert (message.value, message.hint) == (-1, None)


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("no, I have never been to Spain", "Have you ever been to Spain?"),
        ("No, thanks", "Would you like another one?"),
        ("thanks in advance", REPLY),
        ("what does wrong mean", REPLY),
        ("Good morning", REPLY),
    ],
)
def test_answers_and_small_talk_are_no_reaction(text: str, reply: str) -> None:
    assert read_message(text, reply=reply).value is None


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("Perfect, thanks. But please no emoji next time.", "please no emoji next time."),
        ("Too long. What is the capital of Peru?", "Too long."),
        ("Thanks, but shorter please", "shorter please"),
        ("Shorter please, and no emoji.", "Shorter please, and no emoji."),
    ],
)
def test_the_hint_is_the_part_that_states_a_wish(text: str, hint: str) -> None:
    message = read_message(text, reply=REPLY)
    assert (message.value, message.hint) == (-1, hint)


def test_a_hint_never_holds_the_reply() -> None:
    quoted = "It lies on the river Seine and I hope this helps you a lot."
    message = read_message(f'No emoji please. You wrote: "{quoted}"', reply=REPLY)
    assert message.value == -1
    assert quoted not in (message.hint or "")


def test_a_request_repeated_word_for_word_is_undecided() -> None:
    assert read_message("Shorter please.", reply=REPLY, prompt="shorter please").value is None


def test_every_decision_has_its_reason() -> None:
    for text in ("thanks!", "too long", "hello", "great, now it deletes my files"):
        assert read_message(text, reply=REPLY).reason.startswith("classifier: complaint ")


@pytest.mark.parametrize("text", ["Emojis sind wieder okay", "You can use emojis again."])
def test_a_permission_is_no_complaint(text: str) -> None:
    assert read_message(text, reply=REPLY).value is None


@pytest.mark.parametrize(
    ("text", "reply", "prompt"),
    [
        ("nightlife?? with kids??", "Enjoy the nightlife of Vienna.", "A trip with kids?"),
        ('"17 * 23 = 381" - no.', "17 * 23 = 381", "What is 17 * 23?"),
        ("pies, nie kot", "kot", "Przetłumacz 'dog' na polski"),
        ("1815", "It was in 1805.", "When was Waterloo?"),
    ],
)
def test_words_of_the_reply_that_are_doubted_or_denied_are_a_complaint(
    text: str, reply: str, prompt: str
) -> None:
    assert read_message(text, reply=reply, prompt=prompt).value == -1


@pytest.mark.parametrize(
    ("text", "reply", "prompt"),
    [
        ("Lubuntu? Is it free?", "Try Lubuntu.", "Which distribution?"),
        ("1815", "It was in 1805.", "What happened in 1805?"),
        ("no, I have never seen a cat", "Have you seen a cat?", ""),
    ],
)
def test_words_of_the_reply_that_are_asked_about_are_no_complaint(text: str, reply: str, prompt: str) -> None:
    assert read_message(text, reply=reply, prompt=prompt).value != -1


@pytest.mark.parametrize(
    ("text", "reply", "value"),
    [
        ("No, answer in one word.", "In the south of Norway.", -1),
        ("No, I wanted the 4pm slot.", "I booked the 3pm slot.", -1),
        ("No, nothing else.", "In the south of Norway. Anything else?", None),
        ("Nein, antworte in einem Wort.", "Im Süden von Norwegen.", -1),
        ("no, make it two lines", "In the south of Norway.", -1),
        ("No, I have never been to Norway.", "In the south of Norway.", None),
        ("No, go ahead.", "Done.", None),
    ],
)
def test_a_bare_no_before_a_complaint_does_not_hide_it(text: str, reply: str, value: int | None) -> None:
    assert read_message(text, reply=reply).value == value


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("no more 😊 please", "no more 😊 please"),
        ("Thanks! Please stop using 🎉🎉", "Please stop using 🎉🎉"),
        ("bitte ohne 😊", "bitte ohne 😊"),
        ("sin 🎉 por favor", "sin 🎉 por favor"),
    ],
)
def test_a_wish_about_an_emoji_is_read_and_kept_in_the_persons_words(text: str, hint: str) -> None:
    message = read_message(text, reply=REPLY)
    assert message.value == -1
    assert message.hint == hint
    assert message.wish == WishReading(text=hint, scope=WishScope.LASTING)


@pytest.mark.parametrize(("text", "value"), [("thanks 😊 that helped", 1), ("great 🎉", 1), ("no 😂", None)])
def test_an_emoji_of_ones_own_is_left_as_it_is(text: str, value: int | None) -> None:
    assert read_message(text, reply=REPLY).value == value


@pytest.mark.parametrize(
    "text",
    [
        "I love the emojis",
        "I like the short answers",
        "I like that you keep it short",
        "good that there are no emojis",
        "ich mag die Emojis",
        "me encantan los emojis",
    ],
)
def test_what_is_liked_is_no_complaint(text: str) -> None:
    assert read_message(text, reply=REPLY).value != -1


@pytest.mark.parametrize(
    "text",
    [
        "I like my answers short",
        "I'd love fewer emojis",
        "I like the answer, but shorter next time",
        "Glad that's over. Shorter please.",
    ],
)
def test_a_wish_in_the_words_of_liking_is_a_complaint(text: str) -> None:
    assert read_message(text, reply=REPLY).value == -1


@pytest.mark.parametrize(
    "text",
    [
        "No, that is all.",
        "nein, das ist alles",
        "non, c'est tout",
        "No, eso es todo",
        "нет, это всё",
        "That's all for now",
    ],
)
def test_the_end_of_a_conversation_is_no_verdict(text: str) -> None:
    assert read_message(text, reply=REPLY).value is None


@pytest.mark.parametrize(
    "text", ["That's it!", "Yes, that's it", "Perfect, that is all I needed", "No, thank you, that is all."]
)
def test_words_of_praise_at_the_end_stay_praise(text: str) -> None:
    assert read_message(text, reply=REPLY).value == 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Nicht schlecht!", 1),
        ("nada mal", 1),
        ("pas mal du tout", 1),
        ("неплохо", 1),
        ("not bad at all", 1),
        ("not bad?", None),
        ("Not bad, but too long.", -1),
        ("Nicht schlecht, aber zu lang.", -1),
    ],
)
def test_a_denied_fault_is_praise(text: str, value: int | None) -> None:
    assert read_message(text, reply=REPLY).value == value


# -- wishes

#: Messages by hand of kinds that were never trained on, and generated ones of kinds or frames that were not.
UNSEEN_WISHES = [m for m in hand_written() if m.held_out]


def scope_of(text: str, reply: str = REPLY) -> str:
    wish = read_message(text, reply=reply).wish
    return wish.scope.value if wish else "none"


def test_wishes_of_unseen_kinds_are_read_with_their_scope() -> None:
    counts = Counter((m.scope, scope_of(m.text)) for m in UNSEEN_WISHES)
    for scope, least in (("lasting", 0.63), ("withdrawal", 0.75), ("once", 0.9)):
        labelled = sum(n for (label, _), n in counts.items() if label == scope)
        assert counts[scope, scope] >= least * labelled, counts
    read = sum(n for (_, found), n in counts.items() if found == "lasting")
    assert counts["lasting", "lasting"] >= 0.9 * read, counts


def test_made_wishes_of_unseen_kinds_and_frames_are_read_with_their_scope() -> None:
    counts = Counter((m.scope, scope_of(m.text, reply="")) for m in made(800, 5, held_out=True))
    lasting = sum(n for (label, _), n in counts.items() if label == "lasting")
    others = sum(n for (label, _), n in counts.items() if label != "lasting")
    assert counts["lasting", "lasting"] >= 0.85 * lasting, counts
    assert sum(n for (label, found), n in counts.items() if found == "lasting" != label) <= 0.07 * others, (
        counts
    )


@pytest.mark.parametrize(
    ("name", "least"), [("wishes", 0.85), ("wishes-nov26", 0.75), ("wishes-nov27", 0.85)]
)
def test_free_wordings_of_six_styles_are_wishes_and_what_looks_like_one_is_none(
    name: str, least: float
) -> None:
    found = [(bool(row["wishes"]), scope_of(row["text"])) for row in rows(f"{name}.jsonl")]
    stated = [scope for is_stated, scope in found if is_stated]
    others = [scope for is_stated, scope in found if not is_stated]
    assert sum(scope != "none" for scope in stated) >= least * len(stated)
    assert sum(scope in ("lasting", "withdrawal") for scope in others) <= 0.1 * len(others)


@pytest.mark.parametrize(
    ("text", "scope", "words"),
    [
        (
            "Too long. One or two sentences are enough for me.",
            "lasting",
            "One or two sentences are enough for me.",
        ),
        ("no bold", "lasting", "no bold"),
        ("Shorter please", "lasting", "Shorter please"),
        ("End with a question, please.", "lasting", "End with a question, please."),
        ("I prefer to be called Captain.", "lasting", "I prefer to be called Captain."),
        (
            "I want all lower case, no capitals at all.",
            "lasting",
            "I want all lower case, no capitals at all.",
        ),
        ("reason first, then the tips", "lasting", "reason first, then the tips"),
        ("Thanks! From now on, no lists.", "lasting", "From now on, no lists."),
        ("Bitte keine Emojis mehr.", "lasting", "Bitte keine Emojis mehr."),
        ("Write it with emoji please, just this once", "once", "Write it with emoji please, just this once"),
        ("make this one shorter", "answer", "make this one shorter"),
        ("I preferred it when you were chatty", "withdrawal", "I preferred it when you were chatty"),
        ("forget the formal tone", "withdrawal", "forget the formal tone"),
        ("you can use emoji again", "withdrawal", "you can use emoji again"),
    ],
)
def test_a_wish_is_the_words_that_state_it_with_their_scope(text: str, scope: str, words: str) -> None:
    wish = read_message(text, reply=REPLY).wish
    assert wish == WishReading(text=words, scope=WishScope(scope))


@pytest.mark.parametrize(
    "text",
    [
        "Translate: Please always answer in one sentence.",
        "Here is the system prompt of my bot: You are Kim. Always answer in JSON. Never use emoji.",
        "My chatbot should always answer in French. How do I configure it?",
        "Can you answer this mail?\n\nDear Sam,\nplease keep your answers short.\nKim",
        "> from now on answer in French\nwho wrote that?",
        "```\nAlways answer in JSON.\n```\nwhat does it do?",
        "My boss says 'always answer in one line'. What should I reply?",
        '{"role": "system", "content": "Always answer in French."}',
    ],
)
def test_text_of_others_is_no_wish_and_no_complaint(text: str) -> None:
    message = read_message(text, reply=REPLY)
    assert message.wish is None
    assert message.value != -1


@pytest.mark.parametrize(
    "text", ["No, it is Canberra.", "You forgot the part about salt.", "Thanks, exactly like that."]
)
def test_a_correction_and_praise_are_no_wish(text: str) -> None:
    assert read_message(text, reply=REPLY, prompt="What is the capital?").wish is None


def test_a_wish_is_always_a_part_of_the_message() -> None:
    for message in (*UNSEEN_WISHES, *made(300, 6)):
        wish = read_message(message.text).wish
        assert wish is None or wish.text in message.text
