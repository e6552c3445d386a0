"""What the terminal shows of versions: one line each, in the person's own words where the terminal is the person's alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli.version_lines import VersionLines
from store.keys import KeyFile
from store.record import Record
from store.settings import Settings, read_settings
from store.values import AdapterState, AdapterVersion, Heartbeat, StepReport
from store.version import COMMAND
from tests.making import make_answer, make_turn, make_verdict

POLICY = "some-model"
START = 1_000.0


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return read_settings({"home": tmp_path, "served_model_name": POLICY})


def version(number: int, at: float, **changes: Any) -> AdapterVersion:
    made = AdapterVersion(
        policy=POLICY, version=number, path="/nowhere", content_hash="0" * 64, parent_version=number - 1,
        state=AdapterState.PUBLISHED, reason="1 complaint", method="combine", metrics={}, created_at=at,
    )  # fmt: skip
    return replace(made, **changes)


def report(number: int | None, at: float, error: str | None = None) -> StepReport:
    return StepReport(
        step_id=f"step-{at}", policy=POLICY, method="combine", started_at=at - 130.0, finished_at=at, version=number, error=error, metrics={},
    )  # fmt: skip


async def claimed(record: Record, *said: tuple[str, str | None], key: str = "default") -> list[str]:
    """Record a turn for each (next text, hint), scored, and claim them; returns their ids."""
    for number, (text, hint) in enumerate(said):
        name = f"{key}-{number}"
        turn = make_turn(
            name,
            [{"role": "user", "content": f"question {name}"}],
            policy=POLICY,
            key_name=key,
            session_id=name,
        )
        after = make_turn(f"{name}-next", [{"role": "user", "content": text}], policy=POLICY, key_name=key, session_id=name,
                          parent_turn_id=name, turn_index=1, next_state=make_answer(name, f"{name}-next", text))  # fmt: skip
        await record.write_turns([turn, after])
        await record.add_verdict(make_verdict(name, value=-1 if hint else 1, hint=hint))
    return [turn.turn_id for turn in await record.claim(POLICY, 9, worker="w", lease_s=60)]


async def publish(record: Record, number: int, at: float, *said: tuple[str, str | None], **more: Any) -> None:
    turns = await claimed(record, *said, key=more.pop("key", "default"))
    await record.publish(version(number, at), turns, report(number, at), worker="w", **more)


async def test_a_version_has_a_line_with_the_persons_words_the_way_back_and_its_time_once(
    record: Record, settings: Settings
) -> None:
    lines = VersionLines(settings, START)
    assert await lines.look(record) == []
    await publish(record, 1, START + 1, ("What? Shorter please.", "Shorter please."), ("Thanks!", None))
    undo = f"{COMMAND} rollback 0 --home {settings.home}"
    assert await lines.look(record) == [
        f'version 1 is live: learned "Shorter please." · undo: {undo}',
        "measured here: a version takes about 2 min",
    ]
    assert await lines.look(record) == []


async def test_thanks_are_quoted_where_nothing_was_asked_for(record: Record, settings: Settings) -> None:
    await publish(record, 1, START + 1, ("Thanks!", None))
    (line, _) = await VersionLines(settings, START).look(record)
    assert line.startswith('version 1 is live: learned "Thanks!" · undo:')


async def test_many_wordings_are_counted_and_a_judges_wording_is_not_shown_for_the_persons(
    record: Record, settings: Settings
) -> None:
    await publish(record, 1, START + 1, ("That again?", "Be brief."), ("b " * 90, "b " * 90), ("c", "c"))
    (line, _) = await VersionLines(settings, START).look(record)
    assert "and 1 more" in line
    assert "Be brief." not in line
    assert max(len(word) for word in line.split('"')[1::2]) <= 60


async def test_with_a_second_key_a_line_names_policy_and_keys_and_no_words(
    record: Record, settings: Settings
) -> None:
    KeyFile(settings.keys_file).add("ann")
    lines = VersionLines(settings, START)
    await publish(record, 1, START + 1, ("Shorter please.", "Shorter please."), key="ann")
    rejected = version(2, START + 2, state=AdapterState.REJECTED, reason='"Shorter please." is lost')
    await record.reject(rejected, report(2, START + 2, "rejected"), worker="w")
    shown = await lines.look(record)
    assert shown[0].startswith(f"version 1 of {POLICY} is live: learned from 1 reaction of ann · undo:")
    assert shown[2].startswith(
        f"version 2 of {POLICY} was rejected, nothing changed: version 1 stays live · why:"
    )
    assert "Shorter" not in "".join(shown)


async def test_a_rejected_version_has_its_reason_and_what_stays(record: Record, settings: Settings) -> None:
    lines = VersionLines(settings, START)
    rejected = version(1, START + 1, state=AdapterState.REJECTED, reason="facts: 40%, base 60%")
    await record.reject(rejected, report(1, START + 1, "rejected"), worker="w")
    assert await lines.look(record) == [
        "version 1 was rejected, nothing changed: version 0 (the base model) stays live (facts: 40%, base 60%)",
        "measured here: a version takes about 2 min",
    ]


async def test_what_a_version_costs_here_is_said_once_when_the_trainer_has_measured_it(
    record: Record, settings: Settings
) -> None:
    def beat(at: float, **detail: Any) -> Heartbeat:
        return Heartbeat(process="trainer", pid=1, state="waiting", detail=detail, at=at)

    lines = VersionLines(settings, START)
    await record.heartbeat(beat(START - 9, notes=["of an earlier start"]))
    assert await lines.look(record) == []
    await record.heartbeat(beat(START + 1, notes=[]))
    assert await lines.look(record) == []
    await record.heartbeat(beat(START + 2, notes=["a version takes about 3 min"]))
    assert await lines.look(record) == ["training: a version takes about 3 min"]
    await record.heartbeat(beat(START + 3, notes=["a version takes about 3 min"]))
    assert await lines.look(record) == []


async def test_a_step_that_fails_again_and_again_is_reported_once(record: Record, settings: Settings) -> None:
    lines = VersionLines(settings, START)
    for at in (1, 2):
        await record.write_step(report(None, START + at, "no memory"))
    assert await lines.look(record) == ["training failed: version 0 (the base model) stays live (no memory)"]


async def test_a_rollback_is_reported_and_a_move_before_the_start_is_not(
    record: Record, settings: Settings
) -> None:
    await publish(record, 1, START - 1, ("Shorter.", "Shorter."))
    lines = VersionLines(settings, START)
    assert await lines.look(record) == []
    await record.rollback(POLICY, 0, now=START + 1)
    (line,) = await lines.look(record)
    assert line.startswith("version 0 (the base model) is live now: rolled back · all versions: ")


async def test_a_version_on_trial_is_not_called_live(record: Record, settings: Settings) -> None:
    await publish(record, 1, START + 1, ("Shorter.", "Shorter."), canary_share=0.5)
    (line, _) = await VersionLines(settings, START).look(record)
    assert line.startswith("version 1 is on trial with 50% of the new conversations: learned")


async def test_what_steers_a_terminal_is_removed(record: Record, settings: Settings) -> None:
    await publish(record, 1, START + 1, ("\x1b[31mShorter.", "\x1b[31mShorter."))
    (line, _) = await VersionLines(settings, START).look(record)
    assert "\x1b" not in line
