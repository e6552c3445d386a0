"""Ratings of Open WebUI: which turn they are about, and what becomes of changed and removed ones."""

from __future__ import annotations

from typing import Any

import pytest

from scorers.open_webui import take_ratings
from scorers.ratings import RatedTurn, find_turn, parse_rating
from store.record import Record
from tests.making import make_turn
from tests.proxy.conftest import score


def rated(number: str, texts: list[str], rating: Any = -1, at: float = 1000.0, **data: Any) -> dict[str, Any]:
    """Return an item of the export: a chat of alternating texts whose last reply is rated."""
    messages = {
        f"m{place}": {
            "role": ("user", "assistant")[place % 2], "content": text, "timestamp": at,
            "parentId": f"m{place - 1}" if place else None,
        }
        for place, text in enumerate(texts)
    }  # fmt: skip
    return {
        "id": number,
        "type": "rating",
        "data": {"rating": rating, **data},
        "meta": {"message_id": f"m{len(texts) - 1}", "chat_id": "c"},
        "snapshot": {"chat": {"chat": {"history": {"messages": messages}}}},
    }


def asked(*texts: str) -> list[dict[str, Any]]:
    return [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(texts)]


@pytest.mark.parametrize("item", [None, {}, {"id": "r"}, rated("r", ["hi"]), rated("r", ["hi", "Hello"], None), {**rated("r", ["hi", "x"]), "snapshot": None}])  # fmt: skip
def test_what_rates_no_reply_is_left_out(item: Any) -> None:
    assert parse_rating(item) is None


def test_a_comment_comes_before_a_reason() -> None:
    item = rated("r", ["hi", "Hello"], reason="too_verbose", comment="")
    found = parse_rating(item)
    assert found is not None
    assert (found.score, found.text) == (-1.0, "too verbose")
    found = parse_rating(rated("r", ["hi", "Hello"], "1", reason="too_verbose", comment=" Answer shorter "))
    assert found is not None
    assert (found.score, found.text) == (1.0, "Answer shorter")


def test_the_history_decides_between_equal_exchanges() -> None:
    rating = parse_rating(rated("r", ["Oslo?", "Yes", "hi", "Hello"]))
    assert rating is not None
    short = RatedTurn(turn_id="short", created_at=1000.0, messages=asked("hi"))
    other = RatedTurn(turn_id="other", created_at=1000.0, messages=asked("Rome?", "No", "hi"))
    right = RatedTurn(turn_id="right", created_at=1.0, messages=asked("Oslo?", "Yes", "hi"))
    assert find_turn(rating, [other, short, right]) == "right"
    assert find_turn(rating, [right, short, other]) == "right"


def test_equal_conversations_are_told_apart_by_time_and_a_template_does_not_hide_the_question() -> None:
    rating = parse_rating(rated("r", ["hi", "Hello"], at=500.0))
    assert rating is not None
    near = RatedTurn(turn_id="near", created_at=501.0, messages=asked("### Task: answer\n<context/>\nhi"))
    far = RatedTurn(turn_id="far", created_at=900.0, messages=asked("hi"))
    assert find_turn(rating, [far, near]) == "near"
    assert find_turn(rating, [RatedTurn(turn_id="x", created_at=500.0, messages=asked("bye"))]) is None


async def verdict_of(record: Record, turn_id: str) -> tuple[int | None, str | None]:
    await score(record)
    (row,) = [row for row in await record.trajectories() if row["turn_id"] == turn_id]
    return row["verdict"], row["hint"]


async def test_each_rating_counts_once_and_as_it_is_now(record: Record) -> None:
    turns = [make_turn("one", asked("hi"), text="Hello", key_name="web"), make_turn("two", asked("bye"), text="Hello", key_name="web")]  # fmt: skip
    await record.write_turns(turns)
    first = [rated("r", ["hi", "Hello"], -1, reason="too_verbose"), rated("unknown", ["hi", "Nothing"])]
    assert await take_ratings(record, first, "web") == 1
    assert await take_ratings(record, first, "web") == 0
    assert (await verdict_of(record, "one"))[0] == -1
    assert (await verdict_of(record, "two"))[0] is None
    assert await take_ratings(record, [rated("r", ["hi", "Hello"], 1)], "web") == 1
    assert (await verdict_of(record, "one"))[0] == 1
    assert await take_ratings(record, [], "web") == 1
    assert await take_ratings(record, [], "web") == 0
    assert (await verdict_of(record, "one"))[0] == 0
    assert await take_ratings(record, first, "web") == 1  # back to its first state
    assert (await verdict_of(record, "one"))[0] == -1


async def test_ratings_reach_no_turn_of_another_key(record: Record) -> None:
    await record.write_turns([make_turn("one", asked("hi"), text="Hello", key_name="ann")])
    assert await take_ratings(record, [rated("r", ["hi", "Hello"])], "web") == 0
