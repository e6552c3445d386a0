"""The worker on a real record and a real (tiny, random) policy: what becomes of claimed turns, whatever happens."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import peft
import pytest
import pytest_asyncio
import sqlalchemy as sa
import torch
from transformers import AutoModelForCausalLM

from store import schema
from store.errors import AdapterMismatch, GateRejected, RecordError, RecordUnavailable
from store.lifecycle import DropReason, Stage
from store.record import Record
from store.settings import Settings, read_settings
from store.values import AdapterState, ScoredTurn, StepReport, StepRole, Wish, WishState
from tests.trainer.gates import ScriptedGate, close_the_gate, know_model, local_trainer, open_the_gate
from tests.trainer.turns import accepted, as_recorded, sampled_turn, wishing_turn
from trainer.deaths import Deaths
from trainer.policy import LocalPolicy
from trainer.protocol import Merge, Outcome, VersionJob
from trainer.wish_meter import Followed
from trainer.wish_review import Reviewed, WishReview
from trainer.worker import LEASE_S, MAX_FAILURES, TrainerWorker

POLICY = "patina-tiny"


def settings_of(model: Path, home: Path, **more: Any) -> Settings:
    """Return settings under which the tiny model takes small steps by its verdicts."""
    return read_settings(
        {
            "home": home,
            "model_name": str(model),
            "served_model_name": POLICY,
            "batch_size": 2,
            "lora_rank": 4,
            "learning_rate": 1e-3,
            "anchors": 1,
            "passes": 1,
            "w_rl": 1.0,
            "method": "rl",  # on random weights a wish has nothing to say
            **more,
        }
    )


@pytest.fixture
def settings(tiny_model: Path, tmp_path: Path) -> Settings:
    return settings_of(tiny_model, tmp_path / "home")


class Bench:
    """A worker that runs its loop body once for each call."""

    def __init__(self, record: Record, settings: Settings) -> None:
        self.record, self.settings = record, settings
        self.worker = TrainerWorker(record, settings)
        self.trainer = local_trainer(settings)
        self.worker._trainer = self.trainer

    async def add(self, *turn_ids: str, value: int = -1, hint: str | None = None) -> list[ScoredTurn]:
        turns = [
            sampled_turn(
                self.trainer._policy,
                turn_id,
                f"Question {turn_id}?",
                adapter_version=self.trainer.version,
                verdict={"value": value, "hint": hint},
            )
            for turn_id in turn_ids
        ]
        for turn in turns:
            await self.record.write_turns(as_recorded(turn))
            await self.record.add_verdict(turn.verdict)
        return turns

    async def stages(self, *turn_ids: str) -> list[Stage]:
        fates = await self.record.fates(turn_ids)
        return [fates[turn_id].stage for turn_id in turn_ids]


@pytest_asyncio.fixture
async def bench(record: Record, settings: Settings) -> AsyncIterator[Bench]:
    made = Bench(record, settings)
    open_the_gate(made.trainer)  # random weights know no facts
    yield made
    made.worker._thread.shutdown()


async def test_a_batch_of_feedback_becomes_a_live_version_that_peft_loads(
    bench: Bench, tiny_model: Path
) -> None:
    await bench.add("a", "b")
    assert await bench.worker.work_once()
    assert await bench.stages("a", "b") == [Stage.TRAINED, Stage.TRAINED]
    (adapter,) = await bench.record.adapters(POLICY)
    assert (adapter.version, adapter.state, adapter.parent_version) == (1, AdapterState.PUBLISHED, 0)
    assert (await bench.record.aliases())[POLICY].version == 1
    assert adapter.reason.startswith("2 rated turns")
    model = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_model), adapter.path)
    lora_b = [value for name, value in model.named_parameters() if "lora_B" in name]
    assert lora_b
    assert any(bool(value.abs().sum() > 0) for value in lora_b)
    assert await bench.record.verify() == []


async def test_fewer_turns_than_a_batch_wait_and_are_trained_when_one_has_waited_long(
    record: Record, settings: Settings
) -> None:
    bench = Bench(record, settings.model_copy(update={"batch_size": 8, "max_wait_s": 1e12}))
    await bench.add("a")
    assert not await bench.worker.work_once()
    patient = Bench(record, settings.model_copy(update={"batch_size": 8, "max_wait_s": 5.0}))
    open_the_gate(patient.trainer)
    assert await patient.worker.work_once()  # it was scored long ago
    assert await bench.stages("a") == [Stage.TRAINED]
    for one in (bench, patient):
        one.worker._thread.shutdown()


async def test_pausing_stops_training_and_resuming_goes_on(bench: Bench) -> None:
    await bench.add("a", "b")
    await bench.record.set_paused(True)
    assert not await bench.worker.work_once()
    assert await bench.stages("a", "b") == [Stage.SCORED, Stage.SCORED]
    await bench.record.set_paused(False)
    assert await bench.worker.work_once()


async def test_turns_without_a_signal_are_dropped_on_the_way_with_their_reason(bench: Bench) -> None:
    await bench.add("0-silent", value=0)
    await bench.add("a", "b")
    assert await bench.worker.work_once()
    fates = await bench.record.fates(["0-silent", "a", "b"])
    assert fates["0-silent"].drop_reason is DropReason.NO_SIGNAL
    assert fates["b"].trained_in_version == 1


async def test_neutral_traffic_is_dropped_in_slices_and_never_taken_along_whole(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.worker._BYSTANDERS", 3)
    neutral = [f"0-{number:02d}" for number in range(11)]
    await bench.add(*neutral, value=0)
    await bench.add("a", "b")
    seen: list[list[str]] = []
    attempt = bench.trainer.attempt

    def counting(job: VersionJob) -> Outcome:
        seen.append([turn.turn_id for turn in job.turns])
        return attempt(job)

    monkeypatch.setattr(bench.trainer, "attempt", counting)
    assert await bench.worker.work_once()
    assert seen == [[*neutral[-3:], "a", "b"]]
    assert await bench.stages("a", "b") == [Stage.TRAINED, Stage.TRAINED]
    fates = await bench.record.fates(neutral)
    assert {fate.drop_reason for fate in fates.values()} == {DropReason.NO_SIGNAL}
    assert bench.worker._counters.dropped[DropReason.NO_SIGNAL.value] == len(neutral)


async def test_turns_taken_before_a_claim_fails_are_given_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.add("0-silent", "0-still", value=0)
    await bench.add("a", "b")
    claim, calls = bench.record.claim, 0

    async def failing(*args: Any, **more: Any) -> list[ScoredTurn]:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise RecordUnavailable("the disk is full")
        return await claim(*args, **more)

    monkeypatch.setattr(bench.record, "claim", failing)
    with pytest.raises(RecordUnavailable):
        await bench.worker.work_once()
    assert await bench.stages("0-silent", "0-still") == [Stage.SCORED, Stage.SCORED]


async def test_the_baseline_of_a_batch_holds_no_verdict_of_the_batch_or_of_those_behind_it(
    record: Record, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(record, settings.model_copy(update={"batch_size": 4}))
    open_the_gate(bench.trainer)
    await bench.add(*"abc")
    await bench.add("d", value=1)
    await bench.add(*"efgh")
    seen: list[list[int]] = []
    attempt = bench.trainer.attempt

    def noted(job: VersionJob) -> Outcome:
        seen.append(list(job.recent))
        return attempt(job)

    monkeypatch.setattr(bench.trainer, "attempt", noted)
    assert await bench.worker.work_once()
    assert await bench.worker.work_once()
    assert seen == [[], [-1, -1, -1, -1]]  # thanks are claimed last
    bench.worker._thread.shutdown()


async def test_the_first_thanks_are_news_however_many_more_wait_behind_them(
    record: Record, settings: Settings
) -> None:
    bench = Bench(record, settings.model_copy(update={"batch_size": 4}))
    open_the_gate(bench.trainer)
    await bench.add(*"abcdefghijkl", value=1)
    assert await bench.worker.work_once()
    assert await bench.stages("a", "b", "c", "d") == [Stage.TRAINED] * 4
    bench.worker._thread.shutdown()


async def test_a_rejected_version_is_never_live_and_its_turns_get_one_more_chance(bench: Bench) -> None:
    before = bench.trainer._policy.snapshot()
    close_the_gate(bench.trainer)
    await bench.add("a", "b")
    assert await bench.worker.work_once()
    assert await bench.record.aliases() == {}
    assert await bench.stages("a", "b") == [Stage.SCORED, Stage.SCORED]
    after = bench.trainer._policy.snapshot()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert bench.trainer._policy.learning_rate == pytest.approx(1e-3)
    assert await bench.worker.work_once()
    fates = await bench.record.fates(["a", "b"])
    assert {fate.drop_reason for fate in fates.values()} == {DropReason.GATE_REJECTED}
    first, second = await bench.record.adapters(POLICY)
    assert (first.state, first.reason) == (AdapterState.REJECTED, "replies do not end")
    assert second.version == 2
    status = await bench.record.status()
    assert status.last_error is not None
    assert "replies do not end" in status.last_error


async def test_a_step_that_fails_gives_its_turns_back_and_a_poisonous_turn_is_dropped_in_the_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(*_: object) -> None:
        raise GateRejected("the gradient is not finite: no step was taken")

    bench.trainer.attempt = explode  # type: ignore[assignment, method-assign]  # a scripted failure
    await bench.add("a", "b")
    for attempt in range(MAX_FAILURES):
        expected = Stage.SCORED if attempt < MAX_FAILURES - 1 else Stage.DROPPED
        with pytest.raises(GateRejected):
            await bench.worker.work_once()
        assert await bench.stages("a", "b") == [expected, expected]
    assert (await bench.record.fates(["a"]))["a"].drop_reason is DropReason.STEP_FAILED
    (newest, *_) = await bench.record.steps(POLICY)
    assert newest.error == "the gradient is not finite: no step was taken"


@pytest.mark.parametrize("claimed_by_another", [False, True])
async def test_a_worker_whose_lease_ran_out_undoes_its_step_and_goes_on(
    bench: Bench, claimed_by_another: bool
) -> None:
    await bench.add("a", "b")
    before = bench.trainer._policy.snapshot()
    attempt = bench.trainer.attempt

    async def lose() -> None:
        assert await bench.record.release_expired(now=1e12) == 2
        if claimed_by_another:
            assert len(await bench.record.claim(POLICY, 2, worker="another", lease_s=60)) == 2

    def slow(job: VersionJob) -> Outcome:
        outcome = attempt(job)
        asyncio.run_coroutine_threadsafe(lose(), loop).result(30)
        return outcome

    loop = asyncio.get_running_loop()
    bench.trainer.attempt = slow  # type: ignore[method-assign]  # the real one, and a lease that ends meanwhile
    assert await bench.worker.work_once()
    assert await bench.record.aliases() == {}
    left = Stage.CLAIMED if claimed_by_another else Stage.SCORED
    assert await bench.stages("a", "b") == [left, left]
    after = bench.trainer._policy.snapshot()
    assert all(torch.equal(before[name], after[name]) for name in before)
    (newest, *_) = await bench.record.steps(POLICY)
    assert newest.error is not None
    assert "2 of 2 turns are not claimed" in newest.error
    assert bench.worker._failures.total() == 0
    if claimed_by_another:
        assert await bench.record.release(["a", "b"], worker="another") == 2
    bench.trainer.attempt = attempt  # type: ignore[method-assign]
    assert await bench.worker.work_once()
    assert await bench.stages("a", "b") == [Stage.TRAINED, Stage.TRAINED]


async def test_the_lease_is_renewed_as_long_as_a_step_runs(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease is over many times before the step ends, by a clock of its own."""
    clock = [5_000.0]
    renewed = asyncio.Event()
    claim, renew = bench.record.claim, bench.record.renew
    attempt, loop = bench.trainer.attempt, asyncio.get_running_loop()

    async def claim_then(*args: Any, **more: Any) -> list[ScoredTurn]:
        return await claim(*args, **more, now=clock[0])

    async def renew_then(worker: str, lease_s: float) -> int:
        clock[0] += lease_s / 2
        held = await renew(worker, lease_s, now=clock[0])
        renewed.set()
        return held

    async def wait() -> list[int]:
        expired = []
        for _ in range(4):
            renewed.clear()
            await renewed.wait()
            expired.append(await bench.record.release_expired(now=clock[0] + LEASE_S / 2))
        return expired

    def slow(job: VersionJob) -> Outcome:
        assert asyncio.run_coroutine_threadsafe(wait(), loop).result(60) == [0, 0, 0, 0]
        return attempt(job)

    monkeypatch.setattr(bench.record, "claim", claim_then)
    monkeypatch.setattr(bench.record, "renew", renew_then)
    monkeypatch.setattr(bench.trainer, "attempt", slow)
    monkeypatch.setattr("trainer.worker.RENEW_S", 0.01)
    await bench.add("a", "b")
    assert await bench.worker.work_once()
    assert await bench.stages("a", "b") == [Stage.TRAINED, Stage.TRAINED]


async def test_after_a_rollback_training_goes_on_from_the_version_that_is_live(bench: Bench) -> None:
    await bench.add("a", "b")
    await bench.worker.work_once()
    await bench.add("c", "d")
    await bench.worker.work_once()
    assert (await bench.record.aliases())[POLICY].version == 2
    await bench.record.rollback(POLICY, 1)
    await bench.add("e", "f")
    await bench.worker.work_once()
    third = await bench.record.adapter(POLICY, 3)
    assert third is not None
    assert third.parent_version == 1
    await bench.record.rollback(POLICY, 0)
    await bench.add("g", "h")
    await bench.worker.work_once()
    fourth = await bench.record.adapter(POLICY, 4)
    assert fourth is not None
    assert fourth.parent_version == 0


async def test_a_changed_live_version_is_refused_and_training_goes_on_from_its_ancestor(bench: Bench) -> None:
    for names in ("ab", "cd"):
        await bench.add(*names)
        await bench.worker.work_once()
    await bench.record.rollback(POLICY, 1)
    await bench.worker._follow_alias(POLICY)
    await bench.record.rollback(POLICY, 2)
    second = await bench.record.adapter(POLICY, 2)
    assert second is not None
    (Path(second.path) / "patina" / "metrics.json").write_text("[]")
    with pytest.raises(AdapterMismatch, match=r"metrics\.json changed"):
        await bench.worker._follow_alias(POLICY)
    await bench.worker._follow_alias(POLICY)
    moves = await bench.record.alias_moves(POLICY)
    assert (moves[-1].version, moves[-1].actor) == (1, "integrity")
    assert bench.trainer.version == 1
    second = await bench.record.adapter(POLICY, 2)
    assert second is not None
    assert (second.state, "metrics.json changed" in second.reason) == (AdapterState.REFUSED, True)


async def test_a_rollback_during_a_step_is_not_undone_by_what_the_step_made(bench: Bench) -> None:
    await bench.add("a", "b")
    await bench.worker.work_once()
    first = bench.trainer._policy.snapshot()
    await bench.add("c", "d")
    attempt = bench.trainer.attempt
    made: list[Path] = []

    def slow(job: VersionJob) -> Outcome:
        outcome = attempt(job)
        assert outcome.written is not None
        made.append(outcome.written.path)
        asyncio.run_coroutine_threadsafe(bench.record.rollback(POLICY, 0), loop).result(30)
        return outcome

    loop = asyncio.get_running_loop()
    bench.trainer.attempt = slow  # type: ignore[method-assign]  # the real one, and a person who undoes meanwhile
    assert await bench.worker.work_once()
    assert (await bench.record.aliases())[POLICY].version == 0
    assert await bench.record.adapter(POLICY, 2) is None
    assert [folder.exists() for folder in made] == [False]
    assert await bench.stages("c", "d") == [Stage.SCORED, Stage.SCORED]
    (newest, *_) = await bench.record.steps(POLICY)
    assert newest.error is not None
    assert "version 0 was made live meanwhile" in newest.error
    assert bench.worker._failures.total() == 0
    after = bench.trainer._policy.snapshot()
    assert all(torch.equal(first[name], after[name]) for name in first)
    bench.trainer.attempt = attempt  # type: ignore[method-assign]
    await bench.worker.work_once()
    second = await bench.record.adapter(POLICY, 2)
    assert second is not None
    assert second.parent_version == 0
    assert await bench.record.verify() == []


async def test_a_restarted_worker_goes_on_exactly_where_the_last_one_stopped(
    record: Record, settings: Settings, tmp_path: Path
) -> None:
    """Two steps by one worker give the same bytes as one step each by two workers."""
    straight = Bench(record, settings)
    open_the_gate(straight.trainer)
    await straight.add("a", "b")
    await straight.worker.work_once()
    first = await record.adapter(POLICY, 1)
    assert first is not None
    await straight.add("c", "d")
    await straight.worker.work_once()
    uninterrupted = await record.adapter(POLICY, 2)
    await record.rollback(POLICY, 1)
    again = Bench(record, settings)
    open_the_gate(again.trainer)
    turns = await record.trained_turns(POLICY, version=2)
    await again.worker._follow_alias(POLICY)
    job = VersionJob(number=2, turns=list(reversed(turns)), recent=[-1, -1])
    outcome = again.trainer.attempt(job)
    assert uninterrupted is not None
    assert outcome.written is not None
    assert outcome.written.content_hash == uninterrupted.content_hash
    for one in (straight, again):
        one.worker._thread.shutdown()


async def test_old_versions_lose_their_files_and_keep_their_rows(record: Record, settings: Settings) -> None:
    bench = Bench(record, settings.model_copy(update={"save_interval": 2, "batch_size": 1}))
    open_the_gate(bench.trainer)
    for i in range(10):
        await bench.add(f"t{i}")
        await bench.worker.work_once()
    adapters = await record.adapters(POLICY)
    pruned = {a.version for a in adapters if a.state is AdapterState.PRUNED}
    assert (len(adapters), pruned) == (10, {1})  # 2 is a second one; 3 to 10 are the newest eight
    there = await asyncio.to_thread(lambda: {a.version for a in adapters if Path(a.path).exists()})
    assert there == set(range(2, 11))
    with pytest.raises(RecordError, match="it is pruned"):
        await record.rollback(POLICY, 1)
    bench.worker._thread.shutdown()


async def test_the_loop_trains_by_itself_and_stops_on_request(
    record: Record, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.version_trainer.Gate", lambda *_, **__: ScriptedGate())
    speaker = LocalPolicy(settings.model_path, rank=4, device="cpu", learning_rate=1e-4)
    for name in ("a", "b"):
        turn = sampled_turn(speaker, name, "Hello?", verdict={"hint": None})
        await record.write_turns(as_recorded(turn))
        await record.add_verdict(turn.verdict)
    know_model(settings.home, settings.model_path)
    stop = asyncio.Event()
    logged: list[dict[str, object]] = []
    task = asyncio.create_task(TrainerWorker(record, settings, log=logged.append).run(stop))
    while POLICY not in await record.aliases():
        assert not task.done()
        await asyncio.sleep(0.05)
    stop.set()
    await task
    assert logged[0]["version"] == 1
    (beat,) = (await record.status()).heartbeats
    assert beat.process == "trainer"


async def test_the_folder_tells_what_the_step_measured(bench: Bench) -> None:
    await bench.add("a", "b")
    await bench.worker.work_once()
    (adapter,) = await bench.record.adapters(POLICY)
    metrics = json.loads((Path(adapter.path) / "patina" / "metrics.json").read_text())
    assert metrics["turns"] == 2
    assert metrics["samples"] == {"wish": 0, "verdict": 2, "example": 0, "anchor": 0}
    assert {"loss", "kl_step", "kl_base", "gradient_norm", "train_s", "gate", "settings"} <= metrics.keys()


async def test_while_a_step_runs_its_turns_are_noted_for_the_next_trainer(bench: Bench) -> None:
    path = bench.worker._settings.home / "trainer-deaths.json"
    noted: list[list[str]] = []
    attempt = bench.trainer.attempt

    def watched(job: VersionJob) -> Outcome:
        noted.append(json.loads(path.read_text(encoding="utf-8"))["under_way"])
        return attempt(job)

    bench.trainer.attempt = watched  # type: ignore[method-assign]
    await bench.add("a", "b")
    assert await bench.worker.work_once()
    assert noted == [["a", "b"]]
    assert json.loads(path.read_text(encoding="utf-8"))["under_way"] == []


async def test_the_heartbeat_names_the_step_and_its_phase(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []

    def watch(owner: Any, name: str) -> None:
        work = getattr(owner, name)

        def watched(*given: Any) -> Any:
            seen.append(bench.worker._progress())
            return work(*given)

        monkeypatch.setattr(owner, name, watched)

    trainer = bench.trainer
    watch(trainer, "_train")
    watch(trainer._gate, "examine")
    watch(trainer.policy, "version_files")
    for turns in (("a", "b"), ("c", "d")):
        await bench.add(*turns)
        assert await bench.worker.work_once()
    assert [one["phase"] for one in seen] == ["training", "gate", "write"] * 2
    newest, first = await bench.record.steps(POLICY)
    assert [one["step_id"] for one in seen] == [first.step_id] * 3 + [newest.step_id] * 3
    assert all(one["step_started_at"] <= one["phase_started_at"] for one in seen)
    assert bench.worker._progress() == {}


async def test_a_step_that_fails_keeps_the_phase_that_it_failed_in(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: Any) -> Any:
        raise ValueError("no numbers")

    monkeypatch.setattr(bench.trainer._gate, "examine", broken)
    await bench.add("a", "b")
    with pytest.raises(ValueError, match="no numbers"):
        await bench.worker.work_once()
    (step,) = await bench.record.steps(POLICY)
    assert step.metrics["phase"] == "gate"


async def test_a_step_that_a_requested_stop_interrupts_blames_no_turn(bench: Bench) -> None:
    path = bench.worker._settings.home / "trainer-deaths.json"
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    attempt = bench.trainer.attempt

    def slow(job: VersionJob) -> Outcome:
        loop.call_soon_threadsafe(stop.set)
        while json.loads(path.read_text(encoding="utf-8"))["under_way"]:
            time.sleep(0.01)
        return attempt(job)

    bench.trainer.attempt = slow  # type: ignore[method-assign]
    await bench.add("a", "b")
    stopping = asyncio.create_task(bench.worker._note_stop(stop))
    assert await bench.worker.work_once()
    await stopping
    assert (await bench.record.fates(["a"]))["a"].stage is Stage.TRAINED


async def test_a_turn_that_a_trainer_was_killed_with_alone_is_dropped_and_the_others_train(
    record: Record, settings: Settings
) -> None:
    """The file is what trainers leave that were killed twice with both turns and once with the first alone."""
    bench = Bench(record, settings)
    await bench.add("a", "b")
    path = settings.home / "trainer-deaths.json"
    for held in (["a", "b"], ["a", "b"], ["a"]):
        Deaths(path).begin(held)
    again = Bench(record, settings)
    open_the_gate(again.trainer)
    assert await again.worker.work_once()
    fates = await record.fates(["a", "b"])
    assert (fates["a"].stage, fates["a"].drop_reason) == (Stage.DROPPED, DropReason.TRAINER_DIED)
    assert fates["b"].stage is Stage.TRAINED
    for one in (bench, again):
        one.worker._thread.shutdown()


async def used_turns(record: Record, step: StepReport) -> dict[StepRole, list[str]]:
    """Ids of the turns that a step used, by role, in order."""
    t = schema.step_turns.c
    query = sa.select(t.role, t.turn_id).where(t.step_id == step.step_id).order_by(t.role, t.position)
    rows = await record._database.read(lambda connection: list(connection.execute(query)))
    return {
        StepRole(role): [one.turn_id for one in rows if one.role == role]
        for role in {one.role for one in rows}
    }


async def test_a_step_keeps_what_it_was_computed_from(bench: Bench) -> None:
    await bench.add("a", "b")
    await bench.worker.work_once()
    await bench.add("c", "d")
    await bench.worker.work_once()
    second, first = await bench.record.steps(POLICY)
    assert (first.version, second.version) == (1, 2)
    assert (await used_turns(bench.record, first))[StepRole.BATCH] == ["a", "b"]
    assert (await used_turns(bench.record, second))[StepRole.RECENT] == ["a", "b"]
    for step in await bench.record.steps(POLICY):
        times = {
            name: step.metrics[name]
            for name in ("queue_s", "claim_s", "teach_s", "train_s", "gate_s", "write_s")
        }
        assert min(times.values()) >= 0
        assert step.metrics["device"] == {}  # nothing shares it
    assert second.method == "rl"


# -- wishes

WORDS = "Please keep your answers short."


class Wished(Bench):
    """A worker of wishes. Each is learnt, and followed in as many replies as `weights` says (tests/trainer/test_wish_review.py)."""

    def __init__(self, record: Record, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(record, settings)
        open_the_gate(self.trainer)
        self.weights = 0.9
        self.learns = True
        self.jobs: list[VersionJob] = []

        def review(_: WishReview, wishes: Sequence[Wish]) -> Reviewed:
            measures = {one.wish_id: {"base": 0.1, "told": 0.9} for one in wishes}
            return Reviewed(learnt=tuple(wishes) if self.learns else (), measures=measures)

        def followed(_: WishReview, found: Reviewed) -> dict[int, Followed]:
            shares = Followed(base=0.1, told=0.9, weights=self.weights, replies=12)
            return {one.wish_id: shares for one in found.learnt}

        attempt = self.trainer.attempt

        def noted(job: VersionJob) -> Outcome:
            self.jobs.append(job)
            return attempt(job)

        monkeypatch.setattr(WishReview, "review", review)
        monkeypatch.setattr(WishReview, "followed", followed)
        monkeypatch.setattr(self.trainer, "attempt", noted)

    async def state(self, text: str, turn_id: str) -> None:
        turn = wishing_turn(self.trainer.policy, turn_id, f"Question {turn_id}?", text)
        await self.record.write_turns(as_recorded(turn))
        await self.record.add_verdict(turn.verdict)

    async def serve(self, turn_id: str, text: str = WORDS) -> None:
        """A reply that was served with the wish and draws no complaint."""
        turn = accepted(self.trainer.policy, turn_id, f"Question {turn_id}?", text)
        await self.record.write_turns(as_recorded(turn)[:1])

    async def live(self) -> int:
        return await self.record.live_version(POLICY)

    async def states(self) -> dict[str, WishState]:
        return {wish.text: wish.state for wish in await self.record.wishes(POLICY)}


@pytest_asyncio.fixture
async def wished(
    record: Record, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Wished]:
    settings = settings_of(tiny_model, tmp_path / "home", method="opd", batch_size=1, samples=4)
    made = Wished(record, settings, monkeypatch)
    yield made
    made.worker._thread.shutdown()


async def test_a_stated_wish_becomes_a_version_that_begins_at_the_base_model_and_replaces_what_is_live(
    wished: Wished,
) -> None:
    await wished.serve("served")
    await wished.state(WORDS, "a")
    assert await wished.worker.work_once()
    await wished.state("No lists, please.", "b")
    assert await wished.worker.work_once()
    first, second = await wished.record.adapters(POLICY)
    assert (first.parent_version, second.parent_version, await wished.live()) == (0, 0, 2)
    assert [wish.text for wish in wished.jobs[1].wishes] == [WORDS, "No lists, please."]
    assert [turn.turn_id for turn in wished.jobs[0].served] == ["served"]
    assert first.metrics["served"] == 1
    step, _ = await wished.record.steps(POLICY)
    used = await used_turns(wished.record, step)
    assert used[StepRole.BATCH] == ["b"]
    assert "served" in used[StepRole.SERVED]
    assert sorted(used[StepRole.STATED]) == ["a", "b"]
    (short, _) = await wished.record.wishes(POLICY)
    assert (short.measures["told"], short.measures["weights"], short.measures["version"]) == (0.9, 0.9, 2)


async def test_a_wish_that_the_weights_follow_leaves_the_prompt_and_a_rollback_brings_it_back(
    wished: Wished,
) -> None:
    wished.weights = 0.5
    await wished.state(WORDS, "a")
    assert await wished.worker.work_once()
    assert await wished.states() == {WORDS: WishState.PROMPT}
    wished.weights = 0.85
    await wished.state(WORDS, "b")
    assert await wished.worker.work_once()
    assert await wished.live() == 2
    assert await wished.states() == {WORDS: WishState.RETIRED}
    await wished.record.rollback(POLICY, 1)
    assert await wished.states() == {WORDS: WishState.PROMPT}


async def test_a_wish_that_the_weights_do_not_follow_enough_is_trained_longer_without_new_turns(
    wished: Wished,
) -> None:
    wished.weights = 0.5
    await wished.state(WORDS, "a")
    assert await wished.worker.work_once()
    wished.weights = 0.85
    assert await wished.worker.work_once()
    first, second = await wished.record.adapters(POLICY)
    assert (first.metrics["passes"], second.metrics["passes"]) == (1, 2)
    assert second.metrics["optimizer_steps"] == 2 * first.metrics["optimizer_steps"]
    assert (wished.jobs[1].turns, await wished.live()) == ((), 2)
    assert await wished.states() == {WORDS: WishState.RETIRED}
    assert not await wished.worker.work_once()


async def test_a_version_is_built_again_without_a_withdrawn_wish_and_without_the_last_the_base_model_is_served(
    wished: Wished,
) -> None:
    await wished.state(WORDS, "a")
    await wished.state("No lists, please.", "b")
    for _ in range(2):
        assert await wished.worker.work_once()
    assert not await wished.worker.work_once()
    short, lists = await wished.record.wishes(POLICY)
    await wished.record.change_wish(lists.wish_id, state=WishState.WITHDRAWN)
    assert await wished.worker.work_once()
    (third,) = [one for one in await wished.record.adapters(POLICY) if one.version == 3]
    assert [row["wish_id"] for row in third.metrics["wishes"]] == [short.wish_id]
    assert (await wished.live(), wished.jobs[-1].turns) == (3, ())
    await wished.record.change_wish(short.wish_id, state=WishState.WITHDRAWN)
    assert await wished.worker.work_once()
    assert await wished.live() == 0
    assert len(await wished.record.adapters(POLICY)) == 3
    assert not await wished.worker.work_once()
    assert (await wished.record.alias_moves(POLICY))[-1].actor == "trainer"
    assert await wished.record.verify() == []


async def test_a_withdrawn_wish_is_not_served_on_where_the_model_follows_none_of_the_others(
    wished: Wished,
) -> None:
    await wished.state(WORDS, "a")
    assert await wished.worker.work_once()
    wished.learns = False
    await wished.state("Answer like a pirate.", "b")
    assert await wished.worker.work_once()
    assert await wished.live() == 1  # it has what is wished
    (short, _) = await wished.record.wishes(POLICY)
    await wished.record.change_wish(short.wish_id, state=WishState.WITHDRAWN)
    assert await wished.worker.work_once()
    assert await wished.live() == 0


async def test_wishes_that_do_the_same_are_one_in_the_record(
    wished: Wished, monkeypatch: pytest.MonkeyPatch
) -> None:
    await wished.state(WORDS, "a")
    clearest = "Shorter answers, please."
    await wished.state(clearest, "b")

    def merging(_: WishReview, wishes: Sequence[Wish]) -> Reviewed:
        first, *others = wishes
        return Reviewed(
            learnt=(first,),
            merged=(Merge(into=first.wish_id, others=tuple(one.wish_id for one in others), text=clearest),)
            * bool(others),
            measures={first.wish_id: {"base": 0.1, "told": 0.9}},
        )

    monkeypatch.setattr(WishReview, "review", merging)
    loop, train, while_training = asyncio.get_running_loop(), wished.trainer._train, list[int]()

    def slow(*given: Any) -> dict[str, float]:
        """Ask the record once the loop has had its turn: the wishes are merged before the version is made."""
        for _ in range(2):
            found = asyncio.run_coroutine_threadsafe(wished.record.wishes(POLICY), loop).result()
            while_training.append(len(found))
        return train(*given)

    monkeypatch.setattr(wished.trainer, "_train", slow)
    assert await wished.worker.work_once()
    assert while_training[-1] == 1
    (wish,) = await wished.record.wishes(POLICY)
    assert wish.text == clearest
    assert [one.turn_id for one in wish.statements] == ["a", "b"]
