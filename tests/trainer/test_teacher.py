"""The teacher's prompt: the recorded one plus the hint, proven by rendering, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from trainer.hindsight import HINT_TEMPLATE, REACTION_TEMPLATE
from trainer.teacher import teacher_prompt

from serving.openai_server.prompts import render_chat
from serving.openai_server.vocabulary import Vocabulary
from serving.prompt_window import PromptWindow, fit_prompt
from store.errors import AlignmentError
from trainer.policy import LocalPolicy

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
}


def ask(
    policy: LocalPolicy,
    messages: Sequence[dict[str, Any]],
    recorded: Sequence[int],
    *,
    hint: str = "shorter please",
    is_reaction: bool = True,
    request: dict[str, Any] | None = None,
    max_tokens: int = 2000,
    others: Sequence[str] = (),
    window: PromptWindow | None = None,
) -> str:
    ids = teacher_prompt(
        policy.render,
        messages=messages,
        request=request or {},
        hint=hint,
        is_reaction=is_reaction,
        recorded_prompt_ids=recorded,
        max_tokens=max_tokens,
        others=others,
        window=window,
    )
    return str(policy.tokenizer.decode(ids))


def test_the_teacher_sees_the_recorded_prompt_with_the_hint_at_the_last_user_message(
    policy: LocalPolicy,
) -> None:
    messages = [
        {"role": "system", "content": "Be kind."},
        *QUESTION,
        {"role": "assistant", "content": "Paris."},
        {"role": "user", "content": "And of Spain?"},
    ]
    text = ask(policy, messages, policy.render(messages))
    expected = (
        "<|im_start|>system\nBe kind.<|im_end|>\n"
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
        "<|im_start|>assistant\nParis.<|im_end|>\n"
        "<|im_start|>user\nAnd of Spain?" + REACTION_TEMPLATE.format(hint="shorter please") + "<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert text == expected
    judged = ask(policy, messages, policy.render(messages), is_reaction=False)
    assert HINT_TEMPLATE.format(hint="shorter please") in judged


def test_a_prompt_that_no_rendering_gives_drops_the_turn(policy: LocalPolicy) -> None:
    recorded = policy.render(QUESTION)
    for wrong in (recorded[:-1], [*recorded, 5], recorded[1:], policy.render(QUESTION, TOOLS)):
        with pytest.raises(AlignmentError, match="template mismatch"):
            ask(policy, QUESTION, wrong)
    with pytest.raises(AlignmentError, match="did not say"):
        ask(policy, QUESTION, [])


@pytest.mark.parametrize("joiner", ["\n", ""])
def test_text_in_parts_is_recognised_however_the_engine_joins_it(policy: LocalPolicy, joiner: str) -> None:
    parts = [{"type": "text", "text": "What is the capital"}, {"type": "text", "text": "of France?"}]
    recorded = policy.render([{"role": "user", "content": joiner.join(p["text"] for p in parts)}])
    text = ask(policy, [{"role": "user", "content": parts}], recorded)
    assert text.startswith(f"<|im_start|>user\nWhat is the capital{joiner}of France?")
    assert "shorter please" in text


def test_tool_arguments_are_recognised_as_object_and_as_string(policy: LocalPolicy) -> None:
    conversation: list[dict[str, Any]] = [
        *QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]
    for arguments in ('{"city": "Paris"}', {"city": "Paris"}):
        call = {**CALL, "function": {"name": "get_weather", "arguments": arguments}}
        for content in ("", None):
            rendered = [
                QUESTION[0],
                {**conversation[1], "content": content, "tool_calls": [call]},
                conversation[2],
            ]
            text = ask(policy, conversation, policy.render(rendered, TOOLS), request={"tools": TOOLS})
            # the hint is with the person's words, not with the tool's
            assert text.index("shorter please") < text.rindex("<tool_call>")


def test_what_the_built_in_engine_is_given_is_recognised_in_every_form_clients_write(
    policy: LocalPolicy,
) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "developer", "content": [{"type": "text", "text": "Be kind."}]},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Weather"}, {"type": "text", "text": "in Paris?"}],
        },
        {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None, "audio": None},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "rain"}]},
        {"role": "assistant", "content": "It rains.", "tool_calls": None},
        {"role": "user", "content": "Thanks. And in Rome?", "name": "Ada"},
        {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "get_weather", "arguments": ""}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "sun"},
        {
            "role": "assistant",
            "content": [{"type": "refusal", "refusal": "I will not say."}],
            "tool_calls": [],
        },
        {"role": "user", "content": "Say it."},
    ]
    served = render_chat(Vocabulary(policy.tokenizer, policy.vocabulary_size), messages, tools=TOOLS)
    text = ask(policy, messages, served, request={"tools": TOOLS})
    assert text.count("shorter please") == 1
    assert "Say it.\n\n[The user" in text


def test_tools_may_have_been_left_out_of_the_prompt(policy: LocalPolicy) -> None:
    recorded = policy.render(QUESTION)
    for choice in ("none", "auto"):
        assert "get_weather" not in ask(
            policy, QUESTION, recorded, request={"tools": TOOLS, "tool_choice": choice}
        )


def test_only_the_named_tool_may_have_been_shown(policy: LocalPolicy) -> None:
    other = {"type": "function", "function": {"name": "send_mail", "parameters": {"type": "object"}}}
    named = {
        "tools": [*TOOLS, other],
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
    }
    text = ask(policy, QUESTION, policy.render(QUESTION, TOOLS), request=named)
    assert "get_weather" in text
    assert "send_mail" not in text


def test_template_arguments_of_the_request_reach_the_template(policy: LocalPolicy) -> None:
    seen = []

    def render(messages: Any, tools: Any = None, **template: Any) -> list[int]:
        seen.append(template)
        return policy.render(messages, tools)

    teacher_prompt(
        render,
        messages=QUESTION,
        request={"chat_template_kwargs": {"enable_thinking": False}},
        hint="x",
        is_reaction=True,
        recorded_prompt_ids=policy.render(QUESTION),
        max_tokens=2000,
    )
    assert seen == [{"enable_thinking": False}] * 2


def test_no_user_message_and_an_empty_hint_drop_the_turn(policy: LocalPolicy) -> None:
    system = [{"role": "system", "content": "Say hello."}]
    with pytest.raises(AlignmentError, match="no user message"):
        ask(policy, system, policy.render(system))
    with pytest.raises(AlignmentError, match="teaches nothing"):
        ask(policy, QUESTION, policy.render(QUESTION), hint="  ")


def long_session(turns: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be kind."}]
    for i in range(turns):
        messages += [
            {"role": "user", "content": f"Question {i}?"},
            {"role": "assistant", "content": f"Answer {i}."},
        ]
    return [*messages, {"role": "user", "content": "The last question?"}]


def test_a15_a_prompt_without_room_loses_whole_old_exchanges_and_never_its_end(policy: LocalPolicy) -> None:
    messages = long_session(8)
    recorded = policy.render(messages)
    whole = ask(policy, messages, recorded)
    ending = (
        "<|im_start|>user\nThe last question?"
        + REACTION_TEMPLATE.format(hint="shorter please")
        + "<|im_end|>\n<|im_start|>assistant\n"
    )
    hint_alone = len(policy.encode("<|im_start|>system\nBe kind.<|im_end|>\n" + ending))
    for room in range(len(policy.encode(whole)), hint_alone - 1, -7):
        text = ask(policy, messages, recorded, max_tokens=room)
        assert len(policy.encode(text)) <= room
        assert text.startswith("<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n")
        assert text.endswith(ending)
        kept = [i for i in range(8) if f"Answer {i}." in text]
        assert kept == list(range(8 - len(kept), 8))  # the newest ones
        assert [i for i in range(8) if f"Question {i}?" in text] == kept
    with pytest.raises(AlignmentError, match="no room for the hint"):
        ask(policy, messages, recorded, max_tokens=hint_alone - 1)


def test_a_long_run_of_tool_calls_loses_its_oldest_calls_with_their_results(policy: LocalPolicy) -> None:
    messages: list[dict[str, Any]] = [*QUESTION]
    for i in range(6):
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": f"result {i}"},
        ]
    recorded = policy.render(messages)
    text = ask(policy, messages, recorded)
    shorter = ask(policy, messages, recorded, max_tokens=len(policy.encode(text)) - 1)
    assert "result 0" not in shorter
    assert "result 1" in shorter
    assert shorter.count("<tool_call>") == shorter.count("result ") == 5
    assert shorter.startswith("<|im_start|>user\nWhat is the capital of France?")
    with pytest.raises(AlignmentError, match="no room"):
        ask(policy, messages, recorded, max_tokens=40)


def test_several_hints_become_messages_of_their_own_the_turns_own_last(policy: LocalPolicy) -> None:
    text = ask(policy, QUESTION, policy.render(QUESTION), others=["no emoji", "in Spanish"])
    hints = "".join(
        f"<|im_start|>user\n{hint}<|im_end|>\n<|im_start|>assistant\nOK.<|im_end|>\n"
        for hint in ("no emoji", "in Spanish", "shorter please")
    )
    assert text.startswith(hints + "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n")
    assert text.endswith("<|im_start|>assistant\n")
    assert text.count("shorter please") == 1


def test_hints_without_room_go_the_oldest_first_and_the_turns_own_never(policy: LocalPolicy) -> None:
    recorded = policy.render(QUESTION)
    alone = ask(policy, QUESTION, recorded)
    others = ["no emoji " * 10, "in Spanish"]
    size = len(
        policy.tokenizer.encode(ask(policy, QUESTION, recorded, others=others), add_special_tokens=False)
    )
    assert "no emoji" in ask(policy, QUESTION, recorded, others=others, max_tokens=size)
    fewer = ask(policy, QUESTION, recorded, others=others, max_tokens=size - 1)
    assert "no emoji" not in fewer
    assert fewer.index("in Spanish") < fewer.index("shorter please")
    room = len(policy.tokenizer.encode(alone, add_special_tokens=False))
    bigger = ["no emoji " * 100, "in Spanish " * 100]
    assert ask(policy, QUESTION, recorded, others=bigger, max_tokens=room) == alone


def test_a_template_without_such_conversations_gets_the_turns_own_hint(policy: LocalPolicy) -> None:
    def strict(messages: Sequence[dict[str, Any]], tools: Any = None, **more: Any) -> list[int]:
        if len(messages) > 1:
            raise AlignmentError("one message at most")
        return list(policy.render(messages, tools, **more))

    ids = teacher_prompt(
        strict,
        messages=QUESTION,
        request={},
        hint="shorter please",
        is_reaction=True,
        recorded_prompt_ids=policy.render(QUESTION),
        max_tokens=2000,
        others=["no emoji"],
    )
    assert policy.tokenizer.decode(ids) == ask(policy, QUESTION, policy.render(QUESTION))


@pytest.mark.parametrize("others", [(), ("no emoji", "in Spanish")])
def test_the_teacher_reads_the_part_of_a_long_prompt_that_the_policy_read(
    policy: LocalPolicy, others: Sequence[str]
) -> None:
    messages = [{"role": "system", "content": "You are a patient helper. " * 400}, *QUESTION]
    tools = [*TOOLS, *({**TOOLS[0], "function": {"name": f"other_{i}"}} for i in range(60))]
    whole = policy.render(messages, tools)
    recorded = fit_prompt(policy.render, messages, tools, ids=whole, room=600).ids
    assert len(recorded) <= 600 < 800 < len(whole)
    request = {"tools": tools}
    text = ask(
        policy, messages, recorded, request=request, others=others, window=PromptWindow(longest=700, room=600)
    )
    plain = str(policy.tokenizer.decode(recorded))
    before, question, after = plain.partition("<|im_start|>user\n" + str(QUESTION[0]["content"]))
    assert question
    assert text.startswith(before)
    assert text.endswith(after)
    assert "shorter please" in text
    for window in (None, PromptWindow(longest=700, room=300)):
        with pytest.raises(AlignmentError, match="template mismatch"):
            ask(policy, messages, recorded, request=request, window=window)


def test_a_long_reply_to_a_long_prompt_leaves_room_for_the_whole_hint(policy: LocalPolicy) -> None:
    messages = [{"role": "system", "content": "You are a patient helper. " * 400}, *QUESTION]
    whole = policy.render(messages, TOOLS)
    window = PromptWindow(longest=700, room=600)
    recorded = fit_prompt(policy.render, messages, TOOLS, ids=whole, room=window.room).ids
    for room in (len(recorded) - 8, 300, 200):
        text = ask(policy, messages, recorded, request={"tools": TOOLS}, max_tokens=room, window=window)
        assert len(policy.tokenizer(text, add_special_tokens=False)["input_ids"]) <= room
        assert str(QUESTION[0]["content"]) + REACTION_TEMPLATE.format(hint="shorter please") in text
        assert text.endswith("<|im_start|>assistant\n")
    for room, some_window in ((20, window), (300, None)):
        with pytest.raises(AlignmentError):
            ask(policy, messages, recorded, request={"tools": TOOLS}, max_tokens=room, window=some_window)
