"""Reads files of messages that were labelled by hand. A line is a message, or an exchange with several reactions to it:

``{"prompt", "reply", …, "reactions": [[text, verdict, class?, labels?], …]}``. `lab.models.reader.labelled` says what class and verdict mean; ``labels`` are
names of styles.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the messages of a file, a reaction with its exchange. Raises: OSError, ValueError."""
    rows: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        reactions = row.pop("reactions", None)
        if reactions is None:
            rows.append(row)
        for text, verdict, *rest in reactions or ():
            rows.append(
                row | {"text": text, "verdict": verdict} | dict(zip(("class", "labels"), rest, strict=False))
            )
    return rows
