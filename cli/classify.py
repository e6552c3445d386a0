"""`run.py classify FILE`: recorded traffic through the proxy's own rules, so that people can check their own client."""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Sequence

from rich.console import Console

from cli.console import PlainConsole
from cli.recorded_traffic import KindPrediction, Recorded, read_traffic, replay
from cli.text import write_json_lines
from store.settings import Settings
from store.texts import counted


def classify(settings: Settings, arguments: argparse.Namespace) -> int:
    """Print what the proxy makes of a file of requests.

    Raises:
        ConfigError: a line cannot be read, or the predictions cannot be written.
    """
    del settings  # the replay has a record of its own
    rows = read_traffic(arguments.file)
    predictions = asyncio.run(replay(rows))
    if arguments.predictions is not None:
        write_json_lines(arguments.predictions, (one.to_json() for one in predictions))
    console = PlainConsole(highlight=False, soft_wrap=True)
    _print_found(console, rows, predictions)
    return 0


def _print_found(console: Console, rows: Sequence[Recorded], predictions: Sequence[KindPrediction]) -> None:
    kinds = Counter(p.kind for p in predictions)
    sessions = {p.session for p in predictions if p.session is not None}
    relations = Counter(p.relation for p in predictions if p.kind == "main")
    console.print(
        f"{counted(len(rows), 'request')} in {counted(len(sessions), 'session')}: {_counts(kinds)}; "
        f"main turns: {_counts(relations)}"
    )
    reasons = Counter(p.kind_reason for p in predictions if p.kind == "side")
    if reasons:
        console.print(f"side because: {_counts(reasons)}")


def _counts(counts: Counter[str] | Counter[str | None]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.most_common()) or "none"
