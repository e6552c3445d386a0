"""Frameworks' texts and people's words inside wrappers: two files of labelled messages, and the pieces of evidence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.models.labelled_rows import read_rows
from lab.models.reader.labelled import REACTIONS
from wire.framework_text import EVIDENCE, Form, framework_retry, quoted_share
from wire.user_text import next_state_text

DATA = Path(__file__).parent / "data"


FRAMEWORK_MESSAGES = read_rows(DATA / "framework_messages.jsonl")
WRAPPED_WORDS = read_rows(DATA / "wrapped_words.jsonl")
PEOPLE = [*read_rows(REACTIONS / "unseen-first.jsonl"), *read_rows(REACTIONS / "unseen-last.jsonl")]


def test_the_files_hold_enough_of_both() -> None:
    assert len(FRAMEWORK_MESSAGES) >= 60
    assert len(WRAPPED_WORDS) >= 60
    assert len({row["framework"] for row in FRAMEWORK_MESSAGES}) >= 25


@pytest.mark.parametrize("row", FRAMEWORK_MESSAGES, ids=lambda row: row["framework"])
def test_no_framework_message_is_a_persons(row: dict[str, Any]) -> None:
    followed = next_state_text([{"role": row["role"], "content": row["text"]}], row["reply"])
    assert followed is not None
    assert followed[0] != "user"


@pytest.mark.parametrize("row", WRAPPED_WORDS, ids=lambda row: row["client"])
def test_a_persons_words_inside_a_wrapper_are_found_exactly(row: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": row["text"]}]
    assert next_state_text(messages, row["reply"]) == ("user", row["words"])


def test_people_who_write_about_formats_and_errors_stay_people() -> None:
    read_as_framework = [row["text"] for row in PEOPLE if framework_retry(row["text"], row.get("reply", ""))]
    assert read_as_framework == ['ERROR: column "total" does not exist']  # nothing but pasted output


@pytest.mark.parametrize(
    "text",
    [
        "I still get this:\n```\nTraceback (most recent call last):\n  File \"a.py\", line 1\nKeyError: 1\n```\nfix it please",
        "Your output is not valid JSON, fix it.",
        "That is not valid JSON. I need the field names in lower case.",
        "You forgot to use the schema I gave you! Try again.",
        "the response must be in German, please try again",
        "> Paris is the capital of France and has two million people.\nNo, I asked about Spain.",
        "Your previous answer was too long. Please use at most three sentences.",
        "You did not call the weather tool, please use it and answer again.",
        "1 validation error for City\nname\n  Field required\n\nwhy do I get this when I run your code?",
        "Correct the JSON: the key is called city, not town.",
        "I get an exception: KeyError: 'Paris'. Can you fix the function?",
        "Invalid answer. Try again.",
        "Your function does not handle empty lists, and the parameter names are misleading. Please correct the code.",
        "The JSON schema must contain an array of addresses, not a single address.",
    ],
)  # fmt: skip
def test_a_persons_complaint_about_a_format_is_theirs(text: str) -> None:
    assert framework_retry(text, "Paris is the capital of France and has two million people.") is None
    assert next_state_text([{"role": "user", "content": text}]) == ("user", text)


@pytest.mark.parametrize("evidence", [e for e in EVIDENCE if e.name != "error_objects"], ids=lambda e: e.name)
def test_each_piece_of_evidence_matches_its_example(evidence: Form) -> None:
    assert evidence.pattern.search(evidence.example)


def test_error_objects_are_found_by_their_keys_wherever_they_are() -> None:
    nested = 'Rejected.\n{"errors": [{"instancePath": "/a", "message": "must be integer"}]}'
    assert framework_retry(nested) == "validation"
    assert (
        framework_retry('Here is my list:\n[{"name": "Ann", "message": "hello"}]\nMake it a table please.')
        is None
    )


def test_a_reply_is_recognised_through_escapes_and_cuts() -> None:
    reply = 'He said "no",\nand then he went home to his family, which had waited for hours.'
    assert quoted_share(f"input_value={reply!r}", reply) == 1.0
    assert quoted_share(f"input_value={json.dumps(reply[:60])}…", reply) >= 0.8
    assert quoted_share("He went home.", reply) == 0.0
    assert quoted_share("anything", "short") == 0.0


def test_a_validators_text_is_told_from_other_rejections() -> None:
    lint = "# Fix any errors below, if possible.\n\n## Running: ruff\n\nmain.py:3:12: F821 undefined name 'x'"
    assert next_state_text([{"role": "user", "content": lint}]) == ("framework", lint)
    invalid = (
        "1 validation error for City\nname\n  Field required [type=missing, input_value={}, input_type=dict]"
    )
    assert next_state_text([{"role": "user", "content": invalid}]) == ("validator", invalid)
    assert next_state_text([{"role": "tool", "content": invalid}]) == ("validator", invalid)
    person = {"role": "user", "content": "Never mind, use the other file."}
    assert next_state_text([{"role": "tool", "content": invalid}, person]) == ("user", person["content"])
