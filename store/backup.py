"""A home in one file: a copy of record, journal, versions and keys that is made while Patina runs, and put back. SQLite records only.

The archive is a compressed tar: ``home/...``, ``record.db``, and as its last member ``backup.json`` with the SHA-256 of every other one, by
which a cut or changed archive is recognised. The order of copying makes it consistent. Journal segments are opened before the record is
copied, and copied after it, so that each entry is in at least one of them (the recorder skips what it has recorded). Version folders are
copied before and after the record, because a version is written before its row and removed after it.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import shutil
import sqlite3
import tarfile
import tempfile
import time
import zlib
from collections.abc import Collection, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from store.disk import sync_path
from store.errors import ConfigError
from store.journal import ROTATE_FILE, STATE_FILE, WAITED_FILE, is_marked_recorded, segments
from store.values import Json
from store.version import COMMAND, VERSION
from store.version_folders import locate

_RECORD = "record.db"
_INDEX = "backup.json"
_FORMAT = 1
#: In a restored home while its record, which lies elsewhere, is not in its place.
_SPLIT = "restored-record"
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
#: In the home: what is of one run, and copies of the record.
_LEFT_OUT = ("run", "logs", "patina.db", "metrics.prom")
_LEFT_OUT_PATTERNS = (
    "*.damaged-*", "*.recovering*", "*.restoring", "*.part", "journal/lock", f"journal/{STATE_FILE}", f"journal/{ROTATE_FILE}", f"journal/{WAITED_FILE}",
)  # fmt: skip
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupSummary:
    """What an archive holds; ``made_at`` in seconds since the epoch."""

    made_at: float
    version: str
    files: int
    turns: int
    size: int


def write_backup(home: Path, database: Path, target: Path) -> BackupSummary:
    """Write a home and its record to a new file, which only its owner can read.

    Raises:
        ConfigError: there is no record, the file exists, or something cannot be read or written.
    """
    if not database.is_file():
        raise ConfigError(f"there is no record {database}")
    if target.exists():
        raise ConfigError(f"{target} exists; name a new file")
    part, copy = (target.with_name(target.name + suffix) for suffix in (".part", ".record.part"))
    try:
        with _private_file(part) as file, tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as archive:
            writer = _Writer(archive, home, skipped={target, part, copy})
            writer.add_home()
            with _open_segments(home / "journal") as (held, recorded):
                turns = _copy_record(database, copy)
                with copy.open("rb") as record:
                    writer.add(_RECORD, record)
                for name, segment in held.items():
                    writer.add(f"home/journal/{name}", segment)
            # Also the segments that were begun meanwhile.
            writer.add_folder("journal", without=recorded)
            writer.add_folder("adapters")
            made_at = time.time()
            writer.close(made_at, turns)
        os.replace(part, target)
    except (OSError, sqlite3.Error) as exc:
        raise ConfigError(f"the backup {target} cannot be written: {exc}") from exc
    finally:
        part.unlink(missing_ok=True)
        copy.unlink(missing_ok=True)
    return BackupSummary(
        made_at=made_at,
        version=VERSION,
        files=len(writer.digests),
        turns=turns,
        size=target.stat().st_size,
    )


def read_backup(source: Path, folder: Path) -> BackupSummary:
    """Unpack an archive into an empty folder (``home/``, ``record.db``) and check every file of it.

    Raises:
        ConfigError: the file is no complete backup of this or an earlier version.
    """
    digests: dict[str, str] = {}
    index: Json | None = None
    try:
        with tarfile.open(source, mode="r:gz") as archive:
            for member in archive:
                data = archive.extractfile(member) if member.isreg() else None
                is_new = member.name not in digests
                if data is None or index is not None or not is_new or not _is_inside(member.name):
                    raise ConfigError(f"{source} is not a backup of Patina")
                if member.name == _INDEX:
                    index = json.load(data)
                else:
                    digests[member.name] = _extract(data, folder / member.name, member.mtime)
            assert archive.fileobj is not None  # it is open
            # The padding and the checksum: tarfile takes any end behind a member for the end.
            while archive.fileobj.read(1 << 16):
                pass
    except (tarfile.TarError, EOFError, zlib.error, ValueError) as exc:
        raise ConfigError(f"{source} is not a complete backup: {exc}") from exc
    except OSError as exc:
        raise ConfigError(f"{source} cannot be restored: {exc}") from exc
    if index is None or index.get("files") != digests or _RECORD not in digests:
        raise ConfigError(f"{source} is not a complete backup: it ends early, or a file in it was changed")
    if index["format"] > _FORMAT:
        raise ConfigError(f"{source} was made by Patina {index['version']}, which is newer than this one")
    (folder / "home").mkdir(exist_ok=True)
    return BackupSummary(
        made_at=index["made_at"],
        version=index["version"],
        files=len(digests),
        turns=index["turns"],
        size=source.stat().st_size,
    )


def unpacked_record(folder: Path) -> Path:
    """Return the record of an unpacked archive."""
    return folder / _RECORD


def prepare(folder: Path, home: Path, database: Path) -> None:
    """Make an unpacked archive a whole home, but for what was forgotten meanwhile (`store.restored`).

    Nothing in it names a folder elsewhere: the files of its versions are those that came with it.

    Args:
        folder: of `read_backup`, on the home's file system.
        home, database: where they will lie.
    """
    unpacked = folder / "home"
    with closing(sqlite3.connect(folder / _RECORD)) as record, record:
        for policy, version, path in record.execute("SELECT policy, version, path FROM adapters").fetchall():
            place = locate(unpacked / "adapters", policy, version, path)
            record.execute(
                "UPDATE adapters SET path = ? WHERE policy = ? AND version = ?",
                (str(home / place.relative_to(unpacked)), policy, version),
            )
    if database.is_relative_to(home):
        place = unpacked / database.relative_to(home)
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.rename(folder / _RECORD, place)
    else:
        (unpacked / _SPLIT).write_text(str(database), encoding="utf-8")
        database.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.move(folder / _RECORD, _new_record(database))


def put_back(folder: Path, home: Path, database: Path) -> Path | None:
    """Exchange the home for a prepared one; its earlier files are kept in a folder beside it, which is returned.

    Whenever this is killed, the home is the earlier or the new one, or `check_whole` says what to do.

    Raises:
        ConfigError: the home cannot be exchanged; it is as it was.
    """
    kept = home.with_name(f"{home.name}.before-{time.strftime('%Y%m%d-%H%M%S')}")
    while kept.exists():
        kept = kept.with_name(f"{kept.name}+")
    unpacked = folder / "home"
    try:
        if _exchange(unpacked, home):
            os.rename(unpacked, kept)
        else:
            os.rename(home, kept)
            os.rename(unpacked, home)
    except OSError as exc:
        raise ConfigError(
            f"the home {home} cannot be exchanged for the backup: {exc.strerror or exc}"
        ) from exc
    sync_path(home.parent)
    _place_record(home, database, kept)
    if {path.name for path in kept.iterdir()} <= {"run"}:
        shutil.rmtree(kept)
        return None
    return kept


def _place_record(home: Path, database: Path, kept: Path) -> None:
    """Put a record that lies outside the home in its place."""
    if not (home / _SPLIT).exists():
        return
    for suffix in ("-wal", "-shm", ""):
        path = database.with_name(database.name + suffix)
        if path.exists():
            shutil.move(path, kept / path.name)
    os.replace(_new_record(database), database)
    (home / _SPLIT).unlink()


def _new_record(database: Path) -> Path:
    return database.with_name(f"{database.name}.restored")


def check_whole(home: Path, database: Path) -> None:
    """Refuse a home that a restore left before its end. Raises: ConfigError, which says what to do."""
    again = f"call `{COMMAND} restore FILE` again"
    if (home / _SPLIT).exists():
        raise ConfigError(f"a restore of {home} was interrupted before its record was in its place: {again}")
    if database.exists():
        return
    aside = [*home.parent.glob(f"{home.name}.before-*"), *home.parent.glob(f"{home.name}.restoring-*/home")]
    left = sorted(path for path in aside if (path / database.name).exists())
    if left:
        raise ConfigError(
            f"{home} has no record, and {left[-1]} has one: a restore was interrupted. Rename that folder to {home}, or {again}; "
            "to begin anew, move it away"
        )


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one operation; False: the system cannot. Raises: OSError."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL):
        return False
    raise OSError(number, os.strerror(number))


@contextmanager
def unpacking_folder(home: Path) -> Iterator[Path]:
    """Make a folder beside the home, and remove what is left of it."""
    home.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{home.name}.restoring-", dir=home.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # it holds nothing that is needed


class _Writer:
    """Adds files to an archive and remembers their digests. A file that is removed meanwhile is left out."""

    def __init__(self, archive: tarfile.TarFile, home: Path, *, skipped: set[Path]) -> None:
        self.digests: dict[str, str] = {}
        self._archive = archive
        self._home = home
        self._skipped = {path.absolute() for path in skipped}

    def add_home(self) -> None:
        for entry in sorted(self._home.iterdir()):
            if entry.name.startswith(_LEFT_OUT) or entry.name == "journal":
                continue
            if entry.is_dir() and not entry.is_symlink():
                self.add_folder(entry.name)
            else:
                self._add_home_file(entry)

    def add_folder(self, name: str, *, without: Collection[str] = ()) -> None:
        for folder, _, names in os.walk(self._home / name):
            for found in sorted({*names}.difference(without)):
                self._add_home_file(Path(folder) / found)

    def _add_home_file(self, path: Path) -> None:
        inside = PurePosixPath(path.relative_to(self._home))
        name = str("home" / inside)
        is_left_out = any(inside.match(pattern) for pattern in _LEFT_OUT_PATTERNS)
        if name in self.digests or is_left_out or path.absolute() in self._skipped or not path.is_file():
            return
        with suppress(FileNotFoundError), path.open("rb") as file:
            self.add(name, file)

    def add(self, name: str, file: IO[bytes]) -> None:
        # The size when the copy begins: a segment of the journal grows meanwhile.
        found = os.fstat(file.fileno())
        reader = _HashingReader(file, found.st_size)
        member = tarfile.TarInfo(name)
        member.size, member.mode, member.mtime = found.st_size, 0o600, int(found.st_mtime)
        self._archive.addfile(member, reader)
        self.digests[name] = reader.digest.hexdigest()

    def close(self, made_at: float, turns: int) -> None:
        index = {
            "format": _FORMAT,
            "version": VERSION,
            "made_at": made_at,
            "home": str(self._home),
            "turns": turns,
            "files": self.digests,
        }
        data = json.dumps(index).encode()
        member = tarfile.TarInfo(_INDEX)
        member.size, member.mode = len(data), 0o600
        with tempfile.TemporaryFile() as file:
            file.write(data)
            file.seek(0)
            self._archive.addfile(member, file)


class _HashingReader:
    """Reads ``size`` bytes of a file and digests them."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._left = size
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        self.digest.update(data)
        return data


@contextmanager
def _private_file(path: Path) -> Iterator[IO[bytes]]:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _open_segments(folder: Path) -> Iterator[tuple[dict[str, IO[bytes]], set[str]]]:
    """Open the journal's segments, by name; those that are recorded to their end are only named."""
    with ExitStack() as stack:
        held: dict[str, IO[bytes]] = {}
        recorded = set()
        for path in segments(folder):
            with suppress(FileNotFoundError):
                file = stack.enter_context(path.open("rb"))
                if is_marked_recorded(file.fileno()):
                    recorded.add(path.name)
                else:
                    held[path.name] = file
        yield held, recorded


def _copy_record(database: Path, copy: Path) -> int:
    """Copy a record that may be in use, as of one moment; returns the number of turns in it."""
    os.close(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
    with closing(sqlite3.connect(database, timeout=60)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
        target.execute("PRAGMA journal_mode=DELETE")
        return int(target.execute("SELECT count(*) FROM turns").fetchone()[0])


def _is_inside(name: str) -> bool:
    """Whether a member belongs into a home: not what is of one run, nor beside its record."""
    parts = PurePosixPath(name).parts
    is_left_out = len(parts) > 1 and parts[1].startswith(_LEFT_OUT)
    is_plain = name == "/".join(parts) and ".." not in parts
    return name in (_RECORD, _INDEX) or (
        len(parts) > 1 and parts[0] == "home" and is_plain and not is_left_out
    )


def _extract(data: IO[bytes], path: Path, modified_at: float) -> str:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    digest = hashlib.sha256()
    with _private_file(path) as file:
        while part := data.read(_CHUNK):
            digest.update(part)
            file.write(part)
    os.utime(path, (modified_at, modified_at))
    return digest.hexdigest()
