"""The prompts of a turn with wishes and without: proven by the recorded ids, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from serving.openai_server.prompts import render_chat
from serving.openai_server.vocabulary import Vocabulary
from store.errors import AlignmentError
from store.values import Completion, LogprobMode, ScoredTurn
from tests.making import make_verdict
from trainer.policy import LocalPolicy
from trainer.prompt_pair import prompt_pair
from wire.wish_text import PLACES, add_wishes, prompt_text

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
}
WISH = "Shorter, please."


def turn_of(
    messages: Sequence[dict[str, Any]],
    recorded: Sequence[int],
    *,
    request: dict[str, Any] | None = None,
    wish_text: str = "",
    wish_place: str = "behind",
) -> ScoredTurn:
    return ScoredTurn(
        turn_id="t",
        session_id="s",
        turn_index=0,
        policy="mine",
        key_name="key",
        adapter_version=0,
        messages=tuple(messages),
        request=request or {},
        completion=Completion(text="x", token_ids=(7,), sampling_logprobs=(-0.5,)),
        prompt_token_ids=tuple(recorded),
        temperature=1.0,
        logprob_mode=LogprobMode.RAW,
        verdict=make_verdict("t"),
        next_text="",
        created_at=0.0,
        wish_text=wish_text,
        wish_place=wish_place,
    )


def ask(
    policy: LocalPolicy,
    messages: Sequence[dict[str, Any]],
    recorded: Sequence[int],
    *,
    text: str = WISH,
    place: str = "behind",
    **turn: Any,
) -> tuple[str, str]:
    """The two prompts as text: without wishes and with them."""
    pair = prompt_pair(policy.render, turn_of(messages, recorded, **turn), text=text, place=place)
    return str(policy.tokenizer.decode(pair.plain)), str(policy.tokenizer.decode(pair.wished))


def test_the_teacher_reads_the_recorded_prompt_with_the_wishes_behind_the_newest_user_message(
    policy: LocalPolicy,
) -> None:
    messages = [
        {"role": "system", "content": "Be kind."},
        *QUESTION,
        {"role": "assistant", "content": "Paris."},
        {"role": "user", "content": "And of Spain?"},
    ]
    recorded = policy.render(messages)
    plain, wished = ask(policy, messages, recorded)
    assert plain == policy.tokenizer.decode(recorded)
    assert wished == (
        "<|im_start|>system\nBe kind.<|im_end|>\n"
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
        "<|im_start|>assistant\nParis.<|im_end|>\n"
        "<|im_start|>user\nAnd of Spain?\n\nPreferences:\n- Shorter, please.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    _, system = ask(policy, messages, recorded, place="system")
    assert system == plain.replace("Be kind.", "Be kind.\n\nPreferences:\n- Shorter, please.")
    _, alone = ask(policy, QUESTION, policy.render(QUESTION), place="system")
    assert alone.startswith(
        "<|im_start|>system\nPreferences:\n- Shorter, please.<|im_end|>\n<|im_start|>user\nWhat is"
    )


@pytest.mark.parametrize("served", PLACES)
@pytest.mark.parametrize("place", PLACES)
def test_what_the_gateway_added_is_taken_out_for_the_student_and_replaced_by_the_wishes_of_today(
    policy: LocalPolicy, served: str, place: str
) -> None:
    recorded = policy.render(add_wishes(QUESTION, "No lists.", served))
    plain, wished = ask(policy, QUESTION, recorded, place=place, wish_text="No lists.", wish_place=served)
    assert plain == policy.tokenizer.decode(policy.render(QUESTION))
    assert wished == policy.tokenizer.decode(policy.render(add_wishes(QUESTION, WISH, place)))
    assert "No lists." in policy.tokenizer.decode(recorded)
    assert "No lists." not in plain + wished


def test_without_wishes_both_prompts_are_the_recorded_one(policy: LocalPolicy) -> None:
    recorded = policy.render(QUESTION)
    pair = prompt_pair(policy.render, turn_of(QUESTION, recorded), text="", place="behind")
    assert pair.plain == pair.wished == tuple(recorded)


def test_a_prompt_that_no_rendering_gives_drops_the_turn(policy: LocalPolicy) -> None:
    recorded = policy.render(QUESTION)
    for wrong in (recorded[:-1], [*recorded, 5], recorded[1:], policy.render(QUESTION, TOOLS)):
        with pytest.raises(AlignmentError, match="template mismatch"):
            ask(policy, QUESTION, wrong)
    with pytest.raises(AlignmentError, match="did not say"):
        ask(policy, QUESTION, [])


def test_what_was_added_has_to_be_in_the_recorded_prompt_and_nothing_else(policy: LocalPolicy) -> None:
    recorded = policy.render(QUESTION)
    wished = policy.render(add_wishes(QUESTION, WISH, "behind"))
    with pytest.raises(AlignmentError, match="template mismatch"):
        ask(policy, QUESTION, recorded, wish_text=WISH)
    with pytest.raises(AlignmentError, match="template mismatch"):
        ask(policy, QUESTION, wished)
    with pytest.raises(AlignmentError, match="template mismatch"):
        ask(policy, QUESTION, wished, wish_text=WISH, wish_place="system")
    with pytest.raises(AlignmentError, match="no place 'nowhere'"):
        ask(policy, QUESTION, wished, wish_text=WISH, wish_place="nowhere")


def test_where_there_is_no_place_for_wishes_the_turn_is_dropped(policy: LocalPolicy) -> None:
    messages = [{"role": "system", "content": "Go on."}]
    with pytest.raises(AlignmentError, match="no user message"):
        ask(policy, messages, policy.render(messages))


@pytest.mark.parametrize("joiner", ["\n", ""])
@pytest.mark.parametrize("wish_text", ["", "No lists."])
def test_text_in_parts_is_recognised_however_the_engine_joins_it(
    policy: LocalPolicy, joiner: str, wish_text: str
) -> None:
    parts = [{"type": "text", "text": "What is the capital"}, {"type": "text", "text": "of France?"}]
    texts = [part["text"] for part in parts] + ([f"\n\n{prompt_text(wish_text)}"] if wish_text else [])
    recorded = policy.render([{"role": "user", "content": joiner.join(texts)}])
    plain, wished = ask(policy, [{"role": "user", "content": parts}], recorded, wish_text=wish_text)
    assert plain.startswith(f"<|im_start|>user\nWhat is the capital{joiner}of France?<|im_end|>")
    assert f"of France?{joiner}\n\n{prompt_text(WISH)}<|im_end|>" in wished


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
            recorded = policy.render(rendered, TOOLS)
            plain, wished = ask(policy, conversation, recorded, request={"tools": TOOLS})
            assert plain == policy.tokenizer.decode(recorded)
            # the wish is with the person's words, not with the tool's
            assert wished.index(WISH) < wished.rindex("<tool_call>")


@pytest.mark.parametrize("wish_text", ["", "No lists."])
def test_what_the_built_in_engine_is_given_is_recognised_in_every_form_clients_write(
    policy: LocalPolicy, wish_text: str
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
    vocabulary = Vocabulary(policy.tokenizer, policy.vocabulary_size)
    sent = list(add_wishes(messages, wish_text, "behind"))
    recorded = render_chat(vocabulary, sent, tools=TOOLS)
    plain, wished = ask(policy, messages, recorded, request={"tools": TOOLS}, wish_text=wish_text)
    assert plain == policy.tokenizer.decode(render_chat(vocabulary, messages, tools=TOOLS))
    assert wished == plain.replace("Say it.", f"Say it.\n\n{prompt_text(WISH)}")


def test_tools_may_have_been_left_out_of_the_prompt(policy: LocalPolicy) -> None:
    recorded = policy.render(QUESTION)
    for choice in ("none", "auto"):
        plain, wished = ask(policy, QUESTION, recorded, request={"tools": TOOLS, "tool_choice": choice})
        assert "get_weather" not in plain + wished
        assert WISH in wished


def test_only_the_named_tool_may_have_been_shown(policy: LocalPolicy) -> None:
    other = {"type": "function", "function": {"name": "send_mail", "parameters": {"type": "object"}}}
    named = {
        "tools": [*TOOLS, other],
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
    }
    _, wished = ask(policy, QUESTION, policy.render(QUESTION, TOOLS), request=named)
    assert "get_weather" in wished
    assert "send_mail" not in wished


def test_template_arguments_of_the_request_reach_the_template(policy: LocalPolicy) -> None:
    seen: list[dict[str, Any]] = []

    def render(messages: Sequence[dict[str, Any]], tools: Any = None, **more: Any) -> list[int]:
        seen.append(more)
        return list(policy.render(messages, tools))

    request = {"chat_template_kwargs": {"enable_thinking": False}}
    turn = turn_of(QUESTION, policy.render(QUESTION), request=request)
    prompt_pair(render, turn, text=WISH, place="behind")
    assert len(seen) == 3
    assert all(more == {"enable_thinking": False} for more in seen)
    with pytest.raises(AlignmentError, match="not an object"):
        prompt_pair(
            render,
            turn_of(QUESTION, policy.render(QUESTION), request={"chat_template_kwargs": "x"}),
            text=WISH,
            place="behind",
        )


CONTINUED = [*QUESTION, {"role": "assistant", "content": "The capital of France is"}]


@pytest.mark.parametrize(
    ("messages", "request_fields"),
    [
        (CONTINUED, {"continue_final_message": True, "add_generation_prompt": False}),
        (CONTINUED, {"continue_final_message": True}),
        ([{"role": "system", "content": "Be kind."}, *CONTINUED], {"continue_final_message": True}),
        (CONTINUED, {"add_generation_prompt": False}),
        (CONTINUED, {}),
    ],
)
@pytest.mark.parametrize("place", PLACES)
def test_a_reply_that_the_client_began_is_continued_in_both_prompts(
    policy: LocalPolicy, messages: list[dict[str, Any]], request_fields: dict[str, Any], place: str
) -> None:
    recorded = render_chat(
        Vocabulary(policy.tokenizer, policy.vocabulary_size),
        messages,
        add_generation_prompt=request_fields.get("add_generation_prompt", True)
        and not request_fields.get("continue_final_message"),
        continue_final_message=bool(request_fields.get("continue_final_message")),
    )
    plain, wished = ask(policy, messages, recorded, request=request_fields, place=place)
    assert plain == policy.tokenizer.decode(recorded)
    assert WISH in wished
    assert plain.endswith("The capital of France is") == ("continue_final_message" in request_fields)
    assert wished.endswith(plain[-20:])


def test_a15_both_prompts_end_in_the_whole_generation_header(policy: LocalPolicy) -> None:
    header = "<|im_end|>\n<|im_start|>assistant\n"
    for place in PLACES:
        for text in ask(policy, QUESTION, policy.render(QUESTION), place=place):
            assert text.endswith(header)
