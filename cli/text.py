"""Text that several commands print or write."""

import json
from collections.abc import Iterable
from pathlib import Path

from store.errors import ConfigError
from store.values import Json

#: Characters of a text that has room.
LONG = 160


def write_json_lines(path: Path, rows: Iterable[Json]) -> None:
    """Write one JSON object a line. Raises: ConfigError."""
    try:
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    except OSError as exc:
        raise ConfigError(f"cannot write {path}: {exc.strerror or exc}") from exc
