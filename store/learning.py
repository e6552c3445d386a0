"""The learning settings and their defaults. Nothing else has a default of its own for any of them.

`LearningConfig` is the part of `store.settings.Settings` that the trainer's step reads. On the command line it is `--learning
key=value`, in the environment `PATINA_LEARNING=key=value,key=value`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from store.values import Baseline, OpdSupport


class LearningConfig(BaseModel):
    """How verdicts become optimizer steps. The field descriptions are the settings reference."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())

    # the loss
    alpha: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="divergence from the teacher: 0 forward KL, 1 reverse KL, between: Jensen-Shannon; default 0 for combine, .5 for sdpo",
    )
    top_k: int = Field(
        default=32, ge=1, description="the teacher's likeliest tokens in the divergence; the rest is one bin"
    )
    opd_support: OpdSupport = Field(
        default="topk", description="directive term on the top-k tokens, or on the sampled tokens only"
    )
    opd_clip: float = Field(
        default=1.0, ge=0, description="clip of the per-token directive advantage (token support)"
    )
    baseline: Baseline = Field(
        default="running", description="subtract the running mean of recent verdicts, or nothing"
    )

    # the version
    samples: int = Field(
        default=80, ge=1, description="replies with wishes that a version learns from, at most"
    )
    anchors: int = Field(
        default=64,
        ge=0,
        description="replies of the base model to explicit instructions that hold a version, at most",
    )
    step_samples: int | None = Field(
        default=None,
        ge=1,
        description="replies of an optimizer step; default 2, a reply with the wish and an anchor; 8 on a Tinker server, where a step is several requests",
    )
    passes: int = Field(default=1, ge=1, description="how often a version uses each reply")
    max_staleness: int = Field(
        default=8, ge=0, description="rl: drop turns sampled more than this many versions ago"
    )
    tinker_gradients: Literal["auto", "sums", "means"] = Field(
        default="auto",
        description="how the Tinker server reduces losses; auto: means on SkyRL, sums otherwise",
    )


DEFAULTS = LearningConfig()


def parse_learning(text: str) -> dict[str, str]:
    """Parse ``key=value,key=value``; values stay text.

    Raises:
        ValueError: a part without "=", or a key that is not a field of `LearningConfig`.
    """
    found: dict[str, str] = {}
    for part in (part.strip() for part in text.split(",")):
        key, equals, value = part.partition("=")
        key = key.strip().replace("-", "_")
        if not part:
            continue
        if not equals:
            raise ValueError(f"{part!r} is not key=value")
        if key not in LearningConfig.model_fields:
            raise ValueError(
                f"unknown learning setting {key!r}: one of {', '.join(LearningConfig.model_fields)}"
            )
        found[key] = value.strip()
    return found


def split_learning(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split values by name into (other settings, learning settings)."""
    learning = {name: value for name, value in given.items() if name in LearningConfig.model_fields}
    return {name: value for name, value in given.items() if name not in learning}, learning
