"""What the trainer asks of the record: which turns, in which order, and whose claims."""

import pytest

from store.errors import ClaimLost, MadeOfForgotten
from store.lifecycle import DropReason, Stage
from store.record import Record
from store.values import LOOP_SOURCE, AdapterState, Feedback, Selection, StepInputs, StepRole
from tests.making import make_answer, make_turn, make_verdict
from tests.store.test_record import POLICY, adapter, answered, scored, step


async def test_only_settled_turns_count_as_recent_verdicts(record: Record) -> None:
    trained, dropped, claimed, waiting, reconsidered = await answered(record, 5)
    for turn_id, value in ((trained, 1), (dropped, -1), (claimed, 1), (waiting, 1), (reconsidered, 1)):
        await record.add_verdict(make_verdict(turn_id, value))
    await record.add_feedback(
        Feedback(
            feedback_id="f",
            turn_id=reconsidered,
            score=1.0,
            text="",
            idempotency_key="k",
            created_at=1_100.0,
        )
    )
    await record.claim(POLICY, 3, worker="w", lease_s=60)
    assert [v.value for v in await record.recent_verdicts(POLICY, 8)] == []
    await record.publish(adapter(1), [trained], step(1), worker="w")
    await record.drop([dropped], DropReason.NO_SIGNAL, worker="w")
    assert [v.value for v in await record.recent_verdicts(POLICY, 8)] == [1, -1]
    assert [v.value for v in await record.recent_verdicts("another-policy", 8)] == []


async def test_recent_verdicts_come_oldest_first_and_the_limit_keeps_the_newest(record: Record) -> None:
    ids = await answered(record, 6)
    # The order of the verdicts is neither that of the turns nor that in which they were settled.
    given = ((ids[2], -1), (ids[0], -1), (ids[3], 1), (ids[1], -1), (ids[5], 0), (ids[4], None))
    for turn_id, value in given:
        await record.add_verdict(make_verdict(turn_id, value))
    await record.claim(POLICY, 6, worker="w", lease_s=60)
    for turn_id in ids:
        await record.drop([turn_id], DropReason.NO_SIGNAL, worker="w")
    assert [v.value for v in await record.recent_verdicts(POLICY, 8)] == [-1, -1, 1, -1]
    # Neutral verdicts take no place of those with an opinion.
    assert [v.value for v in await record.recent_verdicts(POLICY, 2)] == [1, -1]


async def test_a_turn_counts_once_among_the_recent_verdicts_with_its_newest(record: Record) -> None:
    (turn_id,) = await scored(record)
    given = Feedback(
        feedback_id="f", turn_id=turn_id, score=1.0, text="", idempotency_key="k", created_at=1_100.0
    )
    await record.add_feedback(given)
    await record.add_verdict(make_verdict(turn_id, 1))
    await record.claim(POLICY, 1, worker="w", lease_s=60)
    await record.drop([turn_id], DropReason.NO_SIGNAL, worker="w")
    assert [v.value for v in await record.recent_verdicts(POLICY, 8)] == [1]


async def claimed_again(record: Record) -> list[str]:
    """Two turns that the worker "late" lost: the first is claimed by "new", the second waits."""
    ids = await scored(record, 2)
    await record.claim(POLICY, 2, worker="late", lease_s=10, now=5_000)
    await record.release_expired(now=5_020)
    (again,) = await record.claim(POLICY, 1, worker="new", lease_s=60, now=5_021)
    assert again.turn_id == ids[0]
    return ids


async def stages(record: Record, ids: list[str]) -> list[Stage]:
    fates = await record.fates(ids)
    return [fates[turn_id].stage for turn_id in ids]


async def test_a_late_worker_does_not_publish_turns_that_another_has_claimed_again(record: Record) -> None:
    ids = await claimed_again(record)
    with pytest.raises(ClaimLost, match="1 of 1 turns are not claimed by late any more"):
        await record.publish(adapter(1), ids[:1], step(1), worker="late")
    assert await record.adapters(POLICY) == []
    assert await stages(record, ids) == [Stage.CLAIMED, Stage.SCORED]
    await record.publish(adapter(1), ids[:1], step(1), worker="new")
    assert await stages(record, ids) == [Stage.TRAINED, Stage.SCORED]


async def test_a_late_worker_neither_releases_nor_drops_turns_that_it_does_not_hold(record: Record) -> None:
    ids = await claimed_again(record)
    assert await record.release(ids, worker="late") == 0
    assert await record.drop(ids, DropReason.NO_SIGNAL, worker="late") == 0
    assert await stages(record, ids) == [Stage.CLAIMED, Stage.SCORED]
    assert await record.release(ids, worker="new") == 1
    assert await stages(record, ids) == [Stage.SCORED, Stage.SCORED]


async def test_a_late_worker_whose_version_is_rejected_leaves_the_turns_of_others(record: Record) -> None:
    ids = await claimed_again(record)
    refused = adapter(1, state=AdapterState.REJECTED)
    await record.reject(refused, step(1), worker="late", release=ids[:1], drop=ids[1:])
    assert await stages(record, ids) == [Stage.CLAIMED, Stage.SCORED]
    await record.reject(adapter(2, state=AdapterState.REJECTED), step(2), worker="new", drop=ids[:1])
    assert await stages(record, ids) == [Stage.DROPPED, Stage.SCORED]


async def test_a_worker_renews_the_leases_of_its_own_claims_only(record: Record) -> None:
    ids = await claimed_again(record)  # the lease of "new" ends at 5,081
    assert await record.renew("late", 1_000, now=5_050) == 0
    assert await record.release_expired(now=5_090) == 1
    assert await stages(record, ids) == [Stage.SCORED, Stage.SCORED]
    await record.claim(POLICY, 2, worker="new", lease_s=60, now=5_100)
    assert await record.renew("new", 60, now=5_150) == 2
    assert await record.release_expired(now=5_205) == 0
    assert await record.release_expired(now=5_215) == 2


async def test_turns_are_claimed_oldest_first(record: Record) -> None:
    ids = await answered(record, 4)
    # The age of a turn is how long it has been waiting for training, not its id.
    for age, turn_id in enumerate((ids[2], ids[0], ids[3], ids[1])):
        await record.add_verdict(make_verdict(turn_id, created_at=2_000.0 + age))
    found = [turn.turn_id for turn in await record.claim(POLICY, 3, worker="w", lease_s=60)]
    assert found == [ids[2], ids[0], ids[3]]


async def test_a_policy_claims_its_own_turns_alone(record: Record) -> None:
    await scored(record, 2)
    await record.write_turns(
        [make_turn("theirs", [{"role": "user", "content": "theirs"}], policy="other", session_id="o")]
    )
    await record.write_turns(
        [make_turn("next", [{"role": "user", "content": "next"}], policy="other", session_id="o", parent_turn_id="theirs",
                   next_state=make_answer("theirs", "next", "No."))]
    )  # fmt: skip
    await record.add_verdict(make_verdict("theirs"))
    claimed = await record.claim("other", 8, worker="w", lease_s=60)
    assert [one.turn_id for one in claimed] == ["theirs"]
    assert "theirs" not in {one.turn_id for one in await record.claim(POLICY, 8, worker="w", lease_s=60)}


async def test_what_was_computed_from_something_forgotten_is_not_published(record: Record) -> None:
    first, second, third = await scored(record, 3)
    await record.claim(POLICY, 3, worker="w", lease_s=600)
    await record.publish(adapter(1), [first], step(1), worker="w")
    await record.forget(Selection(turn=first), key=b"k")
    assert await record.live_version(POLICY) == 0
    for parent, used, is_published in ((1, second, False), (0, first, False), (0, third, True)):
        inputs = StepInputs(turns={StepRole.RECENT: ((used, 1),)}, settings={})
        made = record.publish(
            adapter(2, parent_version=parent), [], step(2, inputs=inputs), worker="w", live=0
        )
        if is_published:
            await made
        else:
            with pytest.raises(MadeOfForgotten):
                await made
        assert await record.live_version(POLICY) == (2 if is_published else 0)


async def test_the_turns_of_a_loop_are_not_in_the_window_of_the_baseline(record: Record) -> None:
    looped, plain = await answered(record, 2)
    await record.add_verdict(make_verdict(looped, -1, source=LOOP_SOURCE))
    await record.add_verdict(make_verdict(plain, 1))
    await record.claim(POLICY, 2, worker="w", lease_s=60)
    await record.drop([looped, plain], DropReason.NO_SIGNAL, worker="w")
    assert [one.value for one in await record.recent_verdicts(POLICY, 8)] == [1]
