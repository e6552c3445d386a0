"""The ideal judge of `bench.hints`: what it writes, and that it is what the step is given."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bench.hints import ideal_hint, ideal_judge, main
from evals.preferences import PREFERENCES
from evals.pupil import Pupil
from evals.study import read_runs
from models.styles import STYLES
from store.settings import read_settings


def test_an_ideal_judge_names_every_wish_complained_about_and_nothing_else() -> None:
    rng = random.Random(0)
    long, emoji = PREFERENCES["concise"].complaints[0], PREFERENCES["no_emoji"].complaints[0]
    assert ideal_hint(long, rng) in STYLES["concise"].heldout_instructions
    both = ideal_hint(f"{long} {emoji}", rng)
    assert any(text in both for text in STYLES["concise"].heldout_instructions)
    assert any(text in both for text in STYLES["no_emoji"].heldout_instructions)
    assert ideal_hint(PREFERENCES["persona"].complaints[0], rng) == PREFERENCES["persona"].wish
    assert ideal_hint("Great, thanks!", rng) == ""


@pytest.mark.parametrize(
    ("words", "value", "is_reaction"),
    [(PREFERENCES["concise"].complaints[0], -1, False), ("Perfect, thank you!", 1, True)],
)
def test_what_the_judge_writes_stands_in_the_verdict_as_a_judges_hint(
    tmp_path: Path, words: str, value: int, is_reaction: bool
) -> None:
    pupil = Pupil(read_settings({"home": str(tmp_path), "seed": 0}))
    messages = [{"role": "user", "content": "What is 2 plus 2?"}]
    prompt = pupil.policy.render(messages)
    [reply] = pupil.sample([prompt], seed=0)
    with ideal_judge(0) as written:
        assert (
            pupil.hear(pupil.say(session="s", messages=messages, prompt_ids=prompt, reply=reply), words)
            is None
        )
    [turn] = pupil._claimed
    assert (turn.verdict.value, turn.verdict.hint_is_reaction) == (value, is_reaction)
    assert [hint for _, hint in written] == ([] if is_reaction else [turn.verdict.hint])
    assert turn.verdict.hint not in (words,)


def test_a_run_of_a_source_is_kept_and_not_run_again(tmp_path: Path) -> None:
    options = [
        "--sources", "ideal", "--preferences", "concise", "--seeds", "1", "--interactions", "4",
        "--measure-every", "0", "--questions", "2", "--output", str(tmp_path),
    ]  # fmt: skip
    assert main(options) == 0
    [row] = read_runs(tmp_path / "ideal")
    assert row["cost"]["steps"] > 0
    assert main(options) == 0
    assert read_runs(tmp_path / "ideal") == [row]
