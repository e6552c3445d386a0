"""The files of a home beside the record: which hold certain words, and which are removed or rewritten when something is forgotten."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from store.errors import ConfigError
from store.manifest import SIGNATURE
from store.receipts import FOLDER as RECEIPTS
from store.record_lines import drop_torn_line, hold_lines, line_files
from store.settings import Settings
from store.signing import PRIVATE_FILE, PUBLIC_FILE
from store.texts import spellings
from store.values import Json

#: In the home: the exports that `trajectories --output` wrote, as JSON.
EXPORTS_FILE = "exports.json"
#: In the home: backups that were made of it and other copies that a forget only names, as JSON.
BACKUPS_FILE = "backups.json"
_CHUNK = 4 << 20
#: Files of random letters, in which a short word may occur by chance.
_NO_TEXT = frozenset({PRIVATE_FILE, PUBLIC_FILE, SIGNATURE})
#: Copies of the record or of the journal, relative to the home.
_COPIES = (
    "*.damaged-*",
    "*.recovered*",
    "*.recovering*",
    "*.restoring",
    "*.restored",
    "unwritten.jsonl*",
    "*.part",
    "journal/rejected/*",
)


def sqlite_file(settings: Settings, refusal: str) -> Path:
    """Return the file of the home's record. Raises: ConfigError: it is in PostgreSQL, with ``refusal``."""
    kind, _, path = settings.database_url.partition(":///")
    if not kind.startswith("sqlite"):
        raise ConfigError(f"{refusal}; use PostgreSQL's own tools")
    return Path(path)


def sqlite_path(settings: Settings) -> Path:
    """Return the file of the home's record; the place where it would be, where it is in PostgreSQL."""
    kind, _, path = settings.database_url.partition(":///")
    return Path(path) if kind.startswith("sqlite") else settings.home / "patina.db"


def byte_pattern(texts: Iterable[str]) -> re.Pattern[bytes] | None:
    """Match any of the texts in a file: as they are, and as JSON holds them, with any white space; None: there are none."""
    forms = [form.encode("utf-8", "surrogatepass") for form in spellings(texts)]
    return re.compile(b"|".join(forms), re.IGNORECASE) if forms else None


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


def files_holding(
    home: Path,
    pattern: re.Pattern[bytes] | None,
    *,
    skip: Collection[str] = (),
    folders: Collection[str] = (),
) -> list[str]:
    """Return the files of a home that hold a match, receipts aside.

    Args:
        skip: beginnings of names of files in the home that are not looked at.
        folders: of the home that are not looked at.
    """
    if pattern is None:
        return []
    return [
        str(path)
        for path in _files(home, {RECEIPTS, *folders})
        if not path.name.startswith(tuple(skip)) and path.name not in _NO_TEXT and holds(path, pattern)
    ]


def _files(home: Path, but: Collection[str]) -> Iterator[Path]:
    for folder, folders, names in os.walk(home):
        if Path(folder) == home:
            folders[:] = [one for one in folders if one not in but]
        yield from (Path(folder) / name for name in sorted(names) if (Path(folder) / name).is_file())


def remove_copies(
    folders: Iterable[Path],
    ids: re.Pattern[bytes] | None,
    words: re.Pattern[bytes] | None,
    keys: Collection[str] | None,
) -> tuple[list[str], list[str]]:
    """Remove the copies of record and journal that hold a match; returns them, and what cannot be removed.

    Args:
        ids: of forgotten turns.
        keys: the words count only where the file names one of these API keys: others may have said the same. None: everywhere.
    """
    removed, stays = [], []
    found = {path for home in folders for wanted in _COPIES for path in home.glob(wanted) if path.is_file()}
    names = None if keys is None else byte_pattern(keys)
    for path in sorted(found):
        is_ours = words is not None and holds(path, words) and (names is None or holds(path, names))
        if is_ours or (ids is not None and holds(path, ids)):
            try:
                path.unlink(missing_ok=True)
            except OSError as exc:
                stays.append(f"{path} cannot be removed: {exc.strerror or exc}")
            else:
                removed.append(str(path))
    return removed, stays


def homes_aside(
    home: Path, ids: re.Pattern[bytes] | None, words: re.Pattern[bytes] | None
) -> tuple[list[str], list[str]]:
    """Return sentences about the homes that a restore laid aside: those that name a forgotten turn, and those that only hold the words."""
    named, same = [], []
    for kind in ("before", "restoring"):
        for path in sorted(home.parent.glob(f"{home.name}.{kind}-*")):
            if not path.is_dir():
                continue
            what = f"{path}, which a restore laid aside, holds"
            if files_holding(path, ids):
                named.append(f"{what} it: delete it, or forget there with --home")
            elif files_holding(path, words):
                same.append(f"{what} the same words: look there with --home, or delete it")
    return named, same


def mask(home: Path, pattern: re.Pattern[bytes] | None) -> None:
    """Overwrite what matches in logs and in the note on deaths of the trainer, in place: their writers go on. Raises: OSError."""
    if pattern is None:
        return
    for path in [*home.glob("logs/*"), *home.glob("trainer-deaths.json")]:
        if path.is_file() and holds(path, pattern):
            with path.open("r+b") as file:
                content = file.read()
                for match in pattern.finditer(content):
                    file.seek(match.start())
                    file.write(b"x" * len(match[0]))


def note_export(home: Path, output: Path) -> None:
    """Remember a file or folder that the record was exported to. Raises: ConfigError."""
    _note(home / EXPORTS_FILE, output)


def note_lines_folder(home: Path, folder: Path) -> None:
    """Make the folder of ``--record-jsonl``, whose files a forget cleans. Raises: ConfigError."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as exc:
        raise ConfigError(f"--record-jsonl {folder}: {exc.strerror or exc}") from exc
    note_export(home, folder)


def note_backup(home: Path, target: Path) -> None:
    """Remember a backup: a forget names it, and does not reach it. Raises: ConfigError."""
    _note(home / BACKUPS_FILE, target)


def copies_elsewhere(home: Path) -> list[str]:
    """Return the backups of this home, where they were written."""
    return [f"the copy {path}" for path in _noted(home / BACKUPS_FILE)]


def keep_lists(home: Path, restored: Path, source: Path) -> None:
    """Give a restored home the present one's exports, and name all other copies that either knows: a forget rewrites none of those.

    Raises:
        ConfigError: a list cannot be read or written.
    """
    try:
        exports, copies = _noted(home / EXPORTS_FILE), [str(source)]
        for folder in (home, restored):
            copies += _noted(folder / BACKUPS_FILE)
        copies += [one for one in _noted(restored / EXPORTS_FILE) if one not in exports]
        for name, whole in ((EXPORTS_FILE, exports), (BACKUPS_FILE, [*dict.fromkeys(copies)])):
            _write_list(restored / name, whole)
    except (OSError, ValueError) as exc:
        raise ConfigError(f"the lists of copies in {restored} cannot be kept: {exc}") from exc


def _note(path: Path, one: Path) -> None:
    try:
        _write_list(path, [*dict.fromkeys([*_noted(path), str(one.absolute())])])
    except (OSError, ValueError) as exc:
        raise ConfigError(f"the list {path} cannot be kept: {exc}") from exc


def _write_list(path: Path, whole: list[str]) -> None:
    beside = path.with_name(f"{path.name}.{os.getpid()}.part")
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(whole, file, indent=1)
    beside.replace(path)


def _noted(path: Path) -> list[str]:
    return [str(one) for one in json.loads(path.read_text(encoding="utf-8"))] if path.exists() else []


def clean_exports(
    home: Path, turn_ids: Collection[str], pattern: re.Pattern[bytes] | None
) -> tuple[list[Json], list[str], list[str]]:
    """Remove turns, and lines that match, from the exports that are still where they were written.

    Returns:
        (what was done with each, what is left with its reason, exports that are not there any more).
    """
    done: list[Json] = []
    left: list[str] = []
    gone: list[str] = []
    for name in _noted(home / EXPORTS_FILE):
        path = Path(name)
        if not path.exists():
            gone.append(f"the export {name}, which was moved or deleted")
        elif path.is_dir():
            for file in line_files(path):
                try:
                    with hold_lines(home):
                        drop_torn_line(file)
                        done.append({"path": str(file), "removed": _clean_jsonl(file, turn_ids, pattern)})
                except (OSError, ValueError) as exc:
                    left.append(f"{file} cannot be cleaned: {exc}")
            if pattern is not None and any(holds(one, pattern) for one in path.rglob("*") if one.is_file()):
                left.append(f"the export {name} holds it: delete it")
        else:
            try:
                done.append({"path": name, "removed": _clean_jsonl(path, turn_ids, pattern)})
            except (OSError, ValueError) as exc:
                left.append(f"the export {name} cannot be cleaned: {exc}")
    return done, left, gone


def _clean_jsonl(path: Path, turn_ids: Collection[str], pattern: re.Pattern[bytes] | None) -> int:
    removed = 0
    beside = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with path.open("rb") as source, beside.open("xb") as target:
            os.fchmod(target.fileno(), os.fstat(source.fileno()).st_mode & 0o777)
            for line in source:
                row = json.loads(line)
                if row.get("turn_id") in turn_ids or (pattern is not None and pattern.search(line)):
                    removed += 1
                else:
                    target.write(line)
        if removed:
            beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return removed
