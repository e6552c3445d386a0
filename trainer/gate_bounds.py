"""The gate's bounds: the numbers, and what they come to for recorded measures. Pure, and without torch: the web page shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

#: What each measure is, in the order in which people read them.
LABELS: dict[str, str] = {
    "facts": "facts answered right",
    "tools": "tool calls that are right",
    "obeyed": "explicit requests that are obeyed",
    "ends": "replies that end",
    "empty": "replies without text",
    "distinct": "different replies to different questions",
    "plain_length": "length of a reply to a plain question, tokens",
}
#: Measures that are shares of the replies, from 0 to 1.
SHARES = frozenset({"facts", "tools", "obeyed", "ends", "empty", "distinct"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """How far a version may be from the base model: what the product promises, whatever the model is.

    Attributes:
        facts_drop: by how much the share of right answers may fall; one answer always may.
        tools_drop, obeyed_drop: share of the prompts that the base model has right by which a version may fall; one prompt always may.
        ends_drop: share of plain replies by which those that end may fall; one always may.
        length_high: bound of the ratio of reply lengths on plain questions.
        distinct_low: share of the base model's number of different replies to different questions.
    """

    facts_drop: float = 0.05
    tools_drop: float = 0.05
    obeyed_drop: float = 0.10
    ends_drop: float = 0.02
    length_high: float = 3.0
    distinct_low: float = 0.5


def slack(allowed: float, count: int) -> float:
    """Return the share by which a measure of so many prompts may fall: one prompt always may."""
    return max(allowed, 1 / count if count else 1.0) + 1e-9


class Bound(NamedTuple):
    """From which value to which a measure lets a version pass, both included; None: no bound on that side."""

    least: float | None = None
    most: float | None = None

    def is_broken_by(self, value: float) -> bool:
        return (self.least is not None and value < self.least - 1e-9) or (
            self.most is not None and value > self.most + 1e-9
        )


def bounds(
    after: Mapping[str, Any],
    base: Mapping[str, Any],
    thresholds: Thresholds | None = None,
    *,
    told: float | None = None,
) -> dict[str, Bound]:
    """Return the bounds by which `judge_gate` judges recorded measures, as far as the base model's are known."""
    limits, counts = thresholds or Thresholds(), after.get("counts") or {}
    found = {
        name: Bound(least=1.0 - slack(drop, counts.get(name, 0)))
        for name, drop in (
            ("tools", limits.tools_drop),
            ("obeyed", limits.obeyed_drop),
        )
        if after.get(name) is not None
    }
    if after.get("facts") is not None and (facts := base.get("facts")) is not None:
        least = facts if told is None else min(told, facts)
        found["facts"] = Bound(least=least - slack(limits.facts_drop, counts.get("facts", 0)))
    plain = counts.get("plain", 0)
    if (ends := base.get("ends")) is not None:
        found["ends"] = Bound(least=ends - slack(limits.ends_drop, plain))
    if (empty := base.get("empty")) is not None:
        found["empty"] = Bound(most=empty + slack(0.0, plain))
    if (distinct := base.get("distinct")) is not None:
        found["distinct"] = Bound(least=distinct * limits.distinct_low)
    if (length := base.get("plain_length")) is not None:
        found["plain_length"] = Bound(most=length * limits.length_high)
    return found
