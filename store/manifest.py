"""The manifest of an adapter version: which bytes the trainer wrote, and for which model. Standard library only.

`manifest.json` lies in the version's folder and names every other file with its SHA-256, the digests of the base model, the tokenizer
and the chat template, and the trainer's log-probabilities of a fixed text (`Attestation`). The record keeps the manifest's own hash. Whatever
loads a version calls `check_version` first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from store.errors import AdapterError, AdapterMismatch

MANIFEST = "manifest.json"
#: Beside it: the home's signature over manifest and files (`store.version_signature`).
SIGNATURE = "model.sig"
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
TINKER_FILE = "tinker.json"

#: What an engine loads; the content hash is of these and nothing else.
_SERVED = (ADAPTER_CONFIG, ADAPTER_WEIGHTS)
_SERVED_BY_TINKER = (TINKER_FILE,)
_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "merges.txt", "added_tokens.json",
    "special_tokens_map.json",
)  # fmt: skip
_TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")
_SHOWN = 12
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDigests:
    """SHA-256 digests of a model's files; "" where a file is not on this machine, which is then not compared."""

    base_model: str = ""
    tokenizer: str = ""
    chat_template: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attestation:
    """Log-probabilities of a fixed text, by the trainer's weights. A backend that serves the version reports the same.

    Attributes:
        token_ids: [T] the text.
        version: [T - 1] of each token after the first, under the version.
        parent: [T - 1] under the version it was made from.
        base: [T - 1] under the base model.
        parent_name: of the version it was made from, as an engine names it.
    """

    token_ids: tuple[int, ...]
    version: tuple[float, ...]
    parent: tuple[float, ...]
    base: tuple[float, ...]
    parent_name: str


def digest_model(folder: Path) -> ModelDigests:
    """Digest a model's folder; computed once for each state of its files.

    Raises:
        AdapterError: a file cannot be read.
    """
    try:
        weights = sorted(path for kind in ("*.safetensors", "*.bin") for path in folder.glob(kind))
        if weights and (folder / "config.json").is_file():
            weights.append(folder / "config.json")
        groups = (weights, _present(folder, _TOKENIZER_FILES), _present(folder, _TEMPLATE_FILES))
        parts = [_digest_files(tuple((path, _state(path)) for path in group)) for group in groups]
    except OSError as error:
        raise AdapterError(f"the model in {folder} cannot be read: {error.strerror or error}") from error
    # A template inside the tokenizer's configuration is part of the tokenizer's digest.
    return ModelDigests(base_model=parts[0], tokenizer=parts[1], chat_template=parts[2])


def _present(folder: Path, names: tuple[str, ...]) -> list[Path]:
    return [folder / name for name in names if (folder / name).is_file()]


def _state(path: Path) -> tuple[int, ...]:
    found = path.stat()
    # The time of the last change of the inode cannot be set back, the modification time can.
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


@lru_cache(maxsize=32)
def _digest_files(files: tuple[tuple[Path, tuple[int, ...]], ...]) -> str:
    """Return one digest of several files; their states are the cache's key. "" of none."""
    if not files:
        return ""
    lines = [f"{_digest_file(path)}  {path.name}\n" for path, _ in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _digest_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_hash(served: Mapping[str, bytes]) -> str:
    """Return the hex SHA-256 of the served files, each with its name and length."""
    digest = hashlib.sha256()
    for name in _SERVED_BY_TINKER if TINKER_FILE in served else _SERVED:
        body = served[name]
        digest.update(f"{name}\0{len(body)}\0".encode())
        digest.update(body)
    return digest.hexdigest()


def build_manifest(
    files: Mapping[str, bytes], *, name: str, model: ModelDigests, attestation: Attestation | None = None
) -> bytes:
    """Return the content of `manifest.json` for a version of these files."""
    body = {
        "format": _FORMAT,
        "version": name,
        "signature": SIGNATURE,  # lies beside it in a home: one that is lost is noticed
        **asdict(model),
        **({} if attestation is None else {"attestation": asdict(attestation)}),
        "files": {path: hashlib.sha256(data).hexdigest() for path, data in files.items()},
    }
    return json.dumps(body, indent=2, sort_keys=True).encode() + b"\n"


def hash_manifest(manifest: bytes) -> str:
    """Return the hash by which the record knows a manifest."""
    return hashlib.sha256(manifest).hexdigest()


def read_served(folder: Path) -> dict[str, bytes]:
    """Return the files of a version that an engine loads.

    Raises:
        AdapterError: the folder or one of the files is missing or cannot be read.
    """
    if not folder.is_dir():
        raise AdapterError(f"there is no adapter folder {folder}")
    names = _SERVED_BY_TINKER if (folder / TINKER_FILE).exists() else _SERVED
    try:
        return {name: (folder / name).read_bytes() for name in names}
    except FileNotFoundError as error:
        missing = Path(str(error.filename)).name
        raise AdapterError(f"{folder} is not an adapter folder: no {missing}") from None
    except OSError as error:
        raise AdapterError(f"the adapter in {folder} cannot be read: {error.strerror or error}") from error


def check_version(
    folder: Path, *, content: str | None = None, manifest: str = "", model: ModelDigests | None = None
) -> bool:
    """Check a version's folder against its manifest, and both against what the record knows.

    Args:
        content: content hash that the record has; None: unknown.
        manifest: hash of the manifest that the record has; "": of a version from before manifests, or unknown.
        model: the model that will serve the version; None: not compared.

    Returns:
        Whether the folder has a manifest. A version of an earlier Patina has none and is checked by ``content`` alone.

    Raises:
        AdapterMismatch: a file is not what the trainer wrote, or the version is of another model.
        AdapterError: the folder is missing or cannot be read.
    """
    if folder.is_symlink() or not folder.is_dir():
        raise AdapterError(f"there is no adapter folder {folder}")
    body = _read_manifest(folder)
    if body is None and manifest:
        raise AdapterMismatch(f"the adapter in {folder} has lost its {MANIFEST}")
    if body is not None:
        _check_manifest(folder, body, manifest, model)
    if content is not None and (found := content_hash(read_served(folder))) != content:
        raise AdapterMismatch(
            f"the adapter in {folder} is not what was published: its hash is {found[:_SHOWN]}…, not {content[:_SHOWN]}…"
        )
    return body is not None


def _read_manifest(folder: Path) -> bytes | None:
    """Return the manifest's file; None: there is none. Raises: AdapterError: it cannot be read."""
    try:
        return (folder / MANIFEST).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AdapterError(f"{folder / MANIFEST} cannot be read: {error.strerror or error}") from error


def _check_manifest(folder: Path, body: bytes, expected: str, model: ModelDigests | None) -> None:
    if expected and hash_manifest(body) != expected:
        raise AdapterMismatch(f"the {MANIFEST} in {folder} is not what was published")
    found = _parse(folder, body)
    files: dict[str, str] = found["files"]
    try:
        there = _names(folder) - {MANIFEST, SIGNATURE}
        if missing := files.keys() - there:
            raise AdapterMismatch(f"the adapter in {folder} has lost {', '.join(sorted(missing))}")
        if added := there - files.keys():
            raise AdapterMismatch(
                f"the adapter in {folder} has files that the trainer did not write: {', '.join(sorted(added))}"
            )
        changed = [name for name in sorted(files) if _digest_file(folder / name) != files[name]]
    except OSError as error:
        raise AdapterError(f"the adapter in {folder} cannot be read: {error.strerror or error}") from error
    if changed:
        raise AdapterMismatch(
            f"the adapter in {folder} is not what was published: {', '.join(changed)} changed"
        )
    for name, digest in asdict(model or ModelDigests()).items():
        if digest and found.get(name) and found[name] != digest:
            raise AdapterMismatch(f"the adapter in {folder} was trained for another {name.replace('_', ' ')}")


def read_attestation(folder: Path) -> Attestation | None:
    """Return the log-probabilities in a version's manifest; None where there are none, as in versions of an earlier Patina.

    Raises:
        AdapterMismatch: the manifest is torn.
        AdapterError: it cannot be read.
    """
    body = _read_manifest(folder)
    if body is None:
        return None
    found = _parse(folder, body).get("attestation")
    if found is None:
        return None
    try:
        values = {
            name: tuple(float(value) for value in found[name]) for name in ("version", "parent", "base")
        }
        token_ids = tuple(int(value) for value in found["token_ids"])
        attestation = Attestation(token_ids=token_ids, parent_name=str(found["parent_name"]), **values)
    except (KeyError, TypeError, ValueError) as error:
        raise AdapterMismatch(f"the {MANIFEST} in {folder} has a torn attestation") from error
    if len(token_ids) < 2 or {len(one) for one in values.values()} != {len(token_ids) - 1}:
        raise AdapterMismatch(f"the {MANIFEST} in {folder} has a torn attestation")
    return attestation


def _names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


def digest_folder(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file of a version but its signature. Raises: OSError."""
    return {name: _digest_file(folder / name) for name in sorted(_names(folder) - {SIGNATURE})}


def is_signed(folder: Path) -> bool:
    """Whether a version has a signature, or has lost the one that its manifest names. Raises: AdapterError."""
    if (folder / SIGNATURE).exists():
        return True
    body = _read_manifest(folder)
    return body is not None and "signature" in _parse(folder, body)


def _parse(folder: Path, body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        raise AdapterMismatch(f"the {MANIFEST} in {folder} is torn") from None
    if (
        not isinstance(found, dict)
        or found.get("format") != _FORMAT
        or not isinstance(found.get("files"), dict)
    ):
        raise AdapterMismatch(f"the {MANIFEST} in {folder} is not a manifest of this version of Patina")
    return found
