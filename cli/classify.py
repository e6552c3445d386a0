"""`run.py classify FILE`: recorded traffic through the proxy's own rules, so that people can check their own client."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cli.console import PlainConsole
from cli.recorded_traffic import KindPrediction, Recorded, Score, read_traffic, replay, score
from store.errors import ConfigError
from store.settings import Settings
from store.texts import counted


def classify(settings: Settings, arguments: argparse.Namespace) -> int:
    """Print what the proxy makes of a file of requests, and where it has labels how often that is right.

    Raises:
        ConfigError: a line cannot be read, or the predictions cannot be written.
    """
    del settings  # the replay has a record of its own
    rows = read_traffic(arguments.file)
    predictions = asyncio.run(replay(rows))
    if arguments.predictions is not None:
        write_predictions(arguments.predictions, predictions)
    console = PlainConsole(highlight=False, soft_wrap=True)
    _print_found(console, rows, predictions)
    found = score(rows, predictions)
    if found is None:
        console.print("no labels: nothing to compare with")
    else:
        _print_score(console, found)
    return 0


def write_predictions(path: Path, predictions: Sequence[KindPrediction]) -> None:
    """Write one JSON line a request. Raises: ConfigError."""
    try:
        path.write_text(
            "".join(json.dumps(p.to_json(), ensure_ascii=False) + "\n" for p in predictions), "utf-8"
        )
    except OSError as exc:
        raise ConfigError(f"cannot write {path}: {exc.strerror or exc}") from exc


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


def _print_score(console: Console, found: Score) -> None:
    table = Table("label", "predicted main", "predicted side", "predicted none", box=None, pad_edge=False)
    for label in ("main", "side", "none"):
        table.add_row(
            label, *(str(found.confusion.get((label, kind), 0)) for kind in ("main", "side", "none"))
        )
    console.print(table)
    console.print(f"main or side: {found.accuracy:.4f} right" + _seqs(found.misread))
    console.print(
        f"sessions: pairwise F1 {found.main.f1:.4f} over main turns, {found.all.f1:.4f} with the side calls"
    )
    console.print(
        f"next states: {found.paired} of {found.pairable} main turns answer the right one ({found.pairing:.4f})"
        + _seqs(found.wrong)
    )


def _counts(counts: Counter[str] | Counter[str | None]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.most_common()) or "none"


def _seqs(seqs: Sequence[int]) -> str:
    shown = ", ".join(map(str, seqs[:20])) + (", …" if len(seqs) > 20 else "")
    return f"; not: seq {shown}" if seqs else ""
