"""Anchors: explicit wishes with the base model as the teacher, spread over the styles, the same for the same step."""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from store.values import Completion, LogprobMode, ScoredTurn, Verdict
from tests.trainer.conftest import step_once
from tests.trainer.plans import bare_plan
from trainer.anchors import Anchors, with_wish
from trainer.batch import SampleKind
from trainer.canaries import AnchorPrompt, Canaries, ToolCase, load_canaries
from trainer.objective import Objective
from trainer.policy import LocalPolicy, Weights
from trainer.protocol import Reply
from trainer.step import train


def turn(content: Any = "What is the capital of France?") -> ScoredTurn:
    return ScoredTurn(
        turn_id="t1",
        session_id="s1",
        turn_index=0,
        policy="mine",
        key_name="key",
        adapter_version=0,
        messages=({"role": "system", "content": "Be kind."}, {"role": "user", "content": content}),
        request={},
        completion=Completion(token_ids=(5,), sampling_logprobs=(-1.0,)),
        prompt_token_ids=(4,),
        temperature=1.0,
        logprob_mode=LogprobMode.RAW,
        verdict=Verdict(turn_id="t1", value=-1, source="rule", created_at=0.0),
        next_text="",
        created_at=0.0,
    )


def test_an_anchor_is_an_explicit_wish_taught_by_the_base_without_a_hint(
    policy: LocalPolicy, tiny_model: Path
) -> None:
    samples = Anchors(policy, str(tiny_model), max_tokens=8, seed=1).draw(3, step=0)
    trained_on = {anchor.prompt for anchor in load_canaries(str(tiny_model)).split()[0]}
    assert len(samples) == 3
    for sample in samples:
        assert sample.kind is SampleKind.ANCHOR
        assert sample.teacher_prompt_ids == sample.prompt_ids
        assert sample.sampling_logprobs is None
        assert sample.streams is not None
        assert sample.streams.directive_weight == 1.0
        assert not any(sample.streams.advantage_mask)
        text = policy.tokenizer.decode(sample.prompt_ids)
        assert text.removeprefix("<|im_start|>user\n").split("<|im_end|>")[0] in trained_on
    assert len({sample.prompt_ids for sample in samples}) == 3
    texts = [policy.tokenizer.decode(sample.prompt_ids) for sample in samples]
    styles = {
        a.style for a in load_canaries(str(tiny_model)).anchors if any(a.prompt in text for text in texts)
    }
    assert len(styles) == 3


def test_the_same_step_draws_the_same_anchors_in_a_new_process_too(
    policy: LocalPolicy, tiny_model: Path
) -> None:
    first = Anchors(policy, str(tiny_model), max_tokens=8, seed=1)
    assert first.draw(4, step=3) == Anchors(policy, str(tiny_model), max_tokens=8, seed=1).draw(4, step=3)
    assert first.draw(4, step=3) != first.draw(4, step=4)
    assert first.draw(0, step=3) == []


def test_one_anchor_in_four_is_a_tool_request(policy: LocalPolicy, tiny_model: Path) -> None:
    anchors = Anchors(policy, str(tiny_model), max_tokens=8)
    texts = [policy.tokenizer.decode(s.prompt_ids) for step in range(4) for s in anchors.draw(4, step)]
    assert len(texts) == 16
    assert sum("You may call these functions" in text for text in texts) == 4


def test_more_anchors_than_wishes_are_drawn_all_the_same(policy: LocalPolicy, tiny_model: Path) -> None:
    assert len(Anchors(policy, str(tiny_model), max_tokens=8).draw(40, 0)) == 40


@pytest.mark.parametrize(
    ("labels", "styles", "least"),
    [
        ({"json"}, {"prose"}, 2),
        ({"shorter"}, {"long"}, 2),
        ({"json", "no_emoji", "formal"}, {"prose", "emoji", "casual"}, 4),
    ],
)
def test_two_anchors_ask_for_the_opposite_of_each_wish_up_to_a_quarter(
    policy: LocalPolicy, tiny_model: Path, labels: set[str], styles: set[str], least: int
) -> None:
    against = [a.prompt for a in load_canaries(str(tiny_model)).split()[0] if a.style in styles]
    anchors = Anchors(policy, str(tiny_model), max_tokens=8, seed=1)

    def asked(labels: set[str]) -> list[int]:
        """How many of the anchors of each of three steps ask for the opposite."""
        batches = [anchors.draw(16, step, labels=labels) for step in range(3)]
        assert {len(batch) for batch in batches} == {16}
        texts = [[policy.tokenizer.decode(sample.prompt_ids) for sample in batch] for batch in batches]
        return [sum(any(prompt in text for prompt in against) for text in batch) for batch in texts]

    assert min(asked(labels)) >= least
    assert sum(asked(labels)) > sum(asked(set()))


def test_the_persons_own_question_comes_back_with_another_wish(policy: LocalPolicy, tiny_model: Path) -> None:
    canaries = load_canaries(str(tiny_model))
    samples = Anchors(policy, str(tiny_model), max_tokens=8).draw(50, step=0, turns=[turn()])
    texts = [policy.tokenizer.decode(sample.prompt_ids) for sample in samples]
    own = [text for text in texts if "What is the capital of France? " in text]
    assert len(own) == 1  # 12 tool requests, 36 candidates of styles, and this one
    assert own[0].startswith("<|im_start|>system\nBe kind.<|im_end|>\n")
    wishes = [wish for texts in canaries.instructions.values() for wish in texts]
    assert any(f"What is the capital of France? {wish}<|im_end|>" in own[0] for wish in wishes)


def test_the_persons_own_questions_ask_for_the_opposite_too(policy: LocalPolicy, tiny_model: Path) -> None:
    anchors = Anchors(policy, str(tiny_model), max_tokens=8, seed=1)
    longer = load_canaries(str(tiny_model)).instructions["long"]
    turns = [turn(question) for question in ("What is ice?", "Who was Homer?", "Why?", "")]

    def asked(labels: set[str]) -> int:
        """How many of the anchors of eight steps ask for long replies to these questions."""
        drawn = [sample for step in range(8) for sample in anchors.draw(16, step, turns=turns, labels=labels)]
        texts = [policy.tokenizer.decode(sample.prompt_ids) for sample in drawn]
        own = [
            f"\n{question} {wish}<|im_end|>"
            for question in ("What is ice?", "Who was Homer?", "Why?")
            for wish in longer
        ]
        return sum(any(one in text for one in own) for text in texts)

    assert asked({"shorter"}) >= asked({"json"}) + 4


class PolicyOfBytes:
    """Tokens are bytes of the text; by how much it has left its base model is known for each prompt."""

    max_context = 4096

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        text = "|".join(message["content"] for message in messages)
        return list(f"{text} [tools]".encode() if tools else text.encode())

    def sample(self, prompts: Sequence[Sequence[int]], **_: Any) -> list[Reply]:
        return [Reply(token_ids=(1, 2), logprobs=(-0.5, -0.5), finished=True) for _ in prompts]

    def response_logprobs(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], *_: Any
    ) -> tuple[Tensor, Tensor]:
        """Half of the prompts have drifted."""
        drift = [max(0.0, zlib.crc32(bytes(prompt)) / 2**31 - 1.0) for prompt in prompts]
        return torch.tensor([[-0.5 - value, -0.5] for value in drift]), torch.ones(len(prompts), 2) > 0


@pytest.fixture
def fixed_canaries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two prompts to train on of each of nine styles, twelve tool requests, three instructions."""
    canaries = Canaries(
        facts=(),
        tools=tuple(
            ToolCase(
                messages=({"role": "user", "content": f"call {i}"},), tools=({"name": "f"},), expect_name="f"
            )
            for i in range(12)
        ),
        anchors=tuple(
            AnchorPrompt(prompt=f"{style}{i}", style=style) for style in "abcdefghi" for i in range(3)
        ),
        instructions={"a": ("Briefly.",), "b": ("In full.", "As a list.")},
    )
    monkeypatch.setattr("trainer.anchors.load_canaries", lambda model: canaries)


@pytest.mark.parametrize(
    ("step", "most", "expected"),
    [
        # four by drift (.92, .74, .65, .59; the fixture's next is .58), two at random, two tool requests
        (0, None, "a2, b2, i0, Be kind.|Why? Briefly., d0, a0, call 11 [tools], call 9 [tools]"),
        (5, None, "a2, b2, i0, h0, b0, Be kind.|Who? As a list., call 1 [tools], call 1 [tools]"),
        # of the four that are asked one has drifted; more anchors than prompts: some come twice
        (5, 4, "h0, a0, c0, Be kind.|Why? In full., h0, a0, call 8 [tools], call 9 [tools]"),
    ],
)
def test_the_prompts_drawn_for_a_seed_and_a_step_stay_the_same(
    fixed_canaries: None, step: int, most: int | None, expected: str
) -> None:
    policy: Any = PolicyOfBytes()
    anchors = Anchors(policy, "any", seed=7, most_candidates=most)
    turns = [turn("Why?"), turn("Who?")]
    samples = anchors.draw(8, step, turns=turns)
    assert [bytes(sample.prompt_ids).decode() for sample in samples] == expected.split(", ")


def test_few_of_many_turns_are_asked_again_and_none_twice(
    fixed_canaries: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.anchors.OPPOSITES", {"x": ("b", "c")})
    policy: Any = PolicyOfBytes()
    asked: list[str] = []
    render = policy.render

    def noted(messages: Sequence[Mapping[str, Any]], tools: Any = None) -> list[int]:
        asked.append(messages[-1]["content"])
        return list(render(messages, tools))

    anchors = Anchors(policy, "any", seed=7)
    monkeypatch.setattr(policy, "render", noted)
    anchors.draw(16, 0, turns=[turn(f"Why {i}?") for i in range(200)], labels={"x"})
    assert len({text.split("?")[0] for text in asked}) == 8
    assert len(asked) == 8 * 3  # once with any instruction, twice with those of style b
    same = [turn("Why?")] * 8
    (b, c) = anchors._opposed({"x"}, same)
    assert [bytes(prompt).decode() for prompt in b] == [
        "b0",
        "b2",
        "Be kind.|Why? In full.",
        "Be kind.|Why? As a list.",
    ]
    assert [bytes(prompt).decode() for prompt in c] == ["c0", "c2"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("Why?", {"Be kind.|Why?"}),
        ("w" * 495, {"w" * 495}),
        ("w" * 513, set()),
        ([{"type": "image_url"}], set()),
    ],
)
def test_a_question_that_is_too_long_loses_its_context_or_is_left_out(
    fixed_canaries: None, content: Any, expected: set[str]
) -> None:
    policy: Any = PolicyOfBytes()
    found = Anchors(policy, "any")._candidates([turn(content)], random.Random(0))
    texts = [bytes(prompt).decode() for prompt in found]
    assert len(texts) == 18 + len(expected)
    assert {re.sub(r" (Briefly|In full|As a list)\.$", "", text) for text in texts[18:]} == expected


def test_the_base_model_is_asked_once_for_each_prompt(
    fixed_canaries: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy: Any = PolicyOfBytes()
    asked: list[tuple[int, ...]] = []
    sample = policy.sample

    def counted(prompts: Sequence[tuple[int, ...]], **given: Any) -> list[Reply]:
        if given.get("weights") is Weights.BASE:
            asked.extend(prompts)
        return list(sample(prompts, **given))

    monkeypatch.setattr(policy, "sample", counted)
    anchors = Anchors(policy, "any")
    for step in range(4):
        anchors.draw(8, step)
    assert 9 < len(asked) == len(set(asked)) <= 18


def taught_to_say_nothing(policy: LocalPolicy, anchors: Anchors, wish: str) -> None:
    """The policy answers one wish with nothing."""
    seen = {s.prompt_ids for step in range(8) for s in anchors.draw(14, step)}
    broken = [prompt for prompt in seen if wish in policy.tokenizer.decode(prompt)]
    end = policy.tokenizer.eos_token_id
    for _ in range(12):
        logits, _ = policy.response_logits(broken, [[end]] * len(broken))
        torch.autograd.backward(
            torch.nn.functional.cross_entropy(logits[:, 0], torch.tensor([end] * len(broken)))
        )
        policy.apply_gradients()


def test_half_of_the_anchors_are_the_wishes_the_policy_has_left_most(
    policy: LocalPolicy, tiny_model: Path
) -> None:
    """The policy is taught to answer one wish with nothing: at the next draws this wish is always among the anchors."""
    anchors = Anchors(policy, str(tiny_model), max_tokens=8, seed=2)
    taught_to_say_nothing(policy, anchors, "JSON object")
    for step in range(30, 36):
        candidates = anchors._candidates((), random.Random(f"2/{step}"))
        drift = anchors._drift(candidates)
        worst = sorted(candidates, key=lambda prompt: drift[prompt], reverse=True)[:2]
        drawn = [sample.prompt_ids for sample in anchors.draw(8, step)]
        assert set(worst) <= set(drawn)
        assert drift[worst[0]] > 1.0


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([{"role": "user", "content": "Why? "}], "Why? Be brief."),
        ([{"role": "user", "content": [{"type": "text", "text": "Why?"}]}], "Why? Be brief."),
        ([{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}], "Why? Be brief."),
        ([{"role": "user", "content": [{"type": "image_url"}]}], None),
        ([{"role": "user", "content": None}], None),
        ([{"role": "system", "content": "Be kind."}], None),
    ],
)
def test_a_wish_goes_behind_the_last_words_of_the_person(
    messages: list[dict[str, Any]], expected: str | None
) -> None:
    found = with_wish(messages, "Be brief.")
    assert (found[-1]["content"] if found else None) == expected


def test_the_policys_replies_are_sampled_anew(policy: LocalPolicy, tiny_model: Path) -> None:
    anchors = Anchors(policy, str(tiny_model), max_tokens=8)
    before = anchors.draw(8, step=0)
    for seed in range(3):
        step_once(policy, seed)
    after = anchors._answer([sample.prompt_ids for sample in before], step=0)
    assert after != [sample.completion_ids for sample in before]


def test_anchors_pull_a_policy_that_drifted_back_to_its_base(policy: LocalPolicy, tiny_model: Path) -> None:
    """And do nothing to one that did not."""
    plan = bare_plan(method="sdpo", objective=Objective(kl_coef=0.0), steps_per_batch=1)
    anchors = Anchors(policy, str(tiny_model), max_tokens=8).draw(4, step=0)
    fresh = policy.snapshot()
    assert train(policy, anchors, plan)["gradient_norm"] < 1e-4
    policy.restore(fresh)
    for seed in range(40):
        step_once(policy, seed)
    policy._start_afresh()  # the way it drifted was another task's; its momentum would go on
    losses = [train(policy, anchors, plan)["directive_loss"] for _ in range(12)]
    assert losses[0] > 0.01
    assert losses[-1] < 0.5 * losses[0]
