from __future__ import annotations

import argparse
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from evals.client import PatinaClient, live_version
from evals.curves import check_output, draw_run
from evals.demo import run_demo, sentence, shortcomings
from evals.experiment import Case, run_case
from evals.progress import View, moving_mean
from evals.systems import LiveSystem
from store.errors import ConfigError, UpstreamError
from store.settings import Settings, read_settings
from store.values import Json
from tests.evals.scripted import KEY, ScriptedPatina, serving

PREFERENCES = ("concise", "no_emoji")
CASE = Case(
    method="combine", user="steady", preferences=PREFERENCES, seed=0, interactions=12, mode="url",
    measure_every=6, questions=10, undos=4, tools=0, again=0, elsewhere=0, scope=0, small_talk=0,
)  # fmt: skip
BEFORE: Json = {"compliance": 0.05, "facts": 0.95, "undone": None}


def view(console: Console | None = None) -> View:
    return View(
        PREFERENCES,
        CASE.interactions,
        measure_every=CASE.measure_every,
        version=0,
        console=console or Console(file=io.StringIO()),
    )


async def scripted_run(
    patina: ScriptedPatina,
    case: Case = CASE,
    observer: View | None = None,
    *,
    pause_s: float = 5.0,
    **limits: Any,
) -> Json:
    with serving(patina.app()) as url:
        async with PatinaClient(url, KEY) as client:
            subject = LiveSystem(
                client,
                learns=True,
                batch_size=4,
                pause_s=pause_s,
                version=live_version(await client.status()),
            )
            return await run_case(case, subject, observer or view(), **limits)


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
    patina, observer = ScriptedPatina(complaints_needed=3), view()
    run = await scripted_run(patina, observer=observer, questions_between=5)
    assert len(run["readings"]) == 12
    assert [point["interactions"] for point in run["points"]] == [0, 6, 12]
    assert [point["questions"] for point in run["points"]] == [10, 5, 10]
    assert [point["undone"] is None for point in run["points"]] == [False, True, False]
    assert run["points"][0]["compliance"] == 0.0
    assert run["points"][-1]["compliance"] == 1.0
    assert observer.went_live[0][1] == 1
    assert run["readings"][0]["version"] == 0
    assert run["readings"][-1]["version"] == patina.version
    assert run["late_pauses"] == 0


async def test_a_version_that_is_live_at_the_start_is_not_reported_as_new() -> None:
    patina, observer = ScriptedPatina(version=3, complaints_needed=10_000), view()
    observer._version = 3
    patina.complaints = 30_000
    run = await scripted_run(patina, replace(CASE, interactions=2, measure_every=0), observer)
    assert {reading["version"] for reading in run["readings"]} == {3}
    assert observer.went_live == []


async def test_the_last_reaction_is_sent_too() -> None:
    patina = ScriptedPatina(complaints_needed=10_000)
    run = await scripted_run(patina, replace(CASE, interactions=5, measure_every=0))
    assert patina.turns[-1][-1]["content"] == run["readings"][-1]["words"]
    assert len(run["readings"]) == 5


async def test_the_user_stops_when_the_time_is_up() -> None:
    run = await scripted_run(ScriptedPatina(), budget_s=0.0)
    assert run["readings"] == []
    assert [point["interactions"] for point in run["points"]] == [0, 0]


async def test_a_trainer_that_does_not_keep_up_is_reported() -> None:
    run = await scripted_run(
        ScriptedPatina(stuck=True), replace(CASE, interactions=4, measure_every=0), pause_s=0.1
    )
    assert run["late_pauses"] >= 1


async def test_probes_that_are_recorded_as_conversations_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evals.systems.RECORD_WAIT_S", 0.0)
    with pytest.raises(UpstreamError, match="14 probes were recorded as conversations"):
        await scripted_run(ScriptedPatina(honours_opt_out=False))


def test_the_sentence_is_computed() -> None:
    after = {**BEFORE, "compliance": 0.914, "facts": 0.94}
    assert sentence(PREFERENCES, 72, BEFORE, after) == (
        "after 72 interactions 'short replies, no emoji' holds on 91 % of unseen questions (before: 5 %), "
        "facts 94 % (before: 95 %)"
    )
    result = sentence(("spanish",), 9, {**BEFORE, "undone": 1.0}, {**after, "undone": 0.5})
    assert result.endswith("asked for the opposite it obeys 50 % of the time (before: 100 %)")
    assert "'Spanish'" in result


def test_what_was_not_learnt_is_not_called_learnt() -> None:
    assert shortcomings(BEFORE, {**BEFORE, "compliance": 0.8, "facts": 0.9}) == []
    assert shortcomings(BEFORE, {**BEFORE, "compliance": 0.79}) == ["the preference holds on less than 80 %"]
    assert shortcomings(BEFORE, {**BEFORE, "compliance": 0.9, "facts": 0.89}) == [
        "more than 5 points of facts were lost"
    ]
    always = {**BEFORE, "compliance": 1.0}
    assert shortcomings(always, always) == ["it holds no more often than before"]


@pytest.mark.parametrize("suffix", [".png", ".svg"])
async def test_the_plot_is_a_file_of_its_kind(tmp_path: Path, suffix: str) -> None:
    run = await scripted_run(ScriptedPatina())
    path = tmp_path / f"demo{suffix}"
    draw_run(run, [(6, 1)], path, title=sentence(PREFERENCES, 12, run["points"][0], run["points"][-1]))
    head = path.read_bytes()[:200]
    assert head.startswith(b"\x89PNG") if suffix == ".png" else b"<?xml" in head


def test_a_plot_that_cannot_be_written_is_reported_before_the_run(tmp_path: Path) -> None:
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
    report = json.loads((tmp_path / "demo.json").read_text(encoding="utf-8"))
    assert report["sentence"] in shown
    assert report["learnt"] is True
    assert "version 1 is live after" in shown
    assert len(report["readings"]) == 12
    assert report["went_live"]
    assert report["seen"]
    assert (tmp_path / "demo.png").stat().st_size > 10_000
    assert KEY not in (tmp_path / "demo.json").read_text(encoding="utf-8")


def test_the_demo_ends_with_1_and_a_sentence_when_nothing_was_learnt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(ScriptedPatina(complaints_needed=10_000).app()) as url:
        code = run_demo(settings(tmp_path, api_key=""), demo_arguments(tmp_path, base_url=url))
    assert code == 1
    assert "not learnt: after 12 interactions" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "given", "report"),
    [
        ({"preferences": "loud"}, {}, "unknown preference"),
        ({"interactions": 0}, {}, "at least 1"),
        ({"output": Path("demo.gif")}, {}, r"\.png or \.svg"),
        ({}, {"upstream": "http://127.0.0.1:9/v1"}, "does not learn"),
        ({"base_url": "http://127.0.0.1:9"}, {}, "no key for --base-url"),
    ],
)
def test_wrong_arguments_are_reported_in_a_sentence(
    tmp_path: Path, changes: dict[str, Any], given: dict[str, Any], report: str
) -> None:
    with pytest.raises(ConfigError, match=report):
        run_demo(settings(tmp_path, **given), demo_arguments(tmp_path, **changes))


async def test_the_live_picture_shows_score_versions_and_measurements() -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, width=120, height=40)
    with view(terminal) as observer:
        run = await scripted_run(ScriptedPatina(), observer=observer)
    plain = Console(file=io.StringIO(), width=120, record=True)
    plain.print(observer.picture())
    shown = plain.export_text()
    for words in ("short replies, no emoji", "12/12", "before", "after 6", "facts right", "100 %"):
        assert words in shown
    assert run["readings"][-1]["words"] in shown


def test_the_moving_mean_looks_back_only() -> None:
    assert moving_mean([0.0, 1.0, 1.0], window=2) == [0.0, 0.5, 1.0]
