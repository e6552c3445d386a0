"""The bench of the gate: what it compares, by hand, and what it counts as healthy."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from bench.gate import healthy, main, measures, planted, quantiles
from evals.study import append_run
from trainer.gate import Thresholds


def gate(**after: Any) -> dict[str, dict[str, Any]]:
    base = {
        "facts": 1.0,
        "tools": 1.0,
        "obeyed": 0.9,
        "ends": 1.0,
        "entropy": 0.2,
        "length": 30.0,
        "kl": 0.0,
        "distinct": 1.0,
    }
    return {"base": base, "after": {**base, "kl": 0.1, "kl_worst": 0.4, **after}}  # fmt: skip


def test_measures_are_what_the_gate_compares() -> None:
    found = measures(gate(facts=0.75, length=15.0, entropy=0.45))
    assert found["facts_drop"] == pytest.approx(0.25)
    assert found["length_low"] == found["length_high"] == pytest.approx(0.5)
    assert found["entropy_high"] == pytest.approx(2.0)
    assert found["kl_worst"] == 0.4
    assert math.isnan(measures(gate(tools=None))["tools_drop"])
    assert set(found) <= set(Thresholds.__dataclass_fields__)


def test_quantiles_leave_out_what_is_no_number() -> None:
    assert quantiles([math.nan, *map(float, range(101))]) == (0.0, 5.0, 50.0, 95.0, 100.0)
    assert all(math.isnan(value) for value in quantiles([]))


def test_healthy_and_planted_versions_are_told_apart_and_rejections_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = {"state": "published", "reason": "4 turns", "gate": gate()}
    bad = {
        "state": "rejected",
        "reason": "4 turns; tool calls break: 75%, base 100%",
        "gate": gate(tools=0.75),
    }
    append_run(tmp_path, {"user": "steady", "versions": [good, bad]})
    append_run(tmp_path, {"user": "noisy", "versions": [good]})
    assert len(healthy([tmp_path])) == 2
    broken = tmp_path / "planted"
    broken.mkdir()
    style = gate(kl_by_style={"casual": 7.0, "json": None}, facts=0.1)
    attempts = [
        {"state": "rejected", "reason": "facts", "gate": style},
        {"state": "stopped", "reason": "NaN"},
    ]
    append_run(broken, {"plant": "rate", "tried": attempts})
    append_run(broken, {"plant": "healthy", "tried": [good]})
    (found,) = planted(broken)
    assert found["gate"]["after"]["kl_worst"] == 7.0
    assert main([str(tmp_path), "--planted", str(broken)]) == 0
    told = capsys.readouterr().out
    assert "healthy: 2 versions, 1 rejected: 50.0%, 95 % interval 9.5% to 90.5%" in told
    assert "1 x tool calls break: 75%, base 100%" in told
