"""Reads the LoRA folder that peft writes, for engines that apply it by their own means. Standard library only."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from store.errors import AdapterError

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
_PREFIX = "base_model.model."
# Each of these changes what the adapter computes. Ignoring one would serve another policy than the trained one.
_UNSUPPORTED_FIELDS = (
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "layer_replication",
    "lora_bias",
    "megatron_config",
    "modules_to_save",
    "monteclora_config",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_dora",
    "use_qalora",
    "velora_config",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraShape:
    """The rank of an adapter, and the factor of its product."""

    rank: int
    scaling: float


def read_lora_shape(folder: Path) -> LoraShape:
    """Read the configuration of a LoRA folder. Raises AdapterError if it is missing or uses an unsupported feature."""
    config = _read_config(folder)
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, int | float):
        raise AdapterError(f"{folder}: {CONFIG} has no usable r and lora_alpha")
    return LoraShape(rank=rank, scaling=alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / CONFIG).read_text())
    except FileNotFoundError:
        raise AdapterError(f"{folder} is not an adapter folder: no {CONFIG}") from None
    except (OSError, ValueError) as error:
        raise AdapterError(f"{folder}: {CONFIG} cannot be read: {error}") from None
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise AdapterError(f"{folder}: only LoRA adapters can be served")
    unsupported = [key for key in _UNSUPPORTED_FIELDS if config.get(key)]
    if config.get("bias", "none") != "none":
        unsupported.append("bias")
    for key in ("rank_pattern", "alpha_pattern", "fan_in_fan_out"):
        if config.get(key):
            unsupported.append(key)
    if unsupported:
        raise AdapterError(f"{folder}: the adapter uses {', '.join(unsupported)}, which is not supported")
    return config


def split_key(key: str, folder: Path) -> tuple[str, str]:
    """Return the module and the part, "A" or "B", of a weight's name. Raises AdapterError for other weights."""
    for part in ("A", "B"):
        module = key.removeprefix(_PREFIX).removesuffix(f".lora_{part}.weight")
        if key.endswith(f".lora_{part}.weight"):
            return module, part
    raise AdapterError(f"{folder}: {key} is not the weight of a linear layer's LoRA")
