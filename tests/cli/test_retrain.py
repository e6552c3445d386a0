"""`run.py retrain` and `run.py compare`: what they ask for, and their errors."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from cli.main import main
from cli.retrain import _score_again, changed_settings
from migrations import upgrade
from store.record import Record
from store.settings import read_settings
from tests.store.queries.test_forget import fill, train


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with two versions whose inputs have no state: they were made before it was recorded."""
    url = read_settings({"home": tmp_path}).database_url
    upgrade(url)

    async def make() -> None:
        record = await Record.open(url)
        await fill(record)
        await train(record, 1, "one")
        await train(record, 2, "same")
        await record.close()

    asyncio.run(make())
    return tmp_path


def run(home: Path, *arguments: str) -> int:
    return main([*arguments, "--home", str(home), "--served-model-name", "patina-tiny"])


def test_only_what_was_named_replaces_recorded_settings() -> None:
    given = {"home": "/h", "method": "rl", "learning": "update_clip=0.5", "proxy_port": "1"}
    assert changed_settings(given) == {"method": "rl", "learning": {"update_clip": "0.5"}}
    assert changed_settings({"home": "/h"}) == {}


def test_a_lineage_or_turn_that_is_not_there_is_an_error(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, message in (
        (["retrain", "--to", "9"], "has no version 9"),
        (["retrain", "--without", "nothing"], "the record has no turn nothing"),
        (["compare", "1", "1"], "two versions or more"),
        (["compare", "0", "7"], "has no version 7"),
    ):
        assert run(home, *arguments) == 2
        assert message in capsys.readouterr().err


async def test_scored_again_the_turns_of_a_lineage_get_todays_verdicts_and_the_record_keeps_its_own(
    record: Record,
) -> None:
    await fill(record)
    await train(record, 1, "one")
    steps = await record.lineage("patina-tiny", 1)
    settings = read_settings({"served_model_name": "patina-tiny"})
    found = await _score_again(record, settings, steps)
    assert list(found) == ["one"]
    assert (found["one"]["value"], found["one"]["hint"]) == (-1, "Shorter please!")  # the hint was "shorter"
    assert found["one"]["wish"] == {"text": "Shorter please!", "scope": "lasting"}
    (kept,) = await record.scored_turns(["one"])
    assert kept.verdict.hint == "shorter"


@pytest.mark.long_run  # starts a trainer process
def test_versions_whose_inputs_are_not_recorded_are_left_out_and_said(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(home, "retrain", "--rescore", "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["versions"], found["live"]) == ([], None)
    assert found["skipped"] == dict.fromkeys("12", "what it was computed from is not recorded")
