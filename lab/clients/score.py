"""What the product makes of the recorded clients: `python -m lab.clients.score [FOLDER] [--errors]`.

One row a client: share of requests of the right kind, F1 of pairs of the person's turns in one session, share of the person's turns with the right
parent, and with the right turn that they answer (next state). Files are those of `record.py` or of `cli.recorded_traffic`, compressed or not.
"""

from __future__ import annotations

import argparse
import asyncio
import lzma
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from cli.console import PlainConsole
from cli.recorded_traffic import KindPrediction, Recorded, parse_line, read_traffic, replay
from lab.evals.identity import merged, scored
from lab.evals.traffic_score import true_predecessors
from wire.classify import WEIGHTS

FOLDER = Path(__file__).parent / "traces"


def read(path: Path) -> list[Recorded]:
    if path.suffix != ".xz":
        return read_traffic(path)
    with lzma.open(path) as file:
        return [parse_line(line, f"{path}, line {number}", number) for number, line in enumerate(file, 1)]


def wrong_parents(rows: Sequence[Recorded], predictions: Sequence[KindPrediction]) -> tuple[list[int], int]:
    """Return the person's turns with the wrong parent, and the number of all.

    A parent is what `true_predecessors` allows; that of an answer anew is the parent of the turn that it repeats.
    """
    allowed = true_predecessors(rows)
    first: dict[tuple[str, str], set[int | None]] = {}
    for row in rows:
        if row.seq in allowed and row.chat is not None:
            prompt = (str((row.label or {})["session"]), str(row.chat.messages))
            allowed[row.seq] = first.setdefault(prompt, allowed[row.seq])
    wrong = [p.seq for p in predictions if p.seq in allowed and p.parent_seq not in allowed[p.seq]]
    return wrong, len(allowed)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("--errors", action="store_true", help="also list each request that was misread")
    arguments = parser.parse_args()
    console = PlainConsole(soft_wrap=True, highlight=False)
    table = Table("client", "requests", "main/side", "kind", "sessions F1", "parent", "next", box=None)
    scores, parents = [], (0, 0)
    for path in sorted(arguments.folder.glob("*.jsonl*")):
        rows = read(path)
        predictions = asyncio.run(replay(rows, WEIGHTS))
        score = scored(rows, predictions)
        wrong, turns = wrong_parents(rows, predictions)
        scores.append(score)
        parents = parents[0] + turns - len(wrong), parents[1] + turns
        kinds = [(row.label or {}).get("kind") for row in rows]
        shares = (score.accuracy, score.main.f1, 1 - len(wrong) / max(turns, 1), score.pairing)
        counts = f"{kinds.count('main')}/{kinds.count('side')}"
        table.add_row(path.name.split(".")[0], str(len(rows)), counts, *(f"{share:.3f}" for share in shares))
        for row, p in zip(rows, predictions, strict=True) if arguments.errors else ():
            faults = [
                name
                for name, seqs in (("kind", score.misread), ("parent", wrong), ("next", score.wrong))
                if p.seq in seqs
            ]
            if faults:
                label = row.label or {}
                console.print(f"{path.name} {p.seq} {','.join(faults)}: {label.get('session')} {label['reason']}; read as {p.kind} "
                              f"({p.kind_reason}), parent {p.parent_seq} ({p.link_reason})")  # fmt: skip
    every = merged(scores)
    shares = (every.accuracy, every.main.f1, parents[0] / max(parents[1], 1), every.pairing)
    table.add_row("all", "", "", *(f"{share:.3f}" for share in shares))
    console.print(table)


if __name__ == "__main__":
    main()
