"""What is remembered of the newest turns, and what the linker makes of it: requests that quote, echo, check and begin again."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import Any

import pytest

from recorder.finders import ORPHAN_TTL_S
from recorder.linking import CONFIDENCE, LINK_MEANINGS, LinkReason, TurnLink
from recorder.turn_index import call_ids
from store.values import Relation, TurnKind
from tests.recorder.test_linking_properties import Play

LANDLORD = "Write a short email to my landlord about the broken heating"
EMAIL = "Subject: heating\n\nDear landlord, the heating in my flat has been broken since Monday. Please send somebody."


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def say(
    play: Play, *messages: dict[str, Any], answer: str = EMAIL, later_s: float = 0.0, **body: Any
) -> TurnLink:
    play.clock += later_s
    row = play.request(messages, assistant(answer))
    if body:
        assert row.chat is not None
        row.chat.body.update(body)
    return play.take(row)


def session(play: Play, number: int) -> str:
    return play.sessions[number]


TITLE = "Write a title for the following conversation, five words at most, the title only.\nUSER: {}\n"


def test_a_title_that_comes_first_is_joined_by_its_conversation() -> None:
    play = Play()
    say(play, user(TITLE.format(LANDLORD)), answer="Broken heating")
    found = say(play, user(LANDLORD))
    assert (found.relation, found.parent_turn_id) == (Relation.FIRST, None)
    assert found.confidence == CONFIDENCE[LinkReason.QUOTED_BY_SIDE_TURN]
    assert session(play, 1) == session(play, 2)


def test_a_title_is_joined_by_no_conversation_of_another_person() -> None:
    play = Play()
    title = play.request([user(TITLE.format(LANDLORD))], assistant("Broken heating"), user="ann")
    play.take(title)
    say(play, user(LANDLORD))
    assert session(play, 1) != session(play, 2)
    play.take(play.request([user(LANDLORD)], assistant(EMAIL), user="ann"))
    assert session(play, 1) == session(play, 3)


def test_one_title_is_joined_by_one_conversation_and_not_for_ever() -> None:
    play = Play()
    say(play, user(TITLE.format("hi")), answer="Greeting")
    say(play, user("hi"), answer="Hello there, how can I help you today?")
    say(play, user("hi"), answer="Hello there, how can I help you today?")
    assert session(play, 1) == session(play, 2) != session(play, 3)
    say(play, user(TITLE.format(LANDLORD)), answer="Heating")
    say(play, user(LANDLORD), later_s=2 * ORPHAN_TTL_S)
    assert session(play, 4) != session(play, 5)


def test_the_first_message_carried_on_is_an_edit_of_it() -> None:
    play = Play()
    say(play, user(f"{LANDLORD}."))
    found = say(play, user(f"{LANDLORD}. Sign it as Alex."), answer="Another one.")
    assert (found.relation, found.parent_turn_id, found.answered_turn_id) == (Relation.BRANCH, None, None)
    assert session(play, 1) == session(play, 2)
    other = say(play, system("You are a poet."), user(f"{LANDLORD}. In rhyme."), answer="A poem.")
    assert other.relation is Relation.FIRST


def test_a_form_filled_in_under_another_system_prompt_is_a_check() -> None:
    play = Play()
    say(play, system("You write emails."), user(LANDLORD))
    history = [user(LANDLORD), assistant(EMAIL), user("shorter")]
    form: dict[str, Any] = {"response_format": {"type": "json_schema"}}
    check = say(play, system("Is this about emails?"), *history, answer='{"ok": true}', **form)
    assert (check.kind, check.kind_reason) == (TurnKind.SIDE, "guardrail")
    same = say(play, system("You write emails."), *history, answer='{"text": "Fix it."}', **form)
    assert same.kind is TurnKind.MAIN


def test_an_answer_heard_again_as_a_users_words_is_another_agents() -> None:
    play = Play()
    say(play, user(LANDLORD))
    critic = "Too long, drop the second sentence and the greeting."
    first = say(play, system("You criticise."), user(LANDLORD), user(EMAIL), answer=critic)
    assert first.kind is TurnKind.SIDE
    found = say(play, user(LANDLORD), assistant(EMAIL), user(critic), answer="Fix it.")
    assert (found.kind, found.kind_reason) == (TurnKind.SIDE, "agent_to_agent")


def test_a_conversation_written_out_goes_on_and_its_newest_words_are_the_next_state() -> None:
    play = Play()
    head = "A friendly talk.\n\nHuman: {}\nAI:"
    say(play, user(head.format(LANDLORD)))
    found = say(play, user(head.format(f"{LANDLORD}\nAI: {EMAIL}\nHuman: too long")), answer="Fix it.")
    assert (found.relation, found.parent_turn_id, found.answered_turn_id) == (
        Relation.NEXT,
        "turn_00000001",
        "turn_00000001",
    )
    assert found.messages_after == (user("too long"),)
    pasted = say(play, user(f"Is this polite?\n{LANDLORD}\n{EMAIL}"), answer="Yes.")
    assert (pasted.kind, pasted.kind_reason) == (TurnKind.SIDE, "works_on_recorded_exchange")


def test_a_summary_that_was_seen_being_written_is_known_again() -> None:
    play = Play()
    history = [user(LANDLORD), assistant(EMAIL), user("shorter"), assistant("Fix it.")]
    say(play, *history[:1])
    say(play, *history[:3], answer="Fix it.")
    summary = "They wrote an email about broken heating; the person wants it short."
    ask = "Summarize the conversation so far so that a new context can continue from it."
    say(play, *history, user(ask), answer=summary)
    for shortened in (
        [user(f"Summary: {summary}"), user("and the rent?")],
        [user("What did we do so far?"), assistant(summary), user("and the rent?")],
        [system(f"You help.\n{summary}"), user("x"), assistant("y"), user("and the rent?")],
    ):
        found = say(play, *shortened, answer=f"No word of it, {len(shortened)} times.")
        assert found.relation is Relation.COMPACTION, shortened
        assert play.sessions[play.seq] == session(play, 1)


def test_of_equal_conversations_those_begun_side_by_side_are_taken_in_turn() -> None:
    play = Play()
    hello = [user("hi"), assistant("Hello there, how can I help you today?")]
    for _ in range(2):
        say(play, user("hi"), answer=str(hello[1]["content"]))
    assert say(play, *hello, user("sql please"), answer="SELECT").parent_turn_id == "turn_00000001"
    assert say(play, *hello, user("rain?"), answer="yes it will").parent_turn_id == "turn_00000002"


def test_of_equal_conversations_one_left_alone_is_over() -> None:
    play = Play()
    hello = [user("hi"), assistant("Hello there, how can I help you today?")]
    say(play, user("hi"), answer=str(hello[1]["content"]))
    for i in range(5):
        say(
            play,
            user(f"Something else altogether, number {i}"),
            answer=f"Answer to something else altogether {i}",
        )
    say(play, user("hi"), answer=str(hello[1]["content"]))
    assert say(play, *hello, user("sql please"), answer="SELECT").parent_turn_id == f"turn_{7:08d}"


def test_a_system_prompt_of_its_own_tells_equal_conversations_apart() -> None:
    play = Play()
    hello = [user("hi"), assistant("Hello there, how can I help you today?")]
    for name in ("Ann", "Bob"):
        say(play, system(f"You are {name}."), user("hi"), answer=str(hello[1]["content"]))
    found = say(play, system("You are Bob."), *hello, user("sing"), answer="la la la")
    assert found.parent_turn_id == "turn_00000002"


def test_what_could_not_be_written_is_forgotten() -> None:
    play = Play()
    say(play, user(LANDLORD))
    say(play, user(LANDLORD), assistant(EMAIL), user("shorter"), answer="Fix it.")
    play.turn_index.remove(["turn_00000002"])
    found = say(play, user(LANDLORD), assistant(EMAIL), user("more formal"), answer="Dear Sir.")
    assert (found.relation, found.parent_turn_id) == (Relation.NEXT, "turn_00000001")
    assert len(play.turn_index) == 2


def test_confidence_is_what_each_way_of_linking_says_it_is() -> None:
    assert all(0 < value <= 1 for value in CONFIDENCE.values())
    assert set(CONFIDENCE) == set(LINK_MEANINGS) == set(LinkReason)


def test_a_chore_that_names_nobody_is_about_whoever_is_speaking_with_that_key() -> None:
    play = Play()
    say(play, user(LANDLORD), answer=EMAIL, user="alex")
    title = say(
        play,
        user(LANDLORD),
        assistant(EMAIL),
        user("Name this conversation in five words, the title only."),
        user=None,
    )
    assert (title.kind, session(play, 2)) == (TurnKind.SIDE, session(play, 1))
    quoted = say(
        play, user(f"Summarize the following conversation.\nUSER: {LANDLORD}\nASSISTANT: {EMAIL}"), user=None
    )
    assert (quoted.kind, session(play, 3)) == (TurnKind.SIDE, session(play, 1))


def test_what_a_person_says_without_a_name_never_joins_somebody_elses_talk() -> None:
    play = Play()
    say(play, user(LANDLORD), answer=EMAIL, user="alex")
    found = say(play, user(LANDLORD), assistant(EMAIL), user("shorter please"), user=None)
    assert (found.kind, found.parent_turn_id) == (TurnKind.MAIN, None)
    assert session(play, 2) != session(play, 1)
    client_from_headers = say(
        play, user(LANDLORD), assistant(EMAIL), user("Name this conversation, title only."), user="bob"
    )
    assert client_from_headers.parent_turn_id is None
    assert session(play, 3) != session(play, 1)


def test_what_a_turn_tells_a_tool_is_another_agents_task() -> None:
    play = Play()
    task = "Look through the landlord's older letters and list every date on which the heating failed."
    call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "task", "arguments": json.dumps({"prompt": task})},
            }
        ],
    }
    play.take(play.request([user(LANDLORD)], call))
    sent = say(play, system("You search files."), user(task), answer="On Monday and on Friday.")
    assert (sent.kind, sent.kind_reason, sent.relation) == (TurnKind.SIDE, "subagent", Relation.FIRST)
    assert session(play, 2) != session(play, 1)
    result = {"role": "tool", "tool_call_id": "c1", "content": "On Monday and on Friday."}
    back = say(play, user(LANDLORD), call, result, answer="It failed twice.")
    assert (back.kind, session(play, 3)) == (TurnKind.MAIN, session(play, 1))


def test_an_opening_that_was_carried_on_is_asked_anew_but_a_summary_is_of_the_past() -> None:
    play = Play()
    say(play, user(LANDLORD))
    say(
        play,
        user(LANDLORD),
        assistant(EMAIL),
        user("shorter please"),
        answer="Heating is broken. Please help.",
    )
    say(play, user(TITLE.format(LANDLORD)), answer="Heating")
    assert session(play, 3) != session(play, 1)
    summary = say(play, user(f"Summarize the conversation below so that it can go on.\nUSER: {LANDLORD}"))
    assert (summary.kind, session(play, 4)) == (TurnKind.SIDE, session(play, 1))


def test_jobs_on_their_own_do_not_meet() -> None:
    play = Play()
    say(play, user("[Subagent Context] You are a subagent.\nFind the price"), answer="2 silver")
    say(play, user("[cron:daily] This is a scheduled job.\nFind the price"), answer="2 silver")
    assert session(play, 1) != session(play, 2)


class _CountedEntries(OrderedDict[str, Any]):
    """The entries of an index, which count how often one is read."""

    reads = 0

    def __getitem__(self, turn_id: str) -> Any:
        self.reads += 1
        return super().__getitem__(turn_id)


@pytest.mark.parametrize(
    "messages",
    [
        [user(LANDLORD)],
        [user(LANDLORD), assistant(EMAIL), user("shorter please")],
        [user(f"Summarize the conversation below so that it can go on.\nUSER: {LANDLORD}")],
    ],
    ids=["opening", "continuation", "side request"],
)
def test_a_repeated_request_visits_no_more_turns_after_500_repeats(messages: list[dict[str, Any]]) -> None:
    play = Play()
    say(play, user(LANDLORD))
    entries = play.turn_index._entries = _CountedEntries(play.turn_index._entries)
    visited = {}
    for repeats in range(1, 501):
        before = entries.reads
        say(play, *messages, answer="The same answer as ever, in a line of its own.")
        visited[repeats] = entries.reads - before
    assert visited[500] == visited[100]
    assert visited[500] < 20 * visited[10]


@pytest.mark.parametrize(
    ("message", "found"),
    [
        ({"role": "assistant", "tool_calls": [{"id": "a"}, {"id": ["b"]}, 7, {"id": ""}]}, {"a"}),
        ({"role": "assistant", "tool_calls": 5}, set()),
        ({"role": "tool", "tool_call_id": "a"}, {"a"}),
        ({"role": "tool", "tool_call_id": ["a"]}, set()),
        ({"role": "user", "tool_call_id": "a"}, set()),
    ],
)
def test_only_texts_are_ids_of_calls_whatever_a_client_sends(
    message: dict[str, Any], found: set[str]
) -> None:
    assert call_ids(iter([message])) == found
