"""Lines of one text found again in another."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, strategies

from proxy.client_names import identify_client
from recorder.text_overlap import (
    MATCH_SHARE,
    edge_lines,
    last_utterance,
    measure_overlap,
    newest_user_text,
    next_speaker,
    read_prompt_lines,
    read_turn_lines,
    squeeze,
)
from store.values import Completion
from tests.recorder.test_canonical import messages
from wire.classify import classify
from wire.line_text import normalise_line
from wire.user_text import next_state_text

QUESTION = "How do I read a CSV file?\nIt has a header row."
ANSWER = "You can use pandas:\n\n```python\nimport pandas as pd\n```\n\nThe first row is the header."
TRACE = read_turn_lines([{"role": "user", "content": QUESTION}], Completion(text=ANSWER))


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize(
    "text",
    [
        f"Name this chat.\nUSER: {QUESTION}\nASSISTANT: {ANSWER}",
        f"Titel bitte.\n\nNutzer：{QUESTION}\nKI：{ANSWER}",
        f"> **Human** > {QUESTION}\n> **AI** > {ANSWER}",
        f"[2026-11-20 15:00] USER: {QUESTION}\n[2026-11-20 15:01] ASSISTANT: {ANSWER}",
        "as JSON: " + json.dumps([{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]),
        f"<user>{QUESTION}</user>\n<assistant>\n{ANSWER}\n</assistant>".replace("<user>How", "<user>\nHow"),
        f"User: {QUESTION}\nAssistant: {ANSWER}".replace("`", "&#96;").replace("'", "&#39;"),
    ],
)  # fmt: skip
def test_an_exchange_is_found_however_it_is_written_out(text: str) -> None:
    overlap = measure_overlap(read_prompt_lines([user(text)]), TRACE)
    assert overlap.question_share >= MATCH_SHARE
    assert overlap.answer_share >= MATCH_SHARE
    assert overlap.size > 60
    assert overlap.position >= 0


def test_another_conversation_is_not_found() -> None:
    overlap = measure_overlap(read_prompt_lines([user("How do I bake bread?\nUse flour.")]), TRACE)
    assert (overlap.question_share, overlap.answer_share) == (0.0, 0.0)


def test_cut_lines_are_the_same_lines() -> None:
    long = "Tell me about " + "the bicycle and its history " * 5
    trace = read_turn_lines([user(long)], Completion(text="Sure."))
    assert measure_overlap(read_prompt_lines([user(f"USER: {long[:80]}...")]), trace).question_share == 1.0


def test_of_a_long_answer_only_the_edges_count() -> None:
    lines = [f"line number {i}" for i in range(100)]
    assert edge_lines("\n".join(lines)) == tuple(normalise_line(line) for line in lines[:6] + lines[-6:])


@pytest.mark.parametrize(
    ("text", "speaker", "words"),
    [
        ("A talk.\n\nHuman: hi\nAI: hello\nHuman: where is Oslo?\nAI:", "AI", "where is Oslo?"),
        ("### Person: one\n### Helper: two\n### Person: three\nfour\n### Helper:", "Helper", "three\nfour"),
        ("Usuario: hola\nAsistente:", "Asistente", "hola"),
        ("Write a poem about these words: sea, salt", None, "Write a poem about these words: sea, salt"),
    ],
)
def test_a_dialogue_that_waits_for_the_next_line_ends_with_the_speakers_name(
    text: str, speaker: str | None, words: str
) -> None:
    assert next_speaker([user(text)]) == speaker
    assert last_utterance(text) == words


def test_the_newest_words_are_those_since_the_last_answer() -> None:
    messages = [
        user("one"),
        {"role": "assistant", "content": "two"},
        user("three"),
        user("<system-reminder>x</system-reminder>four"),
    ]
    assert newest_user_text(messages) == "three\nfour"


def test_a_long_page_keeps_its_beginning_and_its_end() -> None:
    text = "first line\n" + "x" * 200_000 + "\nlast line"
    page = read_prompt_lines([user(text)])
    assert {"firstline", "lastline"} <= set(page.positions)
    assert page.last == "lastline"


@given(messages)
def test_any_messages_can_be_read(found: Any) -> None:
    lines = read_turn_lines(found, Completion(text="x"))
    assert 0 <= measure_overlap(read_prompt_lines(found, with_system=True), lines).question_share <= 1
    assert next_speaker(found) is None or next_speaker(found) != ""
    assert classify(found, {}).kind.value in ("main", "side")
    assert all(classify(found, {}).evidence)
    assert next_state_text(found) is None or len(next_state_text(found) or ()) == 2
    assert identify_client([], {"messages": found}) == "unknown"


def test_a_form_waits_for_a_field_and_not_for_a_speaker() -> None:
    assert next_speaker([user("User: hi\nBot: hello\nUser: and?\nBot:")]) == "Bot"
    for field in ("Output", "Title", "### Summary", "Standalone question"):
        assert next_speaker([user(f"Input: hi\n{field}:")]) is None, field


@given(strategies.text())
@example("Ein_Wort, zwei-Wörter: 3!")
@example("snake_case & 42")
def test_squeezed_text_has_the_letters_and_digits_of_the_text(text: str) -> None:
    assert squeeze(text) == "".join(letter for letter in text.casefold() if letter.isalnum())
