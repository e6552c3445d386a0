"""What is compared: our methods, and baselines that do not learn. A method is a name for settings.

The objectives of other systems as their authors define them were compared on the trainer of 0.2 (`lab/research`): this one builds a version
from the base model, which none of them does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from store.errors import ConfigError


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


METHODS: Mapping[str, EvalMethod] = {
    method.name: method
    for method in (
        EvalMethod(
            name="combine",
            settings={"method": "combine"},
            about="Patina's default: forward KL to the teacher that reads the wishes, and verdicts of thumbs",
        ),
        EvalMethod(
            name="sdpo",
            settings={"method": "sdpo"},
            about="Patina: Jensen-Shannon divergence from that teacher",
        ),
        EvalMethod(name="opd", settings={"method": "opd"}, about="Patina: reverse KL to that teacher"),
        EvalMethod(name="rl", settings={"method": "rl"}, about="Patina: verdict less its running mean"),
        EvalMethod(name="none", kind="none", about="baseline: the same conversations, nothing learnt"),
        EvalMethod(
            name="memory",
            kind="memory",
            about="baseline: complaints collected into the system prompt, nothing learnt",
        ),
    )
}
#: Names for several at once.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "ours": ("combine", "sdpo", "opd", "rl"),
    "baselines": ("none", "memory"),
    "all": tuple(METHODS),
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
