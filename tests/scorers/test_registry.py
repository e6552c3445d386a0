"""Settings -> chain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scorers.registry import build_scorer_chain, read_rubric
from store.errors import ConfigError
from store.settings import read_settings


def chain(judge_url: str = "", **given: Any) -> Any:
    return build_scorer_chain(read_settings({"home": "/nowhere", **given}), judge_url)


def test_without_a_judge_the_rules_score_alone() -> None:
    made = chain()
    assert (made.judge, made.custom) == (None, None)
    assert len(made.rules) == 8


def test_self_is_the_base_policy_at_the_local_backend() -> None:
    judge = chain("http://127.0.0.1:4000", judge="self").judge
    assert judge.model == "openai/patina-tiny"
    assert judge.api_base == "http://127.0.0.1:4000/v1"
    assert judge.place == "openai/patina-tiny at http://127.0.0.1:4000/v1"


def test_a_named_judge_keeps_its_own_address() -> None:
    judge = chain("http://127.0.0.1:4000", judge="openai/gpt-x", judge_api_base="http://judge.test/v1").judge
    assert (judge.model, judge.api_base) == ("openai/gpt-x", "http://judge.test/v1")
    assert chain("http://127.0.0.1:4000", judge="openai/gpt-x").judge.api_base == ""


def test_self_without_a_backend_is_reported() -> None:
    with pytest.raises(ConfigError, match="needs a local backend"):
        chain(judge="self", upstream="http://up.test/v1")


@pytest.mark.parametrize(
    ("method", "eval_mode", "asked"),
    [
        ("rl", False, (True, False)),
        ("combine", False, (True, True)),
        ("opd", False, (False, True)),
        ("opd", True, (True, True)),
        ("sdpo", False, (False, True)),
    ],
)
def test_a_method_asks_for_what_it_learns_from_and_eval_mode_for_verdicts_too(
    method: str, eval_mode: bool, asked: tuple[bool, bool]
) -> None:
    judge = chain("http://127.0.0.1:1", judge="self", method=method, eval_mode=eval_mode).judge
    assert (judge.asks_verdict, judge.asks_hint) == asked


def test_the_rubric_is_read_once_and_checked(tmp_path: Path) -> None:
    file = tmp_path / "rubric.txt"
    file.write_text(" Short is good.\n")
    assert read_rubric(str(file)) == "Short is good."
    assert read_rubric("") == ""


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(None, "No such file"), (b"", "empty"), (b"x" * 9000, "too many"), (b"\xff\xfe\xff", "not UTF-8")],
)
def test_a_wrong_rubric_is_reported_even_without_a_judge(
    content: bytes | None, sentence: str, tmp_path: Path
) -> None:
    file = tmp_path / "rubric.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=sentence):
        chain(rubric=str(file))


def test_a_missing_reward_is_reported() -> None:
    with pytest.raises(ConfigError, match="--custom-rm-path"):
        chain(custom_rm_path="nothing.py:f")
