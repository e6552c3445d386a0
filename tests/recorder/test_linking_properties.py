"""Whatever a client does to a history, a request links to the turn it really followed. Histories come from a model of clients.

The model knows which reply each history ends with; the linker sees messages alone. Answers are unlike each other, as sampled
answers are; questions and whole openings may be equal.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from cli.recorded_traffic import Recorded, draft_of, parse_line
from recorder.finders import PrefixTips, find_candidates
from recorder.linking import TurnLink, link
from recorder.turn_index import TurnIndex
from recorder.turns import build_turns
from store.values import Relation, TurnKind
from tests.examples import examples

Message = dict[str, Any]

WORDS = [
    "harbour",
    "lantern",
    "copper",
    "meadow",
    "violin",
    "glacier",
    "pepper",
    "orbit",
    "walnut",
    "saddle",
    "ribbon",
    "tunnel",
    "cactus",
    "mirror",
    "plough",
]
#: Short ones are opened with by several; the very same long one again, before anything followed, would be a retry.
OPENINGS = [
    "hi",
    "What is new today?",
    "Write a short email to my landlord about the broken heating, please: {}",
]
QUESTIONS = [
    "shorter please",
    "and in French?",
    "that is wrong, look again",
    "thanks, what about the other one?",
]


def answer(seed: int) -> str:
    chosen = random.Random(seed).choices(WORDS, k=14)
    return f"{' '.join(chosen[:7]).capitalize()}.\n\n- {' '.join(chosen[7:])} {seed}"


# --------------------------------------------------------------- what clients do


def as_sent(message: Message, _: int) -> Message:
    return message


def trimmed(message: Message, _: int) -> Message:
    content = message.get("content")
    return {**message, "content": content.strip()} if isinstance(content, str) else message


def as_parts(message: Message, _: int) -> Message:
    content = message.get("content")
    return (
        {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message
    )


def without_thinking(message: Message, _: int) -> Message:
    content = message.get("content")
    if message["role"] != "assistant" or not isinstance(content, str):
        return message
    return {**message, "content": content.split("</think>")[-1].strip()}


def calls_written_anew(message: Message, number: int) -> Message:
    if not message.get("tool_calls"):
        return {**message, "tool_call_id": f"new-{number}"} if message["role"] == "tool" else message
    calls = []
    for call in message["tool_calls"]:
        arguments = json.loads(call["function"]["arguments"])
        text = json.dumps(dict(reversed(arguments.items())), indent=1)
        calls.append({**call, "id": f"new-{number}", "function": {**call["function"], "arguments": text}})
    return {**message, "content": "", "tool_calls": calls}


def stamped(message: Message, number: int) -> Message:
    content = message.get("content")
    if message["role"] != "user" or not isinstance(content, str):
        return message
    return {
        **message,
        "content": f"[2026-11-20 21:{number % 60:02d}] {content}\n<system-reminder>\nday {number}\n</system-reminder>",
    }


HABITS: list[Callable[[Message, int], Message]] = [
    as_sent,
    trimmed,
    as_parts,
    without_thinking,
    calls_written_anew,
    stamped,
]
SYSTEMS: list[Callable[[int], list[Message]]] = [
    lambda _: [],
    lambda _: [{"role": "system", "content": "You help."}],
    lambda number: [{"role": "system", "content": f"You help. It is 10:{number % 60:02d}."}],
]


# ---------------------------------------------------------------------- the model


@dataclass
class Talk:
    """One conversation as its client holds it: messages, each with the seq of the turn it came from."""

    name: str
    habit: Callable[[Message, int], Message]
    system: Callable[[int], list[Message]]
    history: list[tuple[Message, int | None]] = field(default_factory=list)
    shown: int = 0  #: of the history, what is still sent begins here
    last: tuple[list[Message], int | None] | None = None


@dataclass
class Play:
    """Conversations of one or several people, and what the linker made of each request."""

    user: str = "somebody"
    turn_index: TurnIndex = field(default_factory=TurnIndex)
    seq: int = 0
    clock: float = 1_000.0
    links: dict[int, TurnLink] = field(default_factory=dict)
    sessions: dict[int, str] = field(default_factory=dict)
    truth: dict[int, tuple[str, int | None]] = field(default_factory=dict)

    def request(self, messages: Sequence[Message], reply: Message, user: str | None = None) -> Recorded:
        self.seq += 1
        self.clock += 1.0
        line = {
            "seq": self.seq,
            "time": self.clock,
            "body": {"model": "m", "messages": list(messages), "user": user or self.user},
            "response": {"choices": [{"index": 0, "message": reply, "finish_reason": "stop"}]},
        }
        return parse_line(json.dumps(line).encode(), "model", self.seq)

    def decide(self, row: Recorded) -> TurnLink:
        captured = draft_of(row)
        assert captured is not None
        turn_index = self.turn_index
        candidates = find_candidates(
            turn_index,
            captured,
            replies=PrefixTips(turn_index, "reply", captured.history),
            requests=PrefixTips(turn_index, "request", captured.history),
        )
        return link(captured.history, candidates, captured.kind.kind)

    def take(self, row: Recorded) -> TurnLink:
        found = self.decide(row)
        captured = draft_of(row)
        assert captured is not None
        session = found.session_id or f"session-{row.seq}"
        self.turn_index.add(captured, build_turns(captured, found, session))
        self.links[row.seq] = found
        self.sessions[row.seq] = session
        return found

    # ---- what people and clients do in a conversation

    def prompt(self, talk: Talk) -> tuple[list[Message], int | None]:
        sent = talk.history[talk.shown :]
        messages = [
            talk.habit(message, self.seq) if origin is not None or message["role"] != "user" else message
            for message, origin in sent[:-1]
        ]
        if sent:
            messages.append(sent[-1][0])
        before = [origin for message, origin in sent if message["role"] == "assistant" and origin is not None]
        return [*talk.system(self.seq), *messages], before[-1] if before else None

    def prepare(self, talk: Talk, *, thinks: bool = False, calls: bool = False) -> Recorded:
        messages, parent = self.prompt(talk)
        text = answer(self.seq * 31 + len(talk.history))
        reply: Message = {
            "role": "assistant",
            "content": f"<think>\nhm\n</think>\n\n{text}  " if thinks else text,
        }
        if calls:
            function = {"name": "look", "arguments": json.dumps({"at": text[:30], "deep": True})}
            reply = {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": f"c{self.seq}", "type": "function", "function": function}],
            }
        row = self.request(messages, reply)
        self.truth[row.seq] = (talk.name, parent)
        talk.last = (messages, parent)
        talk.history.append((reply, row.seq))
        return row

    def say(self, talk: Talk, text: str, **more: bool) -> Recorded:
        if talk.history and talk.history[-1][0].get("tool_calls"):
            talk.history.append(
                ({"role": "tool", "tool_call_id": f"c{self.seq}", "content": f"seen {self.seq}"}, None)
            )
        else:
            talk.history.append(({"role": "user", "content": text}, None))
        return self.prepare(talk, **more)

    def retry(self, talk: Talk) -> Recorded | None:
        if talk.last is None or len(talk.history) < 3:
            return None
        messages, parent = talk.last
        reply: Message = {"role": "assistant", "content": answer(self.seq * 17 + 5)}
        row = self.request(messages, reply)
        self.truth[row.seq] = (talk.name, parent)
        talk.history[-1] = (reply, row.seq)
        return row

    def edit(self, talk: Talk, text: str) -> Recorded | None:
        """Go back to the last but one question and ask something else."""
        positions = [i for i, (m, _) in enumerate(talk.history) if m["role"] == "user" and i > talk.shown]
        if len(positions) < 2:
            return None
        talk.history = [
            *talk.history[: positions[-2]],
            ({"role": "user", "content": f"{text} ({self.seq})"}, None),
        ]
        return self.prepare(talk)

    def chore(self, talk: Talk, *, quotes: bool) -> Recorded | None:
        """A title from a quoted transcript, or a memory review behind the history: neither is kept in it."""
        told = [(m, o) for m, o in talk.history[talk.shown :] if isinstance(m.get("content"), str)]
        if (
            len(told) < 2
            or talk.history[-1][0]["role"] != "assistant"
            or talk.history[-1][0].get("tool_calls")
        ):
            return None
        if quotes:
            text = "\n".join(
                f"{m['role'].upper()}: {m['content'].split('</think>')[-1].strip()}" for m, _ in told[-2:]
            )
            messages = [
                {
                    "role": "user",
                    "content": f"Write a title for the following conversation, five words at most, the title only.\n{text}",
                }
            ]
        else:
            ask = "Review the conversation above and save what is worth remembering with the memory tool."
            messages = [*self.prompt(talk)[0], {"role": "user", "content": ask}]
        row = self.request(messages, {"role": "assistant", "content": f"Nothing {self.seq} to note here."})
        self.truth[row.seq] = (talk.name, None)
        return row

    def compact(self, talk: Talk) -> Recorded | None:
        """Sum up everything but the last exchange, and go on from the summary."""
        users = [i for i, (m, _) in enumerate(talk.history) if m["role"] == "user"]
        if (
            len(users) < 3
            or talk.history[-1][0]["role"] != "assistant"
            or talk.history[-1][0].get("tool_calls")
        ):
            return None
        ask = "Summarize the conversation so far so that a new context can continue from it. Return only the summary."
        summary = answer(self.seq * 13 + 7)
        row = self.request(
            [*self.prompt(talk)[0], {"role": "user", "content": ask}],
            {"role": "assistant", "content": summary},
        )
        self.truth[row.seq] = (talk.name, None)
        kept = talk.history[users[-1] :]
        talk.history = [
            ({"role": "user", "content": f"Earlier in this conversation:\n{summary}"}, None),
            ({"role": "assistant", "content": "Understood."}, None),
            *kept,
        ]
        talk.shown = 0
        return row

    def drop_oldest(self, talk: Talk) -> None:
        users = [i for i, (m, _) in enumerate(talk.history) if m["role"] == "user"]
        if len(users) >= 3:
            talk.shown = max(talk.shown, users[-2])

    # ---- what must hold

    def check(self) -> None:
        for seq, (name, parent) in self.truth.items():
            found = self.links[seq]
            for other, (theirs, _) in self.truth.items():
                assert (self.sessions[seq] == self.sessions[other]) == (name == theirs), (seq, other)
            if found.kind is TurnKind.MAIN:
                answer_share = (
                    None if found.parent_turn_id is None else int(found.parent_turn_id.removeprefix("turn_"))
                )
                assert answer_share == parent, (seq, found)


ACTIONS = ["say", "say", "say", "think", "call", "retry", "edit", "title", "review", "compact", "drop"]


def act(play: Play, talk: Talk, action: str, text: str) -> None:
    row: Recorded | None = None
    is_open = bool(talk.history) and bool(talk.history[-1][0].get("tool_calls"))
    if not talk.history or action in ("say", "think", "call") or is_open:
        row = play.say(talk, text, thinks=action == "think", calls=action == "call" and bool(talk.history))
    elif action == "retry":
        row = play.retry(talk)
    elif action == "edit":
        row = play.edit(talk, text)
    elif action in ("title", "review"):
        row = play.chore(talk, quotes=action == "title")
    elif action == "compact":
        row = play.compact(talk)
    elif action == "drop":
        play.drop_oldest(talk)
    if row is not None:
        play.take(row)


STEPS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(ACTIONS), st.sampled_from(QUESTIONS)),
    min_size=4,
    max_size=40,
)
CLIENTS = st.lists(st.tuples(st.sampled_from(HABITS), st.sampled_from(SYSTEMS)), min_size=4, max_size=4)
FIRST = st.lists(st.sampled_from(OPENINGS), min_size=4, max_size=4)
MANY = settings(max_examples=examples(150))


def talks_of(clients: Sequence[Any], prefix: str = "") -> list[Talk]:
    return [Talk(f"{prefix}{i}", habit, system) for i, (habit, system) in enumerate(clients)]


@MANY
@given(CLIENTS, FIRST, STEPS)
# summed up, gone on, and gone back to before what was kept
@example(
    [(as_sent, SYSTEMS[0])] * 4,
    ["hi"] * 4,
    [(0, action, QUESTIONS[0]) for action in ("say", "say", "say", "compact", "say", "edit", "say")],
)
def test_requests_link_to_the_turn_they_followed(clients: Any, first: list[str], steps: Any) -> None:
    play, talks = Play(), talks_of(clients)
    for number, action, text in steps:
        talk = talks[number]
        act(
            play, talk, action, first[number].format(talk.name) if not talk.history else f"{text} {talk.name}"
        )
    play.check()


@MANY
@given(CLIENTS, FIRST, STEPS)
def test_linking_the_same_request_twice_says_the_same(clients: Any, first: list[str], steps: Any) -> None:
    play, talks = Play(), talks_of(clients)
    decide = play.decide

    def twice(row: Recorded) -> TurnLink:
        once = decide(row)
        assert decide(row) == once
        return once

    play.decide = twice  # type: ignore[method-assign]  # the same play, looked at harder
    for number, action, text in steps:
        talk = talks[number]
        act(
            play, talk, action, first[number].format(talk.name) if not talk.history else f"{text} {talk.name}"
        )


@MANY
@given(CLIENTS, FIRST, STEPS)
def test_two_people_never_meet_even_when_they_say_the_same(
    clients: Any, first: list[str], steps: Any
) -> None:
    """The same conversations, word for word and answer for answer, are held by two users of one key."""
    play, talks = Play(), talks_of(clients)
    rows: list[Recorded] = []
    request = play.request

    def both(messages: Sequence[Message], reply: Message, user: str | None = None) -> Recorded:
        row = request(messages, reply, "one")
        rows.append(row)
        return row

    play.request = both  # type: ignore[method-assign]  # the model's requests, for both people
    for number, action, text in steps:
        talk = talks[number]
        act(
            play, talk, action, first[number].format(talk.name) if not talk.history else f"{text} {talk.name}"
        )
    other: dict[int, str] = {}
    for row in rows:
        assert row.chat is not None
        line = {
            "seq": row.seq + 10_000,
            "time": row.time,
            "body": {**row.chat.body, "user": "two"},
            "response": row.response,
        }
        twin = parse_line(json.dumps(line).encode(), "twin", 1)
        found = play.take(twin)
        other[row.seq] = play.sessions[twin.seq]
        assert found.relation is play.links[row.seq].relation
    assert not set(other.values()) & {play.sessions[row.seq] for row in rows}


@MANY
@given(CLIENTS, STEPS, st.randoms(use_true_random=False))
def test_the_order_in_which_concurrent_requests_end_does_not_matter(
    clients: Any, steps: Any, order: random.Random
) -> None:
    """Each round every conversation asks once, at the same time; the requests end in any order."""
    rounds = [text for _, _, text in steps[:5]]
    straight, shuffled = Play(), Play()
    for play, mixes in ((straight, False), (shuffled, True)):
        talks = talks_of(clients)
        for i, text in enumerate(rounds):
            rows = [
                play.say(talk, f"{text} {talk.name}" if i else f"Opening of {talk.name}: {text}")
                for talk in talks
            ]
            if mixes:
                order.shuffle(rows)
            for row in rows:
                play.take(row)
        play.check()
    assert {s: (found.relation, found.parent_turn_id) for s, found in straight.links.items()} == {
        s: (found.relation, found.parent_turn_id) for s, found in shuffled.links.items()
    }


def test_the_model_does_what_it_says() -> None:
    """Every relation comes about in the histories that the model makes."""
    play, (talk, *_) = Play(), talks_of([(stamped, SYSTEMS[2])] * 4)
    for action in [
        "say",
        "think",
        "say",
        "retry",
        "edit",
        "say",
        "call",
        "say",
        "title",
        "review",
        "compact",
        "say",
        "drop",
        "say",
    ]:
        act(play, talk, action, f"{action} {len(talk.history)}")
    play.check()
    assert {found.relation for found in play.links.values()} == set(Relation) - {
        Relation.FRAMEWORK_RETRY,  # of texts, which linking does not read
        Relation.TOOL_LOOP,  # of next states only
    }
    assert {found.kind for found in play.links.values()} == set(TurnKind)
