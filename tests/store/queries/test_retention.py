"""Conversations that are kept for some days only."""

from __future__ import annotations

from store.queries.retention import DAY_S
from store.record import Record
from store.values import ForgetStage, Selection
from tests.making import make_turn
from tests.store.queries.test_forget import KEY, fill, next_turn, said, train

#: When the turns of `fill` are 30 days old and no older.
MONTH = 30 * DAY_S


async def turns(record: Record) -> set[str]:
    return {row["turn_id"] for row in await record.trajectories()}


async def carry_out(record: Record, jobs: list[str]) -> None:
    for job in jobs:
        await record.delete_asked(job, key=KEY)
        await record.change_forget_job(job, stage=ForgetStage.DELETED, to=ForgetStage.DONE)


async def test_nothing_is_asked_for_while_conversations_are_kept_always(record: Record) -> None:
    await fill(record)
    assert await record.ask_for_aged(now=10 * MONTH) == []
    await record.retain(30.0)
    await record.retain(None)
    assert (await record.retention(), await record.ask_for_aged(now=10 * MONTH)) == ({}, [])


async def test_a_conversation_goes_as_a_whole_when_its_newest_turn_is_too_old(record: Record) -> None:
    await fill(record)  # "one" to "four" are one conversation, at 1 to 4 s
    await record.retain(30.0)
    assert await record.ask_for_aged(now=MONTH + 3.5) == []
    (job,) = await record.ask_for_aged(now=MONTH + 4.5)
    found = await record.forget_job(job)
    assert found is not None
    assert found.asked == "key alice and no turn since 1970-01-01"
    await carry_out(record, [job])
    # The newer conversation that repeats the old one's words stays.
    assert await turns(record) == {"quote", "same", "bob"}


async def test_a_newer_turn_keeps_its_conversation(record: Record) -> None:
    await fill(record)
    q = "And a hornet?"
    newest = next_turn("five", "four", said("What is a bee?", "An insect.", q), q, created_at=MONTH)
    await record.write_turns([newest])
    await record.retain(30.0)
    await carry_out(record, await record.ask_for_aged(now=MONTH + 8.0))
    assert await turns(record) == {"one", "two", "three", "four", "five"}


async def test_a_turn_that_comes_before_the_deletion_keeps_its_conversation(record: Record) -> None:
    await record.write_turns([make_turn("old", said("What is a bee?"), created_at=1.0)])
    await record.retain(30.0)
    jobs = await record.ask_for_aged(now=MONTH + 2.0)
    assert len(jobs) == 1
    await record.write_turns([make_turn("new", said("What is a bee?"), created_at=MONTH + 3.0)])
    await carry_out(record, jobs)
    assert await turns(record) == {"old", "new"}


async def test_a_key_may_have_days_of_its_own(record: Record) -> None:
    await fill(record)
    await record.retain(30.0)
    await record.retain(90.0, "bob")
    await carry_out(record, await record.ask_for_aged(now=2 * MONTH))
    assert await turns(record) == {"bob"}
    await carry_out(record, await record.ask_for_aged(now=4 * MONTH))
    assert await turns(record) == set()


async def test_what_was_learnt_from_them_goes_and_replies_of_that_version_stay(record: Record) -> None:
    await fill(record)
    await train(record, 1, "one", "two")
    answered = make_turn("new", said("Hello?"), session_id="new", created_at=MONTH, adapter_version=1)
    await record.write_turns([answered])
    await record.retain(30.0)
    await carry_out(record, await record.ask_for_aged(now=MONTH + 20.0))
    assert await turns(record) == {"new"}
    assert await record.live_version("patina-tiny") == 0


async def test_a_forget_under_way_is_waited_for(record: Record) -> None:
    await fill(record)
    await record.retain(30.0)
    await record.ask_to_forget(Selection(turn="bob"))
    assert await record.ask_for_aged(now=2 * MONTH) == []
