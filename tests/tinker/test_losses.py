"""Tinker's documented losses, against numbers derived by hand."""

from __future__ import annotations

import math

import pytest
import torch

from tests.tinker.losses import loss_of

#: Two tokens: ratios e^0.5 = 1.6487 and e^-0.5 = 0.6065, advantages 1 and -2.
LOGPROBS = torch.tensor([-1.0, -2.0])
SAMPLED = {"logprobs": torch.tensor([-1.5, -1.5]), "advantages": torch.tensor([1.0, -2.0])}
UP, DOWN = math.exp(0.5), math.exp(-0.5)


@pytest.mark.parametrize(
    ("kind", "config", "expected"),
    [
        ("importance_sampling", {}, -(UP * 1 + DOWN * -2)),
        # min(1.6487, 1.2) * 1, and min(0.6065 * -2, 0.8 * -2) = -1.6
        ("ppo", {}, -(1.2 - 1.6)),
        ("ppo", {"clip_low_threshold": 0.5, "clip_high_threshold": 2.0}, -(UP - 2 * DOWN)),
        ("cispo", {}, -(1.2 * -1.0 * 1 + 0.8 * -2.0 * -2)),
        ("dro", {"beta": 0.1}, -(-1.0 * 1 - 0.05 * 0.25 + -2.0 * -2 - 0.05 * 0.25)),
    ],
)
def test_a_policy_loss_is_the_documented_sum(kind: str, config: dict[str, float], expected: float) -> None:
    assert float(loss_of(kind, LOGPROBS, SAMPLED, config)) == pytest.approx(expected, rel=1e-6)


def test_cross_entropy_is_a_weighted_sum_of_one_or_several_targets() -> None:
    assert float(loss_of("cross_entropy", LOGPROBS, {}, {})) == 3.0
    assert float(loss_of("cross_entropy", LOGPROBS, {"weights": torch.tensor([0.0, 0.5])}, {})) == 1.0
    soft = torch.tensor([[-1.0, -2.0], [-3.0, -4.0]])
    weights = torch.tensor([[0.5, 0.25], [0.0, 1.0]])
    assert float(loss_of("cross_entropy", soft, {"weights": weights}, {})) == 0.5 + 0.5 + 4.0


def test_an_advantage_of_zero_masks_a_token() -> None:
    logprobs = LOGPROBS.clone().requires_grad_()
    inputs = {**SAMPLED, "advantages": torch.tensor([0.0, 1.0])}
    loss_of("importance_sampling", logprobs, inputs, {}).backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    assert logprobs.grad[0] == 0
    assert logprobs.grad[1] != 0


@pytest.mark.parametrize(
    ("kind", "inputs", "why"),
    [
        ("mystery", {}, "unknown loss_fn"),
        ("ppo", {"advantages": LOGPROBS}, "needs logprobs"),
        ("ppo", {**SAMPLED, "mask": LOGPROBS}, "does not take mask"),
        ("cross_entropy", {"weights": torch.ones(3)}, r"shape \[3\]"),
    ],
)
def test_what_does_not_fit_is_refused(kind: str, inputs: dict[str, torch.Tensor], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        loss_of(kind, LOGPROBS, inputs, {})
