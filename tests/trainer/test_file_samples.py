"""Uploaded examples as samples: the loss of a reply is its cross-entropy, and so is the gradient."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from store.settings import read_settings
from store.values import TuningData
from trainer.batch import Sample, SampleKind
from trainer.file_samples import read_files
from trainer.plan import StepPlan
from trainer.policy import LocalPolicy
from trainer.step import _part_backward, train, weigh_preferences

PLAN = replace(StepPlan.of(read_settings({})), passes=1)


def data(*replies: str, epochs: int = 2) -> TuningData:
    lines = [
        json.dumps({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": reply}]})
        for reply in replies
    ]
    return TuningData(
        job_id="j", file_id="file-a", method="supervised", epochs=epochs, beta=0.1, content="\n".join(lines)
    )


def cross_entropy(policy: LocalPolicy, samples: list[Sample]) -> torch.Tensor:
    """Mean over samples of the mean over tokens, by torch alone."""
    losses = []
    for one in samples:
        logits, _ = policy.response_logits([one.prompt_ids], [one.completion_ids])
        losses.append(torch.nn.functional.cross_entropy(logits[0].float(), torch.tensor(one.completion_ids)))
    return torch.stack(losses).mean()


def gradients(policy: LocalPolicy) -> list[torch.Tensor]:
    return [p.grad.clone() for p in policy._trainable.values() if p.grad is not None]


def test_a_reply_becomes_the_ids_that_the_template_gives_it_up_to_its_end(policy: LocalPolicy) -> None:
    found = read_files(policy, [data("good", "no way")])
    first = found.samples[0]
    assert first.prompt_ids == tuple(policy.render([{"role": "user", "content": "hi"}]))
    assert policy.decode(first.completion_ids) == "good"
    assert first.completion_ids[-1] in policy.end_ids
    assert (first.kind, first.passes) == (SampleKind.EXAMPLE, 2)
    tokens = sum(len(one.completion_ids) for one in found.samples)
    assert found.numbers == {"examples_left_out": 0.0, "trained_tokens": 2.0 * tokens}


def test_an_example_that_is_too_long_is_left_out_and_counted(policy: LocalPolicy) -> None:
    policy.max_context = 30
    found = read_files(policy, [data("good", "far too long " * 30)])
    assert (len(found.samples), found.numbers["examples_left_out"]) == (1, 1.0)


def test_loss_and_gradient_are_those_of_the_cross_entropy_also_after_a_step(policy: LocalPolicy) -> None:
    samples = list(read_files(policy, [data("good", "no way")]).samples)
    old: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for _ in range(2):  # the second time the weights are not those of the beginning
        metrics = _part_backward(policy, samples, PLAN, 2.0, old)
        ours = gradients(policy)
        policy.drop_gradients()
        expected = cross_entropy(policy, samples)
        assert metrics["loss"] == pytest.approx(expected.item(), rel=1e-4)
        policy.accumulate(expected)
        for mine, theirs in zip(ours, gradients(policy), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-6)
        policy.apply_gradients()


def test_every_example_is_used_as_often_as_its_job_says(policy: LocalPolicy) -> None:
    samples = read_files(policy, [data(*(f"word {n}" for n in range(16)), epochs=3)]).samples
    metrics = train(policy, samples, PLAN)
    assert metrics["optimizer_steps"] == 24.0  # 16 examples, 2 a step, 3 times
    assert metrics["loss_after"] < metrics["loss"]


def preferences(beta: float) -> TuningData:
    hi = [{"role": "user", "content": "hi"}]
    rows = [
        {
            "input": {"messages": hi},
            "preferred_output": [{"role": "assistant", "content": better}],
            "non_preferred_output": [{"role": "assistant", "content": worse}],
        }
        for better, worse in (("good", "no way at all"), ("a much longer reply", "bad"))
    ]
    content = "\n".join(map(json.dumps, rows))
    return TuningData(job_id="j", file_id="file-d", method="dpo", epochs=4, beta=beta, content=content)


def dpo(policy: LocalPolicy, samples: Sequence[Sample], beta: float) -> torch.Tensor:
    """The loss of DPO by torch alone: mean over pairs."""

    def whole(one: Sample) -> torch.Tensor:
        logits, _ = policy.response_logits([one.prompt_ids], [one.completion_ids])
        return -torch.nn.functional.cross_entropy(
            logits[0].float(), torch.tensor(one.completion_ids), reduction="sum"
        )

    losses = []
    for better, worse in zip(samples[::2], samples[1::2], strict=True):
        assert better.preference is not None
        z = beta * (whole(better) - whole(worse) - better.preference.base_gap)
        losses.append(-torch.nn.functional.logsigmoid(z))
    return torch.stack(losses).mean()


@pytest.mark.parametrize("beta", [0.1, 0.5])
def test_the_gradient_of_preferences_is_that_of_dpo_also_after_a_step(
    policy: LocalPolicy, beta: float
) -> None:
    samples = list(read_files(policy, [preferences(beta)]).samples)
    assert [one.preference.sign for one in samples if one.preference] == [1, -1, 1, -1]
    losses = []
    for _ in range(2):
        _part_backward(policy, weigh_preferences(policy, samples), PLAN, 4.0, {})
        ours = gradients(policy)
        policy.drop_gradients()
        expected = dpo(policy, samples, beta)
        losses.append(expected.item())
        policy.accumulate(expected)
        for mine, theirs in zip(ours, gradients(policy), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=2e-3, atol=1e-5)
        policy.apply_gradients()
    assert losses[0] == pytest.approx(math.log(2.0), abs=1e-4)  # the adapter changes nothing yet
    assert losses[1] < losses[0]


def test_a_few_passes_prefer_what_the_file_prefers(policy: LocalPolicy) -> None:
    samples = list(read_files(policy, [preferences(0.1)]).samples)
    before = dpo(policy, samples, 0.1).item()
    train(policy, samples, PLAN)
    assert dpo(policy, samples, 0.1).item() < before - 0.05
