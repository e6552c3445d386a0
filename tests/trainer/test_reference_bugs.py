"""Mistakes of earlier systems (OpenClaw-RL, CLaaS, user_interactions, SDPO), each held off by name.

Here are those that live in the loss, the advantages or the objective; those of sample assembly have their own
file. A test that shows how the mistake looks (a negative control) says so.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from store.errors import AlignmentError
from store.settings import read_settings
from tests.examples import examples
from tests.trainer.batches import largest, make_batch, run
from trainer.advantages import Streams, build_streams, directive_streams, token_streams, wish_streams
from trainer.losses import (
    generalized_jsd,
    importance_weight,
    kl_k3,
    likeliest,
    log_distribution,
    renormalised,
    staleness_weight,
    support_divergence,
    token_logprobs,
)
from trainer.objective import Batch, Objective
from trainer.plan import StepPlan

torch.set_num_threads(1)


TEACHER, TRAINER = (-2.0, -1.5, -3.0), (-1.0, -1.0, -1.0)


def rated(verdict: int | None) -> Streams:
    return build_streams(verdict, baseline=0.0, completion_length=3)


def taught(
    method: Any,
    support: str = "token",
    teacher: Any = TEACHER,
    trainer: Any = TRAINER,
    *,
    weight: float = 1.0,
) -> Streams:
    made = wish_streams(method, 3, weight=weight)
    return token_streams(made, teacher, trainer, clip=5.0) if support == "token" else made


def one_sample(
    logits: torch.Tensor,
    ids: torch.Tensor,
    made: Streams,
    *,
    teacher: torch.Tensor | None = None,
    base: torch.Tensor | None = None,
    temperature: float = 1.0,
    sample_weight: float = 1.0,
) -> Batch:
    """One on-policy sample: sampled by the student's own weights. [C, V] logits, [C] ids."""
    tau = torch.tensor([temperature], dtype=logits.dtype)
    before = token_logprobs(logits.detach().unsqueeze(0), ids.unsqueeze(0), tau)
    return Batch(
        completion_ids=ids.unsqueeze(0),
        mask=torch.ones(1, len(ids), dtype=torch.bool),
        sampling_logprobs=before,
        trainer_logprobs=before,
        base_logprobs=None if base is None else token_logprobs(base.unsqueeze(0), ids.unsqueeze(0), tau),
        advantages=torch.tensor([made.advantages], dtype=logits.dtype),
        advantage_mask=torch.tensor([made.advantage_mask]),
        directive_weight=torch.tensor([made.directive_weight], dtype=logits.dtype),
        directive_alpha=(made.directive_alpha,),
        teacher_logits=None if teacher is None else teacher.unsqueeze(0),
        sample_weight=torch.tensor([sample_weight], dtype=logits.dtype),
        temperature=tau,
    )


def random_logits(*shape: int, seed: int = 0, scale: float = 2.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)


def descend(objective: Objective, batch: Batch, logits: torch.Tensor, rate: float = 0.5) -> torch.Tensor:
    """The student's logits after one small step of plain gradient descent, [C, V]."""
    return logits - rate * run(objective, batch, logits.unsqueeze(0))[1][0]


NO_KL = Objective(kl_coef=0.0)


def test_a01_opd_follows_the_teacher_and_never_reinforces_what_was_complained_about() -> None:
    """Reward fixed to +1, teacher weight 0 by default: every complaint made its own cause likelier."""
    assert taught("opd").advantages == (-1.0, -0.5, -2.0)
    assert not StepPlan.of(read_settings({"method": "opd"})).reads_verdicts  # none enters beside the teacher
    assert rated(-1).advantages == (-1.0, -1.0, -1.0)

    logits, ids = random_logits(3, 7), torch.tensor([1, 4, 2])
    # a teacher that prefers another token than the sampled one
    teacher = logits - 3.0 * torch.nn.functional.one_hot(ids, 7)
    q, o = token_logprobs(teacher, ids), token_logprobs(logits, ids)
    for support in ("token", "topk"):
        made = taught("opd", support, q.tolist(), o.tolist())
        batch = one_sample(logits, ids, made, teacher=teacher)
        after = token_logprobs(descend(NO_KL, batch, logits), ids)
        assert (after < o).all()


@pytest.mark.parametrize("support", ["token", "topk"])
def test_a02_the_kl_coefficient_scales_the_penalty_and_nothing_else(support: str) -> None:
    """``kl_loss_coef`` multiplied the OPD advantage, so that 0 switched the teacher off."""
    logits, ids = random_logits(3, 7), torch.tensor([1, 4, 2])
    teacher, base = random_logits(3, 7, seed=1), random_logits(3, 7, seed=2)
    q, o = token_logprobs(teacher, ids).tolist(), token_logprobs(logits, ids).tolist()
    made = taught("opd", support, q, o)
    batch = one_sample(logits, ids, made, teacher=teacher, base=base)
    runs = {
        coefficient: run(Objective(kl_coef=coefficient), batch, logits.unsqueeze(0))
        for coefficient in (0.0, 0.1, 0.2)
    }
    assert largest(runs[0.0][1]) > 1e-3
    term = "policy_loss" if support == "token" else "directive_loss"
    assert len({metrics[term] for _, _, metrics in runs.values()}) == 1
    # the rest is linear in the coefficient
    torch.testing.assert_close(
        runs[0.2][1] - runs[0.0][1], 2 * (runs[0.1][1] - runs[0.0][1]), rtol=0, atol=1e-12
    )
    assert runs[0.1][0] - runs[0.0][0] == pytest.approx(0.1 * runs[0.1][2]["kl_base_k2"])


def test_a05_first_response_token_keeps_its_teacher_logprob() -> None:
    """The first token got teacher log-probability 0, "certain", and so the largest advantage of all."""
    assert taught("opd").advantages[0] == -1.0
    assert taught("opd", teacher=TRAINER).advantages[0] == 0.0

    logits, ids = random_logits(3, 7), torch.tensor([1, 4, 2])
    teacher = logits.clone()
    teacher[0] = random_logits(7, seed=3)
    # the teacher differs at the first token only: all that is learnt is learnt there
    batch = one_sample(logits, ids, taught("sdpo", "topk"), teacher=teacher)
    _, gradient, _ = run(NO_KL, batch, logits.unsqueeze(0))
    assert largest(gradient[0, 0]) > 1e-3
    assert largest(gradient[0, 1:]) < 1e-12
    expected = logits[0].log_softmax(-1)[ids[0]]
    assert token_logprobs(logits, ids)[0].item() == pytest.approx(expected.item(), abs=1e-14)


@pytest.mark.parametrize("method", ["opd", "combine", "sdpo"])
@pytest.mark.parametrize("failed", [None, (), (None, None, None), (math.nan,) * 3], ids=repr)
def test_a06_a_failed_teacher_drops_the_sample_and_never_becomes_zeros(method: str, failed: Any) -> None:
    """With a support of the likeliest tokens: tests/trainer/test_step.py."""
    with pytest.raises(AlignmentError):
        taught(method, teacher=failed)


def test_a06_a_directive_weight_without_a_teacher_stops_the_step() -> None:
    logits, ids = random_logits(3, 7), torch.tensor([1, 4, 2])
    with pytest.raises(ValueError, match="no teacher"):
        run(NO_KL, one_sample(logits, ids, taught("sdpo", "topk")), logits.unsqueeze(0))


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.4])
def test_a07_an_identical_teacher_without_hint_agrees_at_every_temperature(temperature: float) -> None:
    logits, ids = random_logits(200, 7), torch.arange(200) % 7
    batch = one_sample(
        logits,
        ids,
        directive_streams(completion_length=200),
        teacher=logits,
        base=logits,
        temperature=temperature,
    )
    loss, gradient, metrics = run(Objective(kl_coef=1.0), batch, logits.unsqueeze(0))
    assert abs(loss) < 1e-12
    assert largest(gradient) < 1e-12
    assert metrics["teacher_shift"] < 1e-12
    assert metrics["ratio_max"] == pytest.approx(1.0, abs=1e-12)
    assert metrics["kl_base_k3"] < 1e-12


def test_a07_two_temperatures_make_an_identical_model_seem_to_disagree() -> None:
    """Negative control: the same weights, the sampler at .6 and the teacher at 1."""
    logits = random_logits(200, 7)
    sharp = log_distribution(logits, 0.6)
    shift = (sharp.exp() * (log_distribution(logits, 1.0) - sharp).abs()).sum(-1)
    assert shift.mean() > 0.1


@settings(max_examples=examples(30))
@given(seed=st.integers(0, 1000), length=st.integers(1, 5))
def test_a09_a_row_with_a_neutral_verdict_and_a_teacher_has_a_gradient(seed: int, length: int) -> None:
    """A turn kept "so that each session trains at least once" entered with reward 0 and moved nothing."""
    made = wish_streams("combine", length)
    assert made.is_effective
    ids = torch.arange(length) % 7
    logits = random_logits(length, 7, seed=seed)
    batch = one_sample(logits, ids, made, teacher=random_logits(length, 7, seed=seed + 1))
    _, gradient, metrics = run(NO_KL, batch, logits.unsqueeze(0))
    assert metrics["effective_samples"] == 1.0
    assert (gradient.abs().amax(dim=-1) > 1e-6).all()


def test_a09_the_row_it_replaces_has_none() -> None:
    """Negative control: verdict 0 without a teacher."""
    logits, ids = random_logits(3, 7), torch.tensor([1, 4, 2])
    batch = one_sample(logits, ids, rated(0), base=random_logits(3, 7, seed=1))
    loss, gradient, metrics = run(Objective(), batch, logits.unsqueeze(0))
    assert (loss, largest(gradient), metrics["effective_samples"]) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("top_k", [None, 5])
@pytest.mark.parametrize("alpha", [0.0, 1e-3, 0.5, 1.0])
def test_a11_every_alpha_has_a_gradient(alpha: float, top_k: int | None) -> None:
    """At a = 0 the mixture formula is the constant 0: nothing was learnt, silently."""
    logits, ids, teacher = random_logits(3, 11), torch.tensor([1, 4, 2]), random_logits(3, 11, seed=1)
    made = directive_streams(completion_length=3, alpha=alpha)
    batch = one_sample(logits, ids, made, teacher=teacher)
    loss, gradient, _ = run(Objective(kl_coef=0.0, top_k=top_k), batch, logits.unsqueeze(0))
    assert loss > 0.0
    assert largest(gradient) > 1e-4
    after = logits - 0.1 * gradient[0]
    again = one_sample(after, ids, made, teacher=teacher)
    assert run(replace(NO_KL, top_k=top_k), again, after.unsqueeze(0))[0] < loss


def off_support_case() -> tuple[torch.Tensor, torch.Tensor]:
    """A teacher that puts 99 % of its mass on a token outside the student's top 3, and agrees within it."""
    student = torch.tensor([0.5, 0.3, 0.19, 0.01], dtype=torch.float64).log()
    teacher = torch.tensor([0.005, 0.003, 0.0019, 0.9901], dtype=torch.float64).log()
    return student, teacher


def test_a11_mass_outside_the_support_is_seen() -> None:
    student, teacher = off_support_case()
    support = likeliest(student, 3)
    leaf = student.clone().requires_grad_()
    logprobs = log_distribution(leaf)
    divergence = support_divergence(logprobs, support, teacher[support], alpha=0.5)
    (gradient,) = torch.autograd.grad(divergence, leaf)
    # Jensen-Shannon is bounded by log 2; merging tokens whose ratios agree loses nothing
    assert divergence.item() > 0.9 * math.log(2) * 0.9
    torch.testing.assert_close(divergence.detach(), generalized_jsd(student, teacher, 0.5), rtol=0, atol=1e-9)
    assert gradient[3] < -0.01


def test_a11_a_renormalised_support_is_blind_to_it() -> None:
    """Negative control: 99 % of the teacher's mass is elsewhere, and the divergence is 0."""
    student, teacher = off_support_case()
    support = likeliest(student, 3)
    blind = generalized_jsd(renormalised(student[support]), renormalised(teacher[support]), 0.5)
    assert abs(blind.item()) < 1e-9


def bf16_pair() -> tuple[torch.Tensor, torch.Tensor]:
    """Near on-policy logits that bfloat16 holds exactly."""
    student = random_logits(64, 2000)
    teacher = student + random_logits(64, 2000, seed=1, scale=0.02)
    return student.bfloat16(), teacher.bfloat16()


def cosine(left: torch.Tensor, right: torch.Tensor) -> float:
    left, right = left.double().flatten(), right.double().flatten()
    return torch.nn.functional.cosine_similarity(left, right, dim=0).item()


@pytest.mark.parametrize("top_k", [None, 20])
def test_a11_the_gradient_of_a_bfloat16_model_is_the_true_one(top_k: int | None) -> None:
    student, teacher = bf16_pair()
    ids = student.argmax(-1)

    def gradient(dtype: torch.dtype) -> torch.Tensor:
        batch = one_sample(student.to(dtype), ids, directive_streams(completion_length=64), teacher=teacher)
        # directions only: bfloat16 has no float64 streams
        batch = replace(
            batch,
            sampling_logprobs=batch.sampling_logprobs.double(),
            trainer_logprobs=batch.trainer_logprobs.double(),
        )
        return run(replace(NO_KL, top_k=top_k), batch, student.to(dtype).unsqueeze(0))[1]

    assert cosine(gradient(torch.bfloat16), gradient(torch.float64)) > 0.999


def test_a11_a_divergence_computed_in_bfloat16_points_elsewhere() -> None:
    """Negative control: the same formula with every step in bfloat16."""
    student, teacher = bf16_pair()

    def gradient(dtype: torch.dtype) -> torch.Tensor:
        leaf = student.to(dtype).requires_grad_()
        s, q = leaf.log_softmax(-1), teacher.to(dtype).log_softmax(-1)
        (result,) = torch.autograd.grad(generalized_jsd(s, q, 0.5).sum(), leaf)
        return result

    assert cosine(gradient(torch.bfloat16), gradient(torch.float64)) < 0.9


def test_a12_k3_has_the_sign_that_makes_it_a_divergence() -> None:
    """With p and s swapped inside the exponential its mean over the policy's own tokens is not KL(S‖P)."""
    s, p = log_distribution(random_logits(7)), log_distribution(random_logits(7, seed=1))
    exact = (s.exp() * (s - p)).sum().item()
    assert (kl_k3(s, p) >= 0).all()
    assert (s.exp() * kl_k3(s, p)).sum().item() == pytest.approx(exact, abs=1e-12)
    inverted = ((s - p).exp() - 1 - (s - p)) * s.exp()
    assert abs(inverted.sum().item() - exact) > 0.1


def test_a12_the_reported_kl_is_k3_of_student_against_base() -> None:
    logits, batch = make_batch()
    s = token_logprobs(logits, batch.completion_ids)
    assert batch.base_logprobs is not None
    gap = (batch.base_logprobs - s)[batch.mask]
    reported = run(Objective(), batch, logits)[2]["kl_base_k3"]
    assert reported == pytest.approx((gap.exp() - 1 - gap).mean().item(), abs=1e-12)


def test_a13_weights_attenuate_by_the_whole_ratio_and_amplify_up_to_the_cap() -> None:
    """A gain that could only amplify made stale and unlikely tokens count as much as fresh ones."""
    old = torch.full((3,), -1.0, dtype=torch.float64)
    new = old + torch.tensor([-3.0, 0.0, 3.0], dtype=torch.float64)
    for weight in (staleness_weight(new, old), importance_weight(new, old)):
        assert weight.tolist() == pytest.approx([math.exp(-3.0), 1.0, 2.0])


def test_a13_a_weight_below_one_makes_a_directive_advantage_smaller() -> None:
    full, tenth = taught("combine"), taught("combine", weight=0.1)
    assert tenth.advantages == pytest.approx([0.1 * value for value in full.advantages])


def all_tokens(
    logits: torch.Tensor, base: torch.Tensor, objective: Objective, advantages: torch.Tensor
) -> torch.Tensor:
    """E over y ~ S of the objective's gradient, exact: each token once, weighted with its probability."""
    size = len(logits)
    before = log_distribution(logits).unsqueeze(-1)
    batch = Batch(
        completion_ids=torch.arange(size).unsqueeze(-1),
        mask=torch.ones(size, 1, dtype=torch.bool),
        sampling_logprobs=before,
        trainer_logprobs=before,
        base_logprobs=log_distribution(base).unsqueeze(-1),
        advantages=advantages.unsqueeze(-1),
        advantage_mask=torch.ones(size, 1, dtype=torch.bool),
        directive_weight=torch.zeros(size, dtype=torch.float64),
        # the mean over samples divides by their number
        sample_weight=size * log_distribution(logits).exp(),
        temperature=torch.ones(size, dtype=torch.float64),
    )
    return run(objective, batch, logits.expand(size, 1, size))[1].sum(dim=(0, 1))


def kl_gradient(logits: torch.Tensor, other: torch.Tensor, *, forward: bool) -> torch.Tensor:
    leaf = logits.clone().requires_grad_()
    s, q = log_distribution(leaf), log_distribution(other)
    value = (q.exp() * (q - s)).sum() if forward else (s.exp() * (s - q)).sum()
    (result,) = torch.autograd.grad(value, leaf)
    return result


def test_a14_the_kl_penalty_has_a_gradient_in_expectation() -> None:
    """k1 in the loss: a penalty whose value is right and whose expected gradient is 0."""
    logits, base = random_logits(7), random_logits(7, seed=1)
    penalty = all_tokens(logits, base, Objective(kl_coef=1.0), torch.zeros(7, dtype=torch.float64))
    assert largest(penalty) > 0.1


def test_a14_a_signal_that_all_tokens_share_is_kept() -> None:
    """Centring within a sequence removed it: "should have been in Spanish" is true of every token alike."""
    uniform = taught("opd", teacher=(-1.5, -2.5, -0.9), trainer=(-1.0, -2.0, -0.4))
    assert uniform.advantages == pytest.approx((-0.5, -0.5, -0.5))
    logits, ids = random_logits(3, 7), torch.tensor([1, 4, 2])
    o = token_logprobs(logits, ids)
    after = descend(NO_KL, one_sample(logits, ids, uniform), logits)
    assert (token_logprobs(after, ids) < o).all()


def test_a16_the_gradient_of_the_kl_penalty_is_that_of_the_reverse_kl() -> None:
    """k3 in the loss pulls with the gradient of the *forward* KL."""
    logits, base = random_logits(7), random_logits(7, seed=1)
    penalty = all_tokens(logits, base, Objective(kl_coef=1.0), torch.zeros(7, dtype=torch.float64))
    torch.testing.assert_close(penalty, kl_gradient(logits, base, forward=False), rtol=0, atol=1e-12)
    assert largest(penalty - kl_gradient(logits, base, forward=True)) > 0.1


def test_a16_the_opd_term_descends_the_reverse_kl_to_the_teacher() -> None:
    logits, teacher = random_logits(7), random_logits(7, seed=1)
    change = log_distribution(teacher) - log_distribution(logits)
    gradient = all_tokens(logits, logits, NO_KL, change)
    torch.testing.assert_close(gradient, kl_gradient(logits, teacher, forward=False), rtol=0, atol=1e-12)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_a17_a_top_k_support_with_tail_rests_where_student_and_teacher_agree(alpha: float) -> None:
    logits, ids = random_logits(3, 50), torch.tensor([1, 4, 2])
    batch = one_sample(logits, ids, directive_streams(completion_length=3, alpha=alpha), teacher=logits)
    _, gradient, _ = run(replace(NO_KL, top_k=4), batch, logits.unsqueeze(0))
    assert largest(gradient) < 1e-12


def test_a17_a_bare_top_k_support_does_not_rest() -> None:
    """Negative control: neither tail nor scaling; mass leaves the support although both sides agree."""
    leaf = random_logits(3, 50).requires_grad_()
    logprobs = log_distribution(leaf)
    chosen = logprobs.gather(-1, likeliest(logprobs, 4))
    (gradient,) = torch.autograd.grad((chosen.exp() * (chosen - chosen.detach())).sum(), leaf)
    assert largest(gradient) > 1e-3


@pytest.mark.parametrize("method", ["rl", "opd", "combine", "sdpo"])
@pytest.mark.parametrize("support", ["token", "topk"])
def test_the_end_of_turn_token_is_trained(method: str, support: str) -> None:
    """CLaaS left it out: a policy that never learns to stop."""
    logits, teacher = random_logits(3, 7), random_logits(3, 7, seed=1)
    end_of_turn = 6
    logits[2, end_of_turn] += 3.0
    ids = torch.tensor([1, 4, end_of_turn])
    q, o = token_logprobs(teacher, ids).tolist(), token_logprobs(logits, ids).tolist()
    made = rated(-1) if method == "rl" else taught(method, support, q, o)
    batch = one_sample(logits, ids, made, teacher=teacher)
    _, gradient, _ = run(NO_KL, batch, logits.unsqueeze(0))
    assert gradient[0, 2, end_of_turn].abs() > 1e-3
