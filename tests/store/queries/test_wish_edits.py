"""What the owner changes in the playbook, and which complaints taught nothing."""

import sqlite3

import pytest

from store.errors import RecordError
from store.lifecycle import DropReason
from store.record import Record
from store.values import WishEdit
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


async def test_of_each_turn_the_newest_edit_counts(record: Record) -> None:
    for turn_id in ("a", "b"):
        await add_complaint(record, turn_id)
    await record.add_wish_edits(POLICY, [WishEdit(turn_id="a", text="At most ten words.")])
    await record.add_wish_edits(
        POLICY, [WishEdit(turn_id="a", text="Brief."), WishEdit(turn_id="b", text="")]
    )
    assert await record.wish_edits(POLICY) == [
        WishEdit(turn_id="a", text="Brief."),
        WishEdit(turn_id="b", text=""),
    ]
    assert await record.wish_edits("another") == []


async def test_a_withdrawn_wish_keeps_its_edited_words_and_new_words_take_the_withdrawal_back(
    record: Record,
) -> None:
    await add_complaint(record, "a")
    await record.add_wish_edits(POLICY, [WishEdit(turn_id="a", text="In French.")])
    await record.add_wish_edits(POLICY, [WishEdit(turn_id="a", text=None)])
    assert await record.wish_edits(POLICY) == [
        WishEdit(turn_id="a", text="In French."),
        WishEdit(turn_id="a", text=None),
    ]
    await record.add_wish_edits(POLICY, [WishEdit(turn_id="a", text="In German.")])
    assert await record.wish_edits(POLICY) == [WishEdit(turn_id="a", text="In German.")]


async def test_an_edit_of_a_turn_that_is_not_recorded_is_refused_and_nothing_is_written(
    record: Record,
) -> None:
    await add_complaint(record, "a")
    with pytest.raises(RecordError, match="turn gone is not in the record"):
        await record.add_wish_edits(
            POLICY, [WishEdit(turn_id="a", text=None), WishEdit(turn_id="gone", text=None)]
        )
    assert await record.wish_edits(POLICY) == []


async def test_edits_go_with_the_turn_that_is_deleted(record: Record, record_url: str) -> None:
    await add_complaint(record, "a")
    await record.add_wish_edits(POLICY, [WishEdit(turn_id="a", text="my own words")])
    connection = sqlite3.connect(record_url.removeprefix("sqlite+aiosqlite:///"))
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("DELETE FROM turns WHERE turn_id = 'a'")
    connection.commit()
    connection.close()
    assert await record.wish_edits(POLICY) == []


async def test_hints_in_the_same_words_are_found_with_the_turns_that_stated_them(record: Record) -> None:
    await add_complaint(record, "a")
    await add_complaint(record, "b")
    await add_complaint(record, "c", hint="In Spanish.")
    await add_complaint(record, "d")
    await record.add_verdict(make_verdict("d", 1, hint=None))  # the newest verdict counts
    found = await record.stated_hints(POLICY, ["b"])
    assert [(one.turn_id, one.hint) for one in found] == [
        ("a", "Shorter, please."),
        ("b", "Shorter, please."),
    ]
    assert await record.stated_hints(POLICY, ["d", "unknown"]) == []
    assert await record.stated_hints("another", ["b"]) == []


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
