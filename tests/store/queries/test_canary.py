"""Canary releases in the record: every move is by compare-and-set, with the alias in the same transaction."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from store.canary_arms import is_in_canary
from store.errors import AliasMoved, RecordError
from store.queries.alias import move_alias
from store.queries.canary import WINDOW_S
from store.record import Record
from store.values import AdapterState, DrawnConversation, ReleaseStage, StepReport, TurnKind
from tests.making import make_turn, make_verdict
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
    assert await record.settle_release(release, ReleaseStage.KEPT, numbers={"n": 1}, reason="fine")
    assert await live(record) == 2
    assert (await record.alias_moves(POLICY))[-1].actor == "canary"
    (kept,) = await record.canary_releases(POLICY)
    assert (kept.stage, kept.numbers, kept.reason) == (ReleaseStage.KEPT, {"n": 1}, "fine")


async def test_a_release_moves_no_alias_that_another_moved_meanwhile(record: Record) -> None:
    await publish(record, 1)
    await publish(record, 2, share=0.5)
    (release,) = await record.canary_releases()
    await record._database.write(move_alias, POLICY, 0, at=9.0, actor="other")
    assert not await record.settle_release(release, ReleaseStage.KEPT, numbers={}, reason="late")
    assert await live(record) == 0
    assert await stages(record) == [(2, ReleaseStage.RUNNING)]


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
    assert await record.settle_release(release, ReleaseStage.KEPT, numbers={}, reason="")
    assert not await record.settle_release(release, ReleaseStage.ROLLED_BACK, numbers={}, reason="late")
    assert await stages(record) == [(2, ReleaseStage.KEPT)]
    assert await live(record) == 2


async def test_a_person_who_moves_the_alias_ends_the_trial(record: Record) -> None:
    await publish(record, 1)
    await publish(record, 2, share=0.5)
    (release,) = await record.canary_releases()
    await record.rollback(POLICY, 0)
    assert await stages(record) == [(2, ReleaseStage.SUPERSEDED)]
    assert not await record.settle_release(release, ReleaseStage.KEPT, numbers={}, reason="late")
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


async def serve(
    record: Record,
    name: str,
    at: float,
    *verdicts: int | None,
    judged_at: float | None = None,
    **changes: Any,
) -> None:
    """Record a turn of a drawn conversation with its verdicts, the oldest first."""
    turn_id = f"{name}-{at}"
    turn = make_turn(turn_id, policy=POLICY, session_id=name, drawn=name, created_at=at, **changes)
    await record.write_turns([turn])
    for value in verdicts:
        when = at if judged_at is None else judged_at
        await record.add_verdict(replace(make_verdict(turn_id, value=value), created_at=when))


async def drawn(record: Record, now: float) -> list[DrawnConversation]:
    (release,) = await record.canary_releases()
    return await record.drawn_conversations(release, now)


async def test_a_conversation_counts_once_when_its_time_is_over_by_what_was_said_until_then(
    record: Record,
) -> None:
    await publish(record, 1)
    await publish(record, 2, share=0.5, at=100.0)
    await serve(record, "a", 200.0, -1)
    await serve(record, "a", 210.0, None, 0)  # the newest verdict counts
    await serve(record, "a", 220.0, -1, None)  # it has no opinion any more
    await serve(record, "a", 230.0, -1, judged_at=200.0 + WINDOW_S + 1)  # too late
    await serve(record, "a", 240.0, text=" ")  # an empty reply needs no verdict
    await serve(record, "a", 201.0 + WINDOW_S, -1)  # after its time
    await serve(record, "b", 300.0, 1, adapter_version=2)
    end = 200.0 + WINDOW_S
    assert await drawn(record, end - 1) == []
    (first,) = await drawn(record, end)
    assert first == DrawnConversation(
        key_name="alice", is_on_trial=is_in_canary("a", POLICY, 2, 0.5), complaints=(True, False, True)
    )
    assert [one.complaints for one in await drawn(record, end + 100)] == [(True, False, True), (False,)]


async def test_what_chance_did_not_give_to_a_version_of_the_release_does_not_count(record: Record) -> None:
    await publish(record, 1)
    await publish(record, 2, share=0.5, at=100.0)
    await record.write_turns([make_turn("undrawn", policy=POLICY, created_at=200.0)])
    await serve(record, "before", 99.0, -1)
    await serve(record, "error", 200.0, -1, status_code=500)
    await serve(record, "side", 200.0, -1, kind=TurnKind.SIDE)
    turn = make_turn("other", policy="tiny.bob", session_id="other", drawn="other", created_at=200.0)
    await record.write_turns([turn])
    assert await drawn(record, 1e6) == []


async def test_the_arm_is_the_draw_whichever_version_served(record: Record) -> None:
    """A version that could not be loaded must not move its conversations to the other arm: that would not be chance."""
    await publish(record, 1)
    await publish(record, 2, share=0.5, at=100.0)
    names = [f"conversation {i}" for i in range(8)]
    for number, name in enumerate(names):
        await serve(record, name, 200.0 + number, 0, adapter_version=1)
    expected = [is_in_canary(name, POLICY, 2, 0.5) for name in names]
    assert len(set(expected)) == 2
    assert [one.is_on_trial for one in await drawn(record, 1e6)] == expected
