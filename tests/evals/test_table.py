from __future__ import annotations

from rich.console import Console

from evals.table import table
from tests.bench.test_learning import row


def test_the_table_is_the_mean_over_seeds_and_the_worst_of_them() -> None:
    console = Console(width=160, record=True)
    console.print(table([row(0, 0.5), row(1, 1.0)]))
    shown = console.export_text()
    for words in ("concise", "0.00 0.75", "0.50", "0.90 → 0.80", "1.00 → nan", "6-1"):
        assert words in shown
