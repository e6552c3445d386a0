"""A teacher's memory where only some tokens are known."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from trainer.losses import IMPLAUSIBLE, Residual, log_distribution, with_residual
from trainer.tinker.policy import change_of_likeliest, with_residual_on_bins


def logits(seed: int) -> torch.Tensor:
    return log_distribution(torch.randn(4, 12, generator=torch.Generator().manual_seed(seed)).double())


@pytest.mark.parametrize(
    "residual", [Residual.even(0.5), Residual(on_hint=0.5, off_hint=1.0), Residual(off_hint=1.0)]
)
def test_on_all_tokens_bins_are_the_whole_distribution(residual: Residual) -> None:
    hinted, base, student = (logits(seed) for seed in range(3))
    whole = log_distribution(with_residual(hinted, base, student, residual))
    # eleven of the twelve tokens; the twelfth is the bin for all others
    h, p, s = hinted[:, :11], base[:, :11], student[:, :11]
    found = with_residual_on_bins(h, p, s, residual, torch.full((4,), -1))
    torch.testing.assert_close(found, whole[:, :11].float(), atol=1e-5, rtol=0.0)
    # the response's own token once more, where it is among the others already: no bin of its own
    own = torch.tensor([0, 3, 5, 10])
    h, p, s = (torch.cat([values, values.gather(-1, own[:, None])], dim=-1) for values in (h, p, s))
    again = with_residual_on_bins(h, p, s, residual, own)
    torch.testing.assert_close(again[:, :11], found, atol=1e-5, rtol=0.0)
    torch.testing.assert_close(again[:, 11], found.gather(-1, own[:, None]).squeeze(-1), atol=1e-5, rtol=0.0)


def test_what_is_not_known_stays_unknown_and_taints_nothing_else() -> None:
    hinted, base, student = (logits(seed)[:, :5] for seed in range(3))
    residual = Residual(on_hint=0.5, off_hint=1.0)
    whole = with_residual_on_bins(hinted, base, student, residual, torch.full((4,), -1))
    hinted = hinted.clone()
    hinted[2, 1] = math.nan
    found = with_residual_on_bins(hinted, base, student, residual, torch.full((4,), -1))
    assert found[2].isnan().all()
    torch.testing.assert_close(found[[0, 1, 3]], whole[[0, 1, 3]])


def test_a_single_token_and_its_rest_have_one_direction_only() -> None:
    """Of two bins nothing is at right angles: the hint's share holds for all, as far as the bound reaches."""
    hinted, base, student = (torch.tensor([[math.log(p)]]) for p in (0.6, 0.3, 0.5))
    nowhere = torch.tensor([-1])
    whole = with_residual_on_bins(hinted, base, student, Residual.even(0.5), nowhere)
    split = with_residual_on_bins(hinted, base, student, Residual(on_hint=0.5, off_hint=1.0), nowhere)
    torch.testing.assert_close(split, whole)


def test_named_tokens_implausible_to_both_models_are_unlearned_and_the_tail_bin_is_no_token() -> None:
    hinted, base, student = (log_distribution(3.0 * logits(seed)) for seed in range(3))
    residual, nowhere = Residual(on_hint=0.5, off_hint=1.0, min_p=0.1), torch.full((4,), -1)
    named = hinted[:, :6], base[:, :6], student[:, :6]
    found = with_residual_on_bins(*named, residual, nowhere)
    before = with_residual_on_bins(*named, replace(residual, min_p=0.0), nowhere)
    shares = [part.exp() for part in named]
    is_plausible = torch.stack([p >= 0.1 * p.max(dim=-1, keepdim=True).values for p in shares]).any(dim=0)
    assert 0 < int((~is_plausible).sum()) < is_plausible.numel()
    lost = before - found  # what is unlearnt goes to all others alike
    rest = torch.log1p(-before.exp().sum(-1)) - torch.log1p(-found.exp().sum(-1))
    expected = torch.where(is_plausible, 0.0, IMPLAUSIBLE)
    torch.testing.assert_close(lost - rest[:, None], expected.to(lost), atol=1e-4, rtol=0.0)
    # one token alone has no distribution to compare
    alone = hinted[:, :1], base[:, :1], student[:, :1]
    single = with_residual_on_bins(*alone, residual, nowhere)
    torch.testing.assert_close(single, with_residual_on_bins(*alone, replace(residual, min_p=0.0), nowhere))


def test_the_change_between_likeliest_tokens_counts_what_only_one_side_lists() -> None:
    def top(*rows: dict[int, float]) -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.tensor([list(row) for row in rows])
        return ids, torch.tensor([list(row.values()) for row in rows]).log()

    same = change_of_likeliest(top({1: 0.6, 2: 0.3}), top({2: 0.3, 1: 0.6}))
    assert same.peak == pytest.approx(0.0, abs=1e-6)
    assert same.shifts == {}
    # nothing in common: ln 2 a nat, and each token moves by its whole probability
    apart = change_of_likeliest(top({1: 0.6, 2: 0.4}), top({3: 0.7, 4: 0.3}))
    assert apart.peak == pytest.approx(math.log(2), abs=1e-6)
    assert apart.shifts == pytest.approx({(0, 1): -0.6, (0, 2): -0.4, (0, 3): 0.7, (0, 4): 0.3}, abs=1e-6)
    # two positions: the larger divergence is the peak; the rest is one bin
    moved = change_of_likeliest(
        top({1: 0.9, 2: 0.05}, {1: 0.5, 2: 0.25}), top({1: 0.9, 2: 0.05}, {1: 0.25, 2: 0.5})
    )
    expected = 0.5 * (0.5 * math.log(0.5 / 0.375) + 0.25 * math.log(0.25 / 0.375)) * 2
    assert moved.peak == pytest.approx(expected, abs=1e-6)
    assert moved.shifts == pytest.approx({(1, 1): -0.25, (1, 2): 0.25}, abs=1e-6)
