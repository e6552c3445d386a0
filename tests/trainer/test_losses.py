"""The loss family against an independent implementation, autograd, enumeration, and by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from trainer.losses import (
    generalized_jsd,
    importance_weight,
    kl_k2,
    kl_k3,
    likeliest,
    log_distribution,
    masked_mean,
    ppo_surrogate,
    renormalised,
    sdpo_token_loss,
    staleness_weight,
    support_divergence,
    token_logprobs,
    with_tail,
)

torch.set_num_threads(1)

ALPHAS = [0.0, 0.3, 0.5, 1.0]
TOP_K = 4
Divergence = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]


def logits_pair(seed: int = 0, shape: tuple[int, ...] = (3, 5, 11)) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    student = 2.0 * torch.randn(*shape, generator=generator, dtype=torch.float64)
    return student, student + torch.randn(*shape, generator=generator, dtype=torch.float64)


def full(student: torch.Tensor, teacher: torch.Tensor, alpha: float) -> torch.Tensor:
    return generalized_jsd(log_distribution(student), log_distribution(teacher), alpha)


def student_topk(student: torch.Tensor, teacher: torch.Tensor, alpha: float) -> torch.Tensor:
    logprobs = log_distribution(student)
    support = likeliest(logprobs, TOP_K)
    return support_divergence(logprobs, support, log_distribution(teacher).gather(-1, support), alpha=alpha)


def teacher_topk(student: torch.Tensor, teacher: torch.Tensor, alpha: float) -> torch.Tensor:
    logprobs = log_distribution(teacher)
    support = likeliest(logprobs, TOP_K)
    return support_divergence(log_distribution(student), support, logprobs.gather(-1, support), alpha=alpha)


def student_topk_renormalised(student: torch.Tensor, teacher: torch.Tensor, alpha: float) -> torch.Tensor:
    logprobs = log_distribution(student)
    support = likeliest(logprobs, TOP_K)
    return generalized_jsd(
        renormalised(logprobs.gather(-1, support)),
        renormalised(log_distribution(teacher).gather(-1, support)),
        alpha,
    )


def gradient(function: Callable[[torch.Tensor], torch.Tensor], at: torch.Tensor) -> torch.Tensor:
    leaf = at.detach().clone().requires_grad_()
    (result,) = torch.autograd.grad(function(leaf), leaf)
    return result


def assert_equal_with_gradient(
    ours: Callable[[torch.Tensor], torch.Tensor],
    theirs: Callable[[torch.Tensor], torch.Tensor],
    at: torch.Tensor,
) -> None:
    torch.testing.assert_close(ours(at), theirs(at), rtol=0, atol=1e-12)
    # different weights per position, so that an error that cancels in a plain sum shows
    weights = torch.linspace(0.5, 2.0, ours(at).numel(), dtype=torch.float64).reshape(ours(at).shape)
    torch.testing.assert_close(
        gradient(lambda leaf: (weights * ours(leaf)).sum(), at),
        gradient(lambda leaf: (weights * theirs(leaf)).sum(), at),
        rtol=0,
        atol=1e-12,
    )


# -- equality with TRL


@pytest.fixture(scope="module")
def trl() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
        from trl.experimental.sdpo import loss_utils
    return loss_utils


@pytest.fixture(scope="module")
def gkd_jsd() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
        from trl.experimental.gkd import GKDTrainer
    return GKDTrainer.generalized_jsd_loss


@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_full_divergence_equals_trl(trl: Any, alpha: float) -> None:
    student, teacher = logits_pair()
    assert_equal_with_gradient(
        lambda leaf: full(leaf, teacher, alpha),
        lambda leaf: trl.compute_full_logit_self_distillation_loss(leaf, teacher, distillation_alpha=alpha),
        student,
    )


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize(
    ("ours", "tail"),
    [(student_topk, True), (student_topk_renormalised, False)],
    ids=["tail", "renormalised"],
)
def test_the_top_k_divergence_equals_trl(trl: Any, ours: Divergence, tail: bool, alpha: float) -> None:
    student, teacher = logits_pair()
    assert_equal_with_gradient(
        lambda leaf: ours(leaf, teacher, alpha),
        lambda leaf: trl.compute_topk_self_distillation_loss(
            leaf,
            teacher,
            distillation_topk=TOP_K,
            distillation_alpha=alpha,
            distillation_add_tail=tail,
        ),
        student,
    )


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_full_divergence_equals_the_jsd_of_gkd(gkd_jsd: Any, alpha: float, temperature: float) -> None:
    student, teacher = logits_pair(seed=1)
    assert_equal_with_gradient(
        lambda leaf: generalized_jsd(
            log_distribution(leaf, temperature), log_distribution(teacher, temperature), alpha
        ),
        lambda leaf: gkd_jsd(leaf, teacher, beta=alpha, temperature=temperature, reduction="none").sum(-1),
        student,
    )


def test_the_weighted_token_loss_equals_trl(trl: Any) -> None:
    student, teacher = logits_pair(seed=2)
    ids = torch.randint(11, (3, 5), generator=torch.Generator().manual_seed(0))
    before = token_logprobs(student, ids) + torch.linspace(-2.0, 2.0, 15).double().reshape(3, 5)

    def ours(leaf: torch.Tensor) -> torch.Tensor:
        return sdpo_token_loss(student_topk(leaf, teacher, 0.5), token_logprobs(leaf, ids), before)

    def theirs(leaf: torch.Tensor) -> torch.Tensor:
        divergence = trl.compute_topk_self_distillation_loss(
            leaf,
            teacher,
            distillation_topk=TOP_K,
            distillation_alpha=0.5,
            distillation_add_tail=True,
        )
        result: torch.Tensor = trl.apply_importance_sampling_clipping(
            divergence, token_logprobs(leaf, ids), before, 2.0
        )
        return result

    assert_equal_with_gradient(ours, theirs, student)


def test_the_opd_surrogate_on_policy_has_the_gradient_of_sampled_token_sdpo(trl: Any) -> None:
    student, teacher = logits_pair(seed=3)
    ids = torch.randint(11, (3, 5), generator=torch.Generator().manual_seed(0))
    before, target = token_logprobs(student, ids), token_logprobs(teacher, ids)

    ours = gradient(
        lambda leaf: ppo_surrogate(token_logprobs(leaf, ids), before, target - before).sum(), student
    )
    theirs = gradient(
        lambda leaf: trl.compute_sampled_token_self_distillation_loss(
            leaf, teacher, ids, distillation_alpha=1.0
        ).sum(),
        student,
    )
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


# -- against autograd


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize(
    "divergence",
    [full, student_topk, teacher_topk, student_topk_renormalised],
    ids=["full", "student", "teacher", "renormalised"],
)
def test_the_gradient_of_every_divergence_is_its_numerical_derivative(
    divergence: Divergence, alpha: float
) -> None:
    student, teacher = logits_pair(seed=4, shape=(2, 3, 7))
    student.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda leaf: divergence(leaf, teacher, alpha), (student,), atol=1e-7, rtol=1e-6
    )


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_gradient_of_the_surrogate_is_its_numerical_derivative_in_every_branch(
    temperature: float,
) -> None:
    student, _ = logits_pair(seed=5, shape=(2, 6, 7))
    ids = torch.randint(7, (2, 6), generator=torch.Generator().manual_seed(0))
    # inside, above, below, far above: once with a positive, once with a negative advantage
    ratios = torch.tensor([[1.0, 1.1, 1.6, 0.5, 4.0, 0.9]] * 2, dtype=torch.float64)
    before = token_logprobs(student, ids, temperature) - ratios.log()
    advantages = torch.tensor([[1.3], [-0.7]], dtype=torch.float64).expand(2, 6)
    student.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda leaf: ppo_surrogate(token_logprobs(leaf, ids, temperature), before, advantages),
        (student,),
        atol=1e-7,
        rtol=1e-6,
    )


def test_the_gradients_of_the_kl_penalty_and_the_token_loss_are_their_numerical_derivatives() -> None:
    student, teacher = logits_pair(seed=6, shape=(2, 3, 7))
    ids = torch.randint(7, (2, 3), generator=torch.Generator().manual_seed(0))
    base = token_logprobs(teacher, ids)
    # far enough before the student that the (constant) weight sits on its cap, where it has no slope to leave
    # out
    before = token_logprobs(student, ids) - 1.0
    student.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda leaf: kl_k2(token_logprobs(leaf, ids), base), (student,), atol=1e-7, rtol=1e-6
    )
    assert torch.autograd.gradcheck(
        lambda leaf: sdpo_token_loss(full(leaf, teacher, 0.5), token_logprobs(leaf, ids), before),
        (student,),
        atol=1e-7,
        rtol=1e-6,
    )


def test_the_gradient_of_the_reduction_is_its_numerical_derivative() -> None:
    values = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]]).bool()
    weight = torch.tensor([0.5, 3.0, 2.0], dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda leaf: masked_mean(leaf, mask, weight=weight),
        (values.requires_grad_(),),
        atol=1e-7,
        rtol=1e-6,
    )


# -- at equality


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("divergence", [full, student_topk, teacher_topk], ids=["full", "student", "teacher"])
def test_a_teacher_that_equals_the_student_has_no_loss_and_no_gradient(
    divergence: Divergence, alpha: float
) -> None:
    student, _ = logits_pair(seed=7)
    assert divergence(student, student, alpha).abs().max() < 1e-12
    assert gradient(lambda leaf: divergence(leaf, student, alpha).sum(), student).abs().max() < 1e-12


def test_a_top_k_without_tail_or_scaling_pulls_even_where_both_agree() -> None:
    """Negative control for the test above: the bare top-K reverse KL has a gradient at equality."""
    student, _ = logits_pair(seed=7)

    def bare(leaf: torch.Tensor) -> torch.Tensor:
        logprobs = log_distribution(leaf)
        support = likeliest(logprobs, TOP_K)
        mine = logprobs.gather(-1, support)
        return (mine.exp() * (mine - mine.detach())).sum()

    assert gradient(bare, student).abs().max() > 1e-3


@pytest.mark.parametrize("alpha", ALPHAS)
def test_a_divergence_is_positive_between_different_distributions(alpha: float) -> None:
    student, teacher = logits_pair(seed=8)
    for divergence in (full, student_topk, teacher_topk):
        assert (divergence(student, teacher, alpha) > 0).all()


@pytest.mark.parametrize("alpha", ALPHAS)
def test_a_support_of_every_token_gives_the_full_divergence(alpha: float) -> None:
    student, teacher = logits_pair(seed=9)
    s, q = log_distribution(student), log_distribution(teacher)
    support = likeliest(s, 99)
    assert support.shape[-1] == 11
    # the tail bin then holds 1e-7 on both sides
    torch.testing.assert_close(
        support_divergence(s, support, q.gather(-1, support), alpha=alpha),
        generalized_jsd(s, q, alpha),
        rtol=0,
        atol=1e-9,
    )


@pytest.mark.parametrize("alpha", ALPHAS)
def test_a_divergence_on_a_support_never_exceeds_the_full_one(alpha: float) -> None:
    """Merging tokens into a bin can only lose information (data processing inequality)."""
    student, teacher = logits_pair(seed=10)
    whole = full(student, teacher, alpha)
    assert (student_topk(student, teacher, alpha) <= whole + 1e-12).all()
    assert (teacher_topk(student, teacher, alpha) <= whole + 1e-12).all()


def test_the_ends_of_alpha_are_the_two_kl_divergences_by_hand() -> None:
    s = torch.tensor([0.75, 0.25], dtype=torch.float64).log()
    q = torch.tensor([0.5, 0.5], dtype=torch.float64).log()
    forward = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    reverse = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    # a = .5: M = (.625, .375)
    to_teacher = 0.5 * math.log(0.5 / 0.625) + 0.5 * math.log(0.5 / 0.375)
    to_student = 0.75 * math.log(0.75 / 0.625) + 0.25 * math.log(0.25 / 0.375)
    assert float(generalized_jsd(s, q, 0.0)) == pytest.approx(forward, abs=1e-14)
    assert float(generalized_jsd(s, q, 1.0)) == pytest.approx(reverse, abs=1e-14)
    assert float(generalized_jsd(s, q, 0.5)) == pytest.approx(0.5 * (to_teacher + to_student), abs=1e-14)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("divergence", [full, student_topk, teacher_topk], ids=["full", "student", "teacher"])
def test_an_impossible_token_on_both_sides_changes_nothing(divergence: Divergence, alpha: float) -> None:
    student, teacher = logits_pair(seed=11)
    nowhere = torch.full((3, 5, 1), -math.inf, dtype=torch.float64)
    wide_teacher = torch.cat([teacher, nowhere], -1)
    assert_equal_with_gradient(
        lambda leaf: divergence(torch.cat([leaf, nowhere], -1), wide_teacher, alpha),
        lambda leaf: divergence(leaf, teacher, alpha),
        student,
    )


def test_an_unused_slot_of_a_teacher_support_changes_nothing() -> None:
    student, teacher = logits_pair(seed=12)
    s, q = log_distribution(student), log_distribution(teacher)
    support = likeliest(q, TOP_K)
    reported = q.gather(-1, support)
    # slot with a repeated id and no log-probability: a backend that returned fewer tokens than asked
    padded_ids = torch.cat([support, support[..., :1]], -1)
    padded = torch.cat([reported, torch.full_like(reported[..., :1], -math.inf)], -1)
    for alpha in ALPHAS:
        torch.testing.assert_close(
            support_divergence(s, padded_ids, padded, alpha=alpha),
            support_divergence(s, support, reported, alpha=alpha),
            rtol=0,
            atol=1e-12,
        )


@pytest.mark.parametrize("alpha", [-0.01, 1.01, math.nan])
def test_an_alpha_outside_the_unit_interval_is_refused(alpha: float) -> None:
    student, teacher = logits_pair()
    with pytest.raises(ValueError, match="alpha must lie in"):
        full(student, teacher, alpha)


def test_the_tail_bin_makes_the_support_sum_to_one_and_stays_finite() -> None:
    logprobs = torch.tensor([0.5, 0.2], dtype=torch.float64).log()
    assert with_tail(logprobs).exp().tolist() == pytest.approx([0.5, 0.2, 0.3], abs=1e-15)
    certain = torch.tensor([0.0, -800.0], dtype=torch.float64, requires_grad=True)
    tail = with_tail(certain)[-1]
    assert tail.item() == pytest.approx(math.log(1e-7), rel=1e-6)
    tail.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
    assert certain.grad is not None
    assert torch.equal(certain.grad, torch.zeros(2, dtype=torch.float64))


# -- exact expectations: every token of a small vocabulary, weighted with its probability


def expected_gradient(
    per_token: Callable[[torch.Tensor], torch.Tensor], logits: torch.Tensor
) -> torch.Tensor:
    """E over y ~ S of the gradient of a per-token loss, given the log-probability of each possible y."""
    probabilities = log_distribution(logits).exp()
    return gradient(lambda leaf: (probabilities * per_token(log_distribution(leaf))).sum(), logits)


def reverse_kl_gradient(logits: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    q = log_distribution(other)

    def reverse_kl(leaf: torch.Tensor) -> torch.Tensor:
        s = log_distribution(leaf)
        return (s.exp() * (s - q)).sum()

    return gradient(reverse_kl, logits)


def forward_kl_gradient(logits: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    q = log_distribution(other)
    return gradient(lambda leaf: (q.exp() * (q - log_distribution(leaf))).sum(), logits)


def test_the_expected_opd_gradient_is_the_gradient_of_the_reverse_kl_to_the_teacher() -> None:
    student, teacher = logits_pair(seed=13, shape=(7,))
    o, q = log_distribution(student), log_distribution(teacher)
    opd = expected_gradient(lambda s: ppo_surrogate(s, o, q - o), student)
    torch.testing.assert_close(opd, reverse_kl_gradient(student, teacher), rtol=0, atol=1e-12)


def test_the_expected_gradient_of_k2_is_the_gradient_of_the_reverse_kl_to_the_base() -> None:
    student, base = logits_pair(seed=14, shape=(7,))
    p = log_distribution(base)
    k2 = expected_gradient(lambda s: kl_k2(s, p), student)
    torch.testing.assert_close(k2, reverse_kl_gradient(student, base), rtol=0, atol=1e-12)
    assert (k2 - forward_kl_gradient(student, base)).abs().max() > 1e-3


def test_k1_as_a_loss_has_no_expected_gradient_and_k3_has_that_of_the_forward_kl() -> None:
    """Negative controls: why neither of them is in the loss."""
    student, base = logits_pair(seed=15, shape=(7,))
    p = log_distribution(base)
    assert expected_gradient(lambda s: s - p, student).abs().max() < 1e-12
    k3 = expected_gradient(lambda s: (p - s).exp() - 1 - (p - s), student)
    torch.testing.assert_close(k3, forward_kl_gradient(student, base), rtol=0, atol=1e-12)


def test_the_expectation_of_k3_is_the_kl_it_reports() -> None:
    student, base = logits_pair(seed=16, shape=(7,))
    s, p = log_distribution(student), log_distribution(base)
    assert float((s.exp() * kl_k3(s, p)).sum()) == pytest.approx(float((s.exp() * (s - p)).sum()), abs=1e-12)


def test_the_expected_staleness_weighted_gradient_is_unbiased_below_the_cap() -> None:
    """Tokens an older version sampled: weighting with o/b gives what sampling from o would have given."""
    student, teacher = logits_pair(seed=17, shape=(7,))
    o, q = log_distribution(student), log_distribution(teacher)
    b = log_distribution(student + 0.3 * torch.linspace(-1.0, 1.0, 7, dtype=torch.float64))
    weight = staleness_weight(o, b)
    assert (weight < 2.0).all()
    weighted = gradient(
        lambda leaf: (b.exp() * weight * ppo_surrogate(log_distribution(leaf), o, q - o)).sum(), student
    )
    torch.testing.assert_close(weighted, reverse_kl_gradient(student, teacher), rtol=0, atol=1e-12)


# -- by hand


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        # A > 0: -rho A until 1.28, then flat; below .8 nothing holds it back
        (1.0, 2.0, -2.0, -2.0),
        (1.2, 2.0, -2.4, -2.4),
        (1.5, 2.0, -2.56, 0.0),
        (0.5, 2.0, -1.0, -1.0),
        # A < 0: flat below .8; above 1.28 it still pushes down; beyond 3 the dual clip makes it flat again
        (1.0, -2.0, 2.0, 2.0),
        (0.5, -2.0, 1.6, 0.0),
        (1.5, -2.0, 3.0, 3.0),
        (2.9, -2.0, 5.8, 5.8),
        (4.0, -2.0, 6.0, 0.0),
        # A = 0 says nothing
        (1.5, 0.0, 0.0, 0.0),
    ],
)
def test_the_surrogate_and_the_dual_clip_give_the_numbers_derived_by_hand(
    ratio: float, advantage: float, loss: float, slope: float
) -> None:
    """slope = d loss / d s, since d rho / d s = rho."""
    before = torch.tensor(-2.0, dtype=torch.float64)
    logprob = before + math.log(ratio)
    weight = torch.tensor(advantage, dtype=torch.float64)
    assert float(ppo_surrogate(logprob, before, weight)) == pytest.approx(loss, abs=1e-12)
    assert float(gradient(lambda leaf: ppo_surrogate(leaf, before, weight), logprob)) == pytest.approx(
        slope, abs=1e-12
    )


def test_without_clips_the_surrogate_is_the_importance_sampled_policy_gradient() -> None:
    before = torch.zeros(3, dtype=torch.float64)
    logprobs = torch.tensor([-3.0, 0.0, 3.0], dtype=torch.float64)
    advantages = torch.tensor([1.0, -1.0, -1.0], dtype=torch.float64)
    loss = ppo_surrogate(logprobs, before, advantages, clip_low=0.0, clip_high=math.inf, dual_clip=None)
    torch.testing.assert_close(loss, -logprobs.exp() * advantages, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dual_clip", [3.0, None])
@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
@pytest.mark.parametrize("gap", [20.0, 88.0, 90.0, 200.0, 1000.0, -90.0, -1000.0])
def test_no_ratio_overflows_and_what_the_clip_holds_has_no_gradient(
    gap: float, advantage: float, dual_clip: float | None, dtype: torch.dtype
) -> None:
    before, new = torch.tensor([-1.0 - gap], dtype=dtype), torch.tensor([-1.0], dtype=dtype, requires_grad=True)  # fmt: skip
    loss = ppo_surrogate(new, before, torch.tensor([advantage], dtype=dtype), dual_clip=dual_clip)
    loss = loss + sdpo_token_loss(torch.ones_like(new), new, before) + kl_k3(new, before)
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None
    assert bool(loss.isfinite().all() and new.grad.isfinite().all())
    if advantage == 0 or (gap > 20 and (advantage > 0 or dual_clip)):
        assert new.grad.tolist() == [0.0]


def test_weights_are_cut_at_their_cap_kept_below_it_and_constant() -> None:
    new = torch.tensor([-1.0, -1.0, -1.0, -900.0], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([-1.0, -0.5, -4.0, 0.0], dtype=torch.float64)
    for weight in (staleness_weight(new, old), importance_weight(new, old)):
        assert weight.tolist() == pytest.approx([1.0, math.exp(-0.5), 2.0, math.exp(-20.0)], abs=1e-15)
        assert not weight.requires_grad


def test_constants_carry_no_gradient_into_any_loss() -> None:
    one = torch.full((4,), -1.0, dtype=torch.float64, requires_grad=True)
    other = torch.full((4,), -1.5, dtype=torch.float64, requires_grad=True)
    advantages = torch.ones(4, dtype=torch.float64, requires_grad=True)
    loss = (ppo_surrogate(one, other, advantages) + kl_k2(one, other)).sum()
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
    assert one.grad is not None
    assert other.grad is None
    assert advantages.grad is None
    student = torch.randn(4, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(4, dtype=torch.float64, requires_grad=True)
    divergence = full(student, teacher, 0.5)
    divergence.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
    assert student.grad is not None
    assert teacher.grad is None


def test_k2_and_k3_by_hand() -> None:
    s = torch.tensor([-1.0, -1.0], dtype=torch.float64)
    p = torch.tensor([-1.5, -0.5], dtype=torch.float64)
    assert kl_k2(s, p).tolist() == pytest.approx([0.125, 0.125], abs=1e-15)
    assert kl_k3(s, p).tolist() == pytest.approx(
        [math.exp(-0.5) - 1 + 0.5, math.exp(0.5) - 1 - 0.5], abs=1e-15
    )


# -- reading log-probabilities


def test_each_token_gets_the_log_probability_of_its_own_position() -> None:
    logits, _ = logits_pair(seed=18)
    ids = torch.randint(11, (3, 5), generator=torch.Generator().manual_seed(1))
    logprobs = token_logprobs(logits, ids, 0.7)
    for row in range(3):
        for position in range(5):
            probabilities = (logits[row, position] / 0.7).softmax(-1)
            expected = math.log(probabilities[ids[row, position]])
            assert float(logprobs[row, position]) == pytest.approx(expected, abs=1e-12)


def test_every_sample_has_its_own_temperature_and_chunks_do_not_matter() -> None:
    logits, _ = logits_pair(seed=19)
    ids = torch.randint(11, (3, 5), generator=torch.Generator().manual_seed(1))
    temperature = torch.tensor([0.5, 1.0, 1.7], dtype=torch.float64)
    expected = torch.stack(
        [token_logprobs(logits[row], ids[row], float(temperature[row])) for row in range(3)]
    )
    for chunk in (None, 1, 2, 5, 9):
        torch.testing.assert_close(
            token_logprobs(logits, ids, temperature, chunk=chunk), expected, rtol=0, atol=1e-13
        )


@pytest.mark.parametrize(
    ("given", "computed"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_distributions_are_computed_in_float32_or_better(given: torch.dtype, computed: torch.dtype) -> None:
    logits = logits_pair(seed=20)[0].to(given)
    assert log_distribution(logits).dtype == computed
    torch.testing.assert_close(
        log_distribution(logits).double(), log_distribution(logits.double()), rtol=0, atol=1e-5
    )


# -- reduction


def test_the_mean_is_over_tokens_of_a_sequence_and_then_over_sequences() -> None:
    values = torch.tensor([[1.0, 2.0, 3.0], [10.0, 0.0, 0.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, True], [True, False, False]])
    assert float(masked_mean(values, mask)) == pytest.approx((2.0 + 10.0) / 2, abs=1e-15)


def test_a_weight_scales_its_own_sequence_only() -> None:
    values = torch.tensor([[1.0, 3.0], [10.0, 20.0]], dtype=torch.float64)
    mask = torch.ones(2, 2, dtype=torch.bool)
    weight = torch.tensor([0.5, 2.0], dtype=torch.float64)
    assert float(masked_mean(values, mask, weight=weight)) == pytest.approx((0.5 * 2 + 2 * 15) / 2)


def test_parts_of_a_batch_add_up_to_the_whole() -> None:
    values = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0], [1, 1, 1]]).bool()
    parts = sum(
        float(masked_mean(values[row : row + 1], mask[row : row + 1], sequences=3)) for row in range(4)
    )
    assert parts == pytest.approx(float(masked_mean(values, mask)), abs=1e-14)


def test_an_empty_mask_gives_zero() -> None:
    values = torch.full((2, 3), math.nan, dtype=torch.float64, requires_grad=True)
    loss = masked_mean(values, torch.zeros(2, 3, dtype=torch.bool))
    assert loss.item() == 0.0
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
    assert values.grad is not None
    assert torch.equal(values.grad, torch.zeros(2, 3, dtype=torch.float64))


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_poison_at_dead_positions_changes_neither_mean_nor_gradient(poison: float) -> None:
    values = torch.tensor([[1.0, 2.0, poison], [poison, poison, poison]], dtype=torch.float64)
    mask = torch.tensor([[True, True, False], [False, False, False]])
    weight = torch.tensor([1.0, poison], dtype=torch.float64)
    assert float(masked_mean(values, mask, weight=weight)) == 1.5
    assert gradient(lambda leaf: masked_mean(leaf, mask, weight=weight), values).tolist() == [
        [0.5, 0.5, 0.0],
        [0.0, 0.0, 0.0],
    ]


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 1.0])
def test_a_support_without_tail_is_the_renormalised_divergence(alpha: float) -> None:
    generator = torch.Generator().manual_seed(1)
    student, teacher = torch.randn(2, 5, 30, generator=generator, dtype=torch.float64)
    s, q = log_distribution(student), log_distribution(teacher)
    support = likeliest(q, 4)
    found = support_divergence(s, support, q.gather(-1, support), alpha=alpha, mass="renormalised")
    expected = generalized_jsd(
        renormalised(s.gather(-1, support)), renormalised(q.gather(-1, support)), alpha
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    tailed = support_divergence(s, support, q.gather(-1, support), alpha=alpha)
    assert (tailed - found).abs().max() > 1e-3
