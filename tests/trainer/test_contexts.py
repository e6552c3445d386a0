"""Questions below other system prompts: which they are, and that a wish that is taught below one is followed below others."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import Any

import pytest

from evals.in_process import InProcessLearner
from models.questions import HELDOUT, ONLINE
from store.settings import BUILTIN_FOLDER, read_settings
from store.values import ScoredTurn
from tests.trainer.test_playbook import stated
from tests.trainer.turns import sampled_turn
from trainer.contexts import Chat, in_other_contexts
from trainer.policy import LocalPolicy
from trainer.wish_training import MAX_CONTEXT_TOKENS, WishTraining

BUILTIN = str(BUILTIN_FOLDER)
AGENT = (
    "You are an agent of a company.\n\n"
    + "Rule: read the page before you answer. " * 30
    + "\nDate: 2026-11-{}"
)
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def builtin() -> LocalPolicy:
    return LocalPolicy(BUILTIN, rank=4, learning_rate=1e-3, seed=0, device="cpu")


def asked(policy: LocalPolicy, name: str, question: str, system: str = "", tools: Any = None) -> ScoredTurn:
    turn = sampled_turn(policy, name, question, verdict={"value": -1, "hint": "Shorter, please."})
    lead = ({"role": "system", "content": system},) if system else ()
    return replace(turn, messages=(*lead, *turn.messages), request={"tools": tools} if tools else {})


def systems(chats: list[tuple[ScoredTurn, Chat]]) -> list[str]:
    return [chat.messages[0]["content"] if len(chat.messages) > 1 else "" for _, chat in chats]


def test_a_question_of_a_program_is_asked_bare_and_below_other_system_prompts(builtin: LocalPolicy) -> None:
    turns = [asked(builtin, f"turn {day}", "What is 2 plus 3?", AGENT.format(day), [TOOL]) for day in (1, 2)]
    chats = in_other_contexts(turns, 8, random.Random(1))
    assert [chat.messages[-1] for _, chat in chats] == [{"role": "user", "content": "What is 2 plus 3?"}] * 8
    found = systems(chats)
    assert found[::2] == [""] * 4  # another date is the same context
    assert all(found[1::2])
    assert len(set(found[1::2])) == 4
    assert all(chat.tools is None for _, chat in chats[::2])


def test_a_bare_question_is_asked_in_the_context_of_the_persons_other_program(builtin: LocalPolicy) -> None:
    bare = asked(builtin, "bare", "What is 2 plus 3?")
    agent = asked(builtin, "agent", "Name a colour.", AGENT.format(1), [TOOL])
    chats = in_other_contexts([bare, agent], 40, random.Random(1))
    kinds = {
        (turn.turn_id, text if text in ("", AGENT.format(1)) else "written")
        for (turn, _), text in zip(chats, systems(chats), strict=True)
    }
    assert kinds == {("bare", AGENT.format(1)), ("bare", "written"), ("agent", ""), ("agent", "written")}
    assert all(
        (chat.tools == [TOOL])
        for (_, chat), text in zip(chats, systems(chats), strict=True)
        if text == AGENT.format(1)
    )


def test_long_questions_and_turns_without_typed_words_are_not_asked_elsewhere(builtin: LocalPolicy) -> None:
    turns = [
        asked(builtin, "long", "Sort these: " + "pear " * 200),
        asked(builtin, "none", "<app-context>x</app-context>"),
    ]
    assert in_other_contexts(turns, 4, random.Random(1)) == []
    assert in_other_contexts([], 4, random.Random(1)) == []


def test_each_is_a_turn_that_the_teacher_can_read_and_has_a_wish_as_its_hint(builtin: LocalPolicy) -> None:
    training = WishTraining(builtin, BUILTIN, seed=0, share=0.1, max_tokens=16)
    turns = [asked(builtin, "agent", "What is 2 plus 3?", AGENT.format(1) * 4, [TOOL])]
    found = training.other_contexts(stated("Shorter, please."), turns, step=3)
    assert len(found) == 4
    assert len({turn.turn_id for turn in found}) == 4
    for turn in found:
        assert turn.verdict.hint == "Shorter, please."
        assert turn.verdict.value == 0
        assert len(turn.prompt_token_ids) <= MAX_CONTEXT_TOKENS
        assert list(turn.prompt_token_ids) == builtin.render(list(turn.messages), turn.request.get("tools"))
    assert [
        one.prompt_token_ids for one in training.other_contexts(stated("Shorter, please."), turns, step=3)
    ] == [one.prompt_token_ids for one in found]
    assert (
        WishTraining(builtin, BUILTIN, seed=0, share=0.1, contexts=1).other_contexts(
            stated("Shorter, please."), turns, step=3
        )
        != []
    )


@pytest.mark.slow
@pytest.mark.long_run
@pytest.mark.parametrize("taught_below_a_system_prompt", [True, False])
def test_a_wish_that_is_stated_to_one_program_is_followed_in_another(
    taught_below_a_system_prompt: bool,
) -> None:
    """Without such samples .09 of the bare replies follow what was taught below a system prompt, and .06 the other way round."""
    learner = InProcessLearner(read_settings({"threads": 1, "seed": 3}))
    policy = learner.policy
    system = [{"role": "system", "content": AGENT.format(1)}]

    def is_good(text: str) -> bool:
        return len(text.split()) <= 12 and not re.search("[\U0001f000-\U0001faff\u2600-\u27bf✨]", text)

    def share(lead: list[dict[str, Any]]) -> float:
        prompts = [policy.render([*lead, {"role": "user", "content": one.text}]) for one in HELDOUT[:24]]
        return sum(is_good(policy.decode(one.token_ids)) for one in learner.sample(prompts, seed=9)) / 24

    elsewhere = [] if taught_below_a_system_prompt else system
    lead = system if taught_below_a_system_prompt else []
    assert share(elsewhere) <= 0.15
    for place, question in enumerate(random.Random(5).sample(ONLINE, 28)):
        messages = [*lead, {"role": "user", "content": question.text}]
        ids = policy.render(messages)
        (reply,) = learner.sample([ids], seed=place)
        pending = learner.record_reply(session=f"s{place}", messages=messages, prompt_ids=ids, reply=reply)
        good = is_good(policy.decode(reply.token_ids))
        learner.add_reaction(pending, "Thanks, perfect!" if good else "Shorter please, and no emoji.")
        learner.train()
    assert share(lead) >= 0.7
    assert share(elsewhere) >= 0.3
