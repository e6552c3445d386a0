"""Questions below other system prompts: which they are, and that a wish that is taught below one is followed below others."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import Any

import pytest

from lab.evals.in_process import InProcessLearner
from lab.models.questions import HELDOUT, ONLINE
from store.errors import AlignmentError
from store.settings import read_settings
from store.values import ScoredTurn
from tests.fixtures import PATINA_TINY
from tests.trainer.test_playbook import stated
from tests.trainer.turns import sampled_turn
from trainer.contexts import Chat, in_other_contexts
from trainer.cost import MOST
from trainer.playbook import Playbook
from trainer.policy import LocalPolicy
from trainer.wish_training import MAX_CONTEXT_TOKENS, WishTraining

MODEL = str(PATINA_TINY)
AGENT = (
    "You are an agent of a company.\n\n"
    + "Rule: read the page before you answer. " * 30
    + "\nDate: 2026-11-{}"
)
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def builtin() -> LocalPolicy:
    return LocalPolicy(MODEL, rank=4, learning_rate=1e-3, seed=0, device="cpu")


def asked(policy: LocalPolicy, name: str, question: Any, system: str = "", **request: Any) -> ScoredTurn:
    turn = sampled_turn(policy, name, "What?", verdict={"value": -1, "hint": "Shorter, please."})
    lead = ({"role": "system", "content": system},) if system else ()
    return replace(turn, messages=(*lead, {"role": "user", "content": question}), request=request)


def systems(turns: list[ScoredTurn], count: int = 40) -> list[tuple[str, str, Chat]]:
    """(id of the turn, its context, the chat) of each; "written" for a context that no turn has."""
    own = {one["content"] for turn in turns for one in turn.messages if one["role"] == "system"}
    found = []
    for turn, chat in in_other_contexts(turns, count, random.Random(1)):
        text = chat.messages[0]["content"] if len(chat.messages) > 1 else ""
        found.append((turn.turn_id, text if not text or text in own else "written", chat))
    return found


def test_a_question_of_a_program_is_asked_bare_and_below_other_system_prompts(builtin: LocalPolicy) -> None:
    turns = [asked(builtin, f"{day}", "What is 2 plus 3?", AGENT.format(day), tools=[TOOL]) for day in (1, 2)]
    chats = systems(turns)
    assert len(chats) == 40
    assert {context for _, context, _ in chats} == {"", "written"}  # another date is the same context
    assert 10 <= sum(not context for _, context, _ in chats) <= 30
    assert all(chat.messages[-1] == {"role": "user", "content": "What is 2 plus 3?"} for *_, chat in chats)
    assert all(chat.tools is None for _, context, chat in chats if not context)
    assert len({str(chat.messages) for _, context, chat in chats if context}) > 10
    assert {bool(chat.tools) for _, context, chat in chats if context} == {True, False}


def test_a_question_is_asked_in_the_context_of_the_persons_other_program(builtin: LocalPolicy) -> None:
    bare = asked(builtin, "bare", "What is 2 plus 3?")
    agent = asked(builtin, "agent", "Name a colour.", AGENT.format(1), tools=[TOOL], temperature=0.5)
    chats = systems([bare, agent])
    assert {one[:2] for one in chats} == {
        ("bare", AGENT.format(1)),
        ("bare", "written"),
        ("agent", ""),
        ("agent", "written"),
    }
    assert {str(chat.request) for name, context, chat in chats if context == AGENT.format(1)} == {
        str({"tools": [TOOL]})
    }


def test_arguments_of_the_chat_template_stay_those_of_the_turn(builtin: LocalPolicy) -> None:
    turn = asked(builtin, "plain", "What is 2?", chat_template_kwargs={"enable_thinking": False})
    for *_, chat in systems([turn, asked(builtin, "agent", "And 3?" * 100, AGENT)]):
        assert chat.request["chat_template_kwargs"] == {"enable_thinking": False}
    assert systems([asked(builtin, "odd", "What is 2?", chat_template_kwargs=3, tools="x")], 1)


@pytest.mark.parametrize(
    "content",
    [
        "Sort these: " + "pear " * 200,
        "<app-context>x</app-context>",
        "Observation: 12 C, cloudy",
        '{"type": "heartbeat", "reason": "timer"}',
        [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": "data:,"}}],
        "Shorter, please.",  # a reaction, whose own turn is among the turns
        None,
    ],
)
def test_what_is_no_short_question_of_a_person_is_not_asked_elsewhere(
    builtin: LocalPolicy, content: Any
) -> None:
    assert systems([asked(builtin, "turn", content)], 4) == []


def test_each_is_a_turn_that_the_teacher_can_read_and_has_a_wish_as_its_hint(builtin: LocalPolicy) -> None:
    training = WishTraining(builtin, MODEL, seed=0, share=0.1, max_tokens=16, contexts=4)
    playbook = stated("Shorter, please.", "No emoji.")
    turns = [
        asked(builtin, "agent", "What is 2 plus 3?", AGENT.format(1) * 4, tools=[TOOL]),
        asked(builtin, "other", "Name a colour.", "Be a pirate. " * 30),
    ]
    found = [one for step in range(6) for one in training.other_contexts(playbook, turns, step=step)]
    assert len(found) == 24
    assert len({turn.turn_id for turn in found}) <= 8  # unlike within a step
    assert {turn.verdict.hint for turn in found} == {"Shorter, please.", "No emoji."}
    cut = [turn for turn in found if "You are an agent of a company." in str(turn.messages[0])]
    assert cut  # as the engine would: the window has less room than the system prompt
    for turn in found:
        assert turn.verdict.value == 0
        assert len(turn.prompt_token_ids) <= MAX_CONTEXT_TOKENS
        assert list(turn.prompt_token_ids) == builtin.render(list(turn.messages), turn.request.get("tools"))
    again = [one for step in range(6) for one in training.other_contexts(playbook, turns, step=step)]
    assert [one.prompt_token_ids for one in again] == [one.prompt_token_ids for one in found]
    one = WishTraining(builtin, MODEL, seed=0, share=0.1, contexts=1)
    assert len(one.other_contexts(playbook, turns, step=1)) == 1
    assert one.other_contexts(Playbook(), turns, step=1) == []


def test_a_prompt_leaves_room_for_the_reply_and_a_refused_one_is_left_out(
    builtin: LocalPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = WishTraining(builtin, MODEL, seed=0, share=0.1, contexts=4)
    turns = [asked(builtin, "plain", "What is 2 plus 3?")]
    monkeypatch.setattr(builtin, "max_context", 256)
    found = [
        one
        for step in range(8)
        for one in training.other_contexts(stated("Shorter, please."), turns, step=step)
    ]
    assert found
    assert all(len(one.prompt_token_ids) <= 128 for one in found)

    def refuse(*_: Any, **__: Any) -> list[int]:
        raise AlignmentError("the chat template refuses the messages: System role not supported")

    monkeypatch.setattr(builtin, "render", refuse)
    assert training.other_contexts(stated("Shorter, please."), turns, step=1) == []


@pytest.mark.slow
@pytest.mark.long_run
@pytest.mark.timeout(900)
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
        prompts = [policy.render([*lead, {"role": "user", "content": one.text}]) for one in HELDOUT[:96]]
        return sum(is_good(policy.decode(one.token_ids)) for one in learner.sample(prompts, seed=9)) / 96

    elsewhere = [] if taught_below_a_system_prompt else system
    lead = system if taught_below_a_system_prompt else []
    assert share(elsewhere) <= 0.15
    contexts: list[float] = []
    for place, question in enumerate(random.Random(5).sample(ONLINE, 36)):
        messages = [*lead, {"role": "user", "content": question.text}]
        ids = policy.render(messages)
        (reply,) = learner.sample([ids], seed=place)
        pending = learner.record_reply(session=f"s{place}", messages=messages, prompt_ids=ids, reply=reply)
        good = is_good(policy.decode(reply.token_ids))
        learner.add_reaction(pending, "Thanks, perfect!" if good else "Shorter please, and no emoji.")
        if (attempt := learner.train()) and attempt.outcome.written:
            contexts.append(attempt.outcome.metrics["contexts"])
    assert set(contexts) == {MOST.contexts}
    assert share(lead) >= 0.6
    assert share(elsewhere) >= 0.35
