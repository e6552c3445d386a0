"""The learning settings and their defaults. Nothing else has a default of its own for any of them.

`LearningConfig` is the part of `store.settings.Settings` that the trainer's step reads. On the command line it is `--learning
key=value`, in the environment `PATINA_LEARNING=key=value,key=value`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from store.values import Baseline, OpdSupport


class LearningConfig(BaseModel):
    """How verdicts become optimizer steps. The field descriptions are the settings reference."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    # the teacher
    teacher: Literal["base", "ema", "live"] = Field(
        default="base",
        description="weights of the teacher: the base model, a moving average of the adapter (ema), or the policy itself (live)",
    )
    teacher_hints: int = Field(
        default=4,
        ge=1,
        description="most hints in the teacher's context: those about this reply, then the newest others",
    )
    teacher_residual: float = Field(
        default=0.3,
        ge=0,
        lt=1,
        description="share of the learnt change that a base-model teacher keeps on what the hints speak of",
    )
    teacher_residual_offhint: float = Field(
        default=0.3,
        ge=0,
        le=1,
        description="the same share for what the hints do not speak of; at 1 nothing else is unlearnt",
    )
    teacher_min_p: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description="tokens below this share of the likeliest token, for teacher and policy alike, are unlearnt; 0: never",
    )
    hint_gate: bool = Field(
        default=True,
        description="a hint teaches only if it changes the teacher's distribution on the same subject",
    )

    # the loss
    opd_support: OpdSupport = Field(
        default="topk", description="directive term on the top-k tokens, or on the sampled tokens only"
    )
    support_of: Literal["student", "teacher"] = Field(
        default="student", description="whose likeliest tokens are the support of the directive term"
    )
    support_mass: Literal["tail", "renormalised"] = Field(
        default="tail",
        description="probability outside the support: one bin of its own (tail), or dropped (renormalised)",
    )
    top_k: int = Field(default=20, ge=1, description="tokens in the support of the directive term")
    alpha: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="divergence from the teacher: 0 forward KL, 1 reverse KL, between: Jensen-Shannon; "
        "default .5 for sdpo, 1 for the others' directive term",
    )
    opd_clip: float = Field(
        default=1.0, ge=0, description="clip of the per-token directive advantage (token support)"
    )
    opd_centred: bool = Field(
        default=False, description="subtract the reply's mean from the per-token directive advantage"
    )
    baseline: Baseline = Field(
        default="running", description="subtract the running mean of recent verdicts, or nothing"
    )
    blame_complaints: bool = Field(
        default=False,
        description="combine: a complaint with a hint also counts as -1 on every token of the reply",
    )

    # the optimizer
    steps_per_batch: int = Field(
        default=6,
        ge=1,
        description="optimizer steps per batch of turns; half as many follow on the anchors alone",
    )
    lr_decay: bool = Field(
        default=True, description="lower the learning rate over the optimizer steps of a batch"
    )
    resample: bool = Field(
        default=True,
        description="sample new replies to complaints and anchors before each further optimizer step (not on a Tinker server)",
    )
    rate_by_signal: bool = Field(
        default=True,
        description="scale the learning rate by the share of turns in the batch that ask for a change",
    )
    adam_beta1: float = Field(default=0.6, ge=0, lt=1, description="AdamW's beta1 (on a Tinker server .9)")
    update_clip: float = Field(
        default=1.0,
        ge=0,
        description="largest update of a tensor, root mean square in learning rates (not on a Tinker server); 0: no bound",
    )
    max_kl_step: float = Field(
        default=0.5, ge=0, description="stop the optimizer steps of a batch beyond this KL, nats a token"
    )
    kl_target: float = Field(
        default=0.1,
        ge=0,
        description="most that a version may move, KL nats a token; a longer way is shortened (not on a Tinker server)",
    )
    tinker_gradients: Literal["auto", "sums", "means"] = Field(
        default="auto",
        description="how the Tinker server reduces losses; auto: means on SkyRL, sums otherwise",
    )

    # the samples
    anchors: int = Field(
        default=16,
        ge=0,
        description="samples per step that hold the policy to the base model on explicit instructions",
    )
    replay: int = Field(
        default=4, ge=0, description="least number of complaints in a step; past ones fill it up"
    )
    max_staleness: int = Field(
        default=8, ge=0, description="drop turns sampled more than this many versions ago"
    )

    @field_validator(
        "teacher_min_p", "opd_clip", "max_kl_step", "kl_target", "update_clip", "adam_beta1", "alpha"
    )
    @classmethod
    def _finite(cls, value: float | None) -> float | None:
        if value is not None and value != value:
            raise ValueError("must be a number")
        return value


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
