"""Canary releases in the record: every move is by compare-and-set, with the alias in the same transaction."""

from pathlib import Path

import pytest

from store.errors import AliasMoved, RecordError
from store.record import Record
from store.values import AdapterState, ReleaseStage, StepReport
from tests.proxy.test_adapters import make_adapter

POLICY = "tiny"


async def publish(
    record: Record, version: int, *, share: float = 0.0, at: float = 0.0, policy: str = POLICY
) -> None:
    adapter = make_adapter(policy, version, Path("/nowhere"), created_at=at or float(version))
    step = StepReport(
        step_id=f"s{version}", policy=policy, method="rl", started_at=at, finished_at=at, version=version,
        error=None, metrics={},
    )  # fmt: skip
    await record.publish(adapter, [], step, worker="w", canary_share=share)


async def live(record: Record) -> int:
    return (await record.aliases())[POLICY].version


async def stages(record: Record) -> list[tuple[int, ReleaseStage]]:
    return [(one.version, one.stage) for one in await record.canary_releases(POLICY)]


async def test_a_version_on_trial_is_not_live_until_it_is_promoted(record: Record) -> None:
    await publish(record, 1)
    await publish(record, 2, share=0.5)
    moves, (release,) = await record.routes()
    assert moves[POLICY].version == 1
    assert (release.version, release.baseline_version, release.share) == (2, 1, 0.5)
    assert await record.settle_release(release, ReleaseStage.WATCHED, numbers={"n": 1}, reason="fine")
    assert await live(record) == 2
    assert (await record.alias_moves(POLICY))[-1].actor == "canary"
    (watched,) = await record.canary_releases(POLICY)
    assert (watched.stage, watched.numbers, watched.reason) == (ReleaseStage.WATCHED, {"n": 1}, "fine")
    assert await record.settle_release(watched, ReleaseStage.ROLLED_BACK, numbers={}, reason="worse")
    assert await live(record) == 1


async def test_a_trial_that_is_rolled_back_moves_no_alias(record: Record) -> None:
    await publish(record, 1)
    await publish(record, 2, share=0.5)
    (release,) = await record.canary_releases()
    assert await record.settle_release(release, ReleaseStage.ROLLED_BACK, numbers={}, reason="worse")
    assert await live(record) == 1
    assert len(await record.alias_moves(POLICY)) == 1


async def test_of_two_reviews_of_one_stage_the_second_changes_nothing(record: Record) -> None:
    await publish(record, 1)
    await publish(record, 2, share=0.5)
    (release,) = await record.canary_releases()
    assert await record.settle_release(release, ReleaseStage.WATCHED, numbers={}, reason="")
    assert not await record.settle_release(release, ReleaseStage.ROLLED_BACK, numbers={}, reason="late")
    assert await stages(record) == [(2, ReleaseStage.WATCHED)]
    assert await live(record) == 2


async def test_a_person_who_moves_the_alias_ends_the_trial(record: Record) -> None:
    await publish(record, 1)
    await publish(record, 2, share=0.5)
    (release,) = await record.canary_releases()
    await record.rollback(POLICY, 0)
    assert await stages(record) == [(2, ReleaseStage.SUPERSEDED)]
    assert not await record.settle_release(release, ReleaseStage.WATCHED, numbers={}, reason="late")
    assert await live(record) == 0


async def test_a_version_that_must_not_serve_ends_its_trial_and_leaves_the_live_one(record: Record) -> None:
    await publish(record, 1)
    await publish(record, 2, share=0.5)
    await record.refuse(POLICY, 2, reason="changed", ancestor=1, actor="proxy")
    assert await stages(record) == [(2, ReleaseStage.SUPERSEDED)]
    assert await live(record) == 1


async def test_a_version_of_the_one_on_trial_is_not_published(record: Record) -> None:
    await publish(record, 1)
    await publish(record, 2, share=0.5)
    with pytest.raises(AliasMoved):
        await publish(record, 3)
    assert [one.version for one in await record.adapters(POLICY)] == [1, 2]


async def test_pins_are_kept_by_policy_and_only_for_versions_with_files(record: Record) -> None:
    await publish(record, 1)
    await publish(record, 2)
    await record.pin(POLICY, 1, stays=True)
    await record.pin(POLICY, 2, stays=True)
    await record.pin(POLICY, 2, stays=False)
    assert await record.pins(POLICY) == [1]
    assert await record.pins("other") == []
    await record.mark_pruned(POLICY, [2])
    with pytest.raises(RecordError, match="its files are gone"):
        await record.pin(POLICY, 2, stays=True)
    with pytest.raises(RecordError, match="no version 9"):
        await record.pin(POLICY, 9, stays=True)
    assert (await record.adapters(POLICY))[1].state is AdapterState.PRUNED


async def test_a_person_tries_a_published_version_again_and_again(record: Record) -> None:
    await publish(record, 1)
    await publish(record, 2)
    for version, reason in ((2, "is live"), (9, "has no version 9")):
        with pytest.raises(RecordError, match=reason):
            await record.try_version(POLICY, version, share=0.5)
    for _ in range(2):
        await record.try_version(POLICY, 1, share=0.5, now=10.0)
        moves, (release,) = await record.routes()
        assert moves[POLICY].version == 2
        assert (release.version, release.baseline_version, release.share) == (1, 2, 0.5)
        assert await record.settle_release(release, ReleaseStage.ROLLED_BACK, numbers={}, reason="worse")
    assert await stages(record) == [(1, ReleaseStage.ROLLED_BACK)]
