"""``run.py eval name=value``: what CLaaS's users type."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from lab.evals.arguments import add_eval, read_overrides
from store.errors import ConfigError


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_eval(lambda name, help: parser)
    return parser.parse_args(words)


def test_words_with_an_equals_sign_set_options_and_settings() -> None:
    given = parse("preferences=[concise, no_emoji]", "num_steps=20", "output_dir=runs", "learning_rate=1e-4", "mode=embedded", "--seeds", "1")  # fmt: skip
    assert read_overrides(given) == {"learning_rate": "1e-4", "backend": "embedded"}
    assert (given.preferences, given.interactions, given.seeds) == (["concise", "no_emoji"], 20, 1)
    assert (given.output, given.action, given.methods) == (Path("runs"), [], "combine,none,memory")


def test_other_words_stay() -> None:
    given = parse("compare", "a", "b")
    assert read_overrides(given) == {}
    assert given.action == ["compare", "a", "b"]


@pytest.mark.parametrize(
    ("word", "message"),
    [("num_step=3", "no option or setting num_step"), ("interactions=many", "invalid int value"), ("seedz=1", "did you mean seeds?")],
)  # fmt: skip
def test_a_wrong_word_is_one_sentence(word: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_overrides(parse(word))
