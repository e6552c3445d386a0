"""What is checked before anything starts: a model that cannot be had, a checkpoint that is not there, variables that are set and not used."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from serving.vllm.model_folder import cached_model_folder
from store.errors import ConfigError
from store.settings import Settings
from store.version import COMMAND

_HUB_WAIT_S = 5.0
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
    if settings.backend == "embedded" or (settings.backend == "vllm" and not settings.upstream):
        check_model(settings.model_path)


def check_model(model: str) -> None:
    """Check that a model is a folder, in the local cache, or that the hub can be reached. Raises: ConfigError."""
    if Path(model).expanduser().is_dir():
        return
    if model.startswith((".", "/", "~")) or model.count("/") > 1:
        raise ConfigError(
            f"--model-name: there is no folder {model}, and it is no name of a model on the hub"
        )
    if cached_model_folder(model) is not None:
        return
    from huggingface_hub import constants

    reason = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else _hub_problem(constants.ENDPOINT)
    if reason:
        raise ConfigError(
            f"the model {model} is not in the local cache and cannot be downloaded ({reason}): give --model-name a folder "
            "that holds it"
        )


def _hub_problem(endpoint: str) -> str:
    """Return why the hub cannot be reached, or ""."""
    try:
        with urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=_HUB_WAIT_S):
            return ""
    except urllib.error.HTTPError:
        return ""  # it answers; the download reports what it answers about this model
    except (OSError, ValueError) as exc:
        return f"{endpoint} does not answer: {getattr(exc, 'reason', exc)}"


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
