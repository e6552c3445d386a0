"""Lines of one text found again in another."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from proxy.classify import classify, evidence_of
from proxy.clients import recognise
from proxy.quotes import (
    FOUND,
    bare,
    edges,
    find_inside,
    flat_of,
    last_words,
    measure,
    newest_words,
    read_page,
    read_trace,
)
from proxy.words import following
from store.values import Completion
from tests.proxy.test_canonical import messages

QUESTION = "How do I read a CSV file?\nIt has a header row."
ANSWER = "You can use pandas:\n\n```python\nimport pandas as pd\n```\n\nThe first row is the header."
TRACE = read_trace([{"role": "user", "content": QUESTION}], Completion(text=ANSWER))


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
    asked, said, size, place = measure(read_page([user(text)]), TRACE)
    assert asked >= FOUND
    assert said >= FOUND
    assert size > 60
    assert place >= 0


def test_an_exchange_on_one_line_is_found_inside_it() -> None:
    text = f"Give a title: User: {' '.join(QUESTION.split())} Assistant: {' '.join(ANSWER.split())}"
    asked, said, _ = find_inside(flat_of([user(text)]), TRACE)
    assert min(asked, said) >= FOUND


def test_another_conversation_is_not_found() -> None:
    asked, said, _, _ = measure(read_page([user("How do I bake bread?\nUse flour.")]), TRACE)
    assert (asked, said) == (0.0, 0.0)


def test_cut_lines_are_the_same_lines() -> None:
    long = "Tell me about " + "the bicycle and its history " * 5
    trace = read_trace([user(long)], Completion(text="Sure."))
    assert measure(read_page([user(f"USER: {long[:80]}...")]), trace)[0] == 1.0


def test_of_a_long_answer_only_the_edges_count() -> None:
    lines = [f"line number {i}" for i in range(100)]
    assert edges("\n".join(lines)) == tuple(bare(line) for line in lines[:6] + lines[-6:])


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
    assert read_page([user(text)]).waits_for == speaker
    assert last_words(text) == words


def test_the_newest_words_are_those_since_the_last_answer() -> None:
    messages = [
        user("one"),
        {"role": "assistant", "content": "two"},
        user("three"),
        user("<system-reminder>x</system-reminder>four"),
    ]
    assert newest_words(messages) == "three\nfour"


def test_a_long_page_keeps_its_beginning_and_its_end() -> None:
    text = "first line\n" + "x" * 200_000 + "\nlast line"
    page = read_page([user(text)])
    assert {"firstline", "lastline"} <= set(page.places)
    assert page.last == "lastline"


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(messages)
def test_any_messages_can_be_read(found: Any) -> None:
    assert 0 <= measure(read_page(found, with_system=True), read_trace(found, Completion(text="x")))[0] <= 1
    assert flat_of(found) == flat_of(list(found))
    assert classify(found, {}).kind.value in ("main", "side")
    assert isinstance(evidence_of(found, {}), list)
    assert following(found) is None or len(following(found) or ()) == 2
    assert recognise([], {"messages": found}) == "unknown"


def test_a_form_waits_for_a_field_and_not_for_a_speaker() -> None:
    assert (
        read_page([{"role": "user", "content": "User: hi\nBot: hello\nUser: and?\nBot:"}]).waits_for == "Bot"
    )
    for field in ("Output", "Title", "### Summary", "Standalone question"):
        page = read_page([{"role": "user", "content": f"Input: hi\n{field}:"}])
        assert page.waits_for is None, field
