"""What templates show, and what Patina writes where they do not."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from serving.openai_server.chat_template import TemplateSupport, apply_template, named_tools, template_support
from serving.openai_server.prompts import normalise_messages, render_chat
from serving.openai_server.toolcalls import ToolCall, ToolCallParser
from serving.openai_server.vocabulary import Vocabulary
from trainer.texts import Texts

#: Prints any role and nothing else, as SmolLM2's.
PLAIN = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}<|im_start|>system\nYou are kind.<|im_end|>\n{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
#: Refuses a system message and roles that do not alternate, as Gemma's.
STRICT = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
)
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "Weather in Oslo and Rome?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}},
            {"id": "2", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}},
        ],
    },
    {"role": "tool", "tool_call_id": "1", "content": "4 degrees"},
    {"role": "tool", "tool_call_id": "2", "content": "19 degrees"},
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model)


def with_template(tokenizer: Any, template: str) -> Any:
    found = copy.copy(tokenizer)
    found.chat_template = template
    return found


def test_what_a_template_shows_is_found_by_rendering(tokenizer: Any) -> None:
    assert template_support(tokenizer) == TemplateSupport(tools=True, history=True, system=True)
    plain = template_support(with_template(tokenizer, PLAIN))
    assert plain == TemplateSupport(tools=False, history=False, system=True)
    strict = template_support(with_template(tokenizer, STRICT))
    assert strict == TemplateSupport(tools=False, history=False, system=False)
    assert strict.missing() == ("tools", "tool calls and results", "system messages")


def test_a_template_that_shows_tools_is_rendered_as_it_is(tokenizer: Any) -> None:
    messages = normalise_messages([{"role": "system", "content": "Be kind."}, *HISTORY])
    own = tokenizer.apply_chat_template(messages, tools=[TOOL], tokenize=False, add_generation_prompt=True)
    assert apply_template(tokenizer, messages, [TOOL], add_generation_prompt=True) == own


def test_tools_calls_and_results_are_written_out_where_the_template_ignores_them(tokenizer: Any) -> None:
    plain = with_template(tokenizer, PLAIN)
    messages = normalise_messages([{"role": "system", "content": "Be kind."}, *HISTORY])
    text = apply_template(plain, messages, [TOOL], add_generation_prompt=True)
    system, user, called, result, opened = text.split("<|im_start|>")[1:]
    assert system.startswith("system\nBe kind.\n\nYou can call functions.")
    assert '"name": "get_weather"' in system
    assert user == "user\nWeather in Oslo and Rome?<|im_end|>\n"
    parser = ToolCallParser()
    calls = parser.feed(called.removeprefix("assistant\n").removesuffix("<|im_end|>\n"))
    assert calls == [
        ToolCall(name="get_weather", arguments='{"city": "Oslo"}'),
        ToolCall(name="get_weather", arguments='{"city": "Rome"}'),
    ]
    assert result == (
        "user\n<tool_response>\n4 degrees\n</tool_response>\n<tool_response>\n19 degrees\n</tool_response><|im_end|>\n"
    )
    assert opened == "assistant\n"


def test_without_tools_or_calls_a_prompt_is_the_templates_own(tokenizer: Any) -> None:
    plain = with_template(tokenizer, PLAIN)
    messages = [{"role": "user", "content": "hi"}]
    own = plain.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert apply_template(plain, messages, None, add_generation_prompt=True) == own
    assert "You are kind." in own


def test_a_system_message_that_a_template_refuses_precedes_the_users_text(tokenizer: Any) -> None:
    strict = with_template(tokenizer, STRICT)
    messages = normalise_messages([{"role": "developer", "content": "Be kind."}, *HISTORY])
    text = apply_template(strict, messages, [TOOL])
    assert text.startswith("user: Be kind.\n\nYou can call functions.")
    assert "Weather in Oslo and Rome?\nassistant: <tool_call>" in text
    only_system = apply_template(strict, [{"role": "system", "content": "Be kind."}], None)
    assert only_system == "user: Be kind.\n"


def test_the_trainer_renders_the_engines_prompt(tokenizer: Any) -> None:
    plain = with_template(tokenizer, PLAIN)
    served = render_chat(Vocabulary(plain, 0), HISTORY, tools=[TOOL])
    assert Texts("", plain).render(normalise_messages(HISTORY), [TOOL]) == served


def test_a_named_choice_leaves_one_tool() -> None:
    other = {"type": "function", "function": {"name": "send_mail"}}
    assert named_tools([TOOL, other], {"type": "function", "function": {"name": "send_mail"}}) == [other]
    assert named_tools([TOOL, other], "required") == [TOOL, other]
