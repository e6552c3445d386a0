"""Uploaded examples as samples: the loss of a reply is its cross-entropy, and so is the gradient."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from store.settings import read_settings
from store.values import TuningData
from trainer.batch import Sample, SampleKind
from trainer.file_samples import read_files
from trainer.plan import StepPlan
from trainer.policy import LocalPolicy
from trainer.step import _part_backward, train

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
    assert metrics["optimizer_steps"] == 6.0  # 16 examples, 8 a step, 3 times
    assert metrics["loss_after"] < metrics["loss"]
