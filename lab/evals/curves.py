"""Curves over interactions: with bands over seeds, for a report. matplotlib is imported to draw."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lab.evals.metrics import interval, mean
from store.values import Json

#: What is drawn, and what it is called.
PANELS = (("compliance", "unseen questions answered as wished"), ("facts", "facts right"))
#: Who is drawn how: ours solid, baselines dotted, others dashed.
_DASHED = ("openclaw", "claas", "user-interactions")
_DOTTED = ("none", "memory")
#: One for each of the methods: with matplotlib's own ten, the last would look like the first.
COLOURS = (*(f"C{i}" for i in range(10)), "black", "gold", "navy", "lime", "teal", "salmon")
#: Beyond so many curves their bands are faint.
_FEW = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One picture, twice. `svg` is the element alone, fit for a page."""

    svg: str
    png: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A curve: places, means and their 95 % intervals over seeds (the mean itself, for one seed)."""

    places: tuple[float, ...]
    means: tuple[float, ...]
    lows: tuple[float, ...]
    highs: tuple[float, ...]


def band(rows: Sequence[Json], name: str) -> Band:
    """Return the curve of ``name`` over the measurements that all runs have.

    Runs that overshoot a measurement by an interaction or two are put where they are on average.
    """
    length = min(len(row["points"]) for row in rows)
    # The last measurement of each run is its last, however many were in between.
    columns = [[row["points"][i] for row in rows] for i in range(length - 1)]
    columns.append([row["points"][-1] for row in rows])
    places, means, lows, highs = [], [], [], []
    for column in columns:
        values = [float(point[name]) for point in column]
        low, high = interval(values)
        centre = mean(values)
        places.append(mean([point["interactions"] for point in column]))
        means.append(centre)
        lows.append(max(0.0, low) if math.isfinite(low) else centre)
        highs.append(min(1.0, high) if math.isfinite(high) else centre)
    return Band(places=tuple(places), means=tuple(means), lows=tuple(lows), highs=tuple(highs))


def draw_curves(methods: Mapping[str, Sequence[Json]], title: str) -> Figure:
    """Draw every panel with a curve for each method."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    # Where many lie on each other, only the lines are distinguishable.
    shade = 0.13 if len(methods) <= _FEW else 0.05
    # Letters as paths and a fixed salt: the same runs give the same file, whatever fonts there are.
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": "patina"}):
        figure, axes = pyplot.subplots(1, len(PANELS), figsize=(11.0, 4.8), dpi=110, sharex=True)
        try:
            for axis, (name, label) in zip(axes, PANELS, strict=True):
                for number, (method, rows) in enumerate(methods.items()):
                    found = band(rows, name)
                    colour = COLOURS[number % len(COLOURS)]
                    style = "--" if method.startswith(_DASHED) else ":" if method.startswith(_DOTTED) else "-"
                    axis.plot(
                        found.places, found.means, style, marker="o", markersize=3, color=colour, label=method
                    )
                    axis.fill_between(
                        found.places, found.lows, found.highs, color=colour, alpha=shade, linewidth=0
                    )
                axis.set_ylim(-0.03, 1.03)
                axis.set_xlabel("interactions")
                axis.set_title(label, fontsize=10)
                axis.grid(alpha=0.25)
            lines, labels = axes[0].get_legend_handles_labels()
            figure.legend(
                lines, labels, loc="lower center", ncols=min(6, len(labels)), fontsize=8, frameon=False
            )
            figure.suptitle(title, fontsize=10)
            figure.tight_layout(rect=(0, 0.1, 1, 1))
            svg, png = io.StringIO(), io.BytesIO()
            figure.savefig(svg, format="svg", metadata={"Date": None})
            figure.savefig(png, format="png", metadata={"Software": None})
        finally:
            pyplot.close(figure)
    text = svg.getvalue()
    return Figure(svg=text[text.index("<svg") :], png=png.getvalue())
