"""The process: starts, scores, stops on SIGTERM, and says in one sentence what is wrong."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from store.record import Record
from store.settings import read_settings
from tests.scorers.conftest import ScriptedJudge, by_question
from tests.scorers.test_worker import UNCLEAR, answer, rows

ROOT = Path(__file__).resolve().parents[2]


def settings_file(tmp_path: Path, **given: Any) -> Path:
    path = tmp_path / "settings.json"
    read_settings({"home": str(tmp_path), **given}).dump(path)
    return path


def command(path: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "scorers", "--settings", str(path), *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}


async def test_the_process_scores_with_the_self_judge_and_stops_on_sigterm(
    tmp_path: Path, record: Record, record_url: str, scripted: ScriptedJudge
) -> None:
    scripted.script = by_question("\\boxed{-1}", '{"hint": "Keep answers to one sentence."}')
    await answer(record, "a", "shorter please")
    await answer(record, "b", UNCLEAR)
    url = scripted.base.removesuffix("/v1")  # what the supervisor passes
    process = subprocess.Popen(  # noqa: ASYNC220  the test watches the record, not the pipe
        command(settings_file(tmp_path, database=record_url, judge="self", prm_m=1), "--judge-url", url),
        cwd=ROOT,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 60
        while (await rows(record))["b"]["stage"] != "scored" and time.monotonic() < deadline:
            assert process.poll() is None
            await asyncio.sleep(0.05)
        seen = await rows(record)
        assert (seen["a"]["hint"], seen["b"]["hint"]) == ("shorter please", "Keep answers to one sentence.")
        assert {request["model"] for request in scripted.requests} == {"patina-tiny"}
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0
        assert "Traceback" not in errors
        assert "Warning" not in errors
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    (beat,) = (await record.status()).heartbeats
    assert (beat.process, beat.pid, beat.state) == ("scorer", process.pid, "stopped")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"custom_rm_path": "nothing.py:f"}, "there is no file nothing.py"),
        ({"rubric": "/no/such/file"}, "--rubric '/no/such/file': cannot be read"),
        ({"judge": "self"}, "--judge self needs a local backend"),
        ({"judge": "no-such-provider-model"}, "unknown provider"),
    ],
)
def test_a_wrong_setting_is_one_sentence_and_exit_code_2(
    given: dict[str, str], sentence: str, tmp_path: Path, record_url: str
) -> None:
    done = subprocess.run(
        command(settings_file(tmp_path, database=record_url, **given)),
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_missing_settings_are_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path / "none.json"),
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert "cannot read the settings" in done.stderr
