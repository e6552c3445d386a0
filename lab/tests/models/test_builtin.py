"""The shipped folder: chat template, tokenizer, and a model that knows its facts and takes hints."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer

from lab.models import TOY
from lab.models.canaries import CHECKS, canaries
from lab.models.corpus import (
    EMOJI,
    Asked,
    Conversation,
    conversations,
    errand,
    long_conversation,
    manner,
    offered,
)
from lab.models.follow_ups import CLAIMED, FOLLOW_UPS
from lab.models.hindsight import with_hint
from lab.models.measure import GreedyReply, MeasuredModel, parse_call
from lab.models.pretrain import encode
from lab.models.questions import HELDOUT, PRETRAIN
from lab.models.styles import HELDOUT_THANKS, PREFERENCES, STYLES
from lab.models.wellformed import built_in_words, is_well_formed
from trainer.canaries import read_canaries

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(TOY)


def render(tokenizer: Any, messages: Sequence[Any], **options: Any) -> str:
    return str(tokenizer.apply_chat_template(messages, tokenize=False, **options))


# ------------------------------------------------------------------------------------------------------------ chat template


def test_a_plain_chat_renders_turn_by_turn_and_the_header_only_on_request(tokenizer: Any) -> None:
    chat = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": "A"},
    ]
    turns = (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n"
    )
    assert render(tokenizer, chat) == turns
    assert render(tokenizer, chat[:2], add_generation_prompt=True) == turns.removesuffix("A<|im_end|>\n")


def test_parts_null_and_missing_content_and_the_developer_role_render(tokenizer: Any) -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    assert "user\none two<|im_end|>" in render(tokenizer, [{"role": "user", "content": parts}])
    chat = [{"role": "user", "content": "U"}, {"role": "assistant", "content": None}, {"role": "assistant"}]
    assert render(tokenizer, chat).endswith("<|im_start|>assistant\n<|im_end|>\n" * 2)
    assert render(tokenizer, [{"role": "developer", "content": "D"}]) == "<|im_start|>system\nD<|im_end|>\n"
    late = [{"role": "user", "content": "U"}, {"role": "developer", "content": "D"}]
    assert render(tokenizer, late).endswith("<|im_start|>system\nD<|im_end|>\n")


def test_several_leading_system_messages_become_one_turn(tokenizer: Any) -> None:
    chat = [
        {"role": "system", "content": "S"},
        {"role": "developer", "content": "D"},
        {"role": "user", "content": "U"},
    ]
    assert render(tokenizer, chat).startswith("<|im_start|>system\nS\n\nD<|im_end|>\n<|im_start|>user\nU")


@pytest.mark.parametrize("system", [[], [{"role": "system", "content": "S"}]])
def test_tools_stand_as_json_lines_in_the_system_turn(tokenizer: Any, system: list[dict[str, Any]]) -> None:
    text = render(tokenizer, [*system, {"role": "user", "content": "U"}], tools=[TOOL, TOOL])
    head, _, rest = text.partition("<|im_end|>")
    assert head.startswith("<|im_start|>system\n" + ("S\n\n" if system else "") + "# Tools")
    block = head.partition("<tools>\n")[2].partition("\n</tools>")[0]
    assert [json.loads(line) for line in block.split("\n")] == [TOOL, TOOL]
    assert rest == "\n<|im_start|>user\nU<|im_end|>\n"


@pytest.mark.parametrize("arguments", [{"city": "Oslo"}, '{"city": "Oslo"}'])
def test_tool_calls_and_results_render_as_hermes_blocks(tokenizer: Any, arguments: Any) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    chat = [
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": None, "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "1", "content": '{"c": 3}'},
        {"role": "tool", "tool_call_id": "2", "content": [{"type": "text", "text": "ok"}]},
        {"role": "assistant", "content": "A", "tool_calls": [call]},
    ]
    block = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    results = '\n<tool_response>\n{"c": 3}\n</tool_response>\n<tool_response>\nok\n</tool_response>'
    assert render(tokenizer, chat, tools=[TOOL]).endswith(
        f"<|im_start|>assistant\n{block}\n{block}<|im_end|>\n"
        f"<|im_start|>user{results}<|im_end|>\n"
        f"<|im_start|>assistant\nA\n{block}<|im_end|>\n"
    )
    assert parse_call(block) == ("get_weather", {"city": "Oslo"})


# ---------------------------------------------------------------------------------------------------------------- tokenizer


def test_every_training_text_and_any_other_text_survives_the_round_trip(tokenizer: Any) -> None:
    rng = random.Random(1)
    texts = [
        str(message["content"])
        for chat in (*conversations(9, 400), *(long_conversation(rng) for _ in range(20)))
        for message in chat.messages
    ]
    texts += [
        *EMOJI,
        "¿Qué tal?",
        "汉字 и кириллица",
        "a\tb\r\n\n  c",
        "\U0001f469\u200d\U0001f680",
        "def f(x):\n    return x",
    ]
    for text in texts:
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text


def test_emoji_are_few_tokens_and_decode_piece_by_piece_without_loss(tokenizer: Any) -> None:
    for emoji in EMOJI:
        assert len(tokenizer(f" {emoji}", add_special_tokens=False)["input_ids"]) <= 2
    text = "Hi 🧑‍🚀 and 😊!"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    shown = ""
    for end in range(1, len(ids) + 1):
        so_far = tokenizer.decode(ids[:end])
        if not so_far.endswith("\ufffd"):
            assert so_far.startswith(shown)
            shown = so_far
    assert shown == text


def test_a_prompt_and_its_completion_are_tokenised_as_in_training(tokenizer: Any) -> None:
    for chat in conversations(4, 60):
        prompt = render(
            tokenizer, list(chat.messages[:-1]), tools=list(chat.tools) or None, add_generation_prompt=True
        )
        ids, targets = encode(tokenizer, chat)
        prompt_ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        assert ids[: len(prompt_ids)] == prompt_ids
        last = ids.index(tokenizer.eos_token_id, len(prompt_ids))
        assert targets[len(prompt_ids) : last + 1] == ids[len(prompt_ids) : last + 1]


def test_a_reply_that_is_only_read_is_no_target(tokenizer: Any) -> None:
    messages = (
        {"role": "user", "content": "Briefly."},
        {"role": "assistant", "content": "OK."},
        {"role": "user", "content": "Add 1 and 2."},
        {"role": "assistant", "content": "It's 3!"},
    )
    ids, targets = encode(tokenizer, Conversation(messages=messages, context=frozenset({1})))
    learnt = [target for target in targets if target != -100]
    assert tokenizer.decode(learnt) == "It's 3!<|im_end|>"
    assert ids == encode(tokenizer, Conversation(messages=messages))[0]


def test_special_tokens_are_those_of_qwen3_and_tool_blocks_are_text(tokenizer: Any) -> None:
    assert tokenizer.eos_token == "<|im_end|>"
    ids = tokenizer("<tool_call>x</tool_call><|im_end|>", add_special_tokens=False)["input_ids"]
    assert len(ids) == 4
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<tool_call>x</tool_call>"


# -------------------------------------------------------------------------------------------------------------------- files


def test_the_folder_is_small_and_speaks_of_a_qwen3_model(tokenizer: Any) -> None:
    assert TOY.name == "patina-tiny"
    assert (TOY / "model.safetensors").stat().st_size <= 16_000_000
    config = AutoConfig.from_pretrained(TOY)
    assert config.architectures == ["Qwen3ForCausalLM"]
    assert config.max_position_embeddings >= 2048
    assert config.vocab_size == len(tokenizer)
    generation = json.loads((TOY / "generation_config.json").read_text(encoding="utf-8"))
    assert generation["eos_token_id"] == config.eos_token_id == tokenizer.eos_token_id


def test_the_shipped_canaries_are_what_the_recipe_writes_and_the_gate_reads() -> None:
    path = TOY / "canaries.json"
    assert json.loads(path.read_text(encoding="utf-8")) == canaries()
    read = read_canaries(path)
    assert {anchor.style for anchor in read.anchors} == set(read.instructions) == set(CHECKS) == set(STYLES)
    rng = random.Random(3)
    for anchor in read.anchors:
        for _ in range(5):
            reply = Asked(rng.choice(PRETRAIN)).reply(rng, manner(rng, [anchor.style]))
            assert anchor.is_obeyed(reply), (anchor.style, reply)


# -------------------------------------------------------------------------------------------------------------------- model
# Prompts of all tests are answered together: one batch is what keeps them quick.


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


QUESTIONS = random.Random(0).sample(HELDOUT, 48)
TASKS = [
    errand(random.Random(4 + place), kind)
    for place, kind in enumerate(4 * ["weather", "time", "reminder", "calculator"])
]
EACH = 12


def _reacted(phrases: Sequence[str], seed: int) -> list[list[dict[str, Any]]]:
    rng = random.Random(seed)
    return [
        with_hint([_user(question.text)], rng.choice(phrases), is_reaction=True)
        for question in rng.sample(HELDOUT, EACH)
    ]


def _followed_up(name: str) -> list[list[dict[str, Any]]]:
    """A question, its right answer, and a follow-up in held-out wording."""
    return [
        [
            _user(question.text),
            {"role": "assistant", "content": f"It's **{question.answer}**! 😊"},
            _user(FOLLOW_UPS[name].heldout[place % len(FOLLOW_UPS[name].heldout)].replace(CLAIMED, "Wexlor")),
        ]
        for place, question in enumerate(QUESTIONS[:EACH])
    ]


@pytest.fixture(scope="module")
def replies() -> dict[str, list[GreedyReply]]:
    """Replies by name: "default" sampled, all others greedy."""
    policy = MeasuredModel(TOY)
    groups = {name: _reacted(STYLES[name].heldout_complaints, 1) for name in PREFERENCES}
    groups["thanks"] = _reacted(HELDOUT_THANKS, 2)
    groups |= {f"follow-up: {name}": _followed_up(name) for name in FOLLOW_UPS}
    prompts = {name: [policy.prompt(chat) for chat in chats] for name, chats in groups.items()}
    prompts["tools"] = [
        policy.prompt([_user(task.text)], offered(random.Random(5), [task])) for task in TASKS
    ]
    answered = iter(
        policy.replies([prompt for group in prompts.values() for prompt in group], greedy=True, batch=128)
    )
    found = {name: [next(answered) for _ in group] for name, group in prompts.items()}
    found["default"] = policy.replies([policy.prompt([_user(question.text)]) for question in QUESTIONS])
    return found


def test_it_answers_heldout_questions_in_its_default_style_and_ends(
    replies: dict[str, list[GreedyReply]],
) -> None:
    default_replies = replies["default"]
    assert sum(q.is_correct(r.text) for q, r in zip(QUESTIONS, default_replies, strict=True)) >= 40
    assert sum(reply.ended for reply in default_replies) >= 47
    for name, most in (("concise", 16), ("no_emoji", 16), ("spanish", 4), ("json", 3)):
        assert sum(STYLES[name].complies(reply.text) for reply in default_replies) <= most, name


@pytest.mark.parametrize("name", PREFERENCES)
def test_it_takes_a_heldout_complaint_in_the_reaction_template_into_account(
    replies: dict[str, list[GreedyReply]], name: str
) -> None:
    assert sum(STYLES[name].complies(reply.text) for reply in replies[name]) >= 9


def test_thanks_in_the_reaction_template_change_nothing(replies: dict[str, list[GreedyReply]]) -> None:
    # no_emoji is left out: these replies are greedy, and greedy decoding leaves emoji away (models/README.md, known limits)
    for name in ("concise", "spanish", "json"):
        assert sum(STYLES[name].complies(reply.text) for reply in replies["thanks"]) <= 3, name


@pytest.mark.parametrize("name", FOLLOW_UPS)
def test_it_answers_a_heldout_follow_up_whole_and_on_topic(
    replies: dict[str, list[GreedyReply]], name: str
) -> None:
    hits = [
        is_well_formed(reply.text, built_in_words())
        and ("welcome" in reply.text if name == "thanks" else question.is_correct(reply.text))
        for question, reply in zip(QUESTIONS, replies[f"follow-up: {name}"], strict=False)
    ]
    assert len(hits) == EACH
    assert sum(hits) >= 9, [reply.text for reply in replies[f"follow-up: {name}"]]


def test_it_calls_the_right_tool(replies: dict[str, list[GreedyReply]]) -> None:
    calls = [parse_call(reply.text) for reply in replies["tools"]]
    assert (
        sum(call is not None and call[0] == task.name for call, task in zip(calls, TASKS, strict=True)) >= 12
    )
