"""The rows of `evals.learning` as a table for people."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """Print `table` to stdout, wide enough for a file too."""
    Console(width=None if sys.stdout.isatty() else 180).print(table(rows))


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """Mean over seeds of what was measured, a row for each method, preference and setting."""
    cells: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        overrides = " ".join(f"{name}={value}" for name, value in row["overrides"].items())
        method = f"{row['method']} ({row['mode']}, patience {row['habits']['patience']})"
        cells[method, ",".join(row["preferences"]), overrides].append(row)
    shown = Table(
        "method", "preference", "set", "seeds", "compliance", "worst", "facts", "opposite", "KL", "v", "s"
    )
    for (method, wanted, overrides), runs in cells.items():
        length = min(len(run["curve"]) for run in runs)
        curve = " ".join(
            f"{_mean([run['curve'][i]['compliance'] for run in runs]):.2f}" for i in range(length)
        )
        shown.add_row(
            method,
            wanted,
            overrides,
            str(len(runs)),
            curve,
            f"{min(run['curve'][-1]['compliance'] for run in runs):.2f}",
            " → ".join(f"{_mean([run['facts'][i] for run in runs]):.2f}" for i in (0, 1)),
            " → ".join(f"{_mean([run['opposite'][i] for run in runs]):.2f}" for i in (0, 1)),
            f"{_mean([run['kl_to_base'] for run in runs]):.2f}",
            f"{_mean([run['versions'] for run in runs]):.0f}-{_mean([run['rejected'] for run in runs]):.0f}",
            f"{_mean([run['wall_s'] for run in runs]):.0f}",
        )
    return shown


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else float("nan")
