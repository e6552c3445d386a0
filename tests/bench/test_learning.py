from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.learning import main, read_rows
from evals.learning import Spec
from evals.study import parse_tried
from store.errors import ConfigError


def row(seed: int, compliance: float, **changes: Any) -> dict[str, Any]:
    spec = Spec(
        mode="fast", method="combine", preferences=("concise",), seed=seed, interactions=24, questions=4
    )
    return {
        **json.loads(json.dumps(spec.key())),
        "curve": [{"interactions": 0, "compliance": 0.0}, {"interactions": 24, "compliance": compliance}],
        "facts": [0.9, 0.8],
        "opposite": [1.0, None],
        "kl_to_base": 0.25,
        "versions": 6,
        "rejected": 1,
        "wall_s": 12.0,
        **changes,
    }


def test_a_torn_last_line_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(json.dumps(row(0, 0.5)) + '\n{"mode": "fa', encoding="utf-8")
    assert [r["seed"] for r in read_rows(path)] == [0]
    assert "torn line" in capsys.readouterr().err
    assert read_rows(tmp_path / "none.jsonl") == []


def test_what_ran_already_is_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(json.dumps(row(0, 0.5)) + "\n", encoding="utf-8")
    arguments = ["--preferences", "concise", "--seeds", "1", "--interactions", "24", "--questions", "4"]
    assert main([*arguments, "--output", str(path)]) == 0
    assert "0.00 0.50" in capsys.readouterr().out
    assert len(read_rows(path)) == 1


def test_settings_to_try_are_checked() -> None:
    assert parse_tried(["top-k=20,50", "anchors=0"]) == {"top_k": ["20", "50"], "anchors": ["0"]}
    for wrong in ("volume=11", "anchors"):
        with pytest.raises(ConfigError, match="SETTING=VALUE"):
            parse_tried([wrong])
