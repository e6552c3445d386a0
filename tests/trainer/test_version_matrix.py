"""Versions by probes: paired differences with their interval, and slow drift that no single step shows."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from store.errors import ConfigError
from store.settings import read_settings
from tests.tiny import make_tiny_adapter
from trainer.version_matrix import find_drifts, measure_versions, paired_difference, to_json


def falling(right: int, prompts: int = 60) -> dict[str, list[float]]:
    return {"facts": [float(i < right) for i in range(prompts)]}


def test_a_difference_is_over_the_same_prompts() -> None:
    same = paired_difference([0.0, 1.0] * 20, [0.0, 1.0] * 20)
    assert (same.mean, same.low, same.high, same.is_certain) == (0.0, 0.0, 0.0, False)
    all_lost = paired_difference([1.0] * 40, [0.0] * 40)
    assert (all_lost.mean, all_lost.is_certain) == (-1.0, True)
    with pytest.raises(ValueError, match="zip"):
        paired_difference([1.0], [1.0, 0.0])


def test_the_interval_holds_the_true_difference_about_as_often_as_it_says() -> None:
    rng = random.Random(7)
    held = 0
    for seed in range(60):
        before = [float(rng.random() < 0.7) for _ in range(80)]
        after = [float(rng.random() < 0.5) for _ in range(80)]
        found = paired_difference(before, after, seed=seed)
        held += found.low <= -0.2 <= found.high
    assert held >= 52


def test_a_drift_that_no_step_shows_is_found_and_called_slow() -> None:
    (drift,) = find_drifts([falling(n) for n in (60, 58, 56, 54, 52, 50, 48)])
    assert drift.is_slow
    assert drift.total.mean == pytest.approx(-0.2)


def test_a_loss_at_one_version_is_no_slow_drift_and_noise_is_none() -> None:
    (drift,) = find_drifts([falling(60), falling(60), falling(30)])
    assert not drift.is_slow
    assert find_drifts([falling(60), falling(59), falling(60)]) == []


@pytest.mark.long_run  # answers all prompts of the test model three times
def test_an_adapter_is_measured_by_the_same_prompts_as_the_base_model(tmp_path: Path) -> None:
    settings = read_settings({"home": tmp_path, "lora_rank": 4})
    adapter = make_tiny_adapter(tmp_path / "adapter", Path(settings.model_path), 1, rank=4, strength=20.0)
    matrix = measure_versions(settings, [None, adapter, None])
    assert matrix[0] == matrix[2]
    found = to_json([0, 1, 0], matrix)
    assert found["prompts"]["facts"] == len(matrix[1]["facts"]) > 24
    assert found["means"][0]["facts"] > 0.8
    assert found["means"][1]["facts"] < found["means"][0]["facts"]  # a random adapter knows less
    assert found["differences"][1]["facts"]["mean"] == 0.0
    assert "facts" in {drift["probe"] for drift in to_json([0, 1], matrix[:2])["drifts"]}


def test_versions_of_a_tinker_server_are_refused(tmp_path: Path) -> None:
    settings = read_settings({"home": tmp_path}).model_copy(update={"backend": "tinker"})
    with pytest.raises(ConfigError, match="Tinker server has them"):
        measure_versions(settings, [None, None])
