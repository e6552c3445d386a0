"""Modelled traffic of clients of which no recording exists: how other programs use a chat API (`README.md` of this folder).

One JSONL file a client, in the format of recorded traffic (`cli.recorded_traffic`): they are data, and `run.py classify FILE` reads them too.
"""

from __future__ import annotations

import json
from importlib.resources import files

from store.values import Json

_FOLDER = files(__name__)


def _names(folder: str) -> tuple[str, ...]:
    return tuple(sorted(entry.name.removesuffix(".jsonl") for entry in (_FOLDER / folder).iterdir()))


#: Clients that model requests: titles, summaries and other side turns. Written before the classifier's rules were tuned.
REQUESTS = _names("requests")
#: Clients that alter the histories which they send. Written after the rules were tuned on `REQUESTS`.
HISTORIES = _names("histories")


def lines_of(name: str) -> list[Json]:
    """Return the labelled requests of one modelled client, in arrival order."""
    folder = "requests" if name in REQUESTS else "histories"
    text = (_FOLDER / folder / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]
