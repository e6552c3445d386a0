"""Versions by probes: fixed prompts answered greedily by each version, compared prompt by prompt. The comparison is pure.

The gate asks few prompts and lets one of each kind fail, so a small loss passes. Here all prompts are asked, and the first version of a list is compared
with every later one: a probe drifts when its difference over the whole list is certain, and slowly when no step from one version to the next is.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from store.errors import ConfigError
from store.settings import Settings
from store.values import Json
from trainer.canaries import load_canaries
from trainer.gate import GateProbe
from trainer.policy import LocalPolicy
from trainer.protocol import Weights

#: Scores of one version: kind of probe -> a value for each prompt, always in the same order.
Scores = Mapping[str, Sequence[float]]

_RESAMPLES = 2_000
_LEVEL = 0.95
#: All prompts of the canaries, not only those that a gate can afford.
_ALL = 1_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Mean difference over the same prompts, with the bootstrap interval over prompts."""

    mean: float
    low: float
    high: float

    @property
    def is_certain(self) -> bool:
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A probe that the last version answers otherwise than the first.

    Attributes:
        is_slow: no two versions in a row differ for certain.
    """

    probe: str
    total: Difference
    is_slow: bool


def paired_difference(before: Sequence[float], after: Sequence[float], *, seed: int = 0) -> Difference:
    """Return ``after`` less ``before``, over the same prompts.

    Raises:
        ValueError: they are not of the same prompts.
    """
    changes = [b - a for a, b in zip(before, after, strict=True)]
    if not changes:
        raise ValueError("there is no prompt to compare")
    rng = random.Random(f"{seed}/{len(changes)}")
    means = sorted(sum(rng.choices(changes, k=len(changes))) / len(changes) for _ in range(_RESAMPLES))
    cut = round(_RESAMPLES * (1 - _LEVEL) / 2)
    return Difference(mean=sum(changes) / len(changes), low=means[cut], high=means[-1 - cut])


def find_drifts(matrix: Sequence[Scores]) -> list[Drift]:
    """Return the probes that the last version answers otherwise than the first. Versions in the order in which they were made."""
    found = []
    for probe in matrix[0]:
        total = paired_difference(matrix[0][probe], matrix[-1][probe])
        if total.is_certain:
            steps = [paired_difference(a[probe], b[probe]) for a, b in pairwise(matrix)]
            is_slow = len(matrix) > 2 and not any(step.is_certain for step in steps)
            found.append(Drift(probe=probe, total=total, is_slow=is_slow))
    return found


def measure_versions(settings: Settings, folders: Sequence[Path | None]) -> list[Scores]:
    """Answer the probes with each version; None: the base model. Kinds of prompts are mixed in each batch.

    Raises:
        ConfigError: the weights are not on this machine.
        AdapterError: a folder cannot be loaded.
    """
    if settings.backend == "tinker":
        raise ConfigError("compare needs the weights on this machine; a Tinker server has them")
    policy = LocalPolicy(
        settings.model_path,
        rank=settings.lora_rank,
        learning_rate=settings.resolved_learning_rate,
        seed=settings.seed,
        quantize=settings.quantize == "4bit",
    )
    probe = GateProbe(policy, load_canaries(settings.model_path), most=_ALL)
    found: list[Scores] = []
    for folder in folders:
        if folder is None:
            found.append(probe.scores(Weights.BASE))
        else:
            policy.load_version(folder)
            found.append(probe.scores(Weights.STUDENT))
    return found


def to_json(versions: Sequence[int], matrix: Sequence[Scores]) -> Json:
    """Return the means of all versions, the differences to the first one, and what drifts."""
    first = matrix[0]
    return {
        "versions": list(versions),
        "prompts": {probe: len(values) for probe, values in first.items()},
        "means": [{probe: sum(values) / len(values) for probe, values in row.items()} for row in matrix],
        "differences": [
            {probe: asdict(paired_difference(first[probe], row[probe])) for probe in first}
            for row in matrix[1:]
        ],
        "drifts": [asdict(drift) for drift in find_drifts(matrix)],
    }
