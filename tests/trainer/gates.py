"""What a version trainer measures of random weights, scripted: the gate (tests/trainer/test_gate.py tests the real one, which asks some fifty
prompts for each version) and the calibration of the base model (tests/trainer/test_calibrate.py).

`python -m tests.trainer.gates` is the trainer process with a gate that admits every version: random weights know no facts.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import trainer.version_trainer
from serving.model_digests import digest_served_model
from store.calibration import Calibration, write_calibration
from store.settings import Settings
from trainer.__main__ import main
from trainer.canaries import load_canaries
from trainer.gate import GateMeasures, GateVerdict
from trainer.protocol import Policy, Weights
from trainer.version_trainer import BaseVersionTrainer, LocalVersionTrainer


class ScriptedGate:
    """Rejects each version for the given reasons; without any it admits each."""

    def __init__(self, *rejected: str) -> None:
        self._verdict = GateVerdict(rejected=rejected, measures={})

    def base(self) -> GateMeasures:
        return GateMeasures()

    def examine(self, told: object = None) -> GateVerdict:
        return self._verdict


def close_the_gate(trainer: BaseVersionTrainer[Any]) -> None:
    trainer._gate = ScriptedGate("replies do not end")  # type: ignore[assignment]  # same methods


def open_the_gate(trainer: BaseVersionTrainer[Any]) -> None:
    trainer._gate = ScriptedGate()  # type: ignore[assignment]  # same methods


def quick_calibration(policy: Policy, model: str, *_: object, anchors: int, seed: int) -> Calibration:
    """Return a calibration with short anchors, in a hundredth of the time of `trainer.calibrate.calibrate`."""
    asked = [f"Question {number}?" for number in range(anchors)]
    prompts = [policy.render([{"role": "user", "content": one}]) for one in asked]
    replies = policy.sample(prompts, max_tokens=6, seed=seed, weights=Weights.BASE) if prompts else []
    found = [
        (one, list(reply.token_ids)) for one, reply in zip(asked, replies, strict=True) if reply.token_ids
    ]
    return Calibration(model=model, gate=GateMeasures().to_json(), anchors=found)


def know_model(home: Path, model: Path | str, **changes: Any) -> Calibration:
    """Write into a home what was measured of a model, as if it had been: nothing of it is measured again.

    Args:
        changes: fields of Calibration.
    """
    known: dict[str, Any] = {
        "model": f"{digest_served_model(str(model)).base_model} {load_canaries(str(model)).digest}",
        "same_wish": 0.5,
        "gate": GateMeasures().to_json(),
        "anchors": [["Why is the sky blue? Be brief.", [5, 6, 2]], ["What is tea? Use emoji.", [70, 2]]],
    }
    calibration = Calibration(**{**known, **changes})
    write_calibration(home, calibration)
    return calibration


def local_trainer(settings: Settings, **changes: Any) -> LocalVersionTrainer:
    """A trainer of the settings' model that measures nothing of it; ``changes`` are fields of Calibration."""
    know_model(settings.home, settings.model_path, **changes)
    return LocalVersionTrainer(settings)


if __name__ == "__main__":
    vars(trainer.version_trainer).update(Gate=lambda *_, **__: ScriptedGate(), calibrate=quick_calibration)
    sys.exit(main())
