"""The objective on whole batches: by hand, padding, parts, chunks, teachers, metrics, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.trainer.batches import largest, make_batch, run, teacher_support
from trainer.losses import (
    generalized_jsd,
    importance_weight,
    kl_k2,
    likeliest,
    log_distribution,
    ppo_surrogate,
    staleness_weight,
    support_divergence,
    token_logprobs,
)
from trainer.objective import Batch, Objective, _clip_fraction, compute_loss

SETTINGS = {
    "default": Objective(),
    "whole vocabulary": Objective(top_k=None),
    "top 3": Objective(top_k=3),
    "forward": Objective(alpha=0.0, top_k=4),
    "reverse": Objective(alpha=1.0, top_k=4),
    "the teacher's top 4, renormalised": Objective(
        top_k=4, support_of="teacher", support_mass="renormalised"
    ),
    "no clips": Objective(clip_low=0.0, clip_high=math.inf, dual_clip=None),
}
every_setting = pytest.mark.parametrize("objective", SETTINGS.values(), ids=SETTINGS.keys())


def select(batch: Batch, rows: Any, columns: Any = slice(None)) -> Batch:
    """A part of a batch: some samples, some columns."""
    changes: dict[str, Any] = {}
    for name in Batch.__dataclass_fields__:
        value = getattr(batch, name)
        if isinstance(value, torch.Tensor):
            changes[name] = value[rows] if value.ndim == 1 else value[rows][:, columns]
        elif value is not None:
            changes[name] = value[rows]
    return replace(batch, **changes)


# -- the value


@pytest.mark.parametrize("top_k", [None, 4])
def test_the_loss_of_one_sample_is_the_sum_of_its_three_terms(top_k: int | None) -> None:
    logits, batch = make_batch(
        lengths=[4],
        temperature=[0.7],
        directive_weight=torch.tensor([0.6], dtype=torch.float64),
        sample_weight=torch.tensor([1.5], dtype=torch.float64),
    )
    s = token_logprobs(logits, batch.completion_ids, batch.temperature)
    o, b, p = batch.trainer_logprobs, batch.sampling_logprobs, batch.base_logprobs
    assert p is not None
    assert batch.teacher_logits is not None
    student, teacher = log_distribution(logits, 0.7), log_distribution(batch.teacher_logits, 0.7)
    if top_k is None:
        divergence = generalized_jsd(student, teacher, 0.5)
    else:
        support = likeliest(student, top_k)
        divergence = support_divergence(student, support, teacher.gather(-1, support), alpha=0.5)
    stale = staleness_weight(o, b)
    policy = (ppo_surrogate(s, o, batch.advantages) * stale).mean()
    directive = (divergence * importance_weight(s, o) * stale).mean()
    expected = 1.5 * (policy + 0.6 * directive + 0.1 * kl_k2(s, p).mean())

    loss, _, metrics = run(Objective(top_k=top_k, kl_coef=0.1), batch, logits)

    assert loss == pytest.approx(expected.item(), abs=1e-12)
    assert metrics["policy_loss"] == pytest.approx(1.5 * policy.item(), abs=1e-12)
    assert metrics["directive_loss"] == pytest.approx(1.5 * 0.6 * directive.item(), abs=1e-12)


def test_both_importance_weights_obey_their_caps() -> None:
    """Ratios 3, 1.2 and .5 of student to trainer, and of trainer to sampler, under caps of 1.5 and 2."""
    logits, batch = make_batch(lengths=[3], advantage_mask=torch.zeros(1, 3, dtype=torch.bool))
    s = token_logprobs(logits, batch.completion_ids)
    ratios = torch.tensor([[3.0, 1.2, 0.5]], dtype=torch.float64)
    before = s - ratios.log()
    batch = replace(batch, trainer_logprobs=before, sampling_logprobs=before - ratios.log())
    assert batch.teacher_logits is not None
    divergence = generalized_jsd(log_distribution(logits), log_distribution(batch.teacher_logits), 0.5)
    for importance_cap, staleness_cap in ((2.0, 2.0), (1.5, 2.0), (2.0, 1.5), (1.0, 5.0)):
        objective = Objective(
            top_k=None, kl_coef=0.0, importance_cap=importance_cap, staleness_cap=staleness_cap
        )
        weight = ratios.clamp(max=importance_cap) * ratios.clamp(max=staleness_cap)
        assert run(objective, batch, logits)[0] == pytest.approx(
            (divergence * weight).mean().item(), abs=1e-12
        )


def test_a_tiny_batch_by_hand() -> None:
    """Student (.75, .25) and (.5, .5), tokens 0 and 1; o = b = s, so that every ratio is 1."""
    logits = torch.tensor([[[0.75, 0.25], [0.5, 0.5]]], dtype=torch.float64).log()
    ids = torch.tensor([[0, 1]])
    before = torch.tensor([[0.75, 0.5]], dtype=torch.float64).log()
    mask = torch.ones(1, 2, dtype=torch.bool)
    one = torch.ones(1, dtype=torch.float64)
    batch = Batch(
        completion_ids=ids,
        mask=mask,
        sampling_logprobs=before,
        trainer_logprobs=before,
        base_logprobs=torch.tensor([[0.5, 0.5]], dtype=torch.float64).log(),
        advantages=torch.tensor([[2.0, -1.0]], dtype=torch.float64),
        advantage_mask=mask,
        directive_weight=one,
        teacher_logits=torch.tensor([[[0.5, 0.5], [0.5, 0.5]]], dtype=torch.float64).log(),
        sample_weight=one,
        temperature=one,
    )
    policy = (-2.0 + 1.0) / 2
    reverse_kl = (0.75 * math.log(1.5) + 0.25 * math.log(0.5)) / 2
    k2 = 0.5 * math.log(1.5) ** 2 / 2
    loss, gradient, metrics = run(Objective(alpha=1.0, top_k=None, kl_coef=0.1), batch, logits)
    assert loss == pytest.approx(policy + reverse_kl + 0.1 * k2, abs=1e-12)
    assert metrics["ratio_mean"] == pytest.approx(1.0)
    assert metrics["kl_base_k2"] == pytest.approx(k2, abs=1e-12)
    # second position: teacher and base agree with the student, only the policy term is left: d/dx of A=-1 at
    # 1/2 of a mean
    assert gradient[0, 1].tolist() == pytest.approx([-0.25, 0.25], abs=1e-12)


@every_setting
@pytest.mark.parametrize("support", [None, 4], ids=["logits", "teacher support"])
def test_the_gradient_is_the_numerical_derivative(objective: Objective, support: int | None) -> None:
    logits, batch = make_batch(lengths=[3, 2], vocabulary=6, temperature=[1.0, 0.6], seed=3)
    if support:
        batch = teacher_support(batch, support)
    s = token_logprobs(logits, batch.completion_ids, batch.temperature)
    # the importance weight is a constant for autograd: put it on its cap, where it is one for the numbers too
    before = (s - 0.9).masked_fill(~batch.mask, math.nan)
    batch = replace(batch, trainer_logprobs=before, sampling_logprobs=before)
    assert torch.autograd.gradcheck(
        lambda leaf: compute_loss(objective, batch, leaf)[0],
        (logits.requires_grad_(),),
        atol=1e-7,
        rtol=1e-6,
    )


@every_setting
def test_a_teacher_that_agrees_leaves_only_the_other_terms(objective: Objective) -> None:
    logits, batch = make_batch()
    agreeing = replace(batch, teacher_logits=logits, advantage_mask=torch.zeros_like(batch.mask))
    loss, gradient, _ = run(replace(objective, kl_coef=0.0), agreeing, logits)
    assert abs(loss) < 1e-12
    assert largest(gradient) < 1e-12


# -- dead positions


@every_setting
def test_masked_positions_have_a_gradient_of_exactly_zero(objective: Objective) -> None:
    logits, batch = make_batch()
    _, gradient, _ = run(objective, batch, logits)
    assert torch.equal(gradient[~batch.mask], torch.zeros_like(gradient[~batch.mask]))
    assert (gradient[batch.mask].abs().amax(dim=-1) > 0).all()


@every_setting
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("support", [None, 4], ids=["logits", "teacher support"])
def test_poison_in_padding_changes_nothing(objective: Objective, poison: float, support: int | None) -> None:
    logits, batch = make_batch()
    if support:
        batch = teacher_support(batch, support)
    loss, gradient, metrics = run(objective, batch, logits)
    dead = ~batch.mask
    poisoned = {
        name: getattr(batch, name).masked_fill(dead, poison)
        for name in ("sampling_logprobs", "trainer_logprobs", "base_logprobs", "advantages")
    }
    if support:
        assert batch.support_logprobs is not None
        poisoned["support_logprobs"] = batch.support_logprobs.masked_fill(dead.unsqueeze(-1), poison)
    else:
        assert batch.teacher_logits is not None
        poisoned["teacher_logits"] = batch.teacher_logits.masked_fill(dead.unsqueeze(-1), poison)
    again = run(
        objective,
        replace(batch, **poisoned),
        logits.masked_fill(dead.unsqueeze(-1), poison),
    )
    assert again[0] == loss
    assert torch.equal(again[1], gradient)
    assert again[2] == metrics


def test_poison_in_an_advantage_outside_its_own_mask_changes_nothing() -> None:
    logits, batch = make_batch()
    masked = replace(batch, advantage_mask=batch.mask & (torch.arange(5) != 1))
    expected = run(Objective(), masked, logits)
    poisoned = masked.advantages.clone()
    poisoned[:, 1] = math.nan
    again = run(Objective(), replace(masked, advantages=poisoned), logits)
    assert again[0] == expected[0]
    assert torch.equal(again[1], expected[1])


@pytest.mark.parametrize("chunk", [None, 2])
def test_an_empty_mask_gives_zero_and_a_gradient_of_zero(chunk: int | None) -> None:
    logits, batch = make_batch()
    empty = replace(batch, mask=torch.zeros_like(batch.mask))
    loss, gradient, metrics = run(Objective(), empty, logits, chunk=chunk)
    assert loss == 0.0
    assert torch.equal(gradient, torch.zeros_like(gradient))
    assert metrics == {
        "loss": 0.0,
        "live_samples": 0.0,
        "live_tokens": 0.0,
        "effective_samples": 0.0,
    }


def test_a_sample_that_says_nothing_moves_nothing_not_even_towards_the_base() -> None:
    logits, batch = make_batch()
    no_advantage = batch.advantage_mask.clone()
    no_advantage[1] = False
    weight = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    silent = replace(batch, advantage_mask=no_advantage, directive_weight=weight)
    loss, gradient, metrics = run(Objective(kl_coef=1.0), silent, logits)
    assert largest(gradient[1]) == 0.0
    assert metrics["live_samples"] == 2.0
    others = select(silent, [0, 2])
    assert loss == pytest.approx(run(Objective(kl_coef=1.0), others, logits[[0, 2]])[0], abs=1e-12)


def test_a_sample_without_directive_weight_ignores_its_teacher() -> None:
    logits, batch = make_batch()
    weight = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    assert batch.teacher_logits is not None
    absent = batch.teacher_logits.clone()
    absent[1] = math.nan
    expected = run(Objective(), replace(batch, directive_weight=weight), logits)
    again = run(Objective(), replace(batch, directive_weight=weight, teacher_logits=absent), logits)
    assert again[0] == expected[0]
    assert torch.equal(again[1], expected[1])


def test_prompt_positions_get_no_gradient() -> None:
    """Logits are ``full[:, P-1:-1]``: neither the prompt before nor the position after is touched."""
    logits, batch = make_batch(lengths=[4, 4])
    prompt = 3
    full = torch.randn(2, prompt + 4, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    full[:, prompt - 1 : -1] = logits
    full.requires_grad_()
    loss, _ = compute_loss(Objective(), batch, full[:, prompt - 1 : -1])
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
    assert full.grad is not None
    assert largest(full.grad[:, : prompt - 1]) == 0.0
    assert largest(full.grad[:, -1]) == 0.0
    assert (full.grad[:, prompt - 1 : -1].abs().amax(dim=-1) > 0).all()


# -- one sample, eight samples, padded, packed, chunked: the same


def test_a_batch_of_eight_is_eight_batches_of_one_in_float32() -> None:
    lengths = [5, 3, 4, 1, 7, 2, 6, 3]
    logits, batch = make_batch(lengths=lengths, vocabulary=64, dtype=torch.float32, seed=5)
    objective = Objective(top_k=20)
    loss, gradient, _ = run(objective, batch, logits)
    total = 0.0
    for row, length in enumerate(lengths):
        alone = select(batch, slice(row, row + 1), slice(length))
        part, part_gradient, _ = run(
            objective, alone, logits[row : row + 1, :length], live_samples=len(lengths)
        )
        total += part
        torch.testing.assert_close(part_gradient[0], gradient[row, :length], rtol=0, atol=1e-5)
    assert total == pytest.approx(loss, abs=1e-5)


@pytest.mark.parametrize("side", ["left", "right", "both"])
def test_padding_on_any_side_changes_nothing_in_float32(side: str) -> None:
    logits, batch = make_batch(vocabulary=64, dtype=torch.float32, seed=6)
    left, right = {"left": (3, 0), "right": (0, 3), "both": (2, 4)}[side]

    def pad(tensor: torch.Tensor, value: float) -> torch.Tensor:
        ends = (0, 0) * (tensor.ndim - 2) + (left, right)
        return torch.nn.functional.pad(tensor, ends, value=value)

    assert batch.base_logprobs is not None
    assert batch.teacher_logits is not None
    padded = replace(
        batch,
        completion_ids=pad(batch.completion_ids, 0),
        mask=pad(batch.mask, False),
        advantage_mask=pad(batch.advantage_mask, False),
        sampling_logprobs=pad(batch.sampling_logprobs, math.nan),
        trainer_logprobs=pad(batch.trainer_logprobs, math.nan),
        base_logprobs=pad(batch.base_logprobs, math.nan),
        advantages=pad(batch.advantages, math.nan),
        teacher_logits=pad(batch.teacher_logits, math.nan),
    )
    loss, gradient, metrics = run(Objective(), batch, logits)
    wide_loss, wide_gradient, wide_metrics = run(Objective(), padded, pad(logits, math.nan))
    assert wide_loss == pytest.approx(loss, abs=1e-5)
    torch.testing.assert_close(wide_gradient[:, left : left + logits.shape[1]], gradient, rtol=0, atol=1e-5)
    assert wide_metrics == pytest.approx(metrics, abs=1e-5)


def test_logits_that_lie_packed_in_one_row_give_the_same_in_float32() -> None:
    lengths = [5, 3, 4]
    logits, batch = make_batch(lengths=lengths, vocabulary=64, dtype=torch.float32, seed=7)
    loss, gradient, _ = run(Objective(), batch, logits)
    packed = logits[batch.mask].clone().requires_grad_()
    pieces = torch.split(packed, lengths)
    unpacked = torch.nn.utils.rnn.pad_sequence(list(pieces), batch_first=True)
    packed_loss, _ = compute_loss(Objective(), batch, unpacked)
    packed_loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
    assert packed.grad is not None
    assert packed_loss.item() == pytest.approx(loss, abs=1e-5)
    torch.testing.assert_close(packed.grad, gradient[batch.mask], rtol=0, atol=1e-5)


@pytest.mark.parametrize("chunk", [1, 2, 7, 15, 1000])
@pytest.mark.parametrize("support", [None, 4], ids=["logits", "teacher support"])
def test_chunks_change_nothing(chunk: int, support: int | None) -> None:
    logits, batch = make_batch(directive_alpha=(0.0, 1.0, 0.5))
    if support:
        batch = teacher_support(batch, support)
    loss, gradient, metrics = run(Objective(top_k=4), batch, logits)
    again = run(Objective(top_k=4), batch, logits, chunk=chunk)
    assert again[0] == pytest.approx(loss, abs=1e-13)
    torch.testing.assert_close(again[1], gradient, rtol=0, atol=1e-13)
    assert again[2] == pytest.approx(metrics, abs=1e-13)


def test_in_chunks_no_vocabulary_sized_intermediate_is_kept_for_the_backward_pass() -> None:
    logits, batch = make_batch(lengths=[16] * 4, vocabulary=500)

    def kept(chunk: int | None) -> int:
        sizes: dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        leaf = logits.clone().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss, _ = compute_loss(Objective(top_k=None), batch, leaf, chunk=chunk)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
        sizes.pop(leaf.untyped_storage().data_ptr(), None)
        return sum(sizes.values())

    whole = logits.numel() * logits.element_size()
    assert kept(None) > 2 * whole
    assert kept(8) < 0.1 * whole


def test_from_hidden_states_not_even_the_logits_are_ever_there() -> None:
    vocabulary, width, chunk = 500, 6, 8
    _, batch = make_batch(lengths=[16] * 4, vocabulary=vocabulary)
    matrix = torch.randn(width, vocabulary, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    made: list[int] = []
    kept: dict[int, int] = {}

    def head(states: torch.Tensor) -> torch.Tensor:
        made.append(len(states))
        return states @ matrix

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    hidden = torch.randn(4, 16, width, dtype=torch.float64).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss, _ = compute_loss(Objective(top_k=None), batch, hidden, chunk=chunk, head=head)
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
    assert max(made) <= chunk
    assert sum(made) == 2 * 4 * 16  # once, and once more in the backward pass
    assert sum(kept.values()) < 0.2 * 4 * 16 * vocabulary * 8


@pytest.mark.parametrize("chunk", [None, 1, 7, 1000])
def test_logits_made_from_hidden_states_on_the_way_change_nothing(chunk: int | None) -> None:
    vocabulary, width = 11, 6
    _, batch = make_batch(directive_alpha=(0.0, 1.0, 0.5), vocabulary=vocabulary)
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(*batch.mask.shape, width, dtype=torch.float64, generator=generator)
    matrix = torch.randn(width, vocabulary, dtype=torch.float64, generator=generator)
    leaf = hidden.clone().requires_grad_()
    loss, metrics = compute_loss(Objective(top_k=4), batch, leaf @ matrix)
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
    again = run(Objective(top_k=4), batch, hidden, chunk=chunk, head=lambda states: states @ matrix)
    assert again[0] == pytest.approx(loss.item(), abs=1e-13)
    torch.testing.assert_close(again[1], leaf.grad, rtol=0, atol=1e-13)
    assert again[2] == pytest.approx(metrics, abs=1e-13)


def test_parts_of_a_batch_add_up_to_the_whole() -> None:
    """Gradient accumulation: every micro-batch gets the number of live samples of the whole batch."""
    logits, batch = make_batch(lengths=[5, 3, 4, 2])
    silent = batch.advantage_mask.clone()
    silent[3] = False
    weight = torch.tensor([1.0, 0.5, 0.0, 0.0], dtype=torch.float64)
    batch = replace(batch, advantage_mask=silent, directive_weight=weight)
    live = batch.live()
    assert live.tolist() == [True, True, True, False]
    loss, gradient, _ = run(Objective(), batch, logits)
    first = run(Objective(), select(batch, [0, 3]), logits[[0, 3]], live_samples=int(live.sum()))
    second = run(Objective(), select(batch, [1, 2]), logits[[1, 2]], live_samples=int(live.sum()))
    assert first[0] + second[0] == pytest.approx(loss, abs=1e-12)
    torch.testing.assert_close(first[1], gradient[[0, 3]], rtol=0, atol=1e-12)
    torch.testing.assert_close(second[1], gradient[[1, 2]], rtol=0, atol=1e-12)


# -- what is data on the sample


def test_each_sample_brings_its_own_divergence() -> None:
    logits, batch = make_batch()
    mixed, gradient, _ = run(Objective(), replace(batch, directive_alpha=(0.0, 0.5, 1.0)), logits)
    parts = [
        run(Objective(alpha=alpha), select(batch, [row]), logits[[row]], live_samples=3)
        for row, alpha in enumerate((0.0, 0.5, 1.0))
    ]
    assert mixed == pytest.approx(sum(part[0] for part in parts), abs=1e-12)
    torch.testing.assert_close(gradient, torch.cat([part[1] for part in parts]), rtol=0, atol=1e-12)


def test_weights_scale_their_own_term_of_their_own_sample() -> None:
    logits, batch = make_batch(lengths=[4])
    plain = run(Objective(kl_coef=0.0), batch, logits)[2]
    half = torch.tensor([0.5], dtype=torch.float64)
    less_teacher = run(Objective(kl_coef=0.0), replace(batch, directive_weight=half), logits)[2]
    assert less_teacher["policy_loss"] == plain["policy_loss"]
    assert less_teacher["directive_loss"] == pytest.approx(0.5 * plain["directive_loss"])
    less_of_all = run(Objective(kl_coef=0.0), replace(batch, sample_weight=half), logits)[2]
    assert less_of_all["loss"] == pytest.approx(0.5 * plain["loss"])


def test_each_sample_is_read_at_its_own_temperature() -> None:
    logits, batch = make_batch(temperature=[0.5, 1.0, 1.6])
    together = run(Objective(), batch, logits)[0]
    # the same distributions, given as logits that are already divided
    tau = torch.tensor([0.5, 1.0, 1.6], dtype=torch.float64).reshape(3, 1, 1)
    assert batch.teacher_logits is not None
    divided = replace(
        batch,
        teacher_logits=batch.teacher_logits / tau,
        temperature=torch.ones(3, dtype=torch.float64),
    )
    assert run(Objective(), divided, logits / tau)[0] == pytest.approx(together, abs=1e-12)


def test_a_teacher_that_reports_only_a_support_is_enough() -> None:
    """On all tokens it is the whole teacher; on few it still pulls the student towards what it reported."""
    logits, batch = make_batch()
    whole = run(Objective(top_k=None), batch, logits)
    every = run(Objective(), teacher_support(batch, 11), logits)
    assert every[0] == pytest.approx(whole[0], abs=1e-8)
    torch.testing.assert_close(every[1], whole[1], rtol=0, atol=1e-6)
    only = replace(teacher_support(batch, 3), advantage_mask=torch.zeros_like(batch.mask))
    objective = Objective(kl_coef=0.0)
    before, gradient, _ = run(objective, only, logits)
    assert run(objective, only, logits - 0.1 * gradient)[0] < before


def test_the_teacher_of_a_low_precision_model_is_read_at_the_students_precision() -> None:
    logits, batch = make_batch(dtype=torch.float32)
    assert batch.teacher_logits is not None
    narrow = replace(batch, teacher_logits=batch.teacher_logits.bfloat16())
    same = replace(batch, teacher_logits=batch.teacher_logits.bfloat16().float())
    assert run(Objective(), narrow, logits)[0] == run(Objective(), same, logits)[0]
    loss, gradient, _ = run(Objective(), batch, logits.bfloat16())
    assert gradient.dtype == torch.bfloat16
    assert loss == pytest.approx(run(Objective(), batch, logits.bfloat16().float())[0], abs=1e-6)


@pytest.mark.parametrize("top_k", [None, 1, 4])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_a_token_the_teacher_rules_out_is_unlearnt(alpha: float, top_k: int | None) -> None:
    """A banned token the student would say: a finite loss whose descent makes it less likely."""
    logits, batch = make_batch(lengths=[3])
    first = logits[0].argmax(-1)
    banned = logits.scatter(-1, first.reshape(1, 3, 1), -math.inf)
    batch = replace(batch, teacher_logits=banned, advantage_mask=torch.zeros_like(batch.mask))
    loss, gradient, _ = run(Objective(alpha=alpha, top_k=top_k, kl_coef=0.0), batch, logits)
    assert math.isfinite(loss)
    assert loss > 0.01
    assert (gradient[0].gather(-1, first.unsqueeze(-1)) > 1e-3).all()


def test_without_a_gradient_the_same_numbers_are_measured() -> None:
    logits, batch = make_batch()
    loss, _, metrics = run(Objective(), batch, logits)
    for chunk in (None, 4):
        with torch.no_grad():
            measured, same = compute_loss(Objective(), batch, logits, chunk=chunk)
        assert measured.item() == pytest.approx(loss, abs=1e-13)
        assert same == pytest.approx(metrics, abs=1e-13)


# -- metrics


def test_metrics_tell_what_happened() -> None:
    logits, batch = make_batch(lengths=[4, 2], vocabulary=6)
    ids = batch.completion_ids
    s = token_logprobs(logits, ids)
    # ratios: row 0 inside, above with A > 0, below with A < 0, above with A < 0; row 1 inside
    ratios = torch.tensor([[1.0, 1.5, 0.5, 1.5], [1.1, 0.9, 1.0, 1.0]], dtype=torch.float64)
    before = (s - ratios.log()).masked_fill(~batch.mask, math.nan)
    advantages = torch.tensor([[1.0, 1.0, -1.0, -1.0], [0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    batch = replace(
        batch,
        trainer_logprobs=before,
        sampling_logprobs=before,
        advantages=advantages,
        directive_weight=torch.tensor([1.0, 0.0], dtype=torch.float64),
    )
    _, _, metrics = run(Objective(top_k=2), batch, logits)
    mask = batch.mask
    assert batch.teacher_logits is not None
    shift = (token_logprobs(batch.teacher_logits, ids) - before)[0].abs().mean().item()
    r = ratios[mask]
    assert metrics["ratio_mean"] == pytest.approx(r.mean().item())
    assert metrics["ratio_max"] == pytest.approx(1.5)
    assert metrics["kl_step"] == pytest.approx((r - 1 - r.log()).mean().item())
    assert metrics["clip_fraction"] == pytest.approx(2 / 6)
    assert metrics["teacher_shift"] == pytest.approx(shift)
    assert metrics["staleness_mean"] == 1.0
    assert (metrics["live_samples"], metrics["effective_samples"], metrics["live_tokens"]) == (2, 1, 6)


#: Of the weights before a step, and of an older version that sampled: no token is more than twice as likely now as it was.
_BEFORE = torch.tensor([-4.0, 1.0, 0.0, 0.0, -1.0], dtype=torch.float64)
_OLDER = torch.tensor([1.0, 1.0, 0.5, 0.0, -0.5], dtype=torch.float64)


@pytest.mark.parametrize("sampler", [_BEFORE, _OLDER], ids=["before", "older"])
def test_both_distances_are_exact_in_expectation_whichever_version_sampled(sampler: torch.Tensor) -> None:
    """Over y ~ b, the mean of ``kl_step`` is KL(o‖s), and that of ``kl_base`` KL(s‖p): the first token is unlearnt by o, and by s
    further. Measured along b's tokens without weights, both would be decided by that one token."""
    _, batch = make_batch(lengths=(1,), vocabulary=5)
    new = torch.tensor([-9.0, 2.0, 0.5, 0.0, -1.0], dtype=torch.float64)
    b, o, s = log_distribution(sampler), log_distribution(_BEFORE), log_distribution(new)
    p = log_distribution(torch.tensor([1.0, 1.0, 0.0, 0.5, -1.0], dtype=torch.float64))
    assert bool((o - b).exp().max() < Objective().staleness_cap)
    step = base = plain = 0.0
    for token in range(5):
        sampled = replace(
            batch,
            completion_ids=torch.tensor([[token]]),
            trainer_logprobs=o[token].reshape(1, 1),
            sampling_logprobs=b[token].reshape(1, 1),
            base_logprobs=p[token].reshape(1, 1),
        )
        metrics = run(Objective(), sampled, new.reshape(1, 1, 5))[2]
        chance = b[token].exp().item()
        step += chance * metrics["kl_step"]
        base += chance * metrics["kl_base"]
        plain += chance * metrics["kl_base_k3"]
    exact = (s.exp() * (s - p)).sum().item()
    assert step == pytest.approx((o.exp() * (o - s)).sum().item(), abs=1e-12)
    assert base == pytest.approx(exact, abs=1e-12)
    assert plain > 10 * exact


def test_what_was_not_measured_is_absent() -> None:
    logits, batch = make_batch()
    bare = replace(
        batch,
        base_logprobs=None,
        teacher_logits=None,
        directive_weight=torch.zeros(3, dtype=torch.float64),
    )
    metrics = run(Objective(kl_coef=0.0), bare, logits)[2]
    assert not {
        "kl_base_k2",
        "kl_base_k3",
        "kl_base",
        "directive_loss",
        "teacher_shift",
    } & set(metrics)
    assert all(math.isfinite(value) for value in metrics.values())


def test_the_shift_is_measured_on_tokens_the_teacher_reports() -> None:
    logits, batch = make_batch()
    some = teacher_support(batch, 3)
    assert some.support_ids is not None
    assert some.support_logprobs is not None
    reported = (some.support_ids == batch.completion_ids.unsqueeze(-1)).any(-1) & batch.mask
    assert 0 < int(reported.sum()) < int(batch.mask.sum())
    assert batch.teacher_logits is not None
    q = token_logprobs(batch.teacher_logits, batch.completion_ids)
    expected = (q - batch.trainer_logprobs)[reported].abs().mean().item()
    assert run(Objective(), some, logits)[2]["teacher_shift"] == pytest.approx(expected)


def test_an_unused_slot_of_a_support_reports_no_token() -> None:
    logits, batch = make_batch(lengths=[1])
    ids = logits.topk(2, dim=-1).indices
    reported = torch.tensor([[[-math.inf, -0.5]]], dtype=torch.float64)
    batch = replace(
        batch,
        completion_ids=ids[..., 0],
        teacher_logits=None,
        support_ids=ids,
        support_logprobs=reported,
    )
    metrics = run(Objective(), batch, logits)[2]
    assert "teacher_shift" not in metrics


# -- what is refused


def test_a_directive_weight_without_a_teacher_is_refused() -> None:
    logits, batch = make_batch(teacher_logits=None)
    with pytest.raises(ValueError, match="no teacher: it has to be dropped"):
        run(Objective(), batch, logits)


def test_a_kl_penalty_without_a_base_is_refused() -> None:
    logits, batch = make_batch(base_logprobs=None)
    with pytest.raises(ValueError, match="needs the base model's"):
        run(Objective(), batch, logits)


@pytest.mark.parametrize("missing", [math.nan, -math.inf])
@pytest.mark.parametrize("name", ["trainer_logprobs", "sampling_logprobs", "base_logprobs", "advantages"])
def test_a_number_missing_at_a_live_position_is_refused(name: str, missing: float) -> None:
    logits, batch = make_batch()
    torn = getattr(batch, name).clone()
    torn[1, 2] = missing
    with pytest.raises(ValueError, match=f"{name} is missing or impossible at a live position"):
        run(Objective(), replace(batch, **{name: torn}), logits)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, math.inf])
def test_an_impossible_temperature_is_refused(temperature: float) -> None:
    logits, batch = make_batch()
    with pytest.raises(ValueError, match="temperature is missing or impossible"):
        run(Objective(), replace(batch, temperature=batch.temperature * temperature), logits)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trainer_logprobs": torch.zeros(3, 4)}, r"trainer_logprobs has shape \(3, 4\)"),
        ({"directive_weight": torch.ones(2)}, "directive_weight has shape"),
        ({"mask": torch.ones(3, 5)}, "masks are bool"),
        ({"directive_alpha": (0.5,)}, "1 directive_alpha for 3 samples"),
        ({"support_ids": torch.zeros(3, 5, 2, dtype=torch.long)}, "belong together"),
        (
            {
                "support_ids": torch.zeros(3, 5, 2, dtype=torch.long),
                "support_logprobs": torch.zeros(3, 5, 3),
            },
            "differ in shape",
        ),
        (
            {
                "support_ids": torch.zeros(3, 5, 2, dtype=torch.long),
                "support_logprobs": torch.zeros(3, 5, 2),
            },
            "one kind of teacher",
        ),
    ],
)
def test_a_batch_whose_streams_do_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_batch(**changes)


def test_logits_of_another_batch_are_refused() -> None:
    logits, batch = make_batch()
    with pytest.raises(ValueError, match="logits of shape"):
        run(Objective(), batch, logits[:, :-1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 1.1}, "alpha"),
        ({"top_k": 0}, "top_k"),
        ({"clip_low": 1.1}, "clip range"),
        ({"clip_high": 0.9}, "clip range"),
        ({"dual_clip": 1.0}, "dual_clip"),
        ({"kl_coef": -0.1}, "kl_coef"),
        ({"kl_coef": math.nan}, "kl_coef"),
        ({"staleness_cap": 0.0}, "caps"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Objective(**settings)


def test_a_batch_moves_to_a_device_as_a_whole() -> None:
    _, batch = make_batch(directive_alpha=(0.0, 0.5, 1.0))
    moved = batch.to("meta")
    assert moved.directive_alpha == (0.0, 0.5, 1.0)
    tensors = [
        value
        for name in Batch.__dataclass_fields__
        if isinstance(value := getattr(moved, name), torch.Tensor)
    ]
    assert len(tensors) == 11
    assert all(value.device.type == "meta" for value in tensors)


@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize("top_k", [4, None])
def test_a_teacher_asked_by_position_gives_the_loss_and_gradient_of_its_whole_logits(
    chunk: int | None, top_k: int | None
) -> None:
    logits, batch = make_batch()
    assert batch.teacher_logits is not None
    whole, asked = batch.teacher_logits.flatten(0, 1), []

    def teacher_at(flat: torch.Tensor) -> torch.Tensor:
        asked.extend(flat.tolist())
        return whole[flat]

    found = []
    for one in (batch, replace(batch, teacher_logits=None, teacher_at=teacher_at)):
        leaf = logits.detach().clone().requires_grad_()
        loss, metrics = compute_loss(Objective(top_k=top_k), one, leaf, chunk=chunk)
        torch.autograd.backward(loss)
        found.append((loss.item(), leaf.grad, metrics))
    (value, gradient, metrics), (again, same, measured) = found
    assert again == pytest.approx(value, abs=1e-6)
    torch.testing.assert_close(same, gradient, rtol=0, atol=1e-6)
    assert measured == pytest.approx(metrics, abs=1e-6)
    taught = (batch.mask & (batch.live() & (batch.directive_weight > 0))[:, None]).reshape(-1)
    # on a support it is asked once, in the second pass over a piece neither
    assert sorted(set(asked)) == taught.nonzero().squeeze(-1).tolist()
    if top_k is not None:
        assert len(asked) == len(set(asked))


def test_a_batch_has_one_kind_of_teacher() -> None:
    _, batch = make_batch()
    with pytest.raises(ValueError, match="one kind of teacher"):
        replace(batch, teacher_at=lambda flat: flat)


@pytest.mark.parametrize(
    ("ratio", "advantage", "dual_clip", "is_clipped"),
    [
        (1.5, 1.0, None, True), (0.5, 1.0, None, False), (0.5, -1.0, None, True), (1.5, -1.0, None, False), (1.0, 1.0, None, False),
        (4.0, -1.0, None, False), (4.0, -1.0, 3.0, True), (2.5, -1.0, 3.0, False), (0.5, -1.0, 3.0, True), (4.0, 0.0, 3.0, False),
    ],
)  # fmt: skip
def test_a_token_counts_as_clipped_where_its_gradient_is_gone(
    ratio: float, advantage: float, dual_clip: float | None, is_clipped: bool
) -> None:
    objective = Objective(clip_low=0.8, clip_high=1.2, dual_clip=dual_clip)
    ones = torch.ones(1, dtype=torch.float64)
    found = _clip_fraction(objective, ones * ratio, ones * advantage, torch.ones(1, dtype=torch.bool))
    assert found.item() == float(is_clipped)
