"""What is checked before anything starts: a checkpoint that is not there, variables that are set and not used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from store.errors import ConfigError
from store.settings import Settings
from store.version import COMMAND

#: Variables of the launchers of other systems that Patina does not read, and what takes their place.
_FOREIGN = {
    "TINKER_HOST": "give --tinker-base-url (TINKER_BASE_URL)",
    "PRM_MODEL_PATH": "give --judge with a model name, and --judge-api-base for a server of your own",
    "MODEL": "give --model-name (MODEL_NAME)",
    "LORA_NAME": "give --served-model-name",
    "FEEDBACK_BATCH_SIZE": "give --batch-size (BATCH_SIZE)",
    "SAVE_CKPT": "versions are in the home's folder adapters/ (--home)",
    "PORT": "give --proxy-port (PROXY_PORT)",
    "NUM_GPUS": "--backend vllm uses the GPUs that --vllm-args names",
    "CLAAS_LORA_ROOT": "versions are in the home's folder adapters/ (--home)",
    "CLAAS_MODE": "give --backend",
}


def check_start(settings: Settings) -> None:
    """Check what a process would find out only after a long wait.

    Raises:
        ConfigError: in one sentence.
    """
    checkpoint = settings.resume_from_ckpt
    if checkpoint and "://" not in checkpoint and not Path(checkpoint).expanduser().is_dir():
        raise ConfigError(f"--resume-from-ckpt: there is no folder {checkpoint}")


def notes_on_environment(settings: Settings, environment: Mapping[str, str]) -> list[str]:
    """Return a sentence for each variable that a user may expect to count and that does not."""
    notes = [
        f"{name} is set and not used: {instead}"
        for name, instead in _FOREIGN.items()
        if environment.get(name)
    ]
    known = {*_FOREIGN, "CLAAS_BASE_MODEL_ID"}
    notes += [
        f"{name} is set and not used: Patina reads its own variables (`{COMMAND} --help`)"
        for name in sorted(environment)
        if name.startswith("CLAAS_") and name not in known and environment[name]
    ]
    if settings.tinker_base_url and settings.backend != "tinker":
        notes.append(
            f"TINKER_BASE_URL is set and not used: --backend is {settings.backend}; name a model of that server with --model-name"
        )
    return notes
