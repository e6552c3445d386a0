"""Canary files: read whole or refused, and nothing is measured by what it was trained on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from store.errors import ConfigError
from trainer.canaries import DEFAULT_FILE, AnchorPrompt, Fact, load_canaries, read_canaries


def test_the_general_canaries_are_whole_and_hold_opposites() -> None:
    canaries = read_canaries(DEFAULT_FILE)
    assert len(canaries.facts) >= 12
    assert len(canaries.tools) >= 3
    styles = {anchor.style for anchor in canaries.anchors}
    assert set(canaries.instructions) > styles
    assert sum(map(len, canaries.instructions.values())) >= 16
    assert {"long", "short", "emoji", "no_emoji", "json", "prose", "english", "spanish"} <= styles
    assert {"markdown", "plain", "formal", "casual"} <= styles
    assert len({anchor.prompt for anchor in canaries.anchors}) == len(canaries.anchors)
    for case in canaries.tools:
        assert case.expect_name in {tool["function"]["name"] for tool in case.tools}


@pytest.mark.parametrize(
    ("style", "reply", "obeyed"),
    [
        ("long", "word " * 60, True),
        ("long", "Because of scattering.", False),
        ("short", "Because of scattering.", True),
        ("short", "word " * 60, False),
        ("emoji", "Scattering! 🌈", True),
        ("emoji", "Scattering!", False),
        ("no_emoji", "Scattering!", True),
        ("no_emoji", "Scattering! ☀", False),
        ("json", '{"answer": "scattering"}', True),
        ("json", '```json\n{"answer": 1}\n```', True),
        ("json", "The answer is scattering.", False),
        ("prose", '{"answer": "scattering"}', False),
        ("spanish", "El cielo es azul.", True),
        ("spanish", "Blue it is.", False),
        ("english", "The sky is blue.", True),
        ("english", "El cielo azul.", False),
        ("markdown", "- one\n- two", True),
        ("markdown", "one two", False),
        ("plain", "**one** two", False),
        ("formal", "Hey, gonna tell you.", False),
        ("question", "It is blue. Did that help?", True),
        ("question", "It is blue.", False),
    ],
)
def test_the_checks_of_the_general_anchors_tell_obeyed_from_not(style: str, reply: str, obeyed: bool) -> None:
    anchors = [anchor for anchor in read_canaries(DEFAULT_FILE).anchors if anchor.style == style]
    assert anchors
    assert {anchor.is_obeyed(reply) for anchor in anchors} == {obeyed}
    assert not any(anchor.is_obeyed("  ") for anchor in anchors)


def test_a_fact_is_right_when_an_accepted_answer_stands_as_a_word_of_its_own() -> None:
    fact = Fact(prompt="What is 3 plus 5?", accept=("8", "eight"))
    assert fact.is_right('{"answer": 8}')
    assert fact.is_right("That is **Eight**!")
    assert not fact.is_right("18")
    assert not fact.is_right("The weight is unknown.")
    assert not fact.is_right("")
    assert Fact(prompt="?", accept=("CO₂",)).is_right("It is CO₂.")


def test_versions_are_held_by_other_words_than_the_gate_asks_with() -> None:
    canaries = read_canaries(DEFAULT_FILE)
    trained = canaries.trained_instructions()
    assert len(trained) == len(set(trained)) >= 64
    assert not [text for text in trained if any(text in anchor.prompt for anchor in canaries.anchors)]
    styles = {text: style for style, texts in canaries.instructions.items() for text in texts}
    first = [styles[text] for text in trained[: len({styles[text] for text in trained})]]
    assert len(set(first)) > 0.8 * len(first)


def test_where_the_anchors_use_every_instruction_they_hold_versions_too() -> None:
    canaries = read_canaries(DEFAULT_FILE)
    asked = replace(
        canaries,
        anchors=(AnchorPrompt(prompt="Why? Be brief.", style="short"),),
        instructions={"short": ("Be brief.",)},
    )
    assert asked.trained_instructions() == ("Be brief.",)


def test_a_model_folder_brings_its_own(tmp_path: Path) -> None:
    assert load_canaries(str(tmp_path)) == read_canaries(DEFAULT_FILE)
    assert load_canaries("some-org/some-model") == read_canaries(DEFAULT_FILE)
    own = {
        "facts": [{"prompt": "1?", "accept": ["1"]}],
        "tools": [],
        "anchors": [{"prompt": "2? Be brief.", "style": "concise"}],
    }
    (tmp_path / "canaries.json").write_text(json.dumps(own))
    loaded = load_canaries(str(tmp_path))
    assert [fact.prompt for fact in loaded.facts] == ["1?"]
    assert not loaded.anchors[0].has_check


GOOD: dict[str, Any] = {
    "facts": [{"prompt": "1?", "accept": ["1"]}],
    "tools": [],
    "anchors": [{"prompt": "2?", "style": "s"}],
}


@pytest.mark.parametrize(
    "change",
    [
        {"facts": []},
        {"anchors": []},
        {"facts": [{"prompt": "1?"}]},
        {"facts": [{"prompt": "", "accept": []}]},
        {"tools": [{"messages": 3, "tools": [], "expect_name": "x"}]},
        {"anchors": [{"prompt": "2?", "match": "("}]},
        {"anchors": None},
        {"instructions": ["Be brief."]},
        {"instructions": {"s": "Be brief."}},
        {"instructions": {"s": [""]}},
    ],
    ids=str,
)
def test_a_file_that_could_not_watch_over_anything_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "canaries.json"
    path.write_text(json.dumps(GOOD))
    read_canaries(path)
    path.write_text(json.dumps({**GOOD, **change}))
    with pytest.raises(ConfigError, match="canaries"):
        read_canaries(path)
    path.write_text("{")
    with pytest.raises(ConfigError, match="canaries"):
        read_canaries(path)
