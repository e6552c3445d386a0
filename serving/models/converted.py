"""Folders of models that were converted from GGUF files: made once, shared by all homes, whole or not there.

A folder's name ends with a hash of what it was made from: the file's SHA-256, the converter's version and the sampling defaults. The
conversion runs in a process of its own (it needs torch), writes beside the folder and is renamed when it is complete; a lock keeps a second
start waiting for the first.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from store.errors import ConfigError
from store.processes import die_with_parent
from store.settings import child_environment

#: Raised when the converter writes other numbers or token ids: versions of a model converted before are then of another base model.
CONVERTER = 1
ORIGIN = "origin.json"
_HASH = 12


def converted_folder(
    gguf: Path,
    cache: Path,
    *,
    name: str,
    digest: str = "",
    sampling: Mapping[str, float] | None = None,
    stop: tuple[str, ...] = (),
    origin: Mapping[str, object] | None = None,
) -> Path:
    """Return the folder with a GGUF file's model, converted now if it was not before.

    Args:
        digest: the file's SHA-256, where it is known.
        sampling: entries of `generation_config.json` that win over the file's own.
        stop: texts that end a reply, where they are one token.
        origin: more for `origin.json`.

    Raises:
        ConfigError: the file is damaged, or of a kind that cannot be converted.
    """
    _check_magic(gguf)
    digest = digest or digest_gguf(gguf, cache)
    made_from = {"gguf_sha256": digest, "converter": CONVERTER, "sampling": dict(sampling or {}), "stop": list(stop)}  # fmt: skip
    key = hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()[:_HASH]
    folder = cache / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}-{key}"
    if folder.is_dir():
        return folder
    with locked(cache, folder.name):
        if not folder.is_dir():
            part = folder.with_name(f".{folder.name}.part")
            shutil.rmtree(part, ignore_errors=True)  # of a conversion that was killed
            print(
                f"Converting {name} for training, once ({gguf.stat().st_size / 1e9:.2f} GB) ...", flush=True
            )
            _convert({"gguf": str(gguf), "folder": str(part), "name": name, "origin": dict(origin or {}), **made_from})  # fmt: skip
            part.rename(folder)
    return folder


def read_origin(folder: Path) -> dict[str, Any]:
    """Return what a folder's `origin.json` states; nothing where there is none."""
    try:
        found = json.loads((folder / ORIGIN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


@contextmanager
def locked(cache: Path, name: str) -> Iterator[None]:
    """Hold a lock of the cache; the kernel frees it whatever way the process ends. Raises: ConfigError: the folder cannot be written."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        file = (cache / f".{name}.lock").open("w")
    except OSError as error:
        raise ConfigError(
            f"the folder of models {cache} cannot be written: {error.strerror or error}; set PATINA_CACHE to another"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print(f"Another start prepares {name}; waiting for it ...", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def digest_gguf(gguf: Path, cache: Path) -> str:
    """Return a file's SHA-256, computed once for each state of it: a large file takes seconds to read."""
    found = gguf.stat()
    state = f"{gguf.resolve()} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino}"
    kept = cache / "digests" / hashlib.sha256(state.encode()).hexdigest()
    if kept.is_file():
        return kept.read_text(encoding="utf-8")
    with gguf.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    with locked(cache, "digests"):
        kept.parent.mkdir(exist_ok=True)
        part = kept.with_suffix(".part")
        part.write_text(digest, encoding="utf-8")
        part.replace(kept)
    return digest


def _check_magic(gguf: Path) -> None:
    try:
        with gguf.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ConfigError(f"the model file {gguf} cannot be read: {error.strerror or error}") from error
    if magic != b"GGUF":
        raise ConfigError(f"{gguf} is not a GGUF file")


def _convert(job: dict[str, Any]) -> None:
    """Run the converter; its progress goes to this process's stderr, its error comes back as one line. Raises: ConfigError."""
    done = subprocess.run(
        [sys.executable, "-m", "serving.models.convert", json.dumps(job)],
        stdout=subprocess.PIPE,
        text=True,
        env=child_environment(),
        preexec_fn=die_with_parent,
        check=False,
    )
    if done.returncode:
        shutil.rmtree(job["folder"], ignore_errors=True)
        lines = done.stdout.strip().splitlines()
        why = f"its converter ended with code {done.returncode}" + (
            " (out of memory?)" if done.returncode == -9 else ""
        )
        raise ConfigError(
            lines[-1] if done.returncode == 2 and lines else f"{job['gguf']} cannot be converted: {why}"
        )
