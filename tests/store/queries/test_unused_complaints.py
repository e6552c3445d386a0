"""Complaints that taught nothing."""

from store.lifecycle import DropReason
from store.record import Record
from tests.making import make_answer, make_turn, make_verdict

POLICY = "patina-tiny"


async def add_complaint(
    record: Record,
    turn_id: str,
    *,
    text: str = "Shorter, please.",
    hint: str | None = "Shorter, please.",
    value: int | None = -1,
    drop: DropReason | None = None,
) -> None:
    asked = make_turn(turn_id, session_id=f"s-{turn_id}")
    reacted = make_turn(
        f"{turn_id}-next",
        session_id=f"s-{turn_id}",
        parent_turn_id=turn_id,
        turn_index=1,
        next_state=make_answer(turn_id, f"{turn_id}-next", text),
    )
    await record.write_turns([asked, reacted])
    await record.add_verdict(make_verdict(turn_id, value, hint=hint), drop=drop)


async def test_unused_complaints_are_those_that_were_dropped_without_teaching_newest_first(
    record: Record,
) -> None:
    await add_complaint(record, "0-early")
    await add_complaint(record, "1-irrelevant", text="That is wrong, check again.")
    for turn_id, reason, at in (
        ("0-early", DropReason.NO_SIGNAL, 100.0),
        ("1-irrelevant", DropReason.HINT_IRRELEVANT, 200.0),
    ):
        await record.claim(POLICY, 1, worker="w", lease_s=60, now=at)
        await record.drop([turn_id], reason, at, worker="w", detail=f"why {turn_id}")
    await add_complaint(record, "2-no-hint", text="Wrong.", hint=None, drop=DropReason.NO_SIGNAL)
    await add_complaint(record, "3-neutral", value=0, hint=None, drop=DropReason.NO_SIGNAL)
    await add_complaint(record, "4-thanks", value=1, hint=None, drop=DropReason.NO_SIGNAL)
    await add_complaint(record, "5-abstained", value=None, hint=None, drop=DropReason.ABSTAINED)
    await add_complaint(record, "6-waiting")
    found = await record.unused_complaints(POLICY, since=150.0)
    assert [(one.turn_id, one.text, one.hint, one.drop_reason, one.detail) for one in found] == [
        ("2-no-hint", "Wrong.", None, DropReason.NO_SIGNAL, ""),
        (
            "1-irrelevant",
            "That is wrong, check again.",
            "Shorter, please.",
            DropReason.HINT_IRRELEVANT,
            "why 1-irrelevant",
        ),
    ]
    assert await record.unused_complaints("another", since=0.0) == []
