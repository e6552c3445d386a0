"""`run.py export VERSION --gguf`: a version as a GGUF adapter, for llama.cpp's own server and for Ollama."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from cli.policies import chosen_policy
from serving.model_digests import digest_served_model
from serving.vllm.model_folder import find_model_folder
from store.errors import AdapterError, ConfigError
from store.integrity import check_adapter
from store.settings import OLLAMA, Settings
from store.values import AdapterState, AdapterVersion

if TYPE_CHECKING:  # the record's library takes seconds, and a help page needs none
    from store.record import Record

ADAPTER, MODELFILE = "adapter.gguf", "Modelfile"


async def export(record: Record, settings: Settings, arguments: argparse.Namespace) -> int:
    """Write the version and say how it is used.

    Raises:
        ConfigError: there is no such version or its files were removed; the folder exists; the model's adapters cannot be converted.
    """
    policy = await chosen_policy(record, settings, arguments)
    adapter = await record.adapter(policy, arguments.version)
    if adapter is None:
        raise ConfigError(f"{policy} has no version {arguments.version}; version 0 is the base model")
    if adapter.state in (AdapterState.PRUNED, AdapterState.FORGOTTEN):
        raise ConfigError(f"the files of {adapter.name} were removed: it is {adapter.state.value}")
    folder: Path = (arguments.out or Path(f"{policy}-{arguments.version}-gguf")).expanduser()
    await asyncio.to_thread(_write, adapter, settings, folder)
    base = base_of(settings)
    print(
        f"{adapter.name} is written to {folder}. To use it:\n"
        f"  llama-server -m {base if base.endswith('.gguf') else 'MODEL.gguf'} --lora {folder / ADAPTER}\n"
        f"  ollama create {policy.lower()}-{arguments.version} -f {folder / MODELFILE}\n"
        "It is a copy of what the version learned: `forget` does not reach it."
    )
    return 0


def _write(adapter: AdapterVersion, settings: Settings, folder: Path) -> None:
    from serving.llamacpp.gguf_adapter import (
        layout_of_folder,
        write_gguf_adapter,
    )  # its libraries take a while

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists: name a new folder with --out")
    try:
        check_adapter(adapter, digest_served_model(settings.model_path))
        layout = layout_of_folder(find_model_folder(settings.model_path))
        folder.mkdir(parents=True, exist_ok=True)
        write_gguf_adapter(Path(adapter.path), folder / ADAPTER, layout)
        (folder / MODELFILE).write_text(modelfile(base_of(settings)), encoding="utf-8")
    except AdapterError as error:
        raise ConfigError(f"{adapter.name} cannot be exported: {error}") from error
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror or error}") from error


def base_of(settings: Settings) -> str:
    """Return the base model as Ollama names it: a model of its store, a GGUF file, or a folder of safetensors."""
    if settings.model_name.startswith(OLLAMA):
        return settings.model_name.removeprefix(OLLAMA)
    return settings.model_gguf or str(find_model_folder(settings.model_path))


def modelfile(base: str) -> str:
    """Return Ollama's description of the base model with the adapter; the template is the base model's own."""
    return f"FROM {base}\nADAPTER ./{ADAPTER}\n"
