"""A gate whose decision is scripted: the real one, which tests/trainer/test_gate.py tests, measures some sixty prompts for each version.

`python -m tests.trainer.gates` is the trainer process with a gate that admits every version: random weights know no facts.
"""

from __future__ import annotations

import sys
from typing import Any

import trainer.version_trainer
from trainer.__main__ import main
from trainer.gate import GateVerdict
from trainer.version_trainer import BaseVersionTrainer


class ScriptedGate:
    """Rejects each version for the given reasons; without any it admits each.

    Args:
        is_intact: whether it finds nothing lost.
    """

    def __init__(self, *rejected: str, is_intact: bool = False) -> None:
        self._verdict = GateVerdict(rejected=rejected, measures={}, is_intact=is_intact)

    def examine(self, policy: object, before: object = None) -> GateVerdict:
        return self._verdict


def close_the_gate(trainer: BaseVersionTrainer[Any]) -> None:
    trainer._gate = ScriptedGate("replies do not end")  # type: ignore[assignment]  # same method


def open_the_gate(trainer: BaseVersionTrainer[Any]) -> None:
    trainer._gate = ScriptedGate()  # type: ignore[assignment]  # same method


if __name__ == "__main__":
    vars(trainer.version_trainer)["Gate"] = lambda *_, **__: ScriptedGate()
    sys.exit(main())
