"""The gate's bounds: the numbers, and what they come to for recorded measures. Pure, and without torch: the web page shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

#: What each measure is, in the order in which people read them.
LABELS: dict[str, str] = {
    "facts": "facts answered right",
    "tools": "tool calls that are right",
    "obeyed": "explicit wishes that are followed",
    "ends": "replies that end",
    "empty": "replies without text",
    "distinct": "different replies to different questions",
    "plain_length": "length of a reply to a plain question, tokens",
    "length": "length of a reply to an explicit wish, tokens",
    "entropy": "entropy, nats a token",
    "kl": "KL divergence from the base model, nats a token",
    "kl_worst": "KL divergence for the worst kind of wish, nats a token",
}
#: Measures that are shares of the replies, from 0 to 1.
SHARES = frozenset({"facts", "tools", "obeyed", "ends", "empty", "distinct"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """How far a version may be from the base model.

    Attributes:
        facts_drop, tools_drop, obeyed_drop: share of prompts by which a measure may fall; one prompt always may. The last
            is wide: on its way to JSON the 2 M test model fell from .79 to .57 and came back, the anchors see to that.
        entropy_low, entropy_high: bounds of the ratio of entropies on explicit wishes, with `entropy_slack` nats added to both
            sides of the ratio: a model that is nearly certain anyway has no meaningful ratio.
        length_low, length_high: bounds of the ratio of reply lengths on explicit wishes; the upper one holds on plain
            questions too. The lower one is wide: "concise" alone comes to .31 with every fact right and wishes followed.
        ends_drop: share of replies by which those that end may fall; one reply always may.
        kl: nat/token to base on explicit wishes, mean over all.
        kl_worst: the same for the worst style alone: losing one wish altogether hides in a mean over many.
        distinct_low: share of the base's number of different replies to different questions.
    """

    facts_drop: float = 0.10
    tools_drop: float = 0.15
    obeyed_drop: float = 0.30
    entropy_low: float = 0.6
    entropy_high: float = 1.6
    entropy_slack: float = 0.05
    length_low: float = 0.25
    length_high: float = 3.0
    ends_drop: float = 0.02
    kl: float = 0.5
    kl_worst: float = 1.5
    distinct_low: float = 0.5


class Bound(NamedTuple):
    """From which value to which a measure lets a version pass, both included; None: no bound on that side."""

    least: float | None = None
    most: float | None = None

    def is_broken_by(self, value: float) -> bool:
        return (self.least is not None and value < self.least - 1e-9) or (
            self.most is not None and value > self.most + 1e-9
        )


def with_worst(measures: Mapping[str, Any]) -> dict[str, Any]:
    """Return recorded measures with `kl_worst`, the largest divergence of a style."""
    by_style = [value for value in (measures.get("kl_by_style") or {}).values() if value is not None]
    return {**measures, **({"kl_worst": max(by_style)} if by_style else {})}


def bounds(
    after: Mapping[str, Any], base: Mapping[str, Any], thresholds: Thresholds | None = None
) -> dict[str, Bound]:
    """Return the bounds by which `judge_gate` judges recorded measures, as far as the base model's are known."""
    limits, counts = thresholds or Thresholds(), after.get("counts") or {}
    found = {"kl": Bound(most=limits.kl), "kl_worst": Bound(most=limits.kl_worst)}

    def of_base(name: str, bound: Callable[[float], Bound]) -> None:
        if (value := base.get(name)) is not None:
            found[name] = bound(value)

    for name, counted, drop in (
        ("facts", "facts", limits.facts_drop), ("tools", "tools", limits.tools_drop), ("obeyed", "obeyed", limits.obeyed_drop),
        ("ends", "replies", limits.ends_drop),
    ):  # fmt: skip
        allowed = max(drop, 1 / counts[counted]) if counts.get(counted) else drop
        of_base(name, lambda value, allowed=allowed: Bound(least=value - allowed))  # type: ignore[misc]
    slack = limits.entropy_slack
    of_base("empty", lambda value: Bound(most=value + 1 / max(1, counts.get("facts", 1))))
    of_base("distinct", lambda value: Bound(least=value * limits.distinct_low))
    of_base("length", lambda value: Bound(value * limits.length_low, value * limits.length_high))
    of_base("plain_length", lambda value: Bound(most=value * limits.length_high))
    of_base("entropy", lambda value: Bound(
        max(0.0, limits.entropy_low * (value + slack) - slack), limits.entropy_high * (value + slack) - slack
    ))  # fmt: skip
    return found
