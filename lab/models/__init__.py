"""The 2 M test model: its folder, the settings it is trained with, and in this package the recipe that makes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from store.settings import Settings, read_settings

#: Folder with weights, tokenizer, chat template and canaries.
TOY: Path = Path(__file__).resolve().parents[2] / "tests" / "fixtures" / "patina-tiny"
#: Settings tuned on it, and no judge: it does not follow a judge's instructions.
TOY_SETTINGS = {"model_name": str(TOY), "learning_rate": 5e-3, "judge": "none"}


def toy_settings(given: dict[str, Any] | None = None) -> Settings:
    """Return settings that serve and train the test model, with ``given`` over them."""
    return read_settings(TOY_SETTINGS | (given or {}))
