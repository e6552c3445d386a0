"""Which turn a request continues: values in, values out."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from recorder.canonical import parse_history, reply_key, reply_run_key
from recorder.linking import LinkCandidates, TurnLink, answer_keys, history_answer_keys, link
from store.values import Completion, Relation, Tip, TurnKind
from tests.recorder.test_canonical import KEY_NAME, assistant, user

MAIN, SIDE = TurnKind.MAIN, TurnKind.SIDE
LONG = "This is an answer that is long enough to be recognised again wherever it stands, because nobody says it twice."


class Book:
    """What a record would know, in a few dictionaries."""

    def __init__(self) -> None:
        self.tips: dict[str, Tip] = {}
        self.replies: dict[str, list[str]] = defaultdict(list)
        self.requests: dict[str, list[str]] = defaultdict(list)
        self.exchanges: dict[str, list[str]] = defaultdict(list)
        self.bodies: dict[str, list[Any]] = {}
        self.extended: set[str] = set()
        self.is_person = True  # whether a repeated request may be a person's
        self.links: dict[str, TurnLink] = {}

    def candidates(self, messages: list[Any]) -> LinkCandidates:
        history = parse_history(messages, KEY_NAME)

        def tips(index: dict[str, list[str]], keys: list[str]) -> dict[str, list[Tip]]:
            return {k: [self._today(t) for t in reversed(index[k])] for k in keys if index.get(k)}

        return LinkCandidates(
            replies=tips(self.replies, history.keys),
            requests=tips(self.requests, history.keys),
            exchanges=tips(self.exchanges, [e.key for e in history_answer_keys(history)]),
            same_body={t for t, body in self.bodies.items() if body == messages},
            asked_again=set(self.tips) if self.is_person else (),
        )

    def _today(self, turn_id: str) -> Tip:
        tip = self.tips[turn_id]
        return Tip(
            turn_id=tip.turn_id, session_id=tip.session_id, turn_index=tip.turn_index, kind=tip.kind,
            parent_turn_id=tip.parent_turn_id, key=tip.key, is_newest=turn_id not in self.extended, created_at=tip.created_at,
        )  # fmt: skip

    def say(
        self, messages: list[Any], answer: str, kind: TurnKind = MAIN, session: str | None = None
    ) -> TurnLink:
        """Link a request, then record it with its answer."""
        history = parse_history(messages, KEY_NAME)
        newest = [t for t in self.tips.values() if t.session_id == session and t.kind is MAIN]
        tip = self._today(newest[-1].turn_id) if newest else None
        found = link(history, self.candidates(messages), kind, session=session, tip=tip)
        name = f"t{len(self.tips)}"
        completion = Completion(text=answer)
        self.tips[name] = Tip(
            turn_id=name, session_id=found.session_id or f"s{len(self.tips)}", turn_index=found.turn_index, kind=found.kind,
            parent_turn_id=found.parent_turn_id, key="", is_newest=True, created_at=float(len(self.tips)),
        )  # fmt: skip
        if found.parent_turn_id and found.kind is MAIN and found.relation is not Relation.RETRY:
            self.extended.add(found.parent_turn_id)
        self.replies[reply_key(history, completion)].append(name)
        self.requests[history.request_key].append(name)
        self.bodies[name] = messages
        own, size = reply_run_key(completion)
        for exchange in answer_keys(history.root, history.runs[-1], own, size):
            self.exchanges[exchange.key].append(name)
        self.links[name] = found
        return found

    def session_of(self, name: str) -> str:
        return self.tips[name].session_id


FIRST = [user("How do I read a CSV file?")]
SECOND = [*FIRST, assistant("Use pandas."), user("without pandas")]
THIRD = [*SECOND, assistant("Use csv."), user("thanks")]


def test_an_opening_is_the_first_turn_of_a_new_session() -> None:
    found = Book().say(FIRST, "Use pandas.")
    assert (found.relation, found.session_id, found.parent_turn_id, found.turn_index) == (
        Relation.FIRST,
        None,
        None,
        0,
    )


def test_a_continued_history_is_the_next_turn_and_what_followed_is_the_next_state() -> None:
    book = Book()
    book.say(FIRST, "Use pandas.")
    found = book.say(SECOND, "Use csv.")
    assert (found.relation, found.parent_turn_id, found.answered_turn_id, found.turn_index) == (
        Relation.NEXT,
        "t0",
        "t0",
        1,
    )
    assert found.messages_after == (user("without pandas"),)
    assert found.confidence == 1.0


def test_an_edited_message_is_a_branch_and_answers_the_same_turn_again() -> None:
    book = Book()
    book.say(FIRST, "Use pandas.")
    book.say(SECOND, "Use csv.")
    found = book.say([*FIRST, assistant("Use pandas."), user("with polars")], "Use polars.")
    assert (found.relation, found.parent_turn_id, found.answered_turn_id) == (Relation.BRANCH, "t0", "t0")


def test_the_same_prompt_again_is_a_retry_of_the_turn_it_repeats() -> None:
    book = Book()
    book.say(FIRST, "Use pandas.")
    book.say(SECOND, "Use csv.")
    found = book.say(SECOND, "Use the csv module.")
    assert (found.relation, found.parent_turn_id, found.answered_turn_id, found.turn_index) == (
        Relation.RETRY,
        "t0",
        None,  # the verdict waits until the newer reply is continued
        1,
    )
    assert found.messages_after == ()
    assert book.say(SECOND, "Try csv.reader.").relation is Relation.RETRY


def test_the_same_prompt_from_a_program_is_a_branch_and_the_same_opening_a_new_session() -> None:
    book = Book()
    book.is_person = False
    book.say(FIRST, "Use pandas.")
    again = book.say(FIRST, "Use csv.")
    assert (again.relation, again.session_id, again.answered_turn_id) == (Relation.FIRST, None, None)
    book.say(SECOND, "Use csv.")
    found = book.say(SECOND, "Use the csv module.")
    assert (found.relation, found.answered_turn_id) == (Relation.BRANCH, None)


def test_a_reply_that_was_continued_is_not_asked_again() -> None:
    book = Book()
    book.say(FIRST, "Use pandas.")
    book.say(SECOND, "Use csv.")
    book.say(THIRD, "You're welcome.")
    assert book.say(SECOND, "Use the csv module.").relation is Relation.BRANCH


def test_after_retries_the_answer_that_is_continued_links() -> None:
    book = Book()
    book.say(FIRST, "Use pandas.")
    book.say(SECOND, "Use csv.")
    book.say(SECOND, "Use the csv module.")
    assert book.say(THIRD, "You're welcome.").parent_turn_id == "t1"


def test_a_conversation_that_starts_again_is_a_new_session() -> None:
    book = Book()
    book.say(FIRST, "Use pandas.")
    book.say(SECOND, "Use csv.")
    assert book.say(FIRST, "Use pandas.").relation is Relation.FIRST
    assert book.say(SECOND, "Use csv.").parent_turn_id == "t2"
    assert book.session_of("t3") == book.session_of("t2") != book.session_of("t0")


def test_an_identical_opening_that_nothing_followed_is_a_retry() -> None:
    book = Book()
    book.say(FIRST, "Use pandas.")
    found = book.say(FIRST, "Use csv.")
    assert (found.relation, found.answered_turn_id, found.parent_turn_id) == (Relation.RETRY, None, None)
    assert book.session_of("t1") == book.session_of("t0")


def test_hi_is_too_common_to_be_a_retry() -> None:
    book = Book()
    book.say([user("hi")], "Hello!")
    assert book.say([user("hi")], "Hello!").relation is Relation.FIRST


def test_identical_conversations_are_continued_in_turn() -> None:
    book = Book()
    book.say([user("hi")], "Hello!")
    book.say([user("hi")], "Hello!")
    one = [user("hi"), assistant("Hello!"), user("sql please")]
    two = [user("hi"), assistant("Hello!"), user("weather please")]
    assert book.say(one, "SELECT").parent_turn_id == "t0"
    assert book.say(two, "rain").parent_turn_id == "t1"


def test_housekeeping_between_two_turns_is_stepped_over() -> None:
    book = Book()
    book.say(FIRST, "Use pandas.")
    beat = [*FIRST, assistant("Use pandas."), user("HEARTBEAT")]
    side = book.say(beat, "HEARTBEAT_OK", SIDE)
    assert (side.relation, side.parent_turn_id, side.answered_turn_id) == (Relation.NEXT, "t0", None)
    found = book.say([*beat, assistant("HEARTBEAT_OK"), user("without pandas")], "Use csv.")
    assert (found.relation, found.parent_turn_id, found.answered_turn_id) == (Relation.NEXT, "t0", "t0")
    assert found.messages_after[-1] == user("without pandas")


def test_a_side_call_on_the_history_leaves_the_turn_waiting_for_the_person() -> None:
    book = Book()
    book.say(FIRST, "Use pandas.")
    book.say([*FIRST, assistant("Use pandas."), user("extract memories")], "none", SIDE)
    assert book.say(SECOND, "Use csv.").relation is Relation.NEXT


def test_tool_results_carry_on_with_what_their_parent_was_about() -> None:
    book = Book()
    book.say(FIRST, "writing the memory", SIDE)
    tool = {"role": "tool", "tool_call_id": "x", "content": "saved"}
    assert book.say([*FIRST, assistant("writing the memory"), tool], "done").kind is SIDE


def test_an_altered_answer_is_linked_by_the_prompt_before_it_with_less_confidence() -> None:
    book = Book()
    book.say(FIRST, "Use pandas.")
    found = book.say([*FIRST, assistant("Use pandas (edited)."), user("why?")], "Because.")
    assert (found.relation, found.parent_turn_id, found.confidence) == (Relation.NEXT, "t0", 0.8)


def test_a_replaced_beginning_is_a_compaction_when_an_exchange_remains() -> None:
    book = Book()
    book.say(FIRST, "Use pandas.")
    book.say(SECOND, LONG)
    found = book.say(
        [user("Summary of what was said: CSV."), *SECOND[2:], assistant(LONG), user("thanks")], "Sure."
    )
    assert (found.relation, found.parent_turn_id, found.answered_turn_id) == (Relation.COMPACTION, "t1", "t1")
    assert found.messages_after == (user("thanks"),)
    assert found.confidence < 1


def test_a_sliding_window_is_recognised_too() -> None:
    book = Book()
    book.say(FIRST, "Use pandas.")
    book.say(SECOND, LONG)
    assert book.say([*SECOND[2:], assistant(LONG), user("thanks")], "Sure.").parent_turn_id == "t1"


def test_short_common_exchanges_are_not_evidence() -> None:
    book = Book()
    book.say([user("hello you"), assistant("x"), user("hi")], "Hello!")
    found = book.say(
        [user("something else"), assistant("y"), user("hi"), assistant("Hello!"), user("go")], "ok"
    )
    assert found.relation is Relation.FIRST


def test_a_named_session_wins_over_what_the_history_says() -> None:
    book = Book()
    book.say(FIRST, "Use pandas.", session="mine")
    book.say(FIRST, "Use pandas.", session="yours")
    found = book.say(SECOND, "Use csv.", session="yours")
    assert (found.session_id, found.parent_turn_id, found.relation) == ("yours", "t1", Relation.NEXT)


def test_in_a_named_session_a_lone_new_message_follows_its_newest_turn() -> None:
    book = Book()
    book.say(FIRST, "Use pandas.", session="mine")
    found = book.say([user("without pandas")], "Use csv.", session="mine")
    assert (found.relation, found.parent_turn_id, found.answered_turn_id) == (Relation.NEXT, "t0", "t0")
    assert found.messages_after == (user("without pandas"),)
    assert book.say([user("without pandas")], "Use csv!", session="mine").relation is Relation.RETRY


def test_what_is_said_behind_a_reply_of_the_clients_own_is_no_reaction_to_ours() -> None:
    book = Book()
    book.say(FIRST, "Use pandas.", session="mine")
    asked, other = user("without pandas"), assistant("Use polars.")
    sent = [*FIRST, assistant("Use pandas."), asked, other, user("That is wrong.")]
    found = book.say(sent, "Use csv.", session="mine")
    assert (found.parent_turn_id, found.relation) == ("t0", Relation.NEXT)
    assert found.messages_after == (asked,)


words = st.text("abcdefgh ", min_size=1, max_size=30).map(str.strip).filter(bool)


@given(st.lists(st.tuples(st.integers(0, 3), words, words), min_size=1, max_size=25))
def test_interleaved_conversations_always_find_their_own_parent(steps: list[tuple[int, str, str]]) -> None:
    """Four conversations whose first messages differ, continued in any order."""
    book = Book()
    histories: dict[int, list[Any]] = {}
    last: dict[int, str] = {}
    for who, text, answer in steps:
        history = histories.setdefault(who, [])
        history.append(user(f"conversation number {who}: {text}" if not history else text))
        found = book.say(list(history), answer)
        name = f"t{len(book.tips) - 1}"
        assert found.parent_turn_id == last.get(who)
        assert found.relation is (Relation.NEXT if who in last else Relation.FIRST)
        last[who] = name
        history.append(assistant(answer))
