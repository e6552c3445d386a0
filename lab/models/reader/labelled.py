"""Reactions that were written and labelled by hand (`reactions/*.jsonl`), as samples.

A line is ``{"text", "verdict": -1 | 0 | 1, "class"?, "prompt"?, "reply"?, …}``, or an exchange with several reactions to it:
``{"prompt", "reply", "lang", "reactions": [[text, verdict, class?, labels?], …]}``. ``class``, of complaints only, is "wish", "fault" or "blame".
The generator's templates leave out what their author did not think of: these lines hold what he wrote without them.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lab.models.labelled_rows import read_rows
from lab.models.reader.generate import CLASSES, NEITHER, PRAISE, Sample, add_noise
from lab.models.reader.wishes import FOLDER, LASTING, NONE, style_scopes
from scorers.own_words import clauses

REACTIONS = Path(__file__).parent / "reactions"
#: Checksums of the rows that are about the style of replies, as the classifier of six styles read them before it was removed.
STYLED = FOLDER / "styled.sums"
#: Copies of a wish that names no style whose scope is taken for known.
CONTENT_COPIES = 2


def read_all_rows() -> list[dict[str, Any]]:
    """Return the rows of every file, in the order of their names."""
    return [row for path in sorted(REACTIONS.glob("*.jsonl")) for row in read_rows(path)]


def labelled_samples(count: int, seed: int) -> Iterator[Sample]:
    """Yield ``count`` samples at most: as many copies of each row as fit, the first as it is, the others with typing noise."""
    rows = read_all_rows()
    styled = frozenset(STYLED.read_text(encoding="utf-8").split())
    for index, row in enumerate(rows):
        rng = random.Random(f"{seed} {index}")
        label = CLASSES.index(row["class"]) if row["verdict"] == -1 else (NEITHER, PRAISE)[row["verdict"]]
        language = row.get("lang", "")
        is_whole = len(clauses(row["text"])) == 1
        for copy in range(count // len(rows)):
            yield Sample(
                text=add_noise(row["text"], rng, language) if copy else row["text"],
                label=label,
                reply=row.get("reply", ""),
                prompt=row.get("prompt", ""),
                language=language or "other",
                family="labelled",
                scopes=_scopes(row, styled, copy) if is_whole else (),
            )


def _scopes(row: dict[str, Any], styled: frozenset[str], copy: int) -> tuple[int, ...]:
    """Return the scopes that a row may have: they were not labelled one by one. Most wishes that name no style are about one reply's content."""
    is_styled = f"{zlib.crc32(row['text'].encode()):08x}" in styled
    if row["verdict"] != -1:
        return () if is_styled else (NONE,)
    if is_styled:
        return style_scopes(row["text"]) if row["class"] == "wish" else (NONE, LASTING)
    return (NONE,) if row["class"] != "wish" or copy < CONTENT_COPIES else ()
