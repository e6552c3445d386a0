"""`run.py eval` from the command line: it starts its own stack, writes a report, and repeats no finished run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from store.settings import REPOSITORY, child_environment


@pytest.mark.slow
@pytest.mark.long_run
@pytest.mark.timeout(300)
def test_eval_starts_its_own_stack_and_repeating_the_command_runs_nothing(tmp_path: Path) -> None:
    command = [
        sys.executable, str(REPOSITORY / "run.py"), "eval", "--methods", "combine", "--preferences", "concise", "--interactions", "5",
        "--seeds", "1", "--questions", "6", "--measure-every", "0", "--learning", "anchors=4,samples=8",
        "--wishes", "weights", "--batch-size", "2", "--output", str(tmp_path),
    ]  # fmt: skip

    def run() -> str:
        done = subprocess.run(
            command, cwd=REPOSITORY, env=child_environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "[1/1] combine" in run()
    (row,) = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(row["readings"]) == 5
    assert row["points"][0]["surprise"] > 0.0
    assert row["points"][0]["tools"] is not None
    assert row["versions"], "a version was made, and the log names the reason"
    assert "turns" in row["versions"][0]["reason"]
    assert (tmp_path / "report.html").read_text(encoding="utf-8").count("<svg") == 1
    assert "[1/1]" not in run()
