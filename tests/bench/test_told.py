"""Where hints stand, and a second wish behind a narrow first one: the two benchmarks run and say what they measured."""

from __future__ import annotations

import random

import pytest

from bench import second, told
from evals.preferences import PREFERENCES, complaint


def test_complaints_are_about_the_wishes_and_nothing_else() -> None:
    rng = random.Random(0)
    known = {
        name: [text.rstrip(".!?") for text in PREFERENCES[name].complaints]
        for name in ("concise", "no_emoji")
    }
    said = [complaint(["concise", "no_emoji"], rng, names_all=0.5) for _ in range(60)]
    named = [
        tuple(name for name, texts in known.items() if any(text in one for text in texts)) for one in said
    ]
    assert set(named) == {("concise",), ("no_emoji",), ("concise", "no_emoji")}


def test_what_the_base_model_hears_depends_on_where_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    assert told.main(["--wishes", "spanish", "concise>spanish", "--counts", "2", "--questions", "8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * len(told.PLACES)
    (line,) = [one for one in lines if one.startswith("spanish, 2 hints, turns before the question")]
    assert float(line.split("as wished ")[1][:4]) >= 0.5
    assert told.main(["--wishes", "corrections", "--counts", "2", "--questions", "8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = [one for one in lines if one.startswith("corrections, 2 hints, turns before the question")]
    assert float(line.split("facts ")[1]) >= 0.7
    assert told.main(["--wishes", "warmth"]) == 2
    assert "unknown preference" in capsys.readouterr().err


def test_a_second_wish_is_played(capsys: pytest.CaptureFixture[str]) -> None:
    """One optimizer step, no anchors: whether the gate lets it pass is what the benchmark is there to tell."""
    few = ["--seeds", "1", "--set", "steps_per_batch=1", "anchors=0"]
    assert second.main(few) == 0
    first, other, total = capsys.readouterr().out.splitlines()
    assert first.startswith("seed 0, wish 1: KL ")
    assert other.startswith("seed 0, wish 2: KL ")
    tried = first.count("KL") + other.count("KL")
    assert total.startswith(f"rejected {(first + other).count('rejected')} of {tried};")
    assert second.main(["--set", "teacher_hints=0"]) == 2
    assert "at least 1" in capsys.readouterr().err
