"""The memory plan: checkpointing, micro-batch and longest turn follow from what is free."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.trainer.test_samples import ready
from tests.trainer.turns import sampled_turn
from trainer.memory_plan import CHECKPOINT_BELOW, MOST_TOKENS, Sizes, free_bytes, plan_memory
from trainer.policy import LocalPolicy

EIGHT_B = Sizes(
    layers=36, hidden=4_096, intermediate=12_288, heads=6_144, item_bytes=2, lora_parameters=44_000_000
)


def test_much_memory_needs_no_checkpointing_and_little_does() -> None:
    much, little = plan_memory(EIGHT_B, 400 << 30), plan_memory(EIGHT_B, 12 << 30)
    assert not much.checkpointing
    assert much.micro_tokens == MOST_TOKENS
    assert little.checkpointing
    assert CHECKPOINT_BELOW < little.micro_tokens <= little.longest


@pytest.mark.parametrize("gigabytes", [1, 4, 12, 40, 80, 200])
def test_what_is_planned_fits_half_of_what_is_free(gigabytes: int) -> None:
    plan = plan_memory(EIGHT_B, gigabytes << 30)
    used = plan.longest * EIGHT_B.token_bytes(checkpointing=True) + EIGHT_B.resident_bytes
    assert plan.longest == 1 or used <= gigabytes << 29


def test_a_long_turn_is_recomputed_where_short_ones_need_not_be(tiny_model: Path) -> None:
    plan = plan_memory(EIGHT_B, 62 << 30)
    assert not plan.checkpointing
    assert plan.micro_tokens <= plan.whole_tokens < plan.longest
    policy = LocalPolicy(str(tiny_model), rank=4, seed=3, device="cpu", learning_rate=1e-4)
    gradients = []
    for beyond in (1_000, 4):
        policy._recompute_beyond = beyond
        logits, _ = policy.response_logits([[5, 9, 30]], [[70, 71, 72]])
        torch.autograd.backward(logits.square().mean())
        gradients.append([p.grad.clone() for p in policy._trainable.values() if p.grad is not None])
        policy.drop_gradients()
    for whole, again in zip(*gradients, strict=True):
        torch.testing.assert_close(again, whole, atol=1e-6, rtol=1e-5)


def test_a_policy_plans_with_the_memory_it_is_given(tiny_model: Path) -> None:
    policy = LocalPolicy(str(tiny_model), rank=4, device="cpu", memory_bytes=6 << 20, learning_rate=1e-4)
    assert policy.max_context == policy.memory.longest < policy.model_context
    roomy = LocalPolicy(str(tiny_model), rank=4, device="cpu", learning_rate=1e-4)
    assert roomy.max_context == roomy.model_context


def test_a_turn_beyond_the_plan_is_dropped_with_its_reason_and_the_others_stay(tiny_model: Path) -> None:
    policy = LocalPolicy(str(tiny_model), rank=4, seed=3, device="cpu", learning_rate=1e-4)
    small, large = sampled_turn(policy, "small", "Hi"), sampled_turn(policy, "large", "Hi there " * 100)
    policy.max_context = 200
    prepared = ready(policy, small, large)
    assert [sample.turn_id for sample in prepared.samples] == ["small"]
    assert prepared.refused["large"].reason.value == "too_long"


def test_a_processor_says_what_is_free() -> None:
    free = free_bytes(torch.device("cpu"))
    assert free is None or free > 1 << 20
