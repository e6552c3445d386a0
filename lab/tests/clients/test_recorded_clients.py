"""The scripted backend labels what the script announced, and the recorded files hold what the note counts."""

from pathlib import Path

import pytest

from lab.clients.record import Script
from lab.clients.score import FOLDER, read

RULES = [{"reason": "title", "marker": "Name the chat", "in": "last", "answers": ["One", "Two"]}]


def asked(*texts: str) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": text} for text in texts]}


def test_the_persons_turn_and_its_tool_loop_are_main_and_a_marked_request_is_side() -> None:
    script = Script(RULES)
    words = script.say({"session": "a", "text": "Bread?", "reply": "Rye.", "calls": [[["look", {}]]]})
    first, call = script.decide("a", asked(words))
    side, title = script.decide("a", asked(words, "Name the chat"))
    second, reply = script.decide("a", asked(words))
    assert first == {"session": "a", "kind": "main", "reason": "user_turn", "user_text": "Bread?"}
    assert side == {"session": "a", "kind": "side", "reason": "title"}
    assert second == {"session": "a", "kind": "main", "reason": "tool_result_continuation"}
    assert (call, title, reply) == ({"calls": [["look", {}]]}, "One", "Rye.")
    assert script.left() == {"unasked": [], "unsaid": []}


def test_what_was_said_and_not_asked_and_asked_and_not_said_is_named() -> None:
    script = Script(RULES)
    script.say({"session": "a", "text": "Bread?", "reply": "Rye."})
    script.say({"session": "a", "text": "Cake?", "reply": "Plum."})
    script.decide("a", asked("Cake?"))
    script.decide("a", asked("More"))
    left = script.left()
    assert left["unasked"] == ["a: Rye."]
    assert [one.split(":")[0] for one in left["unsaid"]] == ["a"]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.xz")), ids=lambda path: path.name)
def test_each_file_has_labelled_requests_of_several_sessions(path: Path) -> None:
    labels = [row.label or {} for row in read(path)]
    assert {label["kind"] for label in labels} <= {"main", "side", "none"}
    assert all(label["session"] for label in labels if label["kind"] != "none")
    assert len({label["session"] for label in labels if label["kind"] == "main"}) >= 4
