"""What a version costs here, as the trainer measured it and others read it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from store.settings import read_settings
from store.training_plan import TrainingPlan, duration, expectation, read_plan, wait_s, write_plan
from store.version import COMMAND

PLAN = TrainingPlan(
    model="abc",
    threads=2,
    speed={"read_s": 0.01},
    seconds={"teach": 30.0, "step": 80.0, "gate": 35.0},
    budget_s=150.0,
    steps=2,
    anchors=6,
    probes=28,
    longest_text=900,
    ratios={"step": 2.0},
)


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_plan(tmp_path) is None
    write_plan(tmp_path, PLAN)
    assert read_plan(tmp_path) == PLAN
    assert [path.name for path in tmp_path.iterdir()] == ["training-plan.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"unknown": 1}'])
def test_a_file_that_cannot_be_read_is_no_plan(tmp_path: Path, text: str) -> None:
    (tmp_path / "training-plan.json").write_text(text)
    assert read_plan(tmp_path) is None


def test_it_is_measured_again_for_another_model_or_number_of_threads() -> None:
    assert PLAN.is_of("abc", 2)
    assert not PLAN.is_of("abc", 4)
    assert not PLAN.is_of("xyz", 2)
    assert not TrainingPlan(model="abc", threads=2).is_of("abc", 2)


def test_the_sentences_say_steps_anchors_prompts_seconds_and_what_is_dropped() -> None:
    assert PLAN.sentences() == (
        "A version takes about 2.5 min on idle cores: 30 s for wishes and teacher, 80 s for 2 optimizer steps with 6 anchors, 35 s for a gate "
        "of 28 prompts.",
        "Turns of more than 900 tokens are dropped: there is no time or memory for them.",
    )


def test_a_plan_beyond_its_budget_says_so() -> None:
    beyond = replace(PLAN, budget_s=60.0, longest_text=None)
    assert beyond.sentences()[1:] == ("That is more than the 60 s that a version should take.",)
    assert (
        replace(beyond, is_least=True).sentences()[1]
        == "That is more than the 60 s that a version should take, and training does no less."
    )


def test_what_a_version_took_moves_the_ratio_half_of_the_way_within_bounds() -> None:
    estimated = {"teach": 30.0, "step": 40.0, "gate": 35.0}
    slower = PLAN.with_measured(estimated, {"teach": 120.0, "step": 80.0, "gate": 35.0})
    assert slower.ratios == {"teach": 2.0, "step": 2.0, "gate": 1.0}
    assert slower.seconds == {"teach": 60.0, "step": 80.0, "gate": 35.0}
    assert PLAN.with_measured(estimated, {"step": 40.0 * 100}).ratios["step"] == 4.0
    assert PLAN.with_measured(estimated, {"step": 0.0}).ratios["step"] == 0.25


def test_a_complaint_waits_for_half_a_version_within_bounds_or_as_the_setting_says() -> None:
    assert wait_s(0.0, PLAN) == 72.5
    assert wait_s(0.0, None) == 30.0
    assert wait_s(0.0, replace(PLAN, seconds={"step": 1e5})) == 600.0
    assert wait_s(5.0, PLAN) == 5.0


@pytest.mark.parametrize(
    ("more", "step_s", "said"),
    [
        ({}, 12.4, "A version is trained after 4 reactions or when a complaint has waited 30 s; that takes about 12 s."),
        ({"batch_size": 8, "max_wait_s": 5.0}, None, "A version is trained after 8 reactions or when a complaint has waited 5 s; how long that takes here is not known yet."),
        ({}, 619.0, "A version is trained after 4 reactions or when a complaint has waited 30 s; that takes about 10 min."),
        ({"train_when": "23:00-07:00"}, 12.4, "A version is trained after 4 reactions or when a complaint has waited 30 s, as soon as the schedule (23:00-07:00) allows; that takes about 12 s."),
        ({"train_when": "manual"}, 12.0, f"`{COMMAND} train --now` trains what waits."),
        ({"upstream": "https://api.example/v1"}, None, ""),
    ],
)  # fmt: skip
def test_a_person_reads_when_to_expect_a_version(
    more: dict[str, Any], step_s: float | None, said: str
) -> None:
    assert expectation(read_settings({"home": "/nowhere", **more}), step_s) == said


def test_what_a_version_took_is_said_rather_than_the_plan(tmp_path: Path) -> None:
    settings = read_settings({"home": tmp_path})
    write_plan(tmp_path, PLAN)
    assert expectation(settings).endswith("a complaint has waited 72 s; that takes about 2.5 min.")
    assert expectation(settings, 221.0).endswith("a complaint has waited 72 s; that takes about 3.5 min.")


def test_durations_are_said_in_minutes_where_it_is_minutes() -> None:
    assert [duration(seconds) for seconds in (0.1, 45.2, 140.0, 1_000.0)] == [
        "1 s",
        "45 s",
        "2.5 min",
        "17 min",
    ]
