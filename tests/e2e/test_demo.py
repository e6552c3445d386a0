"""The demo as a person runs it: `run.py demo`, on the built-in model, with real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from models import BUILTIN
from store.settings import REPOSITORY, child_environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(420),
    pytest.mark.skipif(
        not (BUILTIN / "model.safetensors").exists(), reason="the built-in model is not there"
    ),
]


def test_the_demo_makes_versions_go_live_and_the_preference_hold_more_often(tmp_path: Path) -> None:
    plot, numbers = tmp_path / "demo.png", tmp_path / "demo.json"
    done = subprocess.run(
        [
            sys.executable,
            "run.py",
            f"--home={tmp_path / 'home'}",
            "demo",
            "--preferences=concise,no_emoji",
            "--interactions=40",
            f"--output={plot}",
            f"--json={numbers}",
        ],
        cwd=REPOSITORY,
        env=child_environment(PATINA_HOME=str(tmp_path / "home")),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    told = json.loads(numbers.read_text(encoding="utf-8"))
    assert told["sentence"] in done.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert len(told["went_live"]) >= 3
    assert told["status"]["drop_reasons"]["opted_out"] > 0
    before, after = told["checkpoints"][0]["measurement"], told["checkpoints"][-1]["measurement"]
    assert before["compliance"] < 0.2
    assert after["compliance"] > before["compliance"] + 0.2
    # Its own house lived in a folder of its own, and is gone.
    assert not (tmp_path / "home" / "patina.db").exists()
