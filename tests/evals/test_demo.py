from __future__ import annotations

import argparse
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from evals.client import House
from evals.demo import run_demo, sentence, shortcomings
from evals.loop import Run, RunPlan, run_user
from evals.measure import Measurement
from evals.plot import check_output, draw
from evals.users import SimulatedUser
from evals.view import View, moving_mean
from store.errors import ConfigError
from store.settings import Settings, read_settings
from tests.evals.scripted import KEY, ScriptedPatina, serving

PREFERENCES = ("concise", "no_emoji")
QUICK = RunPlan(
    interactions=12,
    measure_every=6,
    questions=10,
    questions_between=5,
    opposites=4,
    pause_s=5.0,
    pause_every=4,
)
BEFORE = Measurement(
    questions=100,
    compliance=0.05,
    by_preference={"concise": 0.1, "no_emoji": 0.1},
    facts=0.95,
    opposites=0,
    opposite_obeyed=None,
    by_opposite={},
    mean_words=40.0,
    distinct=1.0,
)


class Nobody:
    """Observes nothing."""

    def phase(self, text: str) -> None: ...
    def interaction(self, interaction: Any) -> None: ...
    def version(self, interactions: int, version: int) -> None: ...
    def checkpoint(self, checkpoint: Any) -> None: ...


async def scripted_run(patina: ScriptedPatina, plan: RunPlan = QUICK, observer: Any = None) -> Run:
    with serving(patina.app()) as url:
        async with House(url, KEY) as house:
            return await run_user(house, SimulatedUser(PREFERENCES, 0), plan, observer or Nobody())


def demo_arguments(tmp_path: Path, **changes: Any) -> argparse.Namespace:
    given = {
        "base_url": None,
        "preferences": "concise,no_emoji",
        "interactions": 12,
        "output": tmp_path / "demo.png",
        "json": tmp_path / "demo.json",
    }
    return argparse.Namespace(**{**given, **changes})


def settings(tmp_path: Path, **given: Any) -> Settings:
    return read_settings({"home": tmp_path / "home", **given})


async def test_a_run_measures_before_in_between_and_after_and_sees_versions_go_live() -> None:
    patina = ScriptedPatina(complaints_needed=3)
    run = await scripted_run(patina)
    assert [i.judgement.interaction for i in run.interactions] == list(range(1, 13))
    assert [c.interactions for c in run.checkpoints] == [0, 6, 12]
    assert run.before.compliance == 0.0
    assert run.after.compliance == 1.0
    assert run.went_live[0][1] == 1
    assert run.interactions[0].version == 0
    assert run.interactions[-1].version == patina.version
    assert run.late_pauses == 0


async def test_the_last_judgement_is_said_too() -> None:
    patina = ScriptedPatina(complaints_needed=10_000)
    run = await scripted_run(patina, replace(QUICK, interactions=5, measure_every=0))
    last = run.interactions[-1].judgement
    assert patina.turns[-1][-1]["content"] == last.words
    assert len(run.interactions) == 5


async def test_talking_ends_when_the_time_is_up() -> None:
    run = await scripted_run(ScriptedPatina(), replace(QUICK, budget_s=0.0))
    assert run.interactions == ()
    assert [c.interactions for c in run.checkpoints] == [0, 0]


async def test_a_house_that_does_not_keep_up_is_reported() -> None:
    run = await scripted_run(
        ScriptedPatina(stuck=True), replace(QUICK, interactions=4, measure_every=0, pause_s=0.1)
    )
    assert run.late_pauses >= 1


def test_the_sentence_is_computed() -> None:
    after = replace(BEFORE, compliance=0.914, facts=0.94)
    assert sentence(PREFERENCES, 72, BEFORE, after) == (
        "after 72 interactions 'shorter, no emoji' holds on 91 % of unseen questions (before: 5 %), "
        "facts 94 % (before: 95 %)"
    )
    told = sentence(
        ("spanish",), 9, replace(BEFORE, opposite_obeyed=1.0), replace(after, opposite_obeyed=0.5)
    )
    assert told.endswith("asked for the opposite it obeys 50 % of the time (before: 100 %)")
    assert "'Spanish'" in told


def test_what_was_not_learnt_is_not_called_learnt() -> None:
    assert shortcomings(BEFORE, replace(BEFORE, compliance=0.8, facts=0.9)) == []
    assert shortcomings(BEFORE, replace(BEFORE, compliance=0.79)) == [
        "the preference holds on less than 80 %"
    ]
    assert shortcomings(BEFORE, replace(BEFORE, compliance=0.9, facts=0.89)) == [
        "more than 5 points of facts were lost"
    ]
    always = replace(BEFORE, compliance=1.0)
    assert shortcomings(always, always) == ["it holds no more often than before"]


@pytest.mark.parametrize("suffix", [".png", ".svg"])
async def test_the_plot_is_a_file_of_its_kind(tmp_path: Path, suffix: str) -> None:
    run = await scripted_run(ScriptedPatina())
    path = tmp_path / f"demo{suffix}"
    draw(run, path, title=sentence(PREFERENCES, 12, run.before, run.after))
    head = path.read_bytes()[:200]
    assert head.startswith(b"\x89PNG") if suffix == ".png" else b"<?xml" in head


def test_a_plot_that_cannot_be_written_is_told_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.png or \.svg"):
        check_output(tmp_path / "demo.txt")
    with pytest.raises(ConfigError, match="there is no folder"):
        check_output(tmp_path / "nowhere" / "demo.png")


def test_the_demo_shows_learning_on_a_running_patina(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    patina = ScriptedPatina()
    with serving(patina.app()) as url:
        code = run_demo(
            settings(tmp_path, api_key=KEY), demo_arguments(tmp_path, base_url=url.removesuffix("/v1"))
        )
    assert code == 0
    shown = capsys.readouterr().out
    told = json.loads((tmp_path / "demo.json").read_text(encoding="utf-8"))
    assert told["sentence"] in shown
    assert told["learnt"] is True
    assert "version 1 is live after" in shown
    assert len(told["interactions"]) == 12
    assert (tmp_path / "demo.png").stat().st_size > 10_000
    assert KEY not in (tmp_path / "demo.json").read_text(encoding="utf-8")


def test_the_demo_ends_with_1_and_says_so_when_nothing_was_learnt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(ScriptedPatina(complaints_needed=10_000).app()) as url:
        code = run_demo(settings(tmp_path, api_key=""), demo_arguments(tmp_path, base_url=url))
    assert code == 1
    assert "not learnt: after 12 interactions" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "given", "told"),
    [
        ({"preferences": "loud"}, {}, "unknown preference"),
        ({"interactions": 0}, {}, "at least 1"),
        ({"output": Path("demo.gif")}, {}, r"\.png or \.svg"),
        ({}, {"upstream": "http://127.0.0.1:9/v1"}, "does not learn"),
        ({"base_url": "http://127.0.0.1:9"}, {}, "no key for --base-url"),
    ],
)
def test_wrong_arguments_are_told_in_a_sentence(
    tmp_path: Path, changes: dict[str, Any], given: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        run_demo(settings(tmp_path, **given), demo_arguments(tmp_path, **changes))


async def test_the_live_picture_shows_score_versions_and_what_was_measured() -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, width=120, height=40)
    view = View(PREFERENCES, QUICK.interactions, console=terminal)
    with view:
        run = await scripted_run(ScriptedPatina(), observer=view)
    plain = Console(file=io.StringIO(), width=120)
    plain.print(view.picture())
    shown = plain.file.getvalue()  # type: ignore[attr-defined]  # it is the StringIO above
    for words in ("shorter, no emoji", "12/12", "before", "after 6", "facts right", "100 %"):
        assert words in shown
    assert run.interactions[-1].judgement.words in shown


def test_the_moving_mean_looks_back_only() -> None:
    assert moving_mean([0.0, 1.0, 1.0], window=2) == [0.0, 0.5, 1.0]
