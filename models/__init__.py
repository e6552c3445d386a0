"""The built-in tiny chat model and the recipe that makes it. A leaf: `evals/` and tests import it, it imports no other room
but `trainer.hindsight` (pure text: the hindsight wording is part of the training text).

`questions`, `styles`, `corpus`, `canaries` are pure (no torch); `pretrain` and `measure` are scripts.
"""

from __future__ import annotations

from pathlib import Path

#: Name the built-in model is served under.
NAME = "patina-tiny"
#: Folder with weights, tokenizer, chat template and canaries; `AutoModelForCausalLM.from_pretrained(BUILTIN)` loads it.
BUILTIN: Path = Path(__file__).resolve().parent / NAME

__all__ = ["BUILTIN", "NAME"]
