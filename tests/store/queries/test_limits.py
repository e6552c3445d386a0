"""How many verdicts of one key may train within an hour."""

from __future__ import annotations

from store.lifecycle import DropReason, Stage
from store.record import Record
from tests.making import make_answer, make_turn, make_verdict

HOUR = 3_600.0


async def judged(record: Record, turn_id: str, key: str, at: float, value: int = -1, most: int = 2) -> str:
    """Score a turn; return what became of it."""
    asked = make_turn(turn_id, session_id=f"s-{turn_id}", key_name=key)
    reacted = make_turn(
        f"{turn_id}-next", session_id=f"s-{turn_id}", key_name=key, parent_turn_id=turn_id, turn_index=1,
        next_state=make_answer(turn_id, f"{turn_id}-next", "shorter please"),
    )  # fmt: skip
    await record.write_turns([asked, reacted])
    await record.add_verdict(make_verdict(turn_id, value, created_at=at), most_per_hour=most)
    fate = (await record.fates([turn_id]))[turn_id]
    return fate.drop_reason.value if fate.drop_reason else fate.stage.value


async def test_turns_beyond_the_limit_of_their_key_are_dropped_and_those_of_others_are_not(
    record: Record,
) -> None:
    assert [await judged(record, f"a{i}", "ann", 1_000.0 + i) for i in range(3)] == [
        "scored",
        "scored",
        "over_limit",
    ]
    assert await judged(record, "b0", "bob", 1_003.0) == "scored"
    # nothing to teach: it is not counted and not dropped
    assert await judged(record, "a3", "ann", 1_004.0, value=0) == "scored"
    assert await judged(record, "a4", "ann", 1_005.0) == "over_limit"
    # what was dropped for the limit does not count, and the hour moves on
    assert await judged(record, "a5", "ann", 1_000.5 + HOUR) == "scored"
    assert await judged(record, "a6", "ann", 1_000.6 + HOUR) == "over_limit"
    assert await judged(record, "a7", "ann", 1_001.5 + HOUR) == "scored"
    assert await judged(record, "a8", "ann", 1_001.6 + HOUR, most=0) == "scored"


async def test_a_turn_that_was_trained_counts_as_long_as_its_verdict_is_of_the_hour(record: Record) -> None:
    assert await judged(record, "a0", "ann", 1_000.0, most=1) == "scored"
    await record.claim("patina-tiny", 8, worker="w", lease_s=60, now=1_000.0 + 2 * HOUR)
    await record.drop(["a0"], DropReason.STALE, now=1_000.0 + 2 * HOUR, worker="w")
    # its stage is fresh, its verdict is not
    assert await judged(record, "a1", "ann", 1_000.0 + 2 * HOUR, most=1) == "scored"
    assert (await record.fates(["a1"]))["a1"].stage is Stage.SCORED
