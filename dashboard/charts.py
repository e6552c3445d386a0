"""Charts as SVG text, made on the server: they need no script. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from urllib.parse import quote

_WIDTH, _HEIGHT = 720, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 12, 34
#: Between two nodes of a tree.
_STEP = 34


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


def _opening(label: str) -> str:
    return f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(label, quote=True)}">'


def _y(value: float) -> float:
    return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - value)


def _grid() -> list[str]:
    return [
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{_y(tick):.1f}" y2="{_y(tick):.1f}"/>'
        f'<text class="tick" x="{_LEFT - 6}" y="{_y(tick) + 4:.1f}" text-anchor="end">{tick:.0%}</text>'
        for tick in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]


def share_chart(shares: Sequence[Share], *, title: str) -> str:
    """Return an SVG with one point a share, its interval as a bar, joined by a line. "" when there is nothing to draw."""
    if not shares:
        return ""
    width = _WIDTH - _LEFT - _RIGHT

    def x(index: int) -> float:
        return _LEFT + width * ((index + 0.5) / len(shares))

    described = ", ".join(f"{one.label}: {one.value:.0%} of {one.count}" for one in shares)
    parts = [_opening(f"{title}. {described}"), *_grid()]
    points = " ".join(f"{x(i):.1f},{_y(one.value):.1f}" for i, one in enumerate(shares))
    parts.append(f'<polyline class="line" points="{points}"/>')
    every = math.ceil(len(shares) / 6)
    for index, one in enumerate(shares):
        parts.append(
            f'<line class="interval" x1="{x(index):.1f}" x2="{x(index):.1f}" y1="{_y(one.low):.1f}" y2="{_y(one.high):.1f}"/>'
            f'<circle class="point" cx="{x(index):.1f}" cy="{_y(one.value):.1f}" r="4">'
            f"<title>{escape(one.label)}: {one.hits} of {one.count} ({one.value:.0%})</title></circle>"
        )
        if index % every == 0:
            parts.append(
                f'<text class="tick" x="{x(index):.1f}" y="{_HEIGHT - 12}" text-anchor="middle">{escape(one.label)}</text>'
            )
    return "".join(parts) + "</svg>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A turn in the tree of its conversation.

    Attributes:
        name: of the element of the page to which it leads.
        parent: "" for a root.
        column, lane: its place, from 0.
        mark: "good", "bad" or "".
        is_main: it is on the line that went on.
    """

    name: str
    parent: str
    column: int
    lane: int
    mark: str
    label: str
    is_main: bool


def tree_chart(nodes: Sequence[Node]) -> str:
    """Return an SVG of a tree whose nodes lead to elements of the page. "" when there is nothing to draw."""
    if not nodes:
        return ""
    width = _STEP * (max(one.column for one in nodes) + 1)
    height = _STEP * (max(one.lane for one in nodes) + 1)
    places = {one.name: (_STEP * (one.column + 0.5), _STEP * (one.lane + 0.5)) for one in nodes}
    parts = [
        f'<svg class="tree" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="group" aria-label="Branches">'
    ]
    for one in nodes:
        if one.parent:
            (x0, y0), (x1, y1) = places[one.parent], places[one.name]
            middle = x0 + _STEP / 2
            kind = "edge main" if one.is_main else "edge"
            parts.append(f'<path class="{kind}" d="M{x0} {y0}C{middle} {y0} {middle} {y1} {x1} {y1}"/>')
    for number, one in enumerate(nodes, 1):
        x, y = places[one.name]
        label = escape(f"Turn {number}{'' if one.is_main else ', of a branch'}: {one.label}", quote=True)
        parts.append(
            f'<a href="#{escape(quote(one.name), quote=True)}" aria-label="{label}"><circle class="node {one.mark}" cx="{x}" cy="{y}" r="9">'
            f"<title>{label}</title></circle></a>"
        )
    return "".join(parts) + "</svg>"
