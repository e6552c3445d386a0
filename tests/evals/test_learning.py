from __future__ import annotations

from pathlib import Path

import pytest

from evals.learning import Spec, grid, run_spec
from store.errors import ConfigError


def test_a_grid_is_every_combination_with_the_seeds_of_a_cell_together() -> None:
    specs = grid(
        mode="fast",
        methods=["rl", "combine"],
        preferences=["concise,no_emoji"],
        seeds=[0, 1],
        overrides={"anchors": ["0", "4"], "top_k": ["20"]},
        interactions=24,
    )
    assert [(s.method, s.overrides["anchors"], s.seed) for s in specs] == [
        (method, anchors, seed) for method in ("rl", "combine") for anchors in ("0", "4") for seed in (0, 1)
    ]
    assert {s.preferences for s in specs} == {("concise", "no_emoji")}
    assert {s.interactions for s in specs} == {24}


def test_a_wrong_override_is_told_in_a_sentence(tmp_path: Path) -> None:
    (spec,) = grid(
        mode="fast", methods=["rl"], preferences=["json"], seeds=[0], overrides={"alpha": ["much"]}
    )
    with pytest.raises(ConfigError, match="alpha"):
        spec.settings(tmp_path)


def test_the_fast_loop_runs_the_trainers_own_step_on_what_the_user_said(tiny_model: Path) -> None:
    lines: list[str] = []
    spec = Spec(
        mode="fast",
        method="rl",
        preferences=("concise",),
        seed=0,
        interactions=8,
        measure_every=4,
        questions=4,
        opposites=2,
        overrides={"model_name": str(tiny_model), "threads": 1},
    )
    row = run_spec(spec, lines.append)
    # A model that has learnt nothing babbles until it is cut off: every reply is complained about, so batches fill.
    assert row["versions"] + row["rejected"] >= 1
    assert [point["interactions"] for point in row["curve"]] == [0, 4, 8]
    assert row["method"] == "rl"
    assert row["curve"][0]["facts"] == 0.0
    assert row["opposite"][0] is not None
    assert len(lines) >= 3
