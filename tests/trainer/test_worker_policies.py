"""One trainer for several policies: fair, and none of them learns anything of another."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from store.lifecycle import Stage
from store.record import Record
from store.settings import Settings, read_settings
from store.values import ScoredTurn, WishReading, WishScope
from tests.trainer.gates import close_the_gate, local_trainer, open_the_gate
from tests.trainer.test_worker import Bench
from tests.trainer.turns import as_recorded, sampled_turn
from trainer.protocol import VersionJob

pytestmark = pytest.mark.slow

BASE = "patina-tiny"


@pytest.fixture
def settings(tiny_model: Path, tmp_path: Path) -> Settings:
    return read_settings(
        {
            "home": tmp_path / "home", "model_name": str(tiny_model), "served_model_name": BASE, "batch_size": 2,
            "lora_rank": 4, "learning_rate": 1e-3, "anchors": 1, "w_rl": 1.0, "method": "rl", "max_wait_s": 1e12,
            "passes": 1,
        }
    )  # fmt: skip


class People(Bench):
    """Turns of several keys."""

    def __init__(self, record: Record, settings: Settings) -> None:
        super().__init__(record, settings)
        self._sampler = local_trainer(settings).policy  # never trained: every turn is of version 0

    async def say(self, group: str, *turn_ids: str, at: float = 1_000.0) -> list[ScoredTurn]:
        policy = f"{BASE}.{group}" if group else BASE
        turns = [
            replace(
                sampled_turn(
                    self._sampler, turn_id, f"Question {turn_id}?", verdict={"value": -1, "hint": None}
                ),
                policy=policy,
                key_name=group or "default",
            )
            for turn_id in turn_ids
        ]
        for turn in turns:
            await self.record.write_turns(as_recorded(turn))
            await self.record.add_verdict(replace(turn.verdict, created_at=at))
        return turns

    async def served(self, times: int) -> list[str]:
        found = []
        for _ in range(times):
            before = await self.record.aliases()
            assert await self.worker.work_once()
            after = await self.record.aliases()
            (moved,) = [name for name, move in after.items() if move != before.get(name)]
            found.append(moved.removeprefix(f"{BASE}."))
        return found


@pytest_asyncio.fixture
async def people(record: Record, settings: Settings) -> AsyncIterator[People]:
    made = People(record, settings)
    open_the_gate(made.trainer)
    yield made
    made.worker._thread.shutdown()


async def test_the_oldest_verdict_is_served_first_and_many_of_one_policy_delay_another_by_one_batch(
    people: People,
) -> None:
    await people.say("ann", *(f"a{i}" for i in range(6)), at=1_000.0)
    await people.say("bob", "b1", "b2", at=1_500.0)
    await people.say("", "s1", "s2", at=1_400.0)
    assert await people.served(5) == ["ann", BASE, "bob", "ann", "ann"]
    assert not await people.worker.work_once()


async def test_what_one_policy_learns_is_what_it_learns_alone_to_the_bit(
    people: People, record: Record, settings: Settings
) -> None:
    """Bob's two versions, with Ann's between them, are byte for byte those of a trainer that never saw Ann."""
    first, second = await people.say("bob", "b1", "b2"), await people.say("ann", "a1", "a2")
    assert sorted(await people.served(2)) == ["ann", "bob"]
    third = await people.say("bob", "b3", "b4")
    await people.say("ann", "a3", "a4")
    assert sorted(await people.served(2)) == ["ann", "bob"]
    mixed = [adapter.content_hash for adapter in await record.adapters(f"{BASE}.bob")]
    assert {Path(a.path).parent.name for a in await record.adapters(f"{BASE}.bob")} == {f"{BASE}.bob"}
    assert second[0].policy == f"{BASE}.ann"

    alone = Bench(record, settings.model_copy(update={"home": settings.home / "alone"}))
    open_the_gate(alone.trainer)
    alone.trainer.reset(f"{BASE}.bob")
    hashes = []
    recent: list[int] = []
    for number, turns in enumerate((first, third), start=1):
        ordered: Sequence[ScoredTurn] = await record.scored_turns([turn.turn_id for turn in turns])
        outcome = alone.trainer.attempt(VersionJob(number=number, turns=ordered, recent=recent))
        assert outcome.written is not None
        hashes.append(outcome.written.content_hash)
        alone.trainer.commit(number)
        recent += [-1, -1]
    assert mixed == hashes
    assert await record.verify() == []
    alone.worker._thread.shutdown()


async def test_a_rejection_of_one_policy_changes_nothing_for_another(people: People) -> None:
    close_the_gate(people.trainer)
    await people.say("ann", "a1", "a2", at=1_000.0)
    assert await people.worker.work_once()
    open_the_gate(people.trainer)
    await people.say("bob", "b1", "b2", at=900.0)
    assert await people.worker.work_once()
    assert (people.trainer.name, people.trainer.version) == (f"{BASE}.bob", 1)
    assert await people.worker.work_once()  # Ann's again
    assert (people.trainer.name, people.trainer.version) == (f"{BASE}.ann", 2)


async def test_a_policy_whose_step_fails_stops_no_other(
    people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = people.trainer.attempt

    def failing(job: VersionJob) -> object:
        if job.turns[0].policy == f"{BASE}.ann":
            raise ValueError("her turns break it")
        return attempt(job)

    monkeypatch.setattr(people.trainer, "attempt", failing)
    await people.say("ann", "a1", "a2", at=1_000.0)
    await people.say("bob", "b1", "b2", at=2_000.0)
    assert not await people.worker._survive(people.worker.work_once)
    assert await people.worker._survive(people.worker.work_once)
    assert await people.stages("a1", "b1") == [Stage.SCORED, Stage.TRAINED]


async def test_one_policy_is_paused_and_resumed(people: People) -> None:
    await people.say("ann", "a1", "a2", at=1_000.0)
    await people.say("bob", "b1", "b2", at=2_000.0)
    await people.record.set_paused(True, policy=f"{BASE}.ann")
    assert await people.served(1) == ["bob"]
    assert not await people.worker.work_once()
    status = await people.record.status()
    assert (status.training, status.paused) == ("running", (f"{BASE}.ann",))
    await people.record.set_paused(False, policy=f"{BASE}.ann")
    assert await people.served(1) == ["ann"]


async def test_a_rollback_and_a_wish_concern_one_policy(people: People) -> None:
    await people.say("ann", "a1", "a2")
    await people.say("bob", "b1", "b2")
    await people.served(2)
    await people.record.rollback(f"{BASE}.ann", 0)
    live = {name: move.version for name, move in (await people.record.aliases()).items()}
    assert live == {f"{BASE}.ann": 0, f"{BASE}.bob": 1}
    (turn,) = await people.say("ann", "a3")
    wish = WishReading(text="Shorter.", scope=WishScope.LASTING)
    await people.record.add_verdict(replace(turn.verdict, wish=wish))
    assert [one.text for one in await people.record.wishes(f"{BASE}.ann")] == ["Shorter."]
    assert await people.record.wishes(f"{BASE}.bob") == ()
    recent = await people.record.recent_verdicts(f"{BASE}.bob", 9)
    assert [one.value for one in recent] == [-1, -1]


async def test_turns_of_another_base_model_are_left_alone(people: People, record: Record) -> None:
    (turn,) = await people.say("", "x")
    other = replace(turn, turn_id="other", policy="gpt-4o")
    await record.write_turns(as_recorded(other))
    await record.add_verdict(replace(other.verdict, turn_id="other", created_at=1.0))
    assert not await people.worker.work_once()
