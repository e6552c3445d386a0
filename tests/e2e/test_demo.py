"""The demo as a person runs it: `run.py demo`, on the built-in model, with real processes."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from evals.stack import Stack
from models import BUILTIN
from store.settings import REPOSITORY, child_environment, read_settings
from tests.waiting import recorded as until_recorded
from tests.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long_run,
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
    report = json.loads(numbers.read_text(encoding="utf-8"))
    assert report["sentence"] in done.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert len(report["went_live"]) >= 2  # it ends once the preference holds
    assert report["status"]["drop_reasons"]["opted_out"] > 0
    before, after = report["points"][0], report["points"][-1]
    assert before["compliance"] < 0.2
    assert after["compliance"] > before["compliance"] + 0.2
    # The demo's own stack ran in a temporary folder, which is removed.
    assert not (tmp_path / "home" / "patina.db").exists()


def test_kill_9_of_each_process_in_turn_during_the_demo_loses_nothing_and_trains_nothing_twice(
    tmp_path: Path,
) -> None:
    numbers = tmp_path / "demo.json"
    with Stack(read_settings({"batch_size": 2, "max_wait_s": 2.0}), home=tmp_path / "stack") as stack:
        with (tmp_path / "demo.log").open("wb") as log:
            demo = subprocess.Popen(
                [
                    sys.executable,
                    "run.py",
                    f"--home={stack.home}",
                    "demo",
                    f"--base-url={stack.base_url}",
                    "--interactions=32",
                    f"--output={tmp_path / 'demo.png'}",
                    f"--json={numbers}",
                ],
                cwd=REPOSITORY,
                env=child_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            for number, name in enumerate(("trainer", "scorer", "proxy", "backend"), 1):
                # Only the simulated user's turns make versions, not the measurement before: the demo is under way.
                until(lambda n=number: _versions(stack) >= n, "another version")  # type: ignore[misc]
                before = until(lambda n=name: _pids(stack).get(n), f"the {name} running")  # type: ignore[misc]
                assert demo.poll() is None, f"the demo was over before the {name} could be killed"
                os.kill(before, signal.SIGKILL)
                until(
                    lambda n=name, b=before: _pids(stack).get(n) not in (None, b),  # type: ignore[misc]
                    f"the {name} coming back",
                )
            live = _versions(stack)
            assert demo.wait(300) in (0, 1), (tmp_path / "demo.log").read_text(encoding="utf-8")
            assert _versions(stack) > live, "nothing was trained after the kills"
        finally:
            if demo.poll() is None:
                demo.kill()
                demo.wait()
    report = json.loads(numbers.read_text(encoding="utf-8"))
    # The demo ends after its time, so a slow machine has fewer interactions.
    interactions = len(report["readings"])
    assert 8 <= interactions <= 32
    with sqlite3.connect(until_recorded(stack.home)) as connection:
        recorded = dict(connection.execute("SELECT turn_id, stage FROM trajectories"))
        trained = connection.execute(
            "SELECT count(*), count(DISTINCT turn_id) FROM trajectories WHERE trained_in_version IS NOT NULL"
        ).fetchone()
        per_version = dict(
            connection.execute(
                "SELECT trained_in_version, count(*) FROM trajectories"
                " WHERE trained_in_version IS NOT NULL GROUP BY 1"
            )
        )
        published = {
            version: json.loads(metrics)["turns"]
            for version, metrics in connection.execute("SELECT version, metrics FROM adapters")
            if version in per_version
        }
    assert len(report["seen"]) > interactions + 96
    assert set(report["seen"]) <= set(recorded)
    assert trained[0] == trained[1] > 0
    # What each version says it was made of is what carries its number: no turn stands in two of them.
    assert per_version == published
    verified = subprocess.run(
        [sys.executable, "run.py", "verify", f"--home={stack.home}"],
        cwd=REPOSITORY,
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr


def _pids(stack: Stack) -> dict[str, int]:
    try:
        return stack.pids()
    except OSError:  # the proxy that would tell is the one that was killed
        return {}


def _versions(stack: Stack) -> int:
    try:
        # Without "live" while a proxy that was just started has not opened its record.
        return int(stack.status().get("live", {}).get("patina-tiny", 0))
    except OSError:
        return 0
