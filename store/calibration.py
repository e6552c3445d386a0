"""What was measured of the base model at its first start; kept in the home. Values and a file.

The trainer writes the file; the gateway reads where wishes stand in the prompt. It is a cache: a file of another model is measured again.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from store.values import Json

FILE = "calibration.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What the trainer knows of a base model.

    Attributes:
        model: digest of the base model.
        placement: where wishes stand in a prompt; see `wire.wish_text.add_wishes`.
        obeyed: by place, the shares of instructions there that the model obeys, and of messages that ask for the opposite.
        same_wish: cosine of two effects from which two wordings are one wish.
        neutral: largest effect of words that ask for nothing; see `trainer.wish_meter.WishMeter.size`.
        gate: `trainer.gate.GateMeasures` of the base model.
        anchors: messages with an instruction, and the token ids of the base model's replies.
    """

    model: str = ""
    placement: str = "behind"
    obeyed: Mapping[str, Sequence[float]] = field(default_factory=dict)
    same_wish: float = 1.0
    neutral: float = 0.0
    gate: Json = field(default_factory=dict)
    anchors: Sequence[tuple[str, Sequence[int]]] = ()


def read_calibration(home: Path, model: str | None = None) -> Calibration | None:
    """Return what was measured of the model with this digest (None: of whatever model there is); None: nothing yet."""
    try:
        found: Any = json.loads((home / FILE).read_text(encoding="utf-8"))
        anchors = [(str(message), list(reply)) for message, reply in found.get("anchors", ())]
        known = Calibration(**{**found, "anchors": anchors})
    except (OSError, ValueError, TypeError, AttributeError):
        return None  # measured again: the file is a cache
    return known if model in (None, known.model) else None


def write_calibration(home: Path, calibration: Calibration) -> None:
    """Store it; readers see the old file or the new one."""
    home.mkdir(parents=True, exist_ok=True)
    fresh = home / f"{FILE}.{os.getpid()}"
    fresh.write_text(json.dumps(asdict(calibration)), encoding="utf-8")
    with contextlib.suppress(FileNotFoundError):
        fresh.replace(home / FILE)
