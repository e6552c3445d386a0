"""`python -m lab.models.reader.measure`: how precise each word pattern is, written to `scorers/precision.json`.

Measured on generated messages that no weight was trained on and on the labelled reactions. A pattern's case is a message that the
patterns read as -1 or +1 and that it matched; it is right where the label has the same sign.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from lab.models.reader.generate import PRAISE, generate
from lab.models.reader.labelled import read_all_rows
from lab.models.reader.train import SEED
from scorers.combined import PRECISION_TABLE
from scorers.reactions import read_reaction

SAMPLES = 40_000

#: (text, reply, label -1, 0 or 1)
Case = tuple[str, str, int]


def generated_cases(count: int = SAMPLES) -> Iterable[Case]:
    """Messages of a seed of their own."""
    for sample in generate(count, SEED + 2):
        label = 0 if sample.label == 0 else 1 if sample.label == PRAISE else -1
        yield sample.text, sample.reply, label


def labelled_cases() -> Iterable[Case]:
    """Reactions labelled one by one."""
    for row in read_all_rows():
        yield row["text"], row.get("reply", ""), row["verdict"]


def measure(cases: Iterable[Case]) -> dict[str, dict[str, int]]:
    """Return cases and right ones by "-1 pattern" or "+1 pattern"."""
    count: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for text, reply, label in cases:
        reaction = read_reaction(text, reply=reply)
        if reaction.value is None:
            continue
        for pattern in dict.fromkeys(reaction.patterns):
            name = f"{reaction.value:+d} {pattern}"
            count[name] += 1
            right[name] += reaction.value == label
    return {name: {"cases": count[name], "right": right[name]} for name in sorted(count)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=PRECISION_TABLE)
    arguments = parser.parse_args()
    found = measure([*generated_cases(), *labelled_cases()])
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in found.items())
    note = (
        "Measured by `python -m lab.models.reader.measure`; a pattern that is not listed never decides alone."
    )
    arguments.output.write_text(
        f'{{"note": {json.dumps(note)},\n "patterns": {{\n{rows}\n }}}}\n', encoding="utf-8"
    )
    for name, row in found.items():
        print(f"{name:30} {row['right'] / row['cases']:.3f} of {row['cases']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
