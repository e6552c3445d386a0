"""`run.py import`: an export comes back with its verdicts, OpenClaw-RL's records wait for a scorer, and imported turns train by their hints."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from cli.main import main
from migrations import upgrade
from store.record import Record
from store.settings import read_settings
from tests.store.queries.test_forget import fill


def run(home: Path, *arguments: str) -> int:
    return main([*arguments, "--home", str(home), "--served-model-name", "patina-tiny"])


def make_home(home: Path, *, filled: bool) -> Path:
    url = read_settings({"home": home}).database_url
    upgrade(url)

    async def work() -> None:
        record = await Record.open(url)
        if filled:
            await fill(record)
        await record.close()

    asyncio.run(work())
    return home


def stages(home: Path) -> dict[str, str]:
    async def read() -> dict[str, str]:
        record = await Record.open(read_settings({"home": home}).database_url)
        rows = await record.trajectories()
        await record.close()
        return {row["turn_id"]: row["stage"] for row in rows}

    return asyncio.run(read())


def test_an_export_is_imported_once_with_its_verdicts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = make_home(tmp_path / "a", filled=True), make_home(tmp_path / "b", filled=False)
    export = tmp_path / "turns.jsonl"
    assert run(source, "trajectories", "--format", "jsonl", "--output", str(export)) == 0
    assert run(target, "import", str(export)) == 0
    assert "7 turns imported, 4 with a verdict; already there: 0" in capsys.readouterr().out
    found = stages(target)
    assert (found["one"], found["two"], found["four"]) == ("scored", "scored", "recorded")
    assert run(target, "import", str(export)) == 1
    assert "0 turns imported, 0 with a verdict; already there: 7" in capsys.readouterr().out
    assert run(target, "verify") == 0


def test_records_of_openclaw_rl_wait_for_a_scorer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = make_home(tmp_path / "home", filled=False)
    record = {
        "session_id": "s", "turn": 1, "messages": [{"role": "user", "content": "What is a bee?"}],
        "prompt_text": "...", "response_text": "An insect.", "tool_calls": None,
        "next_state": {"role": "user", "content": "Shorter please!"},
    }  # fmt: skip
    file = tmp_path / "record_1.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in (record, {**record, "turn": 2, "next_state": None})))
    assert run(home, "import", str(file)) == 0
    assert sorted(stages(home).values()) == ["answered", "recorded"]
    file.write_text('{"messages": []}')
    assert run(home, "import", str(file)) == 2
    assert "line 1: neither a turn of" in capsys.readouterr().err
