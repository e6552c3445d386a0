"""The worker tries a version on a share of the conversations, waits for its verdicts, and acts on them."""

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from store.record import Record
from store.settings import Settings
from store.values import AdapterState, ReleaseStage
from tests.making import make_turn, make_verdict
from tests.trainer.gates import open_the_gate
from tests.trainer.test_worker import POLICY, Bench, settings_of
from trainer.canary_release import TRIAL_TURNS, WATCH_TURNS
from trainer.release_watch import SHARE_OF_MANY, SHARE_OF_ONE


@pytest.fixture
def settings(tiny_model: Path, tmp_path: Path) -> Settings:
    return settings_of(tiny_model, tmp_path / "home", canary_after=1)


@pytest_asyncio.fixture
async def bench(record: Record, settings: Settings) -> AsyncIterator[Bench]:
    made = Bench(record, settings)
    open_the_gate(made.trainer)
    yield made
    made.worker._thread.shutdown()


async def serve(bench: Bench, version: int, count: int, complaints: int) -> None:
    """Record judged turns of a version, each in a conversation of its own."""
    for i in range(count):
        turn_id = f"v{version}-{time.monotonic_ns()}-{i}"
        now = time.time()
        turn = make_turn(turn_id, session_id=turn_id, policy=POLICY, adapter_version=version)
        await bench.record.write_turns([replace(turn, created_at=now, finished_at=now)])
        await bench.record.add_verdict(make_verdict(turn_id, value=-1 if i < complaints else 0))


async def review(bench: Bench) -> None:
    bench.worker._due.releases._reviewed_at = -1e9
    await bench.worker._due.releases.review()


async def two_versions(bench: Bench) -> None:
    """Version 1 goes live at once (``canary_after``), version 2 is on trial."""
    await bench.add("a", "b")
    assert await bench.worker.work_once()
    await bench.add("c", "d")
    assert await bench.worker.work_once()
    assert (await bench.record.aliases())[POLICY].version == 1


async def test_a_version_is_tried_promoted_and_trained_on_while_the_next_batch_waited(bench: Bench) -> None:
    await two_versions(bench)
    (release,) = await bench.record.canary_releases(POLICY)
    assert (release.version, release.baseline_version, release.share) == (2, 1, SHARE_OF_ONE)
    await bench.add("e", "f")
    await review(bench)
    assert not await bench.worker.work_once()
    assert bench.worker._state == f"waiting: {POLICY}@2 on trial"
    await serve(bench, 1, TRIAL_TURNS, 1)
    await serve(bench, 2, TRIAL_TURNS, 0)
    await review(bench)
    assert (await bench.record.aliases())[POLICY].version == 2
    assert await bench.worker.work_once()
    third = await bench.record.adapter(POLICY, 3)
    assert third is not None
    assert third.parent_version == 2


async def test_a_version_that_draws_complaints_is_rolled_back_and_the_live_one_is_trained_on(
    bench: Bench,
) -> None:
    await two_versions(bench)
    await serve(bench, 1, 20, 1)
    await serve(bench, 2, 20, 14)
    await review(bench)
    (release,) = await bench.record.canary_releases(POLICY)
    assert release.stage is ReleaseStage.ROLLED_BACK
    assert release.reason == "complaints in 14 of 20 turns against complaints in 1 of 20 turns"
    assert release.numbers["evidence"] > 20
    assert (await bench.record.aliases())[POLICY].version == 1
    await bench.add("e", "f")
    assert await bench.worker.work_once()
    third = await bench.record.adapter(POLICY, 3)
    assert third is not None
    assert third.parent_version == 1


async def test_a_promoted_version_that_regresses_is_rolled_back_by_itself(bench: Bench) -> None:
    await two_versions(bench)
    await serve(bench, 1, 20, 1)
    await serve(bench, 2, TRIAL_TURNS, 0)
    await review(bench)
    assert (await bench.record.aliases())[POLICY].version == 2
    await serve(bench, 2, 30, 28)
    await review(bench)
    assert (await bench.record.aliases())[POLICY].version == 1
    assert (await bench.record.alias_moves(POLICY))[-1].actor == "canary"


async def test_the_watch_of_a_good_version_ends(bench: Bench) -> None:
    await two_versions(bench)
    await serve(bench, 1, 20, 1)
    await serve(bench, 2, TRIAL_TURNS, 0)
    await review(bench)
    await serve(bench, 2, WATCH_TURNS - TRIAL_TURNS, 2)
    await review(bench)
    (release,) = await bench.record.canary_releases(POLICY)
    assert release.stage is ReleaseStage.KEPT


async def test_the_files_of_a_version_on_trial_and_of_its_baseline_stay(bench: Bench) -> None:
    await two_versions(bench)
    await bench.worker._prune(POLICY, 1)
    states = [one.state for one in await bench.record.adapters(POLICY)]
    assert states == [AdapterState.PUBLISHED, AdapterState.PUBLISHED]


async def test_the_share_is_smaller_where_several_keys_use_the_policy(bench: Bench) -> None:
    await bench.add("a", "b")
    assert await bench.worker._due.releases.share_of_next(POLICY) == 0.0  # one of the first versions
    assert await bench.worker.work_once()
    assert await bench.worker._due.releases.share_of_next(POLICY) == SHARE_OF_ONE
    for key in ("ann", "bob"):
        turn = make_turn(f"of-{key}", policy=POLICY)
        await bench.record.write_turns([replace(turn, key_name=key, created_at=time.time())])
    assert await bench.worker._due.releases.share_of_next(POLICY) == SHARE_OF_MANY
