"""Canary releases in `status`, `versions` and `why`; pins; which versions a rollback can reach."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from cli.commands import ranges
from cli.main import main
from store.record import Record
from store.releases import number_lines, sentence
from store.values import CanaryRelease, DrawnConversation, ReleaseStage
from tests.cli.test_commands import POLICY as CLI_POLICY
from tests.cli.test_commands import fill
from tests.store.queries.test_canary import POLICY, publish
from trainer.canary_release import compare


def release(stage: ReleaseStage, reason: str = "") -> CanaryRelease:
    return CanaryRelease(
        policy=POLICY, version=8, baseline_version=7, share=0.1, stage=stage, started_at=0.0, stage_since=0.0,
        reason=reason, numbers={},
    )  # fmt: skip


def test_each_stage_has_a_sentence() -> None:
    assert sentence(release(ReleaseStage.RUNNING)) == "on trial with 10% of the new conversations"
    assert sentence(release(ReleaseStage.ROLLED_BACK, "worse")) == "rolled back to version 7: worse"
    assert len({sentence(release(stage)) for stage in ReleaseStage}) == len(ReleaseStage)


def test_the_numbers_of_a_decision_are_shown_as_counts() -> None:
    conversations = [
        DrawnConversation(key_name="ann", is_on_trial=i % 2 == 0, complaints=(i % 4 == 0, False))
        for i in range(20)
    ]
    found = compare(release(ReleaseStage.RUNNING), conversations, 0.0)
    shown = CanaryRelease(
        policy=POLICY, version=8, baseline_version=7, share=0.1, stage=ReleaseStage.RUNNING, started_at=0.0,
        stage_since=0.0, reason="", numbers=found.numbers,
    )  # fmt: skip
    lines = list(number_lines(shown))
    assert lines[0] == (
        "complaints in 5 of 20 judged turns of 10 conversations; in 0 of 20 judged turns of 10 conversations of version 7"
    )
    assert lines[1].endswith("it is rolled back at 22")
    assert re.search(
        r"50 % of the turns instead of 10 % is found in \d+% of such trials, one with 25 % in \d+%", lines[2]
    )
    old = replace(shown, numbers={"canary": {"complaints": [1, 2]}})  # of an earlier schema
    assert list(number_lines(old)) == ["nothing was counted yet"]


@pytest.mark.parametrize(
    ("versions", "words"), [([0], "0"), ([0, 1, 2, 5, 7, 8], "0-2, 5, 7-8"), ([0, 4], "0, 4")]
)
def test_reachable_versions_are_shown_as_ranges(versions: list[int], words: str) -> None:
    assert ranges(versions) == words


async def prepare(record: Record) -> None:
    await publish(record, 1, policy=CLI_POLICY)
    await publish(record, 2, share=0.5, policy=CLI_POLICY)


def run(capsys: pytest.CaptureFixture[str], home: Path, *words: str) -> str:
    assert main([words[0], "--home", str(home), *words[1:]]) == 0
    return capsys.readouterr().out


def test_commands_show_a_version_on_trial_and_pin_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path, prepare)
    shown = run(capsys, tmp_path, "pin", "2")
    assert f"{CLI_POLICY}@2 stay until" in shown
    found = json.loads(run(capsys, tmp_path, "versions", "--json"))
    assert found["live"] == 1
    (first, second) = found["versions"]
    assert (first["release"], first["pinned"], second["pinned"]) == (None, False, True)
    assert second["release"]["sentence"] == "on trial with 50% of the new conversations"
    assert "rollback can reach: 0-2" in run(capsys, tmp_path, "versions")
    why = run(capsys, tmp_path, "why", "2")
    assert "on trial with 50% of the new conversations" in why
    assert "nothing was counted yet" in why
    assert f"{CLI_POLICY}@2: on trial" in run(capsys, tmp_path, "status")
    assert "no longer pinned" in run(capsys, tmp_path, "pin", "2", "--remove")
