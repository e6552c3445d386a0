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
        obeyed: share of explicit wishes that are followed, of the base model all; None: the gate measures nothing.
    """

    def __init__(self, *rejected: str, obeyed: float | None = None) -> None:
        self._rejected = rejected
        self._obeyed = obeyed

    def examine(self, policy: object, before: object = None) -> GateVerdict:
        base = {"facts": 1.0, "tools": 1.0, "obeyed": 1.0}
        measures = {} if self._obeyed is None else {"base": base, "after": {**base, "obeyed": self._obeyed}}
        return GateVerdict(rejected=self._rejected, measures=measures)


def close_the_gate(trainer: BaseVersionTrainer[Any]) -> None:
    trainer._gate = ScriptedGate("replies do not end")  # type: ignore[assignment]  # same method


def open_the_gate(trainer: BaseVersionTrainer[Any]) -> None:
    trainer._gate = ScriptedGate()  # type: ignore[assignment]  # same method


if __name__ == "__main__":
    vars(trainer.version_trainer)["Gate"] = lambda *_, **__: ScriptedGate()
    sys.exit(main())
