"""A version trained by Tinker: a folder with `tinker.json` instead of weights. Imports no SDK.

The weights stay on the Tinker server; the file holds their paths. The trainer writes both (`TrainingClient.save_weights_for_sampler`, `save_state`),
and they never change.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from store.errors import AdapterError
from store.manifest import TINKER_FILE

FILE = TINKER_FILE
_SCHEME = "tinker://"


@dataclass(frozen=True, slots=True, kw_only=True)
class TinkerVersion:
    """Location of a version's weights.

    Attributes:
        sampler_path: ``tinker://`` path for a sampling client.
        state_path: ``tinker://`` path of weights and optimizer state, for further training; "" if none was saved.
        base_model: the Tinker server's name of the trained model.
        lora_rank: rank of the adapter.
        address: server that trained it; for display, it may have moved.
    """

    sampler_path: str
    base_model: str
    state_path: str = ""
    lora_rank: int = 0
    address: str = ""


def write_version(folder: Path, version: TinkerVersion) -> Path:
    """Write ``tinker.json`` into an existing folder and flush it to disk; returns its path.

    Raises:
        AdapterError: a path in ``version`` is not a Tinker path.
        OSError: it cannot be written.
    """
    _check(version, folder)
    path = folder / FILE
    with path.open("w", encoding="utf-8") as file:
        json.dump(asdict(version), file, indent=2, sort_keys=True)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    return path


def read_version(folder: Path) -> TinkerVersion:
    """Read a version's folder; unknown fields are ignored.

    Raises:
        AdapterError: the file is missing, truncated, or not written by the trainer.
    """
    path = folder / FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise AdapterError(f"{folder} was not trained by Tinker: it has no {FILE}") from None
    except (OSError, ValueError) as exc:
        raise AdapterError(f"{path} cannot be read: {exc}") from exc
    if not isinstance(found, dict):
        raise AdapterError(f"{path} is not a JSON object")
    texts = {name: found.get(name, "") for name in ("sampler_path", "base_model", "state_path", "address")}
    rank = found.get("lora_rank", 0)
    if not all(isinstance(value, str) for value in texts.values()) or type(rank) is not int:
        raise AdapterError(f"{path} has a field of a wrong type")
    version = TinkerVersion(**texts, lora_rank=rank)
    _check(version, folder)
    return version


def _check(version: TinkerVersion, folder: Path) -> None:
    if not version.sampler_path.startswith(_SCHEME):
        raise AdapterError(f"{folder}: {FILE} has no {_SCHEME} path to sample from")
    if version.state_path and not version.state_path.startswith(_SCHEME):
        raise AdapterError(f"{folder}: the state_path in {FILE} is not a {_SCHEME} path")
    if not version.base_model:
        raise AdapterError(f"{folder}: {FILE} does not name its base model")
