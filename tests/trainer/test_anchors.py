"""Anchors: explicit wishes with the base model as the teacher, spread over the styles, the same for the same step."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from store.values import Completion, LogprobMode, ScoredTurn, Verdict
from tests.trainer.conftest import step_once
from trainer.anchors import Anchors, _Candidate, with_wish
from trainer.batch import SampleKind
from trainer.canaries import load_canaries
from trainer.objective import Objective
from trainer.policy import LocalPolicy, Weights
from trainer.step import StepPlan, train


def turn(content: Any = "What is the capital of France?") -> ScoredTurn:
    return ScoredTurn(
        turn_id="t1",
        session_id="s1",
        turn_index=0,
        policy="mine",
        scope="key",
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


def test_the_persons_own_question_comes_back_with_another_wish(policy: LocalPolicy, tiny_model: Path) -> None:
    canaries = load_canaries(str(tiny_model))
    samples = Anchors(policy, str(tiny_model), max_tokens=8).draw(19, step=0, turns=[turn()])
    texts = [policy.tokenizer.decode(sample.prompt_ids) for sample in samples]
    own = [text for text in texts if "What is the capital of France? " in text]
    assert len(own) == 1
    assert own[0].startswith("<|im_start|>system\nBe kind.<|im_end|>\n")
    assert any(f"What is the capital of France? {wish}<|im_end|>" in own[0] for wish in canaries.instructions)


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


def test_the_persons_own_questions_come_back_with_other_wishes(policy: LocalPolicy, tiny_model: Path) -> None:
    canaries = load_canaries(str(tiny_model))
    anchors = Anchors(policy, str(tiny_model), max_tokens=8)
    own = anchors._own([turn()], random.Random(0))
    texts = [policy.tokenizer.decode(one.prompt) for one in own]
    assert len(set(texts)) == len(texts) == 24
    for text in texts:
        assert text.startswith("<|im_start|>system\nBe kind.<|im_end|>\n")
        assert any(
            f"What is the capital of France? {wish}<|im_end|>" in text for wish in canaries.instructions
        )
    assert anchors._own([turn([{"type": "image_url"}])], random.Random(0)) == []
    assert anchors._own([], random.Random(0)) == []


def test_by_unexcused_drift_those_that_were_chosen_weigh_more(policy: LocalPolicy, tiny_model: Path) -> None:
    anchors = Anchors(
        policy, str(tiny_model), max_tokens=8, seed=2, choice="unexcused", bound=0.1, most_weight=5.0
    )
    assert {s.streams.directive_weight for s in anchors.draw(8, 0) if s.streams} == {1.0}
    taught_to_say_nothing(policy, anchors, "JSON object")
    for step in range(30, 36):
        prompts, drift = anchors._choose_unexcused(8, step, (), random.Random(f"2/{step}"))
        assert len(drift) >= 2
        assert set(drift) <= set(prompts)
        assert max(drift.values()) > 1.0
        drawn = {sample.prompt_ids: sample for sample in anchors.draw(8, step)}
        for prompt, lost in drift.items():
            streams = drawn[prompt].streams
            assert streams is not None
            assert streams.directive_weight == pytest.approx(max(1.0, min(5.0, lost / 0.1)))
            assert streams.directive_alpha == 0.0
        blind = [sample.streams for prompt, sample in drawn.items() if prompt not in drift]
        assert {(s.directive_weight, s.directive_alpha) for s in blind if s} == {(1.0, 0.5)}


def test_without_a_bound_all_anchors_weigh_the_same(policy: LocalPolicy, tiny_model: Path) -> None:
    anchors = Anchors(policy, str(tiny_model), max_tokens=8, seed=2, choice="unexcused")
    taught_to_say_nothing(policy, anchors, "JSON object")
    assert {s.streams.directive_weight for s in anchors.draw(14, 30) if s.streams} == {1.0}


def test_what_the_hints_do_to_the_base_model_itself_is_excused(policy: LocalPolicy, tiny_model: Path) -> None:
    """Drift is never more with a hint than without, less where the hint takes the base model away from its reply as well, and a
    tool request has no excuse."""
    anchors = Anchors(policy, str(tiny_model), max_tokens=8, seed=2)
    for seed in range(40):
        step_once(policy, seed)
    wishes = [ids for some in anchors._styles.values() for ids in some[:2]]
    candidates = [_Candidate(prompt=ids, messages=anchors._messages[ids]) for ids in wishes]
    candidates += [_Candidate(prompt=ids) for ids in anchors._tools]
    told = replace(turn(), verdict=replace(turn().verdict, hint="Not like that. Answer in French."))
    plain = anchors._unexcused_drift(candidates, [turn()])
    excused = anchors._unexcused_drift(candidates, [told])
    tools = set(anchors._tools)
    assert all(excused[prompt] <= plain[prompt] for prompt in plain)
    assert sum(excused[p] < plain[p] for p in plain if p not in tools) > len(plain) / 2
    assert {p: plain[p] for p in tools} == {p: excused[p] for p in tools}


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


def test_base_replies_are_kept_and_the_policys_are_sampled_anew(
    policy: LocalPolicy, tiny_model: Path
) -> None:
    kept = Anchors(policy, str(tiny_model), max_tokens=8, source="base")
    before = kept.draw(8, step=0)
    fresh = Anchors(policy, str(tiny_model), max_tokens=8, source="policy").draw(8, step=0)
    assert [s.prompt_ids for s in fresh] == [s.prompt_ids for s in before]
    for seed in range(3):
        step_once(policy, seed)
    said = {sample.prompt_ids: sample.completion_ids for sample in before}
    for sample in kept.draw(40, step=0):
        assert said.get(sample.prompt_ids, sample.completion_ids) == sample.completion_ids
    again = Anchors(policy, str(tiny_model), max_tokens=8, source="policy")._answer(
        [s.prompt_ids for s in fresh], step=0
    )
    assert again != [s.completion_ids for s in fresh]


def test_anchors_pull_a_policy_that_drifted_back_to_its_base(policy: LocalPolicy, tiny_model: Path) -> None:
    """And do nothing to one that did not."""
    plan = StepPlan(
        method="sdpo",
        objective=Objective(kl_coef=0.0),
        teacher=Weights.BASE,
        steps_per_batch=1,
        max_kl_step=9.0,
    )
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
