"""Canary releases in `status`, `versions` and `why`; pins; which versions a rollback can reach."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli.commands import ranges
from cli.main import main
from store.record import Record
from store.releases import calibration_line, number_lines, prediction_errors, preview_lines, sentence
from store.values import (
    AdapterVersion,
    CanaryRelease,
    DrawnConversation,
    PreviewReply,
    ReleaseStage,
    Selection,
)
from tests.cli.test_commands import POLICY as CLI_POLICY
from tests.cli.test_commands import fill
from tests.making import make_turn
from tests.proxy.test_adapters import make_adapter
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
    await record.write_turns([make_turn("asked", policy=CLI_POLICY)])
    reply = PreviewReply(turn_id="asked", live="The live reply.", new="The new reply.", change=0.5)
    await record.add_preview(CLI_POLICY, 2, [reply])


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
    assert "The live reply." in why
    assert "The new reply." in why
    assert f"{CLI_POLICY}@2: on trial" in run(capsys, tmp_path, "status")
    assert "no longer pinned" in run(capsys, tmp_path, "pin", "2", "--remove")


def previewed(predicted: float | None, difference: tuple[float, float]) -> dict[str, Any]:
    low, high = difference
    trait = {
        "new": 30.0,
        "live": 50.0,
        "teacher": 31.0,
        "difference": {"mean": -20.0, "low": low, "high": high},
    }
    complaints = None if predicted is None else {"new": predicted, "live": 0.3, "judged": 60}
    return {
        "preview": {
            "questions": 40, "unasked": {"new": 0.05, "live": 0.1, "bound": 2.0}, "traits": {"tokens": trait}, "complaints": complaints,
        }
    }  # fmt: skip


def test_a_preview_is_shown_with_what_differs_for_certain_and_with_what_happened() -> None:
    tried = replace(
        release(ReleaseStage.KEPT), numbers={"canary": {"complaints": 3, "judged": 20, "conversations": 9}}
    )
    assert list(preview_lines(previewed(0.12, (-24.0, -16.0)), tried)) == [
        "asked 40 past questions again: 5% of the replies say what neither question nor wish asks for, of the live version 10%",
        "tokens of a reply: live 50, new 30, teacher 31",
        "predicted complaints: 12% of the judged turns, of the live version 30%; happened: 15% of 20",
    ]
    assert len(list(preview_lines(previewed(None, (-24.0, 4.0))))) == 1
    assert list(preview_lines({})) == list(preview_lines({"preview": {"unreadable": "soon"}})) == []


def test_predictions_are_scored_against_what_happened() -> None:
    def version(number: int, predicted: float | None) -> AdapterVersion:
        adapter = make_adapter(POLICY, number, Path("/nowhere"), created_at=0.0)
        return replace(adapter, metrics=previewed(predicted, (0.0, 0.0)))

    def tried(number: int, complaints: int, judged: int) -> CanaryRelease:
        arm = {"complaints": complaints, "judged": judged, "conversations": judged}
        return replace(release(ReleaseStage.KEPT), version=number, numbers={"canary": arm})

    versions = [version(1, 0.1), version(2, 0.4), version(3, None), version(4, 0.5)]
    errors = prediction_errors(versions, [tried(1, 6, 20), tried(2, 8, 20), tried(3, 1, 5)])
    assert errors == [(0.1, 0.3, 20), (0.4, 0.4, 20)]
    assert (
        calibration_line(errors)
        == "predictions so far: 2 versions, 25% predicted and 35% happened; 10 points off on average"
    )
    assert calibration_line([]) == ""


async def test_the_replies_of_a_preview_belong_to_the_key_that_asked_and_go_with_the_turn(
    record: Record,
) -> None:
    for name, key in (("t1", "alice"), ("t2", "bob")):
        messages = [{"role": "user", "content": f"Question of {key}?"}]
        await record.write_turns([make_turn(name, messages, policy=POLICY, key_name=key, session_id=name)])
    rows = [PreviewReply(turn_id=name, live="a", new="b", change=1.0) for name in ("t1", "t2", "gone")]
    await record.add_preview(POLICY, 2, rows)
    assert [(text, one.turn_id) for text, one in await record.preview_replies(POLICY, 2, "bob")] == [
        ("Question of bob?", "t2")
    ]
    assert len(await record.preview_replies(POLICY, 2)) == 2
    await record.forget(Selection(key_name="bob"), key=b"k" * 32)
    assert [one.turn_id for _, one in await record.preview_replies(POLICY, 2)] == ["t1"]
