"""The chat panel names the version that answered, and asks another one beside it only where that shows a difference."""

from dataclasses import dataclass, field
from typing import Any, cast

from dashboard.chat import ChatPanel
from dashboard.gateway import Gateway

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
