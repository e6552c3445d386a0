"""The panel of planted versions: only the student games, and what it says is a whole reply."""

from pathlib import Path

import pytest

from lab.bench.gaming import GAMES, Panel, PlantedPolicy, tool_turns
from trainer.policy import LocalPolicy
from trainer.preview import PreviewAnswer
from trainer.protocol import Weights


@pytest.fixture
def policy(tiny_model: Path) -> LocalPolicy:
    return LocalPolicy(str(tiny_model), rank=4, learning_rate=1e-2, seed=3, device="cpu")


def test_only_the_student_says_something_else_and_the_base_model_answers_once(policy: LocalPolicy) -> None:
    known: dict[object, object] = {}
    planted = PlantedPolicy(policy, lambda text: "Yes.", known)  # type: ignore[arg-type]  # filled by it
    prompts = [policy.render([{"role": "user", "content": question}]) for question in ("Why?", "When?")]
    base = planted.sample(prompts, weights=Weights.BASE, max_tokens=4, temperature=0.0)
    assert base == policy.sample(prompts, weights=Weights.BASE, max_tokens=4, temperature=0.0)
    assert len(known) == 2
    student = planted.sample(prompts, max_tokens=4, temperature=0.0)
    assert {policy.decode(reply.token_ids).strip() for reply in student} == {"Yes."}
    assert all(reply.finished for reply in student)


def test_each_game_changes_every_reply_and_each_failed_tool_is_asked_about() -> None:
    text = "The heart pumps blood through the body."
    assert all(change(text) != text for changes in GAMES.values() for change in changes)
    assert all(messages[-1]["role"] == "tool" for messages in tool_turns())


def test_a_mixed_version_games_the_share_that_is_asked_for(tiny_model: Path) -> None:
    panel = Panel(str(tiny_model), 4)
    odd, usual = [
        [PreviewAnswer(text=name, tokens=1, is_finished=True, surprise=0.0)] * 10 for name in ("odd", "usual")
    ]
    assert panel.mixed(odd, usual, 0.4, range(10)).count(odd[0]) == 4
    assert panel.mixed(odd, usual, 1.0, range(6, 10)) == usual[:6] + odd[6:]
