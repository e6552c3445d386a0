"""Adapter versions on disk: immutable, content-addressed folders that peft and vLLM load as they are. No torch.

Where a Tinker server holds the weights, ``tinker.json`` (`serving.tinker.version`) stands in for peft's two files: it says where they
are. Everything else is the same.

    <adapters>/<policy>@<version>.<first 12 of the hash>/
        adapter_config.json            peft's format
        adapter_model.safetensors      peft's format
        patina/trainer_state.safetensors   Adam's moments, EMA of the adapter, torch's random state
        patina/metrics.json            what the step and the gate measured
        manifest.json                  SHA-256 of every file, digests of the model (`store.manifest`)
        model.sig                      the home's signature over all of these (`store.version_signature`)

Rules of the room:
- A folder is written beside its place, flushed to the disk, then renamed: it exists whole or not at all.
- **Nothing is ever overwritten.** The name holds the content's hash, so the same content finds itself there already, and other
  content under the same version number (a step that died before its row was written, and ran again) goes beside it.
- Engines key their caches by adapter name and path; a folder that changed under them would serve a mixture.
- Loading never unpickles: safetensors and JSON only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import safetensors

from serving.tinker.version import read_version
from store.disk import sync_path
from store.errors import AdapterError, ConfigError
from store.manifest import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    MANIFEST,
    SIGNATURE,
    TINKER_FILE,
    Attestation,
    ModelDigests,
    build_manifest,
    check_version,
    content_hash,
    hash_manifest,
    read_served,
)
from store.signing import read_signing_key
from store.values import AdapterVersion, adapter_name
from store.version_folders import UNFINISHED, leftovers
from store.version_signature import sign_files
from trainer.protocol import WrittenVersion

TRAINER_STATE = "patina/trainer_state.safetensors"
METRICS = "patina/metrics.json"

_HASH_IN_NAME = 12


def write_version(
    adapters: Path,
    policy: str,
    version: int,
    files: Mapping[str, bytes],
    *,
    metrics: Mapping[str, Any],
    model: ModelDigests | None = None,
    attestation: Attestation | None = None,
    home: Path | None = None,
) -> WrittenVersion:
    """Write one version; when this returns it is on the disk and will survive a power cut.

    Args:
        adapters: the folder of all versions; made when missing.
        files: from `Policy.version_files`.
        metrics: JSON; not a number is written as null.
        model: the model that it is for, for the manifest; None: unknown.
        attestation: by which a backend that serves it is recognised; None: it is not attested.
        home: whose key signs it; None: it is not signed.

    Raises:
        AdapterError: the disk is full, the folder cannot be written, or holds something else under this very name.
    """
    digest = content_hash(files)
    whole = {**files, METRICS: _json(metrics)}
    manifest = build_manifest(
        whole, name=adapter_name(policy, version), model=model or ModelDigests(), attestation=attestation
    )
    target = adapters / f"{adapter_name(policy, version)}.{digest[:_HASH_IN_NAME]}"
    return _store(target, {**whole, MANIFEST: manifest}, digest, home)


def version_bytes(folder: Path) -> dict[str, bytes]:
    """Return every file of a version by its name inside the folder; `store_version` writes them again.

    Raises:
        AdapterError: a file cannot be read.
    """
    try:
        return {
            file.relative_to(folder).as_posix(): file.read_bytes()
            for file in folder.rglob("*")
            if file.is_file()
        }
    except OSError as error:
        raise AdapterError(f"{folder} cannot be read: {error.strerror or error}") from error


def store_version(
    adapters: Path, name: str, files: Mapping[str, bytes], digest: str, home: Path | None = None
) -> WrittenVersion:
    """Write a version that was made elsewhere, from `version_bytes`. The caller verifies it.

    Args:
        name: of the version's folder.
        digest: its content hash.
        home: whose key signs it, in place of the signature that came with it; None: it is not signed.

    Raises:
        AdapterError: the files cannot be written, or a name leads out of the folder.
    """
    for one in (name, *files):
        if Path(one).is_absolute() or ".." in Path(one).parts or (one == name and len(Path(one).parts) != 1):
            raise AdapterError(f"{one!r} is no name of a version's file")
    return _store(adapters / name, files, digest, home)


def _store(target: Path, files: Mapping[str, bytes], digest: str, home: Path | None) -> WrittenVersion:
    """Write a version's folder beside its place, flush it, and rename it."""
    adapters = target.parent
    unfinished = adapters / f"{UNFINISHED}{os.getpid()}-{secrets.token_hex(4)}"
    try:
        adapters.mkdir(parents=True, exist_ok=True, mode=0o700)
        if target.exists():
            verify_version(target, digest)
            manifest = (target / MANIFEST).read_bytes()
            return WrittenVersion(path=target, content_hash=digest, manifest_hash=hash_manifest(manifest))
        for name, body in _signed(target.name, files, home).items():
            _write(unfinished / name, body)
        for folder in (unfinished / "patina", unfinished):
            _flush(folder)
        unfinished.rename(target)  # refuses a folder that another process filled meanwhile
        _flush(adapters)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)  # what stays behind, `sweep` finds
        raise AdapterError(
            f"version {target.name} cannot be written to {adapters}: {error.strerror or error}"
        ) from error
    return WrittenVersion(
        path=target, content_hash=digest, manifest_hash=hash_manifest(files.get(MANIFEST, b""))
    )


def _signed(name: str, files: Mapping[str, bytes], home: Path | None) -> dict[str, bytes]:
    """Return the files of a version with the home's signature, or without one."""
    unsigned = {path: body for path, body in files.items() if path != SIGNATURE}
    if home is None:
        return unsigned
    digests = {path: hashlib.sha256(body).hexdigest() for path, body in unsigned.items()}
    try:
        return {**unsigned, SIGNATURE: sign_files(name, digests, read_signing_key(home))}
    except ConfigError as error:
        raise AdapterError(f"version {name} cannot be signed: {error}") from error


def verify_version(
    folder: Path,
    expected_hash: str | None = None,
    *,
    manifest_hash: str = "",
    model: ModelDigests | None = None,
) -> str:
    """Content hash of a version folder, after a look at whether it can be loaded.

    Args:
        manifest_hash: of its manifest, where the record has one.
        model: the model that trains on it.

    Raises:
        AdapterError: missing, torn, or not what ``expected_hash`` or its manifest says.
    """
    check_version(folder, content=expected_hash, manifest=manifest_hash, model=model)
    served = read_served(folder)
    if TINKER_FILE in served:
        read_version(folder)
        return content_hash(served)
    try:
        config = json.loads(served[ADAPTER_CONFIG])
        # safetensors does not type it; its numpy and torch readers would not do: no bfloat16 there, no torch here
        tensors = safetensors.deserialize(served[ADAPTER_WEIGHTS])  # type: ignore[no-untyped-call]
    except (ValueError, safetensors.SafetensorError) as error:
        raise AdapterError(f"the adapter in {folder} is torn: {error}") from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA" or not tensors:
        raise AdapterError(f"{folder} holds no LoRA adapter")
    return content_hash(served)


def versions_to_keep(
    parents: Mapping[int, int],
    live: int,
    *,
    newest: int = 8,
    every: int = 20,
    wanted: Iterable[int] = (),
    sizes: Mapping[int, int] | None = None,
    budget: int = 0,
) -> set[int]:
    """Versions whose files stay: the newest, every N-th, the live one, the one it was made from, and those that are wanted.

    All ancestors of the live version would be every version there ever was: each is made from the one before. ``budget`` keeps as many of
    the others as fit, the newest first.

    Args:
        parents: version -> the version its step started from, for all versions that have files.
        live: what the alias points to; 0 when it is the base model.
        wanted: pinned versions, and those of canary releases.
        sizes: bytes of each version's files.
        budget: bytes of all files that may stay; the versions that stay anyway count first.
    """
    keep = {
        *sorted(parents)[len(parents) - min(newest, len(parents)) :],
        *(v for v in parents if v % every == 0),
        live,
        parents.get(live, live),
        *wanted,
    } & parents.keys()
    sizes = sizes or {}
    if budget <= 0:
        return keep
    left = budget - sum(sizes.get(version, 0) for version in keep)
    for version in sorted(parents.keys() - keep, reverse=True):
        left -= sizes.get(version, 0)
        if left < 0:
            break
        keep.add(version)
    return keep


def folder_size(path: Path) -> int:
    """Return the bytes of the files in a folder; 0 for one that is not here."""
    if not path.is_dir():
        return 0
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def remove_version(folder: Path) -> None:
    """Remove a version's files for good: renamed first, so that a half-removed folder is never taken for a version.

    Raises:
        AdapterError: the files cannot be removed.
    """
    try:
        if folder.is_symlink():
            folder.unlink()  # what it leads to is not ours
            return
        doomed = folder.rename(folder.parent / f"{UNFINISHED}{os.getpid()}-{secrets.token_hex(4)}")
        shutil.rmtree(doomed)
    except FileNotFoundError:
        return
    except OSError as error:
        raise AdapterError(f"{folder} cannot be removed: {error.strerror or error}") from error


def read_rank(folder: Path) -> int | None:
    """Return the rank of the adapter in a version's folder; None where it does not say. Raises: AdapterError."""
    try:
        found = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AdapterError(f"the adapter in {folder} cannot be read: {error}") from error
    rank = found.get("r")
    return rank if isinstance(rank, int) else None


def sweep(
    adapters: Path,
    versions: Iterable[AdapterVersion],
    policies: Iterable[str],
    *,
    remove: Callable[[Path], None] = remove_version,
) -> list[Path]:
    """Remove what a dead worker left behind; call at start, when no other worker writes here.

    A folder that the record does not speak of is of a step that died between writing and publishing: its turns will be trained again.

    Args:
        adapters: the folder of all policies' versions.
        versions: all of the record.
        policies: of the base model that is trained; the versions of others stay.
        remove: how a whole version is removed.

    Returns:
        What was removed.
    """
    removed = leftovers(adapters, versions, policies=policies)
    for folder in removed:
        if folder.name.startswith(UNFINISHED):
            shutil.rmtree(folder, ignore_errors=True)
        else:
            remove(folder)
    return removed


def _write(path: Path, body: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with path.open("xb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())


def _flush(folder: Path) -> None:
    # Some network file systems cannot flush a folder; their rename is as safe as they make it.
    with contextlib.suppress(OSError):
        sync_path(folder)


def _json(value: Mapping[str, Any]) -> bytes:
    # JSON has no NaN; a reader in another language would choke on Python's.
    return json.dumps(finite(value), indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False).encode()


def finite(value: Any) -> Any:
    """Return JSON with null for what is not a number: the record takes nothing else, and a rejected version may measure NaN."""
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
