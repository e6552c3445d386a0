"""What is compared: our methods, baselines that do not learn, and the objectives of other systems as their authors define them.

A method is a name for settings. Those of others are run on our data path (exact tokens, same user, same batch size, same learning
rate and rank), so that what differs is the objective; known bugs of the implementations are left out, see `tests.trainer.
test_reference_bugs` for what those cost. None of them has anchors, a baseline, a carried teacher or a gate on hints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from store.errors import ConfigError

#: What the references have in common that we do otherwise.
_BARE: Mapping[str, Any] = {
    "baseline": "none",
    "anchors": 0,
    "replay": 0,
    "kl_loss_coef": 0.0,
    "teacher_hints": 1,
    "teacher_residual": 0.0,
    "teacher_residual_offhint": 0.0,
    "teacher_min_p": 0.0,
    "blame_complaints": True,
    "hint_gate": False,
    "steps_per_batch": 1,
    "lr_decay": False,
    "resample": False,
    "adam_beta1": 0.9,
    "update_clip": 0.0,
    "rate_by_signal": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalMethod:
    """A way to change a policy, or not to.

    Attributes:
        kind: learn trains; none does not; memory does not either, but puts what was complained about in front of every request.
        settings: over the defaults.
        about: for readers of a report.
    """

    name: str
    kind: Literal["learn", "none", "memory"] = "learn"
    settings: Mapping[str, Any] = field(default_factory=dict)
    about: str


#: Optimizer steps on the feedback of a batch by our methods, three on anchors alone not counted; the references take one.
EQUAL_STEPS = 6


def _equal_steps(method: EvalMethod) -> EvalMethod:
    return EvalMethod(
        name=f"{method.name}-{EQUAL_STEPS}",
        settings={**method.settings, "steps_per_batch": EQUAL_STEPS},
        about=f"{method.about}; {EQUAL_STEPS} optimizer steps a batch, as ours",
    )


_METHODS = (
    EvalMethod(name="combine", settings={"method": "combine"}, about="Patina's default: reverse KL on top-20 + 0.3 rl, anchors"),
    EvalMethod(name="sdpo", settings={"method": "sdpo"}, about="Patina: Jensen-Shannon on top-20, anchors"),
    EvalMethod(name="opd", settings={"method": "opd"}, about="Patina: reverse KL on top-20, anchors"),
    EvalMethod(name="rl", settings={"method": "rl"}, about="Patina: verdict less its running mean, anchors"),
    EvalMethod(name="none", kind="none", about="baseline: the same conversations, nothing learnt"),
    EvalMethod(name="memory", kind="memory", about="baseline: complaints collected into the system prompt, nothing learnt"),
    EvalMethod(
        name="openclaw-rl",
        settings={**_BARE, "method": "rl"},
        about="OpenClaw-RL, binary: A = r on every token, clipped surrogate (.2 / .28)",
    ),
    EvalMethod(
        name="openclaw-opd",
        settings={**_BARE, "method": "opd", "opd_support": "token", "opd_clip": 1e9},
        about="OpenClaw-RL, OPD: A = log-probability of the hinted teacher less that of the policy, per sampled token",
    ),
    EvalMethod(
        name="openclaw-combine",
        settings={
            **_BARE,
            "method": "combine",
            "opd_support": "token",
            "opd_clip": 1e9,
            "w_rl": 1.0,
            "w_opd": 1.0,
        },
        about="OpenClaw-RL, combined: the sum of both advantages, weights 1 and 1",
    ),
    EvalMethod(
        name="claas",
        settings={
            **_BARE,
            "method": "sdpo",
            "alpha": 0.5,
            "top_k": 20,
            "support_of": "teacher",
            "support_mass": "renormalised",
            "kl_loss_coef": 0.001,
        },
        about="CLaaS: generalised Jensen-Shannon on the teacher's top-20, renormalised; frozen base teacher",
    ),
    EvalMethod(
        name="user-interactions",
        settings={
            **_BARE,
            "method": "opd",
            "opd_support": "token",
            "opd_clip": 2.0,
            "opd_centred": True,
            "teacher": "live",
        },
        about="user_interactions: the live policy with the follow-up in context as teacher, clip 2, centred per reply",
    ),
)  # fmt: skip
_REFERENCES = ("openclaw-rl", "openclaw-opd", "openclaw-combine", "claas", "user-interactions")
METHODS: Mapping[str, EvalMethod] = {
    method.name: method
    for method in (*_METHODS, *(_equal_steps(method) for method in _METHODS if method.name in _REFERENCES))
}
#: Names for several at once.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "ours": ("combine", "sdpo", "opd", "rl"),
    "baselines": ("none", "memory"),
    "references": _REFERENCES,
    "references-equal-steps": tuple(f"{name}-{EQUAL_STEPS}" for name in _REFERENCES),
    "all": tuple(method.name for method in _METHODS),
}


def parse_methods(text: str) -> tuple[EvalMethod, ...]:
    """Return the methods of a comma-separated list of names and groups, once each.

    Raises:
        ConfigError: an unknown name.
    """
    names: list[str] = []
    for word in (part.strip() for part in text.split(",")):
        if word in GROUPS:
            names += GROUPS[word]
        elif word in METHODS:
            names.append(word)
        elif word:
            raise ConfigError(f"unknown method {word!r}: one of {', '.join((*METHODS, *GROUPS))}")
    if not names:
        raise ConfigError("give at least one method")
    return tuple(METHODS[name] for name in dict.fromkeys(names))


def names(methods: Sequence[EvalMethod]) -> tuple[str, ...]:
    return tuple(method.name for method in methods)
