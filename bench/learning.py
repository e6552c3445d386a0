"""What is learnt, how fast, at what cost: `python -m bench.learning --preferences concise spanish --seeds 3 --output runs.jsonl`.

Every line of the output is one run. A run that is in the file already is not run again, so a sweep can be stopped and gone on
with. `--set top_k=20,50 --set anchors=0,4` tries every combination. Ends with a table: mean over seeds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evals.study import parse_tried
from evals.table import print_table
from store.errors import PatinaError


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
    add("--patience", type=int, default=1, help="complaints in a conversation; 1: never looks at the redo")
    add("--names-all", type=float, default=0.5, help="share of complaints that name all that is wrong")
    add("--threads", type=int, default=1, help="fast: torch's threads")
    add("--output", type=Path, default=Path("learning.jsonl"))
    return parser


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


def main(argv: Sequence[str] | None = None) -> int:
    arguments = build_parser().parse_args(argv)
    try:
        import torch

        from evals.learning import grid, run_spec
        from evals.users import Habits

        torch.set_num_threads(arguments.threads)
        specs = grid(
            mode=arguments.mode,
            methods=arguments.methods,
            preferences=arguments.preferences,
            seeds=range(arguments.first_seed, arguments.first_seed + arguments.seeds),
            overrides=parse_tried(arguments.set),
            interactions=arguments.interactions,
            measure_every=arguments.measure_every,
            questions=arguments.questions,
            opposites=arguments.opposites,
            tabs=arguments.tabs,
            habits=Habits(patience=arguments.patience, names_all=arguments.names_all),
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
    print_table(mine)
    return 0


if __name__ == "__main__":
    sys.exit(main())
