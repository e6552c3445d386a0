"""Conversations that come back without their tool traffic, re-rendered, or only by name; kinds that what follows corrects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from cli.recorded_traffic import KindPrediction, parse_line, replay
from migrations import upgrade
from recorder.turn_recorder import TurnRecorder
from recorder.turns import classify_exchange
from store.record import Record
from tests.recorder.exchanges import make_captured
from wire.chat_request import parse_chat

CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"town": "Oslo"}'},
}
OUTPUT = "temperature: 4 degrees\nwind: 3 m/s\nsky: overcast over the whole region"


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def predict(
    *exchanges: tuple[Sequence[Mapping[str, Any]], Any],
    headers: Sequence[Mapping[str, str]] = (),
    **body: Any,
) -> list[KindPrediction]:
    """Replay (messages, reply) pairs, a minute apart; a reply that is a dict is a tool call."""
    rows = []
    for i, (messages, reply) in enumerate(exchanges):
        message = (
            {"role": "assistant", "content": None, "tool_calls": [reply]}
            if isinstance(reply, dict)
            else said(reply)
        )
        line = {
            "seq": i + 1,
            "time": 60.0 * i,
            "headers": headers[i] if headers else {},
            "body": {"model": "m", "messages": messages, **body},
            "response": {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]},
        }
        rows.append(parse_line(json.dumps(line).encode(), "test", i + 1))
    return asyncio.run(replay(rows))


ASKED = user("How cold is it in Oslo today?")
LOOP = [ASKED, {"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "call_1", "content": OUTPUT}]  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "weather"}}]


@pytest.mark.parametrize(
    "answer", ["4 degrees.", "It is 4 degrees in Oslo, with an overcast sky and a light wind from the fjord."]
)
def test_a_history_without_its_tool_traffic_continues_its_conversation(answer: str) -> None:
    found = predict(
        ([ASKED], CALL),
        (LOOP, answer),
        ([ASKED, said(answer), user("And in Bergen?")], "7 degrees there."),
        (
            [ASKED, said(answer), user("And in Bergen?"), said("7 degrees there."), user("Thanks!")],
            "You are welcome.",
        ),
        tools=TOOLS,
    )
    assert len({p.session for p in found}) == 1
    assert [p.answered_seq for p in found] == [None, 1, 2, 3]
    assert {p.kind for p in found} == {"main"}


def test_a_reply_with_quoted_tool_output_in_front_continues_its_conversation() -> None:
    answer = "It is 4 degrees in Oslo, with an overcast sky."
    rendered = f"<details>\n<summary>weather</summary>\n{OUTPUT}\n</details>\n\n{answer}"
    found = predict(
        ([ASKED], CALL),
        (LOOP, answer),
        ([ASKED, said(rendered), user("And in Bergen?")], "7 degrees."),
        tools=TOOLS,
    )
    assert len({p.session for p in found}) == 1
    assert found[2].answered_seq == 2


def test_a_name_of_a_process_joins_no_conversations() -> None:
    headers = [{"x-session-affinity": "one-process"}] * 5
    one, other, third = (
        user("Plan a pond for us."),
        user("Bake a cake for me."),
        user("Sing a song of the sea."),
    )
    found = predict(
        ([one], "Dig a hole first."),
        ([one, said("Dig a hole first."), user("And then?")], "Line it."),
        ([other], "Take some flour."),
        ([other, said("Take some flour."), user("And then?")], "Add water."),
        ([third], "Ahoy."),
        headers=headers,
    )
    assert len({p.session for p in found}) == 3
    assert [p.answered_seq for p in found] == [None, 1, None, 3, None]


def test_one_value_a_process_joins_no_openings_however_often_it_was_seen() -> None:
    texts = ["Plan a pond.", "Bake a cake.", "Sing a song.", "Fold a boat.", "Paint a door."]
    exchanges: list[tuple[Sequence[Mapping[str, Any]], Any]] = []
    for text in texts:
        asked = [user(text)]
        exchanges += [
            (asked, f"A reply: {text}"),
            ([*asked, said(f"A reply: {text}"), user(f"And then, {text}")], "Rest."),
        ]
    names = ["one", "one", "two", "two", "two", "two", "two", "two", "two", "two"]
    found = predict(*exchanges, headers=[{"x-session-affinity": name} for name in names])
    assert [p.session for p in found] == [s for p in found[::2] for s in (p.session, p.session)]
    assert len({p.session for p in found}) == len(texts)


#: With `TITLE_SCHEMA` it looks like a request of the client itself.
TITLE = "Generate a short title for the garden, please."
TITLE_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"properties": {"title": {}}}}}


def test_a_conversation_that_began_like_a_request_for_a_title_is_main_once_it_is_continued() -> None:
    schema = TITLE_SCHEMA
    history: list[dict[str, Any]] = []
    requests = []
    for i in range(3):
        history = [*history, user(f"Question {i}: what about the garden, please?" if i else TITLE)]
        requests.append((history, f"answer number {i}, long enough to be distinctive"))
        history = [*history, said(requests[-1][1])]
    alone = predict(requests[0], response_format=schema)
    assert alone[0].kind == "side"
    found = predict(*requests, response_format=schema)
    assert [p.kind for p in found] == ["main"] * 3
    assert [p.answered_seq for p in found] == [None, 1, 2]
    assert "continued" in found[0].codes


def test_a_heartbeat_that_stays_in_the_history_is_not_corrected() -> None:
    poll = user("HEARTBEAT: check your list. If nothing needs attention, reply HEARTBEAT_OK.")
    history = [
        user("Plan a pond for us."),
        said("Dig a hole first."),
        poll,
        said("HEARTBEAT_OK"),
        user("And then?"),
    ]
    found = predict((history[:1], "Dig a hole first."), (history[:3], "HEARTBEAT_OK"), (history, "Line it."))
    assert [p.kind for p in found] == ["main", "side", "main"]
    assert found[2].answered_seq == 1


async def test_a_corrected_turn_keeps_its_first_kind_and_waits_for_its_verdict(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/patina.db"
    await asyncio.to_thread(upgrade, url)
    record = await Record.open(url)

    async def opening() -> Record:
        return record

    recorder = TurnRecorder(opening)
    history = [user(TITLE)]
    for i in range(2):
        chat = parse_chat(orjson.dumps({"messages": history, "response_format": TITLE_SCHEMA}))
        await recorder.write(
            [classify_exchange(make_captured(str(i), history, f"answer {i}, long enough", chat=chat))]
        )
        if i == 0:
            first = await record.story("turn_0")
            assert first is not None
            assert (first["kind"], first["stage"], first["drop_reason"]) == ("side", "dropped", "side_turn")
        history = [*history, said(f"answer {i}, long enough"), user("No, shorter please.")]
    found = await record.story("turn_0")
    await record.close()
    assert found is not None
    assert (found["kind"], found["first_kind"], found["first_kind_reason"]) == (
        "main",
        "side",
        "title",
    )
    assert "continued" in {code for code, _ in found["kind_evidence"]}
    assert (
        sum(weight for _, weight in found["first_kind_evidence"])
        > 0
        > sum(w for _, w in found["kind_evidence"])
    )
    assert [state["text"] for state in found["next_states"]] == ["No, shorter please."]
    # What its tokens teach although the schema forced them, the trainer decides.
    assert (found["stage"], found["drop_reason"]) == ("answered", None)


def test_a_conversation_written_out_in_the_form_of_its_own_turns_continues() -> None:
    system = {"role": "system", "content": "You are a tutor of the evening school. Your goal is to help."}
    end = "\n\nWhat your answer has to contain: a short answer that is complete by itself, for the person who asked."

    def task(words: str, *exchanges: tuple[str, str]) -> list[dict[str, Any]]:
        written = "".join(f"User: {question}\nAssistant: {answer}\n" for question, answer in exchanges)
        before = f"The conversation:\n{written}\n" if written else ""
        return [system, user(f"Your task: {before}The user says: {words}{end}")]

    first = (
        "How do I turn Fahrenheit into Celsius in my program?",
        "Take 32 off first, then use `f * 5 / 9`.",
    )
    second = ("no, that needs brackets around the subtraction", "Right: `(f - 32) * 5 / 9` with brackets.")
    other = ("What can I bring to the barbecue on Saturday?", "Bring a salad and something to drink.")
    title = [
        user(
            f"Write a title for this chat. Reply with the title only.\nUser: {first[0]}\nAssistant: {first[1]}"
        )
    ]
    found = predict(
        (task(first[0]), f"Thought: easy\nFinal Answer: {first[1]}"),
        (task(other[0]), f"Thought: easy\nFinal Answer: {other[1]}"),
        (task(second[0], first), f"Thought: hm\nFinal Answer: {second[1]}"),
        (title, "Fahrenheit"),
        (task("thanks, and the other way round?", first, second), "Final Answer: `c * 9 / 5 + 32`"),
    )
    assert [p.kind for p in found] == ["main", "main", "main", "side", "main"]
    assert [p.answered_seq for p in found] == [None, None, found[0].seq, None, found[2].seq]
    assert found[1].session != found[0].session == found[4].session


@pytest.mark.parametrize("rejected", [True, False])
def test_a_frameworks_text_after_a_side_turn_makes_it_no_persons(rejected: bool) -> None:
    asked = [
        user(
            "Generate a title for this conversation. Reply with the title only.\nUser: hello\nAssistant: Hello!"
        )
    ]
    reply = "A fine title that is far too long for any list"
    text = (
        "1 validation error for Title\nname\n  String should have at most 20 characters [type=string_too_long]"
        if rejected
        else "Thanks, and what about my garden?"
    )
    found = predict((asked, reply), ([*asked, said(reply), user(text)], "A fine title"))
    assert found[1].kind == ("side" if rejected else "main")
