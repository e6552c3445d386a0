"""Faults of the policy's measurements that were found once: each test fails with one of them planted."""

from __future__ import annotations

import pytest
import torch

from tests.trainer.conftest import step_once
from trainer.losses import log_distribution
from trainer.policy import LocalPolicy
from trainer.protocol import Weights


def test_the_spread_measures_the_kl_from_the_policy_to_the_base_model(policy: LocalPolicy) -> None:
    policy.learning_rate = 0.05  # far from the base model, so that the two sides of a KL differ
    for seed in range(4):
        step_once(policy, seed)
    prompts, responses = [[9, 8, 7], [3, 4]], [[5, 6, 7, 8], [11, 12]]
    entropies, divergences = policy.entropy_and_kl(prompts, responses, Weights.STUDENT, kl=True)
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        with torch.no_grad():
            own, _ = policy.response_logits([prompt], [response])
            base, _ = policy.response_logits([prompt], [response], Weights.BASE)
        s, p = log_distribution(own.double()), log_distribution(base.double())
        there = float((s.exp() * (s - p)).sum(-1).mean())
        back = float((p.exp() * (p - s)).sum(-1).mean())
        assert divergences[row] == pytest.approx(there, rel=1e-3)
        assert divergences[row] != pytest.approx(back, rel=0.02)
        assert entropies[row] == pytest.approx(float(-(s.exp() * s).sum(-1).mean()), rel=1e-4)
