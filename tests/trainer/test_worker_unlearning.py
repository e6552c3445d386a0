"""Withdrawn wishes: the worker makes versions of them alone, and stops where that comes to nothing."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from store.lifecycle import DropReason, Stage
from store.record import Record
from store.settings import Settings, read_settings
from store.values import AdapterState, AdapterVersion, Json, ScoredTurn, WishEdit
from tests.making import make_answer, make_turn, make_verdict
from trainer.checkpoint import remove_version, write_version
from trainer.due import MAX_UNLEARNING_FAILURES, has_withdrawn_wish
from trainer.protocol import AttemptPhase, Edit, Outcome, TurnRefusal
from trainer.worker import TrainerWorker

POLICY = "patina-tiny"


def row(state: str, *turns: str) -> Json:
    return {"turns": list(turns), "state": state, "overruled_by": "", "version": 1, "now": 0.9, "best": 0.9}


def _files(number: int) -> dict[str, bytes]:
    return {"adapter_config.json": b"{}", "adapter_model.safetensors": b"weights %d" % number}


class ScriptedWorkshop:
    """Learns the first turn of a batch as a wish; what unlearning comes to is scripted.

    Args:
        script: of each attempt without turns: "published", "rejected", "nothing" or "error".
    """

    def __init__(self, settings: Settings, *script: str) -> None:
        self._settings, self._script = settings, list(script)
        self.name, self.version = POLICY, 0
        self.notes: tuple[str, ...] = ()
        self.remembered: tuple[str, ...] = ()
        self.phase = AttemptPhase()
        self.attempts: list[tuple[list[str], list[Edit]]] = []
        self._wishes: dict[int, list[Json]] = {0: []}

    def check(self) -> None: ...

    def state(self) -> Json:
        return {}

    def resume(self, state: Json) -> None: ...

    def count_rejections(self, count: int) -> None: ...

    def revert(self) -> None: ...

    def close(self) -> None: ...

    def draw_replay(self, turns: Sequence[ScoredTurn]) -> tuple[str, ...]:
        return ()

    def is_due(self, edits: Sequence[Edit] = ()) -> bool:
        return has_withdrawn_wish({"wishes": self._wishes[self.version]}, edits)

    def commit(self, number: int) -> None:
        self.version = number

    def load(self, adapter: AdapterVersion) -> None:
        self.name, self.version = adapter.policy, adapter.version
        self._wishes[adapter.version] = adapter.metrics["wishes"]

    def reset(self, name: str) -> None:
        self.name, self.version = name, 0

    def remove(self, folder: Path) -> None:
        remove_version(folder)

    def attempt(
        self,
        turns: Sequence[ScoredTurn],
        replay: Sequence[ScoredTurn],
        recent: Sequence[int],
        number: int,
        remembered: Sequence[ScoredTurn] = (),
        edits: Sequence[Edit] = (),
    ) -> Outcome:
        self.attempts.append(([turn.turn_id for turn in turns], list(edits)))
        kind = "published" if turns else self._script.pop(0)
        if kind == "error":
            raise ValueError("the step failed")
        if kind == "nothing":
            return Outcome(refused={}, parent_version=self.version)
        wishes = [row("active", turns[0].turn_id)] if turns else [row("unlearnt", "a")]
        self._wishes[number] = wishes
        metrics = {"wishes": wishes, "turns": len(turns)}
        written = write_version(
            self._settings.adapters_folder_of(self.name),
            self.name,
            number,
            _files(number),
            state={},
            metrics={},
        )
        return Outcome(
            refused={t.turn_id: TurnRefusal(reason=DropReason.HINT_IRRELEVANT) for t in turns[2:]},
            parent_version=self.version,
            written=written,
            rejected=("facts are forgotten",) if kind == "rejected" else (),
            reason="learns" if turns else "unlearns a withdrawn wish",
            metrics=metrics,
        )


class Bench:
    """A worker with a scripted trainer, one step for each call, and a clock that the test moves."""

    def __init__(self, record: Record, settings: Settings, *script: str) -> None:
        self.record = record
        self.trainer = ScriptedWorkshop(settings, *script)
        self.worker = TrainerWorker(record, settings)
        self.worker._trainer = self.trainer

    async def add(self, *turn_ids: str) -> None:
        for turn_id in turn_ids:
            asked = make_turn(turn_id, session_id=f"s-{turn_id}")
            reacted = make_turn(
                f"{turn_id}-next",
                session_id=f"s-{turn_id}",
                parent_turn_id=turn_id,
                turn_index=1,
                next_state=make_answer(turn_id, f"{turn_id}-next", "shorter please"),
            )
            await self.record.write_turns([asked, reacted])
            await self.record.add_verdict(make_verdict(turn_id))

    async def withdraw(self, turn_id: str) -> None:
        await self.record.add_wish_edits(POLICY, [WishEdit(turn_id=turn_id, text=None)])


@pytest.fixture
def settings(tiny_model: Path, tmp_path: Path) -> Settings:
    return read_settings(
        {
            "home": tmp_path / "home",
            "model_name": str(tiny_model),
            "learning_rate": 4e-4,
            "served_model_name": POLICY,
            "batch_size": 3,
            "max_wait_s": 1e12,
            "method": "combine",
        }
    )


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What `time.monotonic` of the worker says."""
    now = [1_000.0]
    for module in ("trainer.worker", "trainer.due"):
        clock = SimpleNamespace(monotonic=lambda: now[0], time=time.time)
        monkeypatch.setattr(f"{module}.time", clock)
    return now


@pytest_asyncio.fixture
async def taught(record: Record, settings: Settings) -> AsyncIterator[Bench]:
    """Version 1 is live and has the wish of turn "a"."""
    bench = Bench(record, settings)
    await bench.add("a", "b", "c")
    assert await bench.worker.work_once()
    yield bench
    bench.worker._thread.shutdown()


async def test_a_withdrawn_wish_becomes_a_version_without_turns_and_then_nothing_is_due(
    taught: Bench,
) -> None:
    assert not await taught.worker.work_once()
    taught.trainer._script = ["published"]
    await taught.withdraw("a")
    assert await taught.worker.work_once()
    assert taught.trainer.attempts[-1] == ([], [Edit(turn_id="a", text=None)])
    second = await taught.record.adapter(POLICY, 2)
    assert second is not None
    assert (second.state, second.parent_version) == (AdapterState.PUBLISHED, 1)
    assert (second.reason, second.metrics["turns"]) == ("unlearns a withdrawn wish", 0)
    assert (await taught.record.aliases())[POLICY].version == 2
    assert await taught.record.trained_turns(POLICY, version=2) == []
    (newest, *_) = await taught.record.steps(POLICY)
    assert (newest.version, newest.error) == (2, None)
    assert not await taught.worker.work_once()
    assert await taught.record.verify() == []


async def test_edited_words_reach_the_next_attempt_and_make_none_by_themselves(taught: Bench) -> None:
    await taught.record.add_wish_edits(POLICY, [WishEdit(turn_id="a", text="At most ten words.")])
    assert not await taught.worker.work_once()
    await taught.add("d", "e", "f")
    assert await taught.worker.work_once()
    assert taught.trainer.attempts[-1] == (
        ["d", "e", "f"],
        [Edit(turn_id="a", text="At most ten words.")],
    )


async def test_nothing_is_unlearnt_while_training_is_paused(taught: Bench) -> None:
    taught.trainer._script = ["published"]
    await taught.withdraw("a")
    await taught.record.set_paused(True)
    assert not await taught.worker.work_once()
    await taught.record.set_paused(False)
    assert await taught.worker.work_once()


@pytest.mark.parametrize("kind", ["rejected", "nothing"])
async def test_attempts_that_come_to_nothing_are_bounded_with_longer_pauses_and_new_edits_begin_anew(
    taught: Bench, clock: list[float], kind: str
) -> None:
    taught.trainer._script = [kind] * (MAX_UNLEARNING_FAILURES + 1)
    await taught.withdraw("a")
    begun = len(taught.trainer.attempts)
    waits = []
    for _ in range(10_000):
        before = len(taught.trainer.attempts)
        await taught.worker.work_once()
        if len(taught.trainer.attempts) > before:
            waits.append(clock[0])
        clock[0] += 20.0
        if len(waits) == MAX_UNLEARNING_FAILURES:
            break
    assert [later - earlier for earlier, later in itertools.pairwise(waits)] == [60, 120, 240]
    clock[0] += 1e9
    assert not await taught.worker.work_once()
    assert len(taught.trainer.attempts) == begun + MAX_UNLEARNING_FAILURES
    assert (await taught.record.aliases())[POLICY].version == 1
    await taught.withdraw("b")
    assert await taught.worker.work_once()


async def test_a_step_that_fails_counts_as_an_attempt(taught: Bench, clock: list[float]) -> None:
    taught.trainer._script = ["error"]
    await taught.withdraw("a")
    with pytest.raises(ValueError, match="the step failed"):
        await taught.worker.work_once()
    assert not await taught.worker.work_once()
    (newest, *_) = await taught.record.steps(POLICY)
    assert newest.error == "ValueError: the step failed"


async def test_turns_are_trained_while_unlearning_waits(taught: Bench, clock: list[float]) -> None:
    taught.trainer._script = ["rejected"]
    await taught.withdraw("a")
    assert await taught.worker.work_once()
    assert not await taught.worker.work_once()
    await taught.add("d", "e", "f")
    assert await taught.worker.work_once()
    assert (await taught.record.aliases())[POLICY].version == 3


async def test_a_restarted_worker_unlearns_what_was_withdrawn_while_nothing_ran(
    taught: Bench, settings: Settings
) -> None:
    await taught.withdraw("a")
    again = Bench(taught.record, settings, "published")
    assert await again.worker.work_once()
    assert (await taught.record.aliases())[POLICY].version == 2
    again.worker._thread.shutdown()


async def test_after_a_rollback_to_before_the_wish_there_is_nothing_to_unlearn(taught: Bench) -> None:
    await taught.withdraw("a")
    await taught.record.rollback(POLICY, 0)
    assert not await taught.worker.work_once()
    assert len(taught.trainer.attempts) == 1


async def test_a_version_names_the_turns_of_its_batch_that_taught_nothing(taught: Bench) -> None:
    (adapter,) = await taught.record.adapters(POLICY)
    assert adapter.metrics["unused_turns"] == {"c": "hint_irrelevant"}
    fates = await taught.record.fates(["a", "c"])
    assert [fates[i].stage for i in ("a", "c")] == [Stage.TRAINED, Stage.DROPPED]


@pytest.mark.parametrize(
    ("state", "removed", "expected"),
    [
        ("active", "a", True),
        ("overruled", "a", True),
        ("active", "b", False),
        ("withdrawn", "b", True),
        ("unlearnt", "a", False),
    ],
)
def test_a_version_has_something_to_unlearn_by_its_rows_and_the_edits(
    state: str, removed: str, expected: bool
) -> None:
    edits = [Edit(turn_id=removed, text=None), Edit(turn_id="a", text="other words")]
    metrics: dict[str, Any] = {"wishes": [row(state, "a")]}
    assert has_withdrawn_wish(metrics, edits) is expected
    assert not has_withdrawn_wish({}, edits)
