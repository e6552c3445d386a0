"""Charts as SVG text, made on the server: they need no script. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 720, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 12, 34


@dataclass(frozen=True, slots=True)
class Share:
    """A share with its interval, all from 0 to 1.

    Attributes:
        label: of the group, e.g. a version.
    """

    label: str
    hits: int
    count: int
    low: float
    high: float

    @property
    def value(self) -> float:
        return self.hits / self.count


def share(label: str, hits: int, count: int) -> Share:
    """Return a share with its 95 % Wilson interval (Wilson 1927). ``count`` is at least 1."""
    z = 1.96
    p = hits / count
    centre = (p + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(p * (1 - p) / count + z * z / (4 * count * count))
    return Share(
        label=label, hits=hits, count=count, low=max(0.0, centre - half), high=min(1.0, centre + half)
    )


def share_chart(shares: Sequence[Share], *, title: str) -> str:
    """Return an SVG with one point a share, its interval as a bar, joined by a line. "" when there is nothing to draw."""
    if not shares:
        return ""
    width = _WIDTH - _LEFT - _RIGHT
    height = _HEIGHT - _TOP - _BOTTOM

    def x(index: int) -> float:
        return _LEFT + width * ((index + 0.5) / len(shares))

    def y(value: float) -> float:
        return _TOP + height * (1 - value)

    described = ", ".join(f"{one.label}: {one.value:.0%} of {one.count}" for one in shares)
    parts = [
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(f"{title}. {described}", quote=True)}">'
    ]
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
            f'<text class="tick" x="{_LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:.0%}</text>'
        )
    points = " ".join(f"{x(i):.1f},{y(one.value):.1f}" for i, one in enumerate(shares))
    parts.append(f'<polyline class="line" points="{points}"/>')
    every = math.ceil(len(shares) / 6)
    for index, one in enumerate(shares):
        parts.append(
            f'<line class="interval" x1="{x(index):.1f}" x2="{x(index):.1f}" y1="{y(one.low):.1f}" y2="{y(one.high):.1f}"/>'
            f'<circle class="point" cx="{x(index):.1f}" cy="{y(one.value):.1f}" r="4">'
            f"<title>{escape(one.label)}: {one.hits} of {one.count} ({one.value:.0%})</title></circle>"
        )
        if index % every == 0:
            parts.append(
                f'<text class="tick" x="{x(index):.1f}" y="{_HEIGHT - 12}" text-anchor="middle">{escape(one.label)}</text>'
            )
    return "".join(parts) + "</svg>"
