"""The worker tries a version on a share of the conversations, waits for its verdicts, and acts on them."""

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
import torch

from store.canary_arms import is_in_canary
from store.manifest import ADAPTER_WEIGHTS
from store.queries.canary import WINDOW_S
from store.record import Record
from store.settings import Settings
from store.values import AdapterState, ReleaseStage
from tests.making import make_turn, make_verdict
from tests.trainer.gates import open_the_gate
from tests.trainer.test_worker import POLICY, Bench, settings_of
from trainer.preview import FEWEST, Previewer
from trainer.protocol import Preview
from trainer.release_watch import SHARE_OF_MANY, SHARE_OF_ONE
from trainer.sequential_rates import LIMIT


@pytest.fixture
def settings(tiny_model: Path, tmp_path: Path) -> Settings:
    return settings_of(tiny_model, tmp_path / "home", canary_after=1)


@pytest_asyncio.fixture
async def bench(record: Record, settings: Settings) -> AsyncIterator[Bench]:
    made = Bench(record, settings)
    open_the_gate(made.trainer)
    yield made
    made.worker._thread.shutdown()


async def serve(bench: Bench, count: int, tried: int, live: int) -> None:
    """Record conversations of one judged turn that the newest release draws for; of every ten of a version so many have a complaint."""
    (*_, release) = await bench.record.canary_releases(POLICY)
    served = {True: 0, False: 0}
    while min(served.values()) < count:
        name = f"{release.version}-{time.monotonic_ns()}"
        arm = is_in_canary(name, POLICY, release.version, release.share)
        served[arm] += 1
        now = time.time()
        turn = make_turn(name, session_id=name, policy=POLICY, drawn=name)
        await bench.record.write_turns([replace(turn, created_at=now, finished_at=now)])
        value = -1 if served[arm] % 10 < (tried if arm else live) else 0
        await bench.record.add_verdict(replace(make_verdict(name, value=value), created_at=now))


async def review(bench: Bench) -> None:
    """Review when the time of all conversations is over."""
    bench.worker._due.releases._reviewed_at = -1e9
    await bench.worker._due.releases.review(time.time() + WINDOW_S)


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
    await serve(bench, 25, 0, 2)
    assert not await bench.worker.work_once()  # its conversations still go on
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
    await serve(bench, 20, 8, 1)
    await review(bench)
    (release,) = await bench.record.canary_releases(POLICY)
    assert release.stage is ReleaseStage.ROLLED_BACK
    assert release.reason.startswith("complaints in ")
    assert release.numbers["evidence"] == pytest.approx(LIMIT)
    assert (await bench.record.aliases())[POLICY].version == 1
    await bench.add("e", "f")
    assert await bench.worker.work_once()
    third = await bench.record.adapter(POLICY, 3)
    assert third is not None
    assert third.parent_version == 1


async def test_a_promoted_version_is_compared_no_more(bench: Bench) -> None:
    """All conversations are its own then: those of the version before are of another time."""
    await two_versions(bench)
    await serve(bench, 25, 0, 2)
    await review(bench)
    await serve(bench, 20, 10, 0)
    await review(bench)
    (release,) = await bench.record.canary_releases(POLICY)
    assert release.stage is ReleaseStage.KEPT
    assert (await bench.record.aliases())[POLICY].version == 2
    assert (await bench.record.alias_moves(POLICY))[-1].actor == "canary"


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


async def test_a_version_is_previewed_on_past_questions_before_it_is_tried(bench: Bench) -> None:
    await bench.add("a", "b")
    assert await bench.worker.work_once()
    await bench.add(*(f"question-{i}" for i in range(FEWEST)))
    assert await bench.worker.work_once()
    first, second = await bench.record.adapters(POLICY)
    assert "preview" not in first.metrics  # it went live at once
    assert second.metrics["preview"]["questions"] >= FEWEST
    replies = await bench.record.preview_replies(POLICY, 2)
    assert {one.turn_id for _, one in replies} <= {"a", "b", *(f"question-{i}" for i in range(FEWEST))}
    assert all(question == f"Question {one.turn_id}?" for question, one in replies)
    assert bench.trainer.version == 2


async def test_a_version_that_a_preview_rejects_is_never_tried_and_undone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.add("a", "b")
    assert await bench.worker.work_once()
    before = bench.trainer.policy.snapshot()
    found = Preview(rejected=("it asks back",), numbers={"questions": 9})
    monkeypatch.setattr(Previewer, "preview", lambda *_, **__: found)
    await bench.add("c", "d")
    assert await bench.worker.work_once()
    rejected = await bench.record.adapter(POLICY, 2)
    assert rejected is not None
    assert (rejected.state, rejected.reason) == (AdapterState.REJECTED, "it asks back")
    assert rejected.metrics["preview"] == {"questions": 9}
    assert await bench.record.canary_releases(POLICY) == []
    assert (await bench.record.aliases())[POLICY].version == 1
    after = bench.trainer.policy.snapshot()
    assert all(torch.equal(before[name], after[name]) for name in before if name.startswith("weight/"))


async def test_the_live_version_answers_a_preview_and_the_new_one_is_kept_to_the_bit(bench: Bench) -> None:
    await two_versions(bench)
    live = await bench.record.adapter(POLICY, 1)
    assert live is not None
    trainer = bench.trainer
    mine = trainer.policy.version_files()[ADAPTER_WEIGHTS]
    with trainer._as_live(Path(live.path)):
        assert (
            trainer.policy.version_files()[ADAPTER_WEIGHTS]
            == (Path(live.path) / ADAPTER_WEIGHTS).read_bytes()
            != mine
        )
    assert trainer.policy.version_files()[ADAPTER_WEIGHTS] == mine
