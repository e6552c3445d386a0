"""Finds a model in Ollama's own store, by its manifests. Nothing is asked of a running Ollama, and nothing is written there.

manifests/HOST/NAMESPACE/MODEL/TAG   JSON: layers, each with a mediaType and a digest "sha256:HEX"
blobs/sha256-HEX                     the layers; that of the type `model` is a GGUF file
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from store.errors import ConfigError

#: Where Ollama keeps its models: for a user, and for the service of its Linux installer.
USUAL_FOLDERS = (Path("~/.ollama/models"), Path("/usr/share/ollama/.ollama/models"))
_HOST, _NAMESPACE, _TAG = "registry.ollama.ai", "library", "latest"
_MEDIA = "application/vnd.ollama.image."
#: Ollama's parameter -> entry of generation_config.json.
_SAMPLING = {
    "temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p", "repeat_penalty": "repetition_penalty",
    "num_predict": "max_new_tokens",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class OllamaModel:
    """A model of the store.

    Attributes:
        gguf: its blob. digest: SHA-256 of it, as the store names it.
        sampling: entries of `generation_config.json` from its parameters. stop: texts that end a reply.
        notes: what of it is not used here.
    """

    name: str
    gguf: Path
    digest: str
    sampling: Mapping[str, float] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def find_ollama_model(name: str, folder: str = "") -> OllamaModel:
    """Find ``[HOST/][NAMESPACE/]MODEL[:TAG]``; without a tag `latest`, or the only one that is there.

    Args:
        folder: of the store; "": the usual ones.

    Raises:
        ConfigError: it is not there, or is no GGUF file.
    """
    stores = [Path(folder).expanduser()] if folder else [one.expanduser() for one in USUAL_FOLDERS]
    path, tag = _split(name)
    for store in stores:
        tags = {one.name: one for one in _entries(store / "manifests" / path)}
        if not tag and _TAG not in tags and len(tags) == 1:
            tag = next(iter(tags))
        if manifest := tags.get(tag or _TAG):
            return _read(name, store, manifest)
    known = sorted({one for store in stores for one in _names(store)})
    there = f"it has {', '.join(known)}" if known else f"no models are in {' or '.join(map(str, stores))}"
    raise ConfigError(f"--model-name: Ollama's store has no model {name}; {there}")


def _split(name: str) -> tuple[Path, str]:
    """Return the manifest's folder and the tag."""
    model, _, tag = name.rpartition(":") if ":" in name.rpartition("/")[2] else (name, "", "")
    parts = model.split("/")
    if not 1 <= len(parts) <= 3 or not all(re.fullmatch(r"[\w][\w.:-]*", part) for part in parts):
        raise ConfigError(f"--model-name: ollama:{name} is not of the form ollama:NAME or ollama:NAME:TAG")
    return Path(*[_HOST, _NAMESPACE][: 3 - len(parts)], *parts), tag


def _entries(folder: Path) -> list[Path]:
    """Return the files of a folder; none where it is missing. Raises: ConfigError: it must not be read."""
    try:
        return [one for one in folder.iterdir() if one.is_file()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ConfigError(f"Ollama's store cannot be read: {folder}: {error.strerror or error}") from error


def _names(store: Path) -> list[str]:
    found = []
    for one in (store / "manifests").glob("*/*/*/*"):
        *place, tag = one.relative_to(store / "manifests").parts
        for usual in (_HOST, _NAMESPACE):
            place = place[1:] if place[0] == usual else place
        found.append("/".join(place) + ("" if tag == _TAG else f":{tag}"))
    return found


def _read(name: str, store: Path, manifest: Path) -> OllamaModel:
    def blob(digest: str) -> Path:
        return store / "blobs" / digest.replace(":", "-")

    try:
        layers = json.loads(manifest.read_text(encoding="utf-8"))["layers"]
        kinds: dict[str, list[str]] = {}
        for layer in layers:
            kinds.setdefault(str(layer["mediaType"]).removeprefix(_MEDIA), []).append(str(layer["digest"]))
        parameters = json.loads(blob(kinds["params"][0]).read_text(encoding="utf-8")) if "params" in kinds else {}  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"Ollama's manifest {manifest} cannot be read: {error!r}") from error
    if len(kinds.get("model", ())) != 1 or "adapter" in kinds:
        raise ConfigError(f"Ollama's model {name} is not one GGUF file (it has {', '.join(sorted(kinds))})")
    gguf = blob(kinds["model"][0])
    if not gguf.is_file():
        raise ConfigError(f"Ollama's model {name} lacks its file {gguf}: `ollama pull {name}` completes it")
    unused = [kind for kind in ("system", "projector") if kind in kinds]
    return OllamaModel(
        name=name,
        gguf=gguf,
        digest=kinds["model"][0].removeprefix("sha256:"),
        sampling={new: float(parameters[old]) for old, new in _SAMPLING.items() if _is_set(parameters, old)},
        stop=tuple(str(text) for text in parameters.get("stop") or ()),
        notes=tuple(f"the layer {kind} of Ollama's model is not used" for kind in unused),
    )


def _is_set(parameters: Mapping[str, Any], name: str) -> bool:
    value = parameters.get(name)  # a negative number of tokens is none
    return isinstance(value, int | float) and value >= 0
