"""The bench of a training step runs on a model of random weights, whatever the machine; its numbers are for a machine of one's own."""

import argparse
from pathlib import Path

import pytest
import torch

from lab.bench.step import make_model, make_samples, measure
from serving.vllm.memory_plan import trainer_bytes
from serving.vllm.model_folder import read_model_facts
from tests.trainer.plans import bare_plan
from trainer.losses import Residual
from trainer.policy import LocalPolicy
from trainer.step import train


def given(model: Path, **more: int) -> argparse.Namespace:
    sizes = {"rank": 4, "batch": 2, "prompt": 6, "completion": 5, "rounds": 1, "threads": 1, **more}
    return argparse.Namespace(model=str(model), shape="tiny", **sizes)


def test_a_step_is_timed_on_random_weights_with_a_large_vocabulary(tmp_path: Path) -> None:
    found = measure(given(make_model(tmp_path, "tiny")))
    assert found["parameters"] > 1_000_000
    assert all(value > 0 for value in found["median_s"].values())
    assert found["median_s"].keys() == {"bare", "ours_1_step", "ours_2_steps"}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_step_of_06_b_stays_within_what_colocation_counts_on(tmp_path: Path) -> None:

    folder = make_model(tmp_path, "0.6b")
    policy = LocalPolicy(str(folder), rank=16, learning_rate=1e-4)
    samples = make_samples(8, 512, 512, policy.vocabulary_size)
    plan = bare_plan(residual=Residual.even(0.5), max_kl_step=1e9)
    torch.cuda.reset_peak_memory_stats()
    train(policy, samples, plan)
    assert torch.cuda.max_memory_reserved() <= trainer_bytes(read_model_facts(str(folder)), rank=16)
