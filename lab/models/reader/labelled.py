"""Reactions that were written and labelled by hand (`reactions/*.jsonl`), as samples.

A line is ``{"text", "verdict": -1 | 0 | 1, "class"?, "prompt"?, "reply"?, …}``, or an exchange with several reactions to it:
``{"prompt", "reply", "lang", "reactions": [[text, verdict, class?, labels?], …]}``. ``class``, of complaints only, is "wish", "fault" or "blame".
The generator's templates leave out what their author did not think of: these lines hold what he wrote without them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lab.models.labelled_rows import read_rows
from lab.models.reader.generate import CLASSES, NEITHER, PRAISE, Sample, add_noise

REACTIONS = Path(__file__).parent / "reactions"


def read_all_rows() -> list[dict[str, Any]]:
    """Return the rows of every file, in the order of their names."""
    return [row for path in sorted(REACTIONS.glob("*.jsonl")) for row in read_rows(path)]


def labelled_samples(count: int, seed: int) -> Iterator[Sample]:
    """Yield ``count`` samples at most: as many copies of each row as fit, the first as it is, the others with typing noise."""
    rng = random.Random(seed)
    rows = read_all_rows()
    for row in rows:
        label = CLASSES.index(row["class"]) if row["verdict"] == -1 else (NEITHER, PRAISE)[row["verdict"]]
        language = row.get("lang", "")
        for copy in range(count // len(rows)):
            yield Sample(
                text=add_noise(row["text"], rng, language) if copy else row["text"],
                label=label,
                reply=row.get("reply", ""),
                prompt=row.get("prompt", ""),
                language=language or "other",
                family="labelled",
            )
