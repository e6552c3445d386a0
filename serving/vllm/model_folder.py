"""Reads a model's folder without any library: its configuration, and the headers of its weight files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from serving.vllm.model_facts import ModelFacts, model_facts_from_config
from store.errors import ConfigError


def read_model_facts(model: str) -> ModelFacts:
    """Read a model folder, or a name in the local Hugging Face cache.

    Raises:
        ConfigError: there is no such model here, or its configuration cannot be read.
    """
    folder = find_model_folder(model)
    config = read_json(folder / "config.json")
    generation = folder / "generation_config.json"
    defaults = read_json(generation) if generation.is_file() else {}
    temperature = defaults.get("temperature")
    return model_facts_from_config(
        model,
        config,
        parameters=_parameters(folder),
        template=_template(folder),
        temperature=float(temperature) if isinstance(temperature, int | float) else 1.0,
    )


def find_model_folder(model: str) -> Path:
    """Return the folder of a model, or of a name in the local Hugging Face cache.

    Raises:
        ConfigError: there is no such model here.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        check_folder(model)
        return folder
    if not (folder.is_absolute() or model.startswith((".", "~"))):
        found = cached_model_folder(model)
        if found is not None:
            return found
    raise ConfigError(
        f"there is no model folder {model}, and no model of that name in the local Hugging Face cache (nothing is downloaded here)"
    )


def check_folder(name: str) -> None:
    """Raises: ConfigError when a name is meant as a folder and is none, or none of a model."""
    folder = Path(name).expanduser()
    if not folder.is_dir() and (folder.is_absolute() or name.startswith((".", "~"))):
        raise ConfigError(f"there is no model folder {name}")
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise ConfigError(f"{name} is not a model folder: it has no config.json")


def cached_model_folder(name: str) -> Path | None:
    """Return the folder of a model in the local Hugging Face cache; None: it is not there, or this can be no name of one."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, "config.json")
    except HFValidationError:
        return None
    return Path(found).parent if isinstance(found, str) else None


def read_json(path: Path) -> dict[str, Any]:
    """Return a file's JSON object. Raises: ConfigError."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{path} cannot be read: {exc}") from exc
    if not isinstance(found, dict):
        raise ConfigError(f"{path} is not a JSON object")
    return found


def _parameters(folder: Path) -> int:
    """Count the parameters in the headers of the safetensors files; 0 if there are none."""
    count = 0
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length < 100_000_000:
                raise ConfigError(f"{path} is not a safetensors file")
            try:
                head = json.loads(file.read(length))
            except ValueError as exc:
                raise ConfigError(f"{path} is corrupt: {exc}") from exc
        for name, tensor in head.items():
            if name != "__metadata__":
                size = 1
                for side in tensor["shape"]:
                    size *= int(side)
                count += size
    return count


def _template(folder: Path) -> str:
    own = folder / "chat_template.jinja"
    if own.is_file():
        return own.read_text(encoding="utf-8", errors="replace")
    tokenizer = folder / "tokenizer_config.json"
    found = read_json(tokenizer).get("chat_template") if tokenizer.is_file() else None
    if isinstance(found, list):  # several named templates
        found = next(
            (t.get("template") for t in found if isinstance(t, dict) and t.get("name") == "default"), None
        )
    return found if isinstance(found, str) else ""
