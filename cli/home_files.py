"""The files of a home beside the record: which hold certain words, and which are removed or rewritten when something is forgotten."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from store.errors import ConfigError
from store.receipts import FOLDER as RECEIPTS
from store.settings import Settings
from store.values import Json

#: In the home: the exports that `trajectories --output` wrote, as JSON.
EXPORTS_FILE = "exports.json"
_CHUNK = 4 << 20
#: Copies of the record or of the journal, relative to the home.
_COPIES = (
    "*.damaged-*",
    "*.recovered*",
    "*.recovering*",
    "*.restoring",
    "unwritten.jsonl*",
    "journal/rejected/*",
)


def sqlite_file(settings: Settings, refusal: str) -> Path:
    """Return the file of the home's record. Raises: ConfigError: it is in PostgreSQL, with ``refusal``."""
    kind, _, path = settings.database_url.partition(":///")
    if not kind.startswith("sqlite"):
        raise ConfigError(f"{refusal}; use PostgreSQL's own tools")
    return Path(path)


def byte_pattern(texts: Iterable[str]) -> re.Pattern[bytes] | None:
    """Match any of the texts in a file: as they are, and as JSON holds them; None: there are none."""
    forms: set[bytes] = set()
    for text in texts:
        for form in (text, json.dumps(text, ensure_ascii=False)[1:-1], json.dumps(text)[1:-1]):
            forms.add(re.escape(form.encode("utf-8", "surrogatepass")))
    longest_first: list[bytes] = sorted(forms, key=len, reverse=True)
    return re.compile(b"|".join(longest_first), re.IGNORECASE) if forms else None


def holds(path: Path, pattern: re.Pattern[bytes], longest: int = 64 << 10) -> bool:
    """Whether a file holds a match of at most so many bytes. A file that is gone holds none."""
    try:
        with path.open("rb") as file:
            tail = b""
            while part := file.read(_CHUNK):
                if pattern.search(tail + part):
                    return True
                tail = part[-longest:]
    except FileNotFoundError:
        return False
    return False


def files_holding(home: Path, pattern: re.Pattern[bytes] | None, *, skip: Collection[str] = ()) -> list[str]:
    """Return the files of a home that hold a match, receipts aside.

    Args:
        skip: beginnings of names of files in the home that are not looked at.
    """
    if pattern is None:
        return []
    return [
        str(path) for path in _files(home) if not path.name.startswith(tuple(skip)) and holds(path, pattern)
    ]


def existing(paths: Iterable[str]) -> list[str]:
    """Return those of these paths that are there."""
    return [path for path in paths if Path(path).exists()]


def _files(home: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(home):
        if Path(folder) == home and RECEIPTS in folders:
            folders.remove(RECEIPTS)
        yield from (Path(folder) / name for name in sorted(names) if (Path(folder) / name).is_file())


def remove_copies(home: Path, pattern: re.Pattern[bytes]) -> list[str]:
    """Remove the copies of record and journal that hold a match; returns them. Raises: ConfigError."""
    removed = []
    found = {path for wanted in _COPIES for path in home.glob(wanted) if path.is_file()}
    for path in sorted(found):
        if holds(path, pattern):
            try:
                path.unlink()
            except OSError as exc:
                raise ConfigError(f"{path} cannot be removed: {exc.strerror or exc}") from exc
            removed.append(str(path))
    return removed


def note_export(home: Path, output: Path) -> None:
    """Remember a file or folder that the record was exported to. Raises: ConfigError."""
    path = home / EXPORTS_FILE
    try:
        known = _exports(home)
        whole = [*dict.fromkeys([*known, str(output.absolute())])]
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(whole, file, indent=1)
    except (OSError, ValueError) as exc:
        raise ConfigError(f"the list of exports, {path}, cannot be kept: {exc}") from exc


def _exports(home: Path) -> list[str]:
    path = home / EXPORTS_FILE
    return [str(one) for one in json.loads(path.read_text(encoding="utf-8"))] if path.exists() else []


def clean_exports(home: Path, turn_ids: Collection[str], pattern: re.Pattern[bytes]) -> list[Json]:
    """Remove turns, and lines that match, from the exports that are still where they were written; returns what was done with each.

    Raises:
        ConfigError: an export cannot be rewritten.
    """
    done: list[Json] = []
    for name in _exports(home):
        path = Path(name)
        if path.is_dir():
            hit = any(holds(one, pattern) for one in path.rglob("*") if one.is_file())
            done.append({"path": name, "removed": 0, "holds_more": hit})
        elif path.exists():
            try:
                done.append(
                    {"path": name, "removed": _clean_jsonl(path, turn_ids, pattern), "holds_more": False}
                )
            except (OSError, ValueError) as exc:
                raise ConfigError(f"the export {path} cannot be cleaned: {exc}") from exc
    return done


def _clean_jsonl(path: Path, turn_ids: Collection[str], pattern: re.Pattern[bytes]) -> int:
    removed = 0
    beside = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with path.open("rb") as source, beside.open("xb") as target:
            for line in source:
                row = json.loads(line)
                if row.get("turn_id") in turn_ids or pattern.search(line):
                    removed += 1
                else:
                    target.write(line)
        if removed:
            beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return removed
