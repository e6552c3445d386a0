"""What is learnt, how fast, at what cost: `python -m bench.learning --preferences concise spanish --seeds 3 --output runs.jsonl`.

Every line of the output is one run. A run that is in the file already is not run again, so a sweep can be stopped and gone on
with. `--set top_k=20,50 --set anchors=0,4` tries every combination. Ends with a table: mean over seeds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from store.errors import ConfigError, PatinaError
from store.settings import Settings


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.learning", description=__doc__)
    add = parser.add_argument
    add(
        "--mode",
        choices=["fast", "stack"],
        default="fast",
        help="in this process, or through the whole house",
    )
    add("--methods", nargs="+", default=["combine"], help="rl opd combine sdpo (default: combine)")
    add("--preferences", nargs="+", default=["concise", "no_emoji", "formal", "spanish", "json"],
        help="each word one user; a comma joins the wishes of one user")  # fmt: skip
    add("--seeds", type=int, default=3, help="how many seeds (default: %(default)s)")
    add("--first-seed", type=int, default=0)
    add("--interactions", type=int, default=120)
    add("--measure-every", type=int, default=24)
    add("--questions", type=int, default=96)
    add("--opposites", type=int, default=48)
    add("--tabs", type=int, default=4, help="fast: conversations open at once")
    add(
        "--set",
        action="append",
        default=[],
        metavar="SETTING=V1,V2",
        help="settings to try, all combinations",
    )
    add("--threads", type=int, default=1, help="fast: torch's threads")
    add("--output", type=Path, default=Path("learning.jsonl"))
    return parser


def tried(pairs: Sequence[str]) -> dict[str, list[str]]:
    """Return the values to try by setting.

    Raises:
        ConfigError: not SETTING=VALUE, or no setting of that name.
    """
    found = {}
    for pair in pairs:
        name, equals, values = pair.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or name not in Settings.model_fields:
            raise ConfigError(f"--set {pair}: give SETTING=VALUE[,VALUE...] with a setting of run.py")
        found[name] = values.split(",")
    return found


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the runs in the file so far; a last line that was cut off by a kill is left out."""
    rows = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                print(f"{path}: left out a torn line", file=sys.stderr)
    return rows


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """Mean over seeds of what was measured, a row for each method, preference and setting."""
    cells: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        overrides = " ".join(f"{name}={value}" for name, value in row["overrides"].items())
        cells[f"{row['method']} ({row['mode']})", ",".join(row["preferences"]), overrides].append(row)
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


def main(argv: Sequence[str] | None = None) -> int:
    arguments = build_parser().parse_args(argv)
    try:
        import torch

        from evals.learning import grid, run_spec

        torch.set_num_threads(arguments.threads)
        specs = grid(
            mode=arguments.mode,
            methods=arguments.methods,
            preferences=arguments.preferences,
            seeds=range(arguments.first_seed, arguments.first_seed + arguments.seeds),
            overrides=tried(arguments.set),
            interactions=arguments.interactions,
            measure_every=arguments.measure_every,
            questions=arguments.questions,
            opposites=arguments.opposites,
            tabs=arguments.tabs,
        )
        rows = read_rows(arguments.output)
        mine = []
        for number, spec in enumerate(specs, 1):
            key = spec.key()
            known = next((row for row in rows if all(row.get(k) == v for k, v in key.items())), None)
            if known is None:
                print(f"[{number}/{len(specs)}] {key}", flush=True)
                known = run_spec(spec, lambda line: print(line, flush=True))
                with arguments.output.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(known, ensure_ascii=False) + "\n")
            mine.append(known)
    except PatinaError as error:
        print(f"patina: {error}", file=sys.stderr)
        return 2
    Console(width=None if sys.stdout.isatty() else 180).print(table(mine))
    return 0


if __name__ == "__main__":
    sys.exit(main())
