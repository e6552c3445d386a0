"""How the gate's measures are distributed: `python -m bench.gate EVAL_FOLDER... [--planted COLLAPSE_FOLDER]`.

Reads the versions of `run.py eval --fast` (healthy: nothing was broken in them, so each rejection is a false one) and of
`bench.collapse` (planted), and prints each measure, as the gate compares it, beside its bound. Runs nothing.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from evals.measure import wilson
from evals.study import read_runs
from store.values import Json
from trainer.gate import Thresholds

#: Users whose feedback is no feedback: what is made of it is neither healthy nor planted.
_ODD_USERS = ("shuffled", "noisy")


def measures(gate: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return what the gate compares, by the name of its bound; NaN where a side was not measured."""
    base, after = gate["base"], gate["after"]
    slack = Thresholds().entropy_slack

    def of(side: Mapping[str, float], name: str) -> float:
        value = side.get(name)
        return math.nan if value is None else float(value)

    def ratio(name: str, more: float = 0.0) -> float:
        return (of(after, name) + more) / (of(base, name) + more)

    return {
        "facts_drop": of(base, "facts") - of(after, "facts"),
        "tools_drop": of(base, "tools") - of(after, "tools"),
        "obeyed_drop": of(base, "obeyed") - of(after, "obeyed"),
        "ends_drop": of(base, "ends") - of(after, "ends"),
        "entropy_low": ratio("entropy", slack),
        "entropy_high": ratio("entropy", slack),
        "length_low": ratio("length"),
        "length_high": ratio("length"),
        "kl": of(after, "kl"),
        "kl_worst": of(after, "kl_worst"),
        "distinct_low": ratio("distinct"),
    }


def healthy(folders: Iterable[Path]) -> list[Json]:
    """Return the versions of runs in which nothing was broken."""
    return [
        version
        for folder in folders
        for row in read_runs(folder)
        if row["user"] not in _ODD_USERS
        for version in row["versions"]
    ]


def planted(folder: Path) -> list[Json]:
    """Return the attempts after something was broken, where a gate looked at them; `kl_worst` is made from the styles."""
    found = []
    for row in read_runs(folder):
        for attempt in row["tried"]:
            if row["plant"] == "healthy" or "unguarded" in row["plant"] or "gate" not in attempt:
                continue
            gate = {side: dict(attempt["gate"][side]) for side in ("base", "after")}
            for side in gate.values():
                styles = [value for value in (side.get("kl_by_style") or {}).values() if value is not None]
                side["kl_worst"] = max(styles, default=math.nan)
            found.append({**attempt, "gate": gate})
    return found


def quantiles(values: Sequence[float]) -> tuple[float, float, float, float, float]:
    """Least, 5 %, median, 95 %, most of what is a number."""
    known = sorted(value for value in values if math.isfinite(value))
    if not known:
        return (math.nan,) * 5
    at = [known[min(len(known) - 1, int(share * len(known)))] for share in (0.0, 0.05, 0.5, 0.95)]
    return at[0], at[1], at[2], at[3], known[-1]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gate", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--planted", type=Path)
    given = parser.parse_args(argv)
    console = Console(width=140)
    sets = {"healthy": healthy(given.folders)}
    if given.planted:
        sets["planted"] = planted(given.planted)
    for name, versions in sets.items():
        stopped = [version for version in versions if version["state"] == "rejected"]
        rate = ""
        if versions:
            share = len(stopped) / len(versions)
            low, high = wilson(share, len(versions))
            rate = f": {share:.1%}, 95 % interval {low:.1%} to {high:.1%}"
        console.print(f"{name}: {len(versions)} versions, {len(stopped)} rejected{rate}", highlight=False)
        for reason, count in Counter(v["reason"].split("; ")[-1] for v in stopped).most_common():
            console.print(f"  {count} x {reason}", highlight=False)
        measured = [measures(version["gate"]) for version in versions if version.get("gate")]
        if not measured:
            continue
        table = Table(
            "bound", "is", "least", "5 %", "median", "95 %", "most", title=f"{name}, n = {len(measured)}"
        )
        for bound in measured[0]:
            row = quantiles([one[bound] for one in measured])
            table.add_row(bound, f"{getattr(Thresholds(), bound):.2f}", *(f"{value:.2f}" for value in row))
        console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
