"""Conversations to prompt ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from serving.openai_server.prompts import normalise_messages, render_chat
from serving.openai_server.schemas import RequestError
from serving.openai_server.vocabulary import Vocabulary


@pytest.fixture(scope="module")
def vocabulary(tiny_model: Path) -> Vocabulary:
    from transformers import AutoTokenizer

    return Vocabulary(AutoTokenizer.from_pretrained(tiny_model), 0)


def text_of(vocabulary: Vocabulary, messages: list[dict[str, Any]], **options: Any) -> str:
    return vocabulary.decode(render_chat(vocabulary, messages, **options))


def test_every_form_of_content_becomes_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]
    messages: list[dict[str, Any]] = [
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "name": None},
        {"role": "assistant"},
    ]
    assert normalise_messages(messages) == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": ""},
    ]


def test_arguments_of_calls_become_objects_and_broken_ones_stay() -> None:
    def message(arguments: object) -> dict[str, Any]:
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "x", "function": {"name": "f", "arguments": arguments}}],
        }

    given = ['{"a": 1}', "", None, "{broken", {"b": 2}]
    got = [normalise_messages([message(one)])[0]["tool_calls"][0]["function"]["arguments"] for one in given]
    assert got == [{"a": 1}, {}, {}, "{broken", {"b": 2}]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"content": "x"}, "role must be one of system, developer, user, assistant, tool, function"),
        ({"role": "wizard", "content": "x"}, "role must be one of"),
        ({"role": ["user"], "content": "x"}, "role must be one of"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "reads text only"),
        ({"role": "user", "content": 5}, "must be a string, a list of parts, or null"),
        ({"role": "assistant", "tool_calls": "f"}, "must be a list"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "needs function.name"),
    ],
)
def test_what_is_no_text_is_refused_with_its_place(message: dict[str, Any], reason: str) -> None:
    with pytest.raises(RequestError, match=r"messages\[0\]") as caught:
        normalise_messages([message])
    assert reason in str(caught.value)


def test_the_template_is_rendered_once_with_tools_and_calls(vocabulary: Vocabulary) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "42", "tool_call_id": "1"},
    ]
    text = text_of(vocabulary, messages, tools=[tool])
    assert text.count("<|im_start|>") == 5
    assert '"name": "f"' in text
    assert '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>' in text
    assert text.endswith("<|im_start|>assistant\n")


def test_an_answer_can_be_continued(vocabulary: Vocabulary) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello the"}]
    text = text_of(vocabulary, messages, add_generation_prompt=False, continue_final_message=True)
    assert text.endswith("<|im_start|>assistant\nHello the")


def test_a_template_that_refuses_is_the_clients_error(vocabulary: Vocabulary) -> None:
    refuse = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(RequestError, match="roles must alternate"):
        render_chat(
            vocabulary, [{"role": "user", "content": "x"}], template_arguments={"chat_template": refuse}
        )
