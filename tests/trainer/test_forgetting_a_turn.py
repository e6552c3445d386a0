"""A version that is built after a turn is forgotten, or a wish removed, is to the byte the one that never saw it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from migrations import upgrade
from store.errors import AliasMoved, ClaimLost, MadeOfForgotten
from store.manifest import ADAPTER_WEIGHTS
from store.record import Record
from store.settings import Settings, read_settings
from store.values import ScoredTurn, Selection, WishReading, WishScope, WishState
from tests.trainer.turns import as_recorded, sampled_turn
from trainer.due import DueFinder
from trainer.policy import LocalPolicy
from trainer.protocol import Outcome, VersionJob, WrittenVersion
from trainer.version_trainer import LocalVersionTrainer
from trainer.worker import TrainerWorker
from wire.wish_text import BEHIND

POLICY = "patina-tiny"
SHORT, PLAIN = "Answer in one short sentence, please.", "I want it free of emoji."


def make_settings(home: Path) -> Settings:
    return read_settings(
        {"home": home, "method": "combine", "samples": 6, "anchors": 2, "passes": 1, "batch_size": 1, "threads": 1}
    )  # fmt: skip


def rated(policy: LocalPolicy, turn_id: str, question: str, wish: str, **changes: object) -> ScoredTurn:
    reading = WishReading(text=wish, scope=WishScope.LASTING)
    return sampled_turn(policy, turn_id, question, verdict={"wish": reading, "hint": wish}, **changes)


def make_turns(policy: LocalPolicy) -> tuple[list[ScoredTurn], ScoredTurn]:
    """Return a reply that was served with a wish and one that states it, and one that states another wish."""
    served = sampled_turn(
        policy, "served", "What is the capital of Peru?", wish_text=SHORT, wish_place=BEHIND
    )
    kept = [served, rated(policy, "kept", "What is the capital of France?", SHORT)]
    return kept, rated(policy, "gone", "What is 2 plus 3?", PLAIN)


def empty_home(home: Path) -> Path:
    home.mkdir()
    upgrade(make_settings(home).database_url)
    return home


async def make_record(home: Path, turns: Sequence[ScoredTurn]) -> Record:
    record = await Record.open(make_settings(home).database_url)
    for turn in turns:
        rows = as_recorded(turn)
        await record.write_turns(
            [replace(rows[0], wish_text=turn.wish_text, wish_place=turn.wish_place), *rows[1:]]
        )
        if turn.verdict.wish is not None:
            await record.add_verdict(turn.verdict)
    return record


async def job_of(record: Record, trainer: LocalVersionTrainer, *, takes_turns: bool = True) -> VersionJob:
    """Return the job that the worker would make now; the turns stay as they are."""
    worker = TrainerWorker(record, trainer._settings, trainer=trainer)
    claimed = await record.claim(POLICY, 8, worker="w", lease_s=60) if takes_turns else []
    await record.release([turn.turn_id for turn in claimed], worker="w")
    return await worker._job(POLICY, 1, 0, claimed, await record.recent_verdicts(POLICY, 64))


def built(trainer: LocalVersionTrainer, job: VersionJob) -> bytes:
    """Return the weights of the version, and be what the trainer was."""
    written = trainer.attempt(job).written
    assert written is not None
    trainer.revert()
    return (written.path / ADAPTER_WEIGHTS).read_bytes()


@pytest.fixture
def trainer(tmp_path: Path) -> LocalVersionTrainer:
    return LocalVersionTrainer(make_settings(tmp_path / "trainer"))


@pytest.mark.slow
async def test_the_version_after_a_forget_is_the_one_of_a_record_that_never_had_the_turn(
    trainer: LocalVersionTrainer, tmp_path: Path
) -> None:
    kept, gone = make_turns(trainer.policy)
    record = await make_record(empty_home(tmp_path / "has"), [*kept, gone])
    never = await make_record(empty_home(tmp_path / "never"), kept)
    before = built(trainer, await job_of(record, trainer))
    await record.forget(Selection(turn="gone"), key=b"k" * 32)
    job = await job_of(record, trainer)
    assert [wish.text for wish in job.wishes] == [SHORT]
    assert [turn.turn_id for turn in (*job.turns, *job.served)] == ["kept", "served"]
    after = built(trainer, job)
    assert after == built(trainer, await job_of(never, trainer))
    assert after != before
    assert (await DueFinder(record, trainer._settings).find(0)) is not None  # the trainer builds it by itself
    await record.close()
    await never.close()


@pytest.mark.slow
async def test_the_version_after_a_wish_is_removed_is_the_one_of_a_record_that_never_had_it(
    trainer: LocalVersionTrainer, tmp_path: Path
) -> None:
    kept, gone = make_turns(trainer.policy)
    record = await make_record(empty_home(tmp_path / "has"), [*kept, gone])
    never = await make_record(empty_home(tmp_path / "never"), kept)
    before = built(trainer, await job_of(record, trainer, takes_turns=False))
    (removed,) = (wish for wish in await record.wishes(POLICY) if wish.text == PLAIN)
    await record.change_wish(removed.wish_id, state=WishState.WITHDRAWN)
    after = built(trainer, await job_of(record, trainer, takes_turns=False))
    assert after == built(trainer, await job_of(never, trainer, takes_turns=False))
    assert after != before
    await record.close()
    await never.close()


class StubTrainer:
    """Counts what the worker asks of it."""

    def __init__(self) -> None:
        self.calls: list[str | Path] = []

    def revert(self) -> None:
        self.calls.append("revert")

    def remove(self, folder: Path) -> None:
        self.calls.append(folder)


@pytest.mark.parametrize(
    ("late", "removes"), [(MadeOfForgotten, True), (AliasMoved, True), (ClaimLost, False)]
)
async def test_what_a_step_under_way_made_of_a_forgotten_turn_is_removed_by_the_trainer(
    record: Record, tmp_path: Path, late: type[AliasMoved | ClaimLost], removes: bool
) -> None:
    trainer = StubTrainer()
    worker = TrainerWorker(record, make_settings(tmp_path), trainer=cast("Any", trainer))
    written = WrittenVersion(path=tmp_path / "version", content_hash="", manifest_hash="")
    outcome = Outcome(refused={}, parent_version=0, written=written)
    await worker._undo(outcome, late("late"))
    worker._thread.shutdown()
    assert trainer.calls == (["revert", written.path] if removes else ["revert"])
