"""Fixtures of the trainer's room: a tiny real policy on the CPU."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from trainer.policy import LocalPolicy


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Tiny tensors: more threads cost more than they give, and other tests run beside."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def policy(tiny_model: Path) -> LocalPolicy:
    """A fresh policy on the tiny random model; its adapter changes nothing yet."""
    return LocalPolicy(str(tiny_model), rank=4, learning_rate=1e-2, seed=3, device="cpu")


def step_once(policy: LocalPolicy, seed: int = 0) -> None:
    """Make the policy differ from its base."""
    rng = random.Random(seed)
    response = [rng.randrange(3, 400) for _ in range(5)]
    logits, _ = policy.response_logits([[9, 8, 7]], [response])
    torch.autograd.backward(torch.nn.functional.cross_entropy(logits[0], torch.tensor(response)))
    policy.apply_gradients()
