"""The chat panel names the version that answered, and asks another one beside it only where that shows a difference."""

from dataclasses import dataclass, field
from typing import Any, cast

from dashboard.chat import ChatPanel
from dashboard.gateway import Gateway
from store.examples import COMPLAINTS, HELD_OUT, QUESTIONS, THANKS
from store.settings import REPOSITORY

POLICY = "tiny"


@dataclass
class ScriptedGateway:
    """Answers each model with its name, as a turn of its own.

    Attributes:
        asked: (model, whether it is learnt from) of each request.
    """

    asked: list[tuple[str, bool]] = field(default_factory=list)

    async def post(
        self, path: str, body: Any, *, trains: bool = True
    ) -> tuple[dict[str, Any], dict[bytes, bytes]]:
        self.asked.append((body["model"], trains))
        message = {"content": f"I am {body['model']}"}
        return {"model": POLICY, "choices": [{"message": message}]}, {b"x-patina-turn": b"t"}


def make_panel(answers: list[str]) -> tuple[ChatPanel, ScriptedGateway]:
    """Return a panel whose record answers each look for a turn's version with the next answer."""
    gateway = ScriptedGateway()

    async def find_version(turn_id: str) -> str:
        assert turn_id == "t"
        return answers.pop(0)

    return ChatPanel(cast(Gateway, gateway), POLICY, find_version), gateway


async def test_the_answer_has_the_version_that_the_record_names_once_it_is_recorded() -> None:
    panel, gateway = make_panel(["", "tiny@3"])
    assert await panel.send("Hello", "", "0") == ""
    (one,) = panel.exchanges
    assert (one.version, one.answer) == ("tiny@3", "I am tiny")
    assert one.beside == ("tiny@0", "I am tiny@0")
    assert gateway.asked == [("tiny", True), ("tiny@0", False)]


async def test_a_version_is_not_shown_beside_itself() -> None:
    panel, gateway = make_panel(["tiny@0", "tiny@2"])
    await panel.send("Hello", "", "0")
    await panel.send("Hello", "2", "2")
    assert [one.beside for one in panel.exchanges] == [None, None]
    assert gateway.asked == [("tiny", True), ("tiny@2", True)]


async def test_questions_are_offered_first_and_reactions_with_the_questions_that_are_left_after_a_reply() -> (
    None
):
    panel, _ = make_panel(["tiny@0"])
    ((title, texts),) = panel.suggestions()
    assert (title, texts) == ("Ask something", QUESTIONS)
    assert len(texts) == 5
    await panel.send(QUESTIONS[2], "", "")
    (_, reactions), (_, left) = panel.suggestions()
    assert reactions == (*COMPLAINTS, THANKS)
    assert left == (*QUESTIONS[:2], *QUESTIONS[3:])
    panel.clear()
    assert len(panel.suggestions()) == 1


async def test_no_empty_row_is_offered_once_all_was_asked() -> None:
    panel, _ = make_panel(["tiny@0"] * len(QUESTIONS))
    for question in QUESTIONS:
        await panel.send(question, "", "")
    assert [title for title, _ in panel.suggestions()] == ["React to the reply"]


def test_no_question_that_is_offered_is_in_a_set_that_learning_is_measured_with() -> None:
    files = [
        path
        for folder in ("evals", "lab", "models", "trainer")
        for path in (REPOSITORY / folder).rglob("*.*")
    ]
    sets = [
        path
        for path in files
        if path.suffix in (".py", ".toml", ".json", ".jsonl") and path.stat().st_size < 2_000_000
    ]
    words = "\n".join(path.read_text(encoding="utf-8") for path in sets).lower()
    assert words
    assert [one for one in (*QUESTIONS, *HELD_OUT) if one.lower() in words] == []
