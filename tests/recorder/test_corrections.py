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


# ------------------------------------------------------------- relations, on programs of several makes


def _tool_loop(number: int, call: str, answer: str | None = None) -> list[dict[str, Any]]:
    asked = {"role": "user", "content": "What is the weather in Oslo right now?"}
    called = {
        "id": call,
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Oslo"}'},
    }
    messages: list[dict[str, Any]] = [asked]
    if number:
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [called]},
            {"role": "tool", "tool_call_id": call, "content": "4 C, cloudy"},
        ]
    if answer is not None:
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "and in Bergen?"}]
    return messages


@pytest.mark.parametrize("order", [("one", "two"), ("two", "one")])
def test_the_ids_of_tool_calls_tell_equal_conversations_apart(order: tuple[str, str]) -> None:
    rows, begun = [], ("one", "two")
    for place, calls in enumerate((begun, order, order)):
        for seq, call in enumerate(calls, 1 + 2 * place):
            messages = _tool_loop(place, call, "It is 4 C in Oslo." if place == 2 else None)
            row = request(seq, messages, "It is 4 C in Oslo.", 100.0 * place + seq / 4)
            if not place:
                choice = row.response["choices"][0]  # type: ignore[index]
                choice["message"] = {"role": "assistant", "content": None, "tool_calls": [{"id": call, "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}}]}  # fmt: skip
            rows.append(row)
    found = replayed(rows)
    opened = {call: seq for seq, call in enumerate(begun, 1)}
    for seq, call in enumerate(order, 3):
        assert (found[seq].answered_seq, found[seq + 2].answered_seq) == (opened[call], seq)
        assert found[seq + 2].session == found[opened[call]].session
    assert found[3].session != found[4].session


_NAMER = {"role": "system", "content": "Give the chat a name of at most four words."}


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda text: json.dumps([{"type": "text", "text": text}]),
        lambda text: json.dumps({"role": "user", "content": text}),
        lambda text: json.dumps([{"role": "user", "content": [{"type": "text", "text": text}]}], indent=2),
    ],
)
def test_the_serialised_message_of_a_turn_beside_it_is_the_programs(wrap: Any, is_first: bool) -> None:
    for text in ("hello", "I live in Graz. Suggest a quick dinner."):
        own = request(
            1 + is_first, [{"role": "system", "content": "You are a cook."}, user(text)], "Pasta.", 10.0
        )
        name = request(2 - is_first, [_NAMER, user(wrap(text))], "Dinner Ideas", 10.2)
        found = replayed(sorted([own, name], key=lambda row: row.seq))
        assert (found[own.seq].kind, found[name.seq].kind) == ("main", "side")
        assert found[own.seq].session == found[name.seq].session


def test_a_person_may_say_what_a_title_says() -> None:
    talk = [user("hello"), assistant("Hello! What can I do for you?")]
    title = f"Generate a short title for this chat.\n<chat_history>\nUSER: {talk[0]['content']}\nASSISTANT: {talk[1]['content']}\n</chat_history>"
    rows = [
        request(1, talk[:1], str(talk[1]["content"]), 10.0),
        request(2, [user(title)], "hello", 10.1),
        request(
            3, [{"role": "system", "content": "You are a travel guide."}, user("hello")], "Welcome!", 10.2
        ),
    ]
    assert [replayed(rows)[seq].kind for seq in (1, 2, 3)] == ["main", "side", "main"]


def _remembering(memories: Sequence[str], question: str) -> str:
    """Return a question as a layer of memories sends it; the next history has the question alone."""
    return f"- Relevant memories: {'; '.join(memories)}\n- Summary of facts to remember about the user: {memories[0]}\n- Entities: []\n\n- User Question: {question}"


_EXPERT = {
    "role": "system",
    "content": "You are an expert judge of memories. Your task is to provide accurate answers from the memories given. Only answer.",
}


def test_a_question_that_the_next_history_holds_without_its_wrapper_is_a_persons() -> None:
    asked = ["Should I learn Rust or Go first?", "yes please, a plan", "why in this order?"]
    replies = [
        "Go first, if you want to be productive within a week.",
        "Week 1: a tour of Go. Week 2: a small server.",
        "Each step builds on the last.",
    ]
    rows: list[Recorded] = []
    history: list[dict[str, Any]] = []
    for seq, (question, reply) in enumerate(zip(asked, replies, strict=True), 1):
        rows.append(
            request(seq, [_EXPERT, *history, user(_remembering(asked[:seq], question))], reply, 100.0 * seq)
        )
        history += [user(question), assistant(reply)]
    assert replayed(rows[:1])[1].kind == "side"
    found = replayed(rows)
    assert [found[seq].kind for seq in (1, 2, 3)] == ["main"] * 3
    assert [found[seq].answered_seq for seq in (1, 2, 3)] == [None, 1, 2]
    assert len({found[seq].session for seq in (1, 2, 3)}) == 1


def test_of_equal_conversations_the_one_under_the_nearest_system_prompt_goes_on() -> None:
    def system(role: str, memory: str) -> dict[str, str]:
        return {
            "role": "system",
            "content": f"{role}\nIt is {len(memory)}:17 now.\n<memories>\n- {memory}\n</memories>",
        }

    cook, guide = "You are a cook.\nYou know herbs.", "You are a guide.\nYou know towns."
    rows = [
        request(1, [system(cook, "none"), user("hello")], "Hello! What can I do for you?", 10.0),
        request(2, [system(guide, "none"), user("hello")], "Hello! What can I do for you?", 12.0),
    ]
    talk = [user("hello"), assistant("Hello! What can I do for you?")]
    rows += [
        request(
            3, [system(guide, "said hello"), *talk, user("Where is the harbour?")], "By the river.", 60.0
        ),
        request(4, [system(cook, "greeted us"), *talk, user("What goes with sage?")], "Butter.", 70.0),
    ]
    found = replayed(rows)
    assert (found[3].answered_seq, found[4].answered_seq) == (2, 1)


def system(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


_ROUTER, _WRITER, _POET = (
    system(f"You are the {who} of this house.") for who in ("switchboard", "writer", "poet")
)
_TRAM = "Start in the old town and take the tram."
_PART = [user(_ASKED), assistant(_TRAM)]


def _routed(at: float) -> list[Recorded]:
    """A router that gets each history before and after the agent that answers."""
    return [
        request(1, [_ROUTER, user(_ASKED)], "Call: writer", at),
        request(2, [_WRITER, user(_ASKED)], _TRAM, at + 1),
        request(3, [_ROUTER, *_PART], "Done.", at + 2),
        request(4, [_ROUTER, *_PART, user("And at night?")], "Call: writer", at + 60),
        request(5, [_WRITER, *_PART, user("And at night?")], "Fado in a small bar.", at + 61),
        request(6, [_ROUTER, user("What do I cook today?")], "Call: writer", at + 120),
        request(7, [_WRITER, user("What do I cook today?")], "Rice with beans.", at + 121),
    ]


@pytest.mark.parametrize("restarts", [(), (4,), (6,)])
def test_a_system_prompt_whose_replies_stand_nowhere_beside_one_whose_do_is_a_programs(
    restarts: tuple[int, ...],
) -> None:
    found = replayed(_routed(10.0), restarts)
    assert [found[seq].kind for seq in range(1, 8)] == [
        "side",
        "main",
        "side",
        "side",
        "main",
        "side",
        "main",
    ]
    assert (found[1].kind_reason, found[6].kind_reason) == ("passed_over", "passed_over")
    assert (found[5].answered_seq, found[5].relation) == (2, "next")


def test_suggestions_under_another_system_prompt_behind_a_reply_are_the_programs() -> None:
    asked = [*_PART, user("What else could be asked here?")]
    rows = [
        request(1, [_WRITER, user(_ASKED)], _TRAM, 10.0),
        request(2, [_POET, *asked], "Where do we eat?", 12.0),
        request(3, [_WRITER, *_PART, user("And at night?")], "Fado in a small bar.", 60.0),
    ]
    found = replayed(rows)
    assert [found[seq].kind for seq in (1, 2, 3)] == ["main", "side", "main"]
    assert found[3].answered_seq == 1


def test_of_two_agents_with_one_opening_each_is_main_once_a_person_continues_it() -> None:
    rhyme = "Down to the river, up by the tram."
    rows = [
        request(1, [_WRITER, user(_ASKED)], _TRAM, 10.0),
        request(2, [_POET, user(_ASKED)], rhyme, 30.0),
        request(3, [_WRITER, *_PART, user("And at night?")], "Fado in a small bar.", 60.0),
        request(4, [_POET, user(_ASKED), assistant(rhyme), user("One more verse.")], "Home by the sea.", 90.0),
        request(5, [_POET, user("Sing of bread.")], "Bread, oh bread.", 120.0),
    ]  # fmt: skip
    found = replayed(rows)
    assert [found[seq].kind for seq in range(1, 6)] == ["main"] * 5
    assert (found[3].answered_seq, found[4].answered_seq) == (1, 2)


def test_the_arguments_of_a_call_that_come_back_as_a_message_are_its_reply() -> None:
    arguments = json.dumps({"chat_message": "Start in the old town.", "cold": "4 \u00b0C"})
    call = {"id": "c1", "type": "function", "function": {"name": "reply", "arguments": arguments}}
    first = request(1, [user(_ASKED)], "", 10.0)
    assert first.response is not None
    first.response["choices"][0]["message"] = {"role": "assistant", "content": None, "tool_calls": [call]}
    sent = json.dumps(json.loads(arguments), ensure_ascii=False, separators=(",", ":"))
    rows = [first, request(2, [user(_ASKED), assistant(sent), user("And then?")], "Rest.", 60.0)]
    found = replayed(rows)
    assert (found[2].answered_seq, found[2].link_reason) == (1, "exact_prefix")
