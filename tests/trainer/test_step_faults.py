"""Faults of the training step that were found once: each test fails with one of them planted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from store.settings import read_settings
from tests.trainer.conftest import step_once
from tests.trainer.test_step import COMBINE, ready, weights
from tests.trainer.turns import anchor_of, sampled_turn
from trainer.batch import Sample
from trainer.losses import NO_RESIDUAL, Residual, with_residual
from trainer.objective import Batch, compute_loss
from trainer.policy import LocalPolicy, Weights
from trainer.step import StepPlan, _Batch, resampled, train

CLIPPED = StepPlan.of(read_settings({"loss_fn": "ppo"})).objective
UNCLIPPED = StepPlan.of(read_settings({"loss_fn": "importance_sampling"})).objective
TEACHERS = {"base": Weights.BASE, "ema": Weights.EMA, "live": Weights.STUDENT}
RESAMPLED = replace(COMBINE, blames=False, steps_per_batch=4, resample=True)


def thanks(policy: LocalPolicy, name: str = "thanks", **changes: Any) -> Sample:
    turn = sampled_turn(policy, name, f"Hello {name}", verdict={"value": 1, "hint": None}, **changes)
    (sample,) = ready(policy, turn).samples
    return sample


def complaint(policy: LocalPolicy, name: str = "complaint") -> Sample:
    (sample,) = ready(policy, sampled_turn(policy, name, f"Hi there {name}"), plan=RESAMPLED).samples
    return sample


def trained(policy: LocalPolicy, samples: list[Sample], plan: StepPlan) -> dict[str, torch.Tensor]:
    """The weights after a step from where the policy is; the policy stays there."""
    start = policy.snapshot()
    train(policy, samples, plan, seed=5)
    after = weights(policy)
    policy.restore(start)
    return after


def are_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


@contextmanager
def batches_seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Batch]]:
    """The batches whose loss is computed with a gradient."""
    seen: list[Batch] = []

    def noted(objective: Any, batch: Batch, *rest: Any, **more: Any) -> Any:
        if torch.is_grad_enabled():
            seen.append(batch)
        return compute_loss(objective, batch, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr("trainer.step.compute_loss", noted)
        yield seen


def test_clipping_changes_the_weights_once_the_ratio_leaves_the_range(policy: LocalPolicy) -> None:
    policy.learning_rate = 0.05
    samples = [thanks(policy), complaint(policy)]
    plain, clipped = (replace(RESAMPLED, objective=objective) for objective in (UNCLIPPED, CLIPPED))
    assert not are_equal(trained(policy, samples, plain), trained(policy, samples, clipped))
    first, second = (replace(plan, steps_per_batch=1) for plan in (plain, clipped))
    assert are_equal(trained(policy, samples, first), trained(policy, samples, second))


def test_a_batch_of_which_nothing_is_answered_anew_trains_as_one_that_never_is(policy: LocalPolicy) -> None:
    policy.learning_rate = 0.05
    samples = [thanks(policy), thanks(policy, "more thanks", temperature=0.7)]
    never = trained(policy, samples, replace(RESAMPLED, resample=False))
    assert are_equal(trained(policy, samples, RESAMPLED), never)


def test_old_log_probabilities_stay_for_a_reply_that_stays_and_are_new_for_a_new_one(
    policy: LocalPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    step_once(policy)
    kept = thanks(policy, temperature=0.7)
    with batches_seen(monkeypatch) as seen:
        train(policy, [kept, complaint(policy)], replace(RESAMPLED, micro_tokens=1), seed=5)
    count = len(kept.completion_ids)
    stays = [batch for batch in seen if batch.temperature.tolist() == pytest.approx([0.7])]
    anew = [batch for batch in seen if batch not in stays]
    assert (len(stays), len(anew)) == (4, 4)
    for batch in stays[1:]:
        assert torch.equal(batch.trainer_logprobs[0, :count], stays[0].trainer_logprobs[0, :count])
        # The weight for staleness is about who sampled the reply, not about how far this step has come.
        assert torch.equal(batch.sampling_logprobs[0, :count], stays[0].sampling_logprobs[0, :count])
    for batch in anew[1:]:
        gap = (batch.trainer_logprobs - batch.sampling_logprobs)[batch.mask]
        assert float(gap.abs().max()) < 1e-4  # sampled by the weights as they were before that very step


def test_metrics_of_a_batch_in_parts_are_those_of_the_whole(
    policy: LocalPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thanks have no teacher, complaints no advantage: each metric is a mean over its own tokens."""
    policy.learning_rate = 0.05
    names = ("a", "bb")  # the length of a name is the seed of its reply
    first, second = (complaint(policy, name) for name in names)
    samples = [first, thanks(policy), second, thanks(policy, "more thanks"), thanks(policy, "many thanks!")]
    start = policy.snapshot()
    found = []
    for cut in (len(samples), 2):
        monkeypatch.setattr(
            "trainer.step.micro_batches", lambda all_, _, cut=cut: [p for p in (all_[:cut], all_[cut:]) if p]
        )
        policy.restore(start)
        given = _Batch(samples, RESAMPLED)
        given.measure(policy)  # the old log-probabilities
        step_once(policy)  # away from the old log-probabilities, so that something is clipped
        found.append(given.measure(policy))
    whole, parts = found
    assert whole["clip_fraction"] > 0.0
    assert whole["live_tokens"] > whole["policy_tokens"] > whole["directive_tokens"] > 0.0
    assert parts == pytest.approx(whole, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("residual", [NO_RESIDUAL, Residual.even(0.5)])
@pytest.mark.parametrize("teacher", TEACHERS)
def test_a08_each_reply_is_judged_by_the_teacher_of_the_settings_and_each_anchor_by_the_base_model(
    policy: LocalPolicy, monkeypatch: pytest.MonkeyPatch, teacher: str, residual: Residual
) -> None:
    """What the loss reads, by an independent way: the logits of that model for that prompt."""
    for seed in range(3):
        step_once(policy, seed)
    chosen = StepPlan.of(read_settings({"teacher": teacher})).teacher
    assert chosen is TEACHERS[teacher]
    plan = replace(RESAMPLED, teacher=chosen, residual=residual, steps_per_batch=1, micro_tokens=1_000_000)
    hinted = complaint(policy)
    anchor = anchor_of(hinted)

    def logits(prompt: tuple[int, ...] | None, weights: Weights) -> torch.Tensor:
        with torch.no_grad():
            return policy.response_logits([prompt or ()], [hinted.completion_ids], weights)[0][0]

    plain, student = logits(hinted.prompt_ids, Weights.BASE), logits(hinted.prompt_ids, Weights.STUDENT)
    expected = logits(hinted.teacher_prompt_ids, chosen)
    if chosen is Weights.BASE:  # no other teacher carries along what was learnt
        expected = with_residual(expected, plain, student, residual)
    others = [logits(hinted.teacher_prompt_ids, w) for w in (Weights.BASE, Weights.EMA, Weights.STUDENT)]
    monkeypatch.setattr("trainer.step.micro_batches", lambda samples, _: [samples])
    with batches_seen(monkeypatch) as seen:
        train(policy, [hinted, anchor], plan)
    (batch,) = seen
    assert batch.teacher_logits is not None
    torch.testing.assert_close(batch.teacher_logits[0], expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(batch.teacher_logits[1], plain, atol=1e-4, rtol=1e-4)
    far = [float((other - expected).abs().max()) for other in others]
    assert sum(distance > 1e-2 for distance in far) >= 2  # the teachers differ


@pytest.mark.parametrize("teacher", TEACHERS)
def test_a08_a_turn_is_prepared_with_the_log_probabilities_of_the_teacher_of_the_settings(
    policy: LocalPolicy, teacher: str
) -> None:
    for seed in range(3):
        step_once(policy, seed)
    chosen = StepPlan.of(read_settings({"teacher": teacher})).teacher
    assert chosen is TEACHERS[teacher]
    plan = replace(COMBINE, method="opd", opd_support="token", opd_clip=100.0, teacher=chosen)
    (sample,) = ready(policy, sampled_turn(policy, "t", "Hi there"), plan=plan).samples
    assert sample.teacher_prompt_ids is not None
    assert sample.streams is not None
    completion = [sample.completion_ids]
    q, _ = policy.response_logprobs([sample.teacher_prompt_ids], completion, chosen)
    o, _ = policy.response_logprobs([sample.prompt_ids], completion)
    assert list(sample.streams.advantages) == pytest.approx((q - o)[0].tolist(), abs=1e-4)


def test_the_distance_to_the_base_model_is_measured_against_the_base_model(
    policy: LocalPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(3):
        step_once(policy, seed)
    sample = complaint(policy)
    with batches_seen(monkeypatch) as seen:
        metrics = train(policy, [sample], replace(RESAMPLED, steps_per_batch=1))
    (batch,) = seen
    base, _ = policy.response_logprobs([sample.prompt_ids], [sample.completion_ids], Weights.BASE)
    assert batch.base_logprobs is not None
    torch.testing.assert_close(batch.base_logprobs, base)
    assert metrics["kl_base"] > 1e-3  # before the step; 0 against the student


def test_a_reply_with_a_verdict_of_its_own_is_not_answered_anew(policy: LocalPolicy) -> None:
    """A complaint that is blamed beside its hint: its advantages are about this very reply."""
    turn = sampled_turn(policy, "t", "Hi there")
    (blamed,) = ready(policy, turn, plan=replace(COMBINE, blames=True)).samples
    assert blamed.teacher_prompt_ids is not None
    assert blamed.streams is not None
    assert blamed.streams.directive_weight > 0.0
    assert any(blamed.streams.advantages)
    step_once(policy)
    assert resampled(policy, [blamed], seed=3) == [blamed]
