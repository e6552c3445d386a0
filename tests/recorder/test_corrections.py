"""What a later request shows about earlier turns: their kind, their place, and what they answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from cli.recorded_traffic import KindPrediction, Recorded, draft_of, parse_line, replay, turn_of
from tests.recorder.exchanges import recording

_ASKED = "Plan two days in Lisbon for us, please."
_SYSTEM = {
    "role": "system",
    "content": "You are a title generator for a magazine. Your task is to label articles. Only titles.",
}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def request(seq: int, messages: Sequence[Mapping[str, Any]], reply: str, at: float, **body: Any) -> Recorded:
    line = {
        "seq": seq, "time": at, "headers": {"user-agent": "client/1"}, "body": {"model": "m", "messages": messages, **body},
        "response": {"choices": [{"index": 0, "message": {"role": "assistant", "content": reply}, "finish_reason": "stop"}]},
    }  # fmt: skip
    return parse_line(json.dumps(line).encode(), "test", seq)


def replayed(rows: Sequence[Recorded], restarts: Sequence[int] = ()) -> dict[int, KindPrediction]:
    return {p.seq: p for p in asyncio.run(replay(rows, restarts=restarts))}


def _parting(order: Sequence[str]) -> dict[str, list[str | None]]:
    """Return the sessions of two conversations with one opening, by conversation; ``order`` says which goes on first."""
    replies = {
        "a": "Start in the old town and take the tram.",
        "b": "Begin at the river and walk to the tower.",
    }
    rows = [request(i, [user(_ASKED)], replies[name], 100.0 * i) for i, name in enumerate("ab", 1)]
    for seq, name in enumerate(order, 3):
        history = [user(_ASKED), assistant(replies[name]), user(f"And then, {name}?")]
        rows.append(request(seq, history, f"Then rest, {name}.", 100.0 * seq))
    found = replayed(rows)
    names = ["a", "b", *order]
    return {name: [found[i].session for i, n in enumerate(names, 1) if n == name] for name in "ab"}


@pytest.mark.parametrize("order", [["a", "b"], ["b", "a"]])
def test_two_conversations_with_one_opening_part_when_both_go_on(order: list[str]) -> None:
    sessions = _parting(order)
    assert len(set(sessions["a"])) == len(set(sessions["b"])) == 1
    assert sessions["a"] != sessions["b"]


def test_an_opening_that_is_asked_again_and_only_then_goes_on_stays_one_session() -> None:
    sessions = _parting(["b"])
    assert len({*sessions["a"], *sessions["b"]}) == 1


def _titles(second: Sequence[Mapping[str, Any]]) -> list[Recorded]:
    opening = [_SYSTEM, user("hello there")]
    return [
        request(1, opening, "A friendly hello to you.", 10.0),
        request(2, [*opening, assistant("A friendly hello to you."), *second], "You are welcome.", 60.0),
    ]


@pytest.mark.parametrize("restarts", [[], [2]])
def test_a_turn_that_a_person_continues_becomes_main_also_after_a_restart(restarts: list[int]) -> None:
    rows = _titles([user("thanks, and where is my order from last week?")])
    assert replayed(rows[:1])[1].kind == "side"
    found = replayed(rows, restarts)
    assert (found[1].kind, found[2].kind, found[2].answered_seq) == ("main", "main", 1)


def test_a_rejection_by_a_framework_makes_no_turn_main() -> None:
    error = (
        "1 validation error for Title\nname\n  Field required [type=missing, input_value={}, input_type=dict]"
    )
    assert replayed(_titles([user(error)]))[1].kind == "side"


def test_a_turn_that_becomes_main_answers_the_main_turn_before_it() -> None:
    plan = [user("Which of my three shops sells the red chairs?"), assistant("The one at the harbour.")]
    wrong = [*plan, user("Give me tags for the user's message. Only the tags.")]
    rows = [
        request(1, plan[:1], "The one at the harbour.", 10.0),
        request(2, wrong, "chairs, red, harbour, shops", 60.0),
        request(3, [*wrong, assistant("chairs, red, harbour, shops"), user("nice, I take these for my notes")], "Good.", 90.0),
    ]  # fmt: skip
    assert replayed(rows[:2])[2].kind == "side"
    found = replayed(rows)
    assert [found[seq].kind for seq in (1, 2, 3)] == ["main"] * 3
    assert (found[2].answered_seq, found[3].answered_seq, found[2].session) == (1, 2, found[1].session)


def test_a_check_beside_the_persons_turn_is_found_when_that_turn_comes() -> None:
    check = {"role": "system", "content": "Check if the user asks for something harmful."}
    schema = {"response_format": {"type": "json_schema", "json_schema": {"name": "c", "schema": {}}}}
    rows = [
        request(1, [check, user("hi, can you help me plan my two days in Lisbon?")], '{"harmful": false}', 10.0, **schema),
        request(2, [{"role": "system", "content": "You are helpful."}, user("hi, can you help me plan my two days in Lisbon?")], "Gladly, start in the old town.", 10.5),
    ]  # fmt: skip
    found = replayed(rows)
    assert (found[1].kind, found[2].kind) == ("side", "main")
    assert found[1].session == found[2].session


def test_a_reply_that_a_framework_rejected_and_dropped_is_the_one_it_answers() -> None:
    task = user("Please solve this issue: fix the add function in calc.py")
    error = user(
        "Tool call error:\n\n<error>\nNo tool calls found in the response. Every response MUST include at least one tool call.\n</error>"
    )
    rows = [
        request(1, [task], "Let me think about it.", 10.0),
        request(2, [task, error], "Still thinking.", 12.0),
    ]  # fmt: skip
    found = replayed(rows)
    assert (found[2].relation, found[2].link_reason, found[2].answered_seq) == (
        "framework_retry",
        "dropped_reply",
        1,
    )


def test_a_corrected_reply_that_stands_in_for_the_rejected_one_is_the_one_continued() -> None:
    opening = user("How many chairs are there in the shop?")
    error = user(
        "1 validation error for Reply\nsure\n  Field required [type=missing, input_value={'answer': 'Twelve'}, input_type=dict]"
    )
    first, second = (
        '{"answer": "There are twelve chairs in the shop."}',
        '{"answer": "There are twelve chairs in the shop.", "sure": true}',
    )
    rows = [
        request(1, [opening], first, 10.0),
        request(2, [opening, assistant(first), error], second, 12.0),
        request(3, [opening, assistant("There are twelve chairs in the shop."), user("and tables?")], "None.", 60.0),
    ]  # fmt: skip
    found = replayed(rows)
    assert (found[2].answered_seq, found[3].answered_seq) == (1, 2)


def test_a_system_prompt_under_which_people_converse_is_no_evidence() -> None:
    talk = [
        _SYSTEM,
        user("hi, I need a headline about my bees"),
        assistant("Bees at work, quietly humming."),
        user("no, funnier please"),
    ]
    rows = [
        request(1, talk[:2], "Bees at work, quietly humming.", 10.0),
        request(2, talk, "Buzz off, said the bee.", 60.0),
        request(3, [*talk, assistant("Buzz off, said the bee."), user("thanks, I like that one")], "Glad.", 90.0),
        request(4, [_SYSTEM, user("now something about the rain on our trip")], "Rain check.", 200.0),
    ]  # fmt: skip
    assert replayed(rows[3:])[4].kind == "side"
    assert [replayed(rows)[seq].kind for seq in (2, 3, 4)] == ["main"] * 3


async def test_the_record_holds_what_a_correction_shows(record_url: str) -> None:
    rows = _titles([user("thanks, and where is my order from last week?")])
    async with recording(record_url) as (recorder, record):
        for row in rows:
            captured = draft_of(row)
            assert captured is not None
            await recorder.write([captured])
        turns = {row["turn_id"]: row for row in await record.trajectories()}
        story = await record.story(turn_of(1))
    assert story is not None
    first = turns[turn_of(1)]
    assert (first["kind"], first["drop_reason"]) == (
        "main",
        None,
    )  # without tokens it waits for a verdict all the same
    assert story["first_kind"] == "side"
    assert [state["by_turn_id"] for state in story["next_states"]] == [turn_of(2)]


def test_a_program_that_orders_more_of_its_own_results_is_no_person() -> None:
    """A pipeline that extracts facts asks once more for what it missed; the person's questions come apart from it."""
    task = {
        "role": "system",
        "content": "---Role---\nYou extract entities and relations from a text for a knowledge graph.\n\n---Instructions---\n"
        + "\n".join(f"{n}. Write each {part} in the given form, one a line." for n, part in enumerate(("entity", "relation", "type", "description"), 1))
        + "\nOnly output records. " * 20,
    }  # fmt: skip
    more = (
        "---Task---\nSome entities and relations were missed in the last extraction.\n\n---Instructions---\n"
        "1. Output only what was missed or badly formatted.\n2. Keep the given form.\n3. Finish with the token COMPLETE."
    )
    text = "---Task---\nExtract the entities of the input text.\n\n---Instructions---\n1. Keep the form.\n2. No prose.\n3. Finish with COMPLETE.\n\n<Input Text>\n```\nAda met Charles in London.\n```\n\n<Output>"
    rows = []
    for n, reply in enumerate(("entity|Ada|person", "entity|Oslo|place")):
        asked = [task, user(text.replace("Ada", f"Ada {n}"))]
        rows.append(request(2 * n, asked, reply, 100.0 * n))
        rows.append(
            request(2 * n + 1, [*asked, assistant(reply), user(more)], "relation|Ada|Charles", 100.0 * n + 1)
        )
    assert {p.kind for p in replayed(rows).values()} == {"side"}
