"""A teacher's memory where only some tokens are known."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from trainer.losses import IMPLAUSIBLE, Carry, carried_over, log_distribution
from trainer.tinker.policy import carried_on_bins


def logits(seed: int) -> torch.Tensor:
    return log_distribution(torch.randn(4, 12, generator=torch.Generator().manual_seed(seed)).double())


@pytest.mark.parametrize("carry", [Carry.even(0.5), Carry(along=0.5, rest=1.0), Carry(rest=1.0)])
def test_on_all_tokens_bins_are_the_whole_distribution(carry: Carry) -> None:
    hinted, base, student = (logits(seed) for seed in range(3))
    whole = log_distribution(carried_over(hinted, base, student, carry))
    # eleven of the twelve tokens; the twelfth is the bin for all others
    h, p, s = hinted[:, :11], base[:, :11], student[:, :11]
    found = carried_on_bins(h, p, s, carry, torch.full((4,), -1))
    torch.testing.assert_close(found, whole[:, :11].float(), atol=1e-5, rtol=0.0)
    # the response's own token once more, where it is among the others already: no bin of its own
    own = torch.tensor([0, 3, 5, 10])
    h, p, s = (torch.cat([values, values.gather(-1, own[:, None])], dim=-1) for values in (h, p, s))
    again = carried_on_bins(h, p, s, carry, own)
    torch.testing.assert_close(again[:, :11], found, atol=1e-5, rtol=0.0)
    torch.testing.assert_close(again[:, 11], found.gather(-1, own[:, None]).squeeze(-1), atol=1e-5, rtol=0.0)


def test_what_is_not_known_stays_unknown_and_taints_nothing_else() -> None:
    hinted, base, student = (logits(seed)[:, :5] for seed in range(3))
    carry = Carry(along=0.5, rest=1.0)
    whole = carried_on_bins(hinted, base, student, carry, torch.full((4,), -1))
    hinted = hinted.clone()
    hinted[2, 1] = math.nan
    found = carried_on_bins(hinted, base, student, carry, torch.full((4,), -1))
    assert found[2].isnan().all()
    torch.testing.assert_close(found[[0, 1, 3]], whole[[0, 1, 3]])


def test_a_single_token_and_its_rest_have_one_direction_only() -> None:
    """Of two bins nothing is at right angles: the hint's share holds for all, as far as the bound reaches."""
    hinted, base, student = (torch.tensor([[math.log(p)]]) for p in (0.6, 0.3, 0.5))
    nowhere = torch.tensor([-1])
    whole = carried_on_bins(hinted, base, student, Carry.even(0.5), nowhere)
    split = carried_on_bins(hinted, base, student, Carry(along=0.5, rest=1.0), nowhere)
    torch.testing.assert_close(split, whole)


def test_named_tokens_that_nobody_holds_for_plausible_are_unlearnt_and_the_bin_of_all_others_is_no_token() -> (
    None
):
    hinted, base, student = (log_distribution(3.0 * logits(seed)) for seed in range(3))
    carry, nowhere = Carry(along=0.5, rest=1.0, min_p=0.1), torch.full((4,), -1)
    named = hinted[:, :6], base[:, :6], student[:, :6]
    found = carried_on_bins(*named, carry, nowhere)
    before = carried_on_bins(*named, replace(carry, min_p=0.0), nowhere)
    shares = [part.exp() for part in named]
    is_said = torch.stack([p >= 0.1 * p.max(dim=-1, keepdim=True).values for p in shares]).any(dim=0)
    assert 0 < int((~is_said).sum()) < is_said.numel()
    lost = before - found  # what is unlearnt goes to all others alike
    rest = torch.log1p(-before.exp().sum(-1)) - torch.log1p(-found.exp().sum(-1))
    expected = torch.where(is_said, 0.0, IMPLAUSIBLE)
    torch.testing.assert_close(lost - rest[:, None], expected.to(lost), atol=1e-4, rtol=0.0)
    # of one token alone nothing can be said
    alone = hinted[:, :1], base[:, :1], student[:, :1]
    single = carried_on_bins(*alone, carry, nowhere)
    torch.testing.assert_close(single, carried_on_bins(*alone, replace(carry, min_p=0.0), nowhere))
