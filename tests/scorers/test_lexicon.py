"""The shape of the lexicon: what a change of a TOML file can break."""

from __future__ import annotations

import tomllib
from importlib.resources import files

import pytest

from scorers.lexicon import (
    ANY_LANGUAGE,
    APPLAUSE,
    LANGUAGES,
    PATTERNS,
    POLITE,
    PROTEST,
    WEAK_TASK,
    WORDS,
    Kind,
)
from scorers.reactions import fold

CLASSES = {
    "adj", "noun", "lang", "verb", "style", "mark", "bad", "good", "thank", "reply", "fill", "ask", "task",
}  # fmt: skip


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_has_all_word_classes_and_no_word_twice_in_one(language: str) -> None:
    assert set(WORDS[language]) == CLASSES
    for name, words in WORDS[language].items():
        found = words.split()
        assert found, name
        assert len(set(found)) == len(found), name


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_has_patterns_of_every_kind_under_names_of_their_own(language: str) -> None:
    names = [pattern.name for pattern in PATTERNS[language]]
    assert len(set(names)) == len(names)
    assert {pattern.kind for pattern in PATTERNS[language]} == set(Kind)
    assert POLITE[language]


def test_every_file_of_the_folder_is_loaded_and_every_pattern_has_its_reason() -> None:
    stems = {entry.name.removesuffix(".toml") for entry in files("scorers.lexicon").iterdir()}
    assert {*LANGUAGES, "shared", "other_languages"} <= stems
    rows = tomllib.loads((files("scorers.lexicon") / "english.toml").read_text(encoding="utf-8"))
    assert len(rows["patterns"]) == len(PATTERNS["english"])
    patterns = [pattern for group in (*PATTERNS.values(), ANY_LANGUAGE) for pattern in group]
    assert all(pattern.reason and pattern.regex for pattern in patterns)


def test_a_regex_in_parts_is_joined_and_slots_are_word_classes() -> None:
    for patterns in PATTERNS.values():
        for pattern in patterns:
            slots = {part.split("}")[0] for part in pattern.regex.split("{")[1:]}
            named = {slot for slot in slots if slot.isalpha()}
            assert named <= CLASSES | {"pre"}, pattern.name
    failed = next(pattern for pattern in PATTERNS["english"] if pattern.name == "you-failed")
    assert failed.regex.startswith("^{pre}(?:that )?you (?:just |also ")
    assert failed.regex.endswith("invented)(?!\\w)")


def test_shared_words_are_written_as_they_are_compared() -> None:
    assert not set(APPLAUSE) & set(PROTEST)
    assert all(fold(word) == word.replace("'", " ") for word in WEAK_TASK.split())
