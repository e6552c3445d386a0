"""Reactions that were written and labelled by hand (`reactions/*.jsonl`), as samples.

A line is ``{"text", "verdict": -1 | 0 | 1, "class"?, "prompt"?, "reply"?, …}``; ``class``, of complaints only, is "wish", "fault" or "blame".
The generator's templates leave out what their author did not think of: these lines hold what he wrote without them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from models.reader.generate import CLASSES, NEITHER, PRAISE, Sample, add_noise
from scorers.features import ends_in_question

REACTIONS = Path(__file__).parent / "reactions"


def read_rows(folder: Path = REACTIONS) -> Iterator[dict[str, Any]]:
    """Yield the rows of every file, in the order of their names."""
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            yield json.loads(line)


def labelled_samples(count: int, seed: int, folder: Path = REACTIONS) -> Iterator[Sample]:
    """Yield ``count`` samples at most: as many copies of each row as fit, the first as it is, the others with typing noise."""
    rng = random.Random(seed)
    rows = list(read_rows(folder))
    for row in rows:
        label = {0: NEITHER, 1: PRAISE}.get(row["verdict"])
        for copy in range(count // len(rows)):
            yield Sample(
                text=add_noise(row["text"], rng, row.get("lang", "")) if copy else row["text"],
                label=CLASSES.index(row["class"]) if label is None else label,
                reply_asks=ends_in_question(row.get("reply", "")),
                language=row.get("lang", "other"),
                family="labelled",
            )
